"""One timed run of Tianshou 2 PPO: its procedural interface, DummyVectorEnv and trainer, without a test collector."""

from __future__ import annotations

from typing import Any

from _driver import UpdateClock, emit, greedy_returns, parse_args

args = parse_args()

import gymnasium  # noqa: E402  (the thread count has to be set first)
import numpy as np  # noqa: E402
import tianshou  # noqa: E402
import torch  # noqa: E402
from tianshou.algorithm import PPO  # noqa: E402
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy  # noqa: E402
from tianshou.algorithm.optim import AdamOptimizerFactory  # noqa: E402
from tianshou.data import Collector, CollectStats, ReplayBuffer, VectorReplayBuffer  # noqa: E402
from tianshou.env import DummyVectorEnv  # noqa: E402
from tianshou.trainer import OnPolicyTrainerParams  # noqa: E402
from tianshou.utils.net.common import Net  # noqa: E402
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic  # noqa: E402
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic  # noqa: E402
from torch.distributions import Categorical, Independent, Normal  # noqa: E402

BATCH = args.num_envs * args.rollout


def parts(env: gymnasium.Env) -> tuple[Any, Any]:
    """Returns a policy and a critic for the spaces of an env."""

    def tower() -> Net:
        return Net(state_shape=env.observation_space.shape, hidden_sizes=[64, 64], activation=torch.nn.Tanh)

    space: Any = env.action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        actor = DiscreteActor(preprocess_net=tower(), action_shape=space.n, softmax_output=False)
        policy = DiscreteActorPolicy(actor=actor, dist_fn=lambda logits: Categorical(logits=logits), action_space=space)
        return policy, DiscreteCritic(preprocess_net=tower())
    actor = ContinuousActorProbabilistic(preprocess_net=tower(), action_shape=space.shape, unbounded=True)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda parameters: Independent(Normal(*parameters), 1),
        action_scaling=True,
        action_bound_method='clip',
        action_space=space,
    )
    return policy, ContinuousCritic(preprocess_net=tower())


def act_greedily(policy: Any) -> Any:
    def act(obs: np.ndarray) -> Any:
        output, _ = policy.actor(torch.as_tensor(obs, dtype=torch.float32)[None])
        if isinstance(policy, DiscreteActorPolicy):
            return int(output.argmax())
        return policy.map_action(output[0][0].numpy())

    return act


def main() -> None:
    torch.set_num_threads(args.threads)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    clock = UpdateClock(args)
    envs = DummyVectorEnv([lambda: gymnasium.make(args.env) for _ in range(args.num_envs)])
    envs.seed(args.seed)
    policy, critic = parts(gymnasium.make(args.env))
    algorithm = PPO(
        policy=policy,
        critic=critic,
        optim=AdamOptimizerFactory(lr=args.lr),
        eps_clip=0.2,
        vf_coef=0.5,
        ent_coef=args.entropy,
        max_grad_norm=0.5,
        gae_lambda=0.95,
        gamma=0.99,
        advantage_normalization=True,
        value_clip=False,
        recompute_advantage=False,
    )
    buffer = VectorReplayBuffer(BATCH, args.num_envs) if args.num_envs > 1 else ReplayBuffer(BATCH)
    params = OnPolicyTrainerParams(
        training_collector=Collector[CollectStats](algorithm, envs, buffer),
        test_collector=None,
        max_epochs=1,
        epoch_num_steps=args.total_steps // BATCH * BATCH,
        update_step_num_repetitions=args.epochs,
        batch_size=args.minibatch,
        collection_step_num_env_steps=BATCH,
        show_progress=False,
    )
    clock.begin()
    algorithm.run_training(params)
    with torch.no_grad():
        returns = greedy_returns(gymnasium.make(args.env), act_greedily(policy), args.episodes, args.seed)
    emit(args, clock, 'Tianshou', tianshou.__version__, returns, gymnasium=gymnasium.__version__)


main()
