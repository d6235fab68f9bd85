"""Policies over every kind of action: the ratio before the first step, masks from acting to the gradient, learning."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from tests.envs import play
from zoo import evaluate, load_policy, make_policy, serial_pipeline
from zoo.core.action_map import action_width
from zoo.core.data import first_leaf
from zoo.core.errors import UserError
from zoo.core.registry import POLICY_REGISTRY
from zoo.core.seeding import stream
from zoo.core.spaces import Dict, leaf_spaces, leaves_by_path
from zoo.env import EnvConfig, make_env, make_env_groups, make_vector_env
from zoo.policy.sequences import rows_of, run_model
from zoo.run.checkpoint.file import load_checkpoint
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.worker.collector import Collector

SMALL_INTEGERS = {
    'discrete': lambda: spaces.Discrete(3, dtype=np.int8),
    'from_2': lambda: spaces.Discrete(3, start=2, dtype=np.int16),
    'multi': lambda: spaces.MultiDiscrete([3, 4], dtype=np.int32),
    'multi_from_1': lambda: spaces.MultiDiscrete([[3], [4]], start=[[1], [2]], dtype=np.uint8),
    'nested': lambda: spaces.Dict(
        move=spaces.Tuple((spaces.Discrete(2, dtype=np.int32), spaces.MultiDiscrete([2, 2], dtype=np.int16))),
        force=spaces.Box(-1, 1, (2,), np.float64),
    ),
}


class StrictEnv(gymnasium.Env):
    """Takes only actions that its space contains, which means arrays of the space's own number type."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, action: str) -> None:
        self.action_space = SMALL_INTEGERS[action]()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), f'{action!r} is not in {self.action_space}'
        self.t += 1
        return np.full(2, self.t / 5, np.float32), 1.0, self.t == 5, False, {}


def numbers(n: int) -> spaces.Box:
    return spaces.Box(-1, 1, (n,), np.float32)


DOTTED = {
    'equal widths': lambda: spaces.Dict({'a.b': numbers(2), 'a': spaces.Dict({'b': numbers(2)})}),
    'other widths': lambda: spaces.Dict({'a.b': numbers(2), 'a': spaces.Dict({'b': numbers(3)})}),
    'empty name': lambda: spaces.Dict({'': numbers(2), 'x': spaces.Dict({'': numbers(1), 'y/z': numbers(1)})}),
}


class DottedEnv(gymnasium.Env):
    """Observations whose entries have dots or nothing in their names, and actions alike; ends after 4 steps."""

    action_space = spaces.Dict({'g.x': spaces.Discrete(2), 'g': spaces.Dict({'x': spaces.Discrete(3, start=1)})})

    def __init__(self, kind: str) -> None:
        self.observation_space = DOTTED[kind]()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == 4, False, {}


QUIET = dict(console='off', tensorboard=False)
ACTIONS = {  # action spaces of the env 'one_step', and their distributions
    'discrete': ['categorical'],
    'multi_discrete': ['multi_categorical'],
    'multi_binary': ['bernoulli'],
    'box': ['gaussian', 'squashed_gaussian', 'gsde', 'beta'],
    'box_2d': ['gaussian', 'squashed_gaussian', 'gsde', 'beta'],
    'dict': ['composite', 'squashed_gaussian'],
    'tuple': ['composite'],
}
CASES = [(action, name) for action, names in ACTIONS.items() for name in names]
MASKED = [(action, ACTIONS[action][0]) for action in ('discrete', 'multi_discrete', 'multi_binary', 'dict', 'tuple')]


def config_of(action: str, distribution: str, **sections: Any) -> Any:
    policy = dict(
        type='ppo',
        model=dict(distribution='auto' if distribution == 'composite' else distribution, **sections.pop('model', {})),
        collect=dict(n_step=16),
        learn=dict(batch_size=64, **sections.pop('learn', {})),
    )
    env = dict(id='one_step', kwargs=dict(action=action, masked=sections.pop('masked', False)), collector_env_num=4)
    return resolve_config(dict(exp_name='x', max_env_step=10_000, env=env, policy=policy, **sections))


def rollout_of(cfg: Any, n_rollout: int = 2) -> tuple[Any, Any]:
    """An untrained policy for a config, and the last of `n_rollout` rollouts."""
    groups = make_env_groups(cfg.env)
    spaces = groups[0].obs_space, groups[0].action_space
    policy = POLICY_REGISTRY.get(cfg.policy.type)(cfg.policy, *spaces, action_mode=cfg.env.action_mode)
    collector = Collector(groups, policy.collect_mode)
    collector.reset(stream(0, 'test'))
    for _ in range(n_rollout):
        rollout = collector.collect()
    for group in groups:
        group.close()
    return policy, rollout


def train(root: Path, n_step: int, env: dict[str, Any], top: Any = None, seed: int | None = None, **policy: Any) -> Any:
    """The result of a quiet run of so many env steps; policy: its sections; top: more of the config."""
    logger = dict(root=str(root), **QUIET)
    cfg = dict(
        exp_name='x', max_env_step=n_step, env=env, policy={'type': 'ppo', **policy}, logger=logger, **(top or {})
    )
    return serial_pipeline(cfg) if seed is None else serial_pipeline(cfg, seed=seed)


@pytest.mark.parametrize(
    ('action', 'distribution', 'masked', 'recurrent', 'executor'),
    [
        (*case, masked, *rest)
        for i, (case, masked) in enumerate([*((x, False) for x in CASES), *((x, True) for x in MASKED)])
        for rest in ((None, 'auto'), (('lstm', 'mingru')[i % 2], 'eager'))
    ],
)
def test_ratio_is_one_before_the_first_step(
    action: str, distribution: str, masked: bool, recurrent: str | None, executor: str
) -> None:
    """The log-probability of each action under the unchanged policy is that of the stored parameters, to 1e-6."""
    model = {} if recurrent is None else dict(recurrent=dict(cell=recurrent, hidden_size=16))
    learn = dict(executor=executor) | ({} if recurrent is None else dict(sequence=dict(len=8)))
    policy, rollout = rollout_of(config_of(action, distribution, model=model, learn=learn, masked=masked))
    assert policy.dist.name == ('composite' if action in ('dict', 'tuple') else distribution)
    samples = policy.collect_mode.get_train_sample(rollout)
    with torch.no_grad():
        logit = run_model(policy.model, 'compute_actor_critic', samples)['logit']
    rows = rows_of(samples)
    log_ratio = policy.dist.log_prob(logit, rows['action']) - policy.dist.log_prob(rows['logit'], rows['action'])
    assert log_ratio.isfinite().all() and log_ratio.shape == (64,)
    assert log_ratio.abs().max() < (1e-6 if executor == 'eager' else 5e-6)  # C and torch add in different orders
    assert policy.dist.entropy(logit).isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'action', 'source'),
    [
        ('ppo', 'discrete', 'info'),
        ('ppg', 'multi_discrete', 'obs'),
        ('ppo_offpolicy', 'multi_discrete', 'method'),
        ('ppg_offpolicy', 'discrete', 'obs'),
    ],
)
def test_masked_policies_learn_what_is_legal(name: str, action: str, source: str, tmp_path: Path) -> None:
    """The env raises an error on an illegal action and rewards the lowest legal one, which only the mask shows."""
    n_sample = 512
    learn: dict[str, Any] = dict(learning_rate=1e-2, batch_size=128)
    if name.startswith('ppg'):
        learn |= dict(aux_freq=4, aux_batch_size=512)
    draw = dict(n_sample=n_sample, update_per_collect=2)
    buffer = {'ppo_offpolicy': dict(size=1024, **draw), 'ppg_offpolicy': dict(size=1024, policy=draw, value=draw)}
    env = dict(id='random_masks', kwargs=dict(action=action, source=source), collector_env_num=8)
    policy = dict(type=name, learn=learn, collect=dict(n_step=64), eval=dict(n_episode=8))
    top = {'buffer': buffer[name]} if name in buffer else {}
    result = train(tmp_path, 12 * n_sample, env, top, **policy)
    assert result.last_return is not None and result.last_return >= 8.0  # of 10; random actions get 4.1 (8 actions)
    policy = load_policy(result.run_dir)
    env = make_env(dict(id='random_masks', kwargs=dict(action=action, source=source)))
    obs, _ = env.reset(seed=5)
    for _ in range(10):
        obs, *_ = env.step(policy.act(obs))
    with pytest.raises(UserError, match='the action mask of observation 0 forbids every action'):
        policy.act({**obs, 'action_mask': np.zeros_like(obs['action_mask'])})


@pytest.mark.soak
@pytest.mark.parametrize(('action', 'executor'), [('discrete', 'eager'), ('multi_discrete', 'auto')])
def test_no_illegal_action_in_50k_env_steps(action: str, executor: str, tmp_path: Path) -> None:
    """Neither sampled in training nor greedy in an evaluation: the env raises an error on an illegal action."""
    env = dict(id='random_masks', kwargs=dict(action=action), collector_env_num=8)
    learn = dict(batch_size=512, executor=executor)
    result = train(tmp_path, 51_200, env, learn=learn, collect=dict(n_step=256))
    assert result.env_step == 51_200


@pytest.mark.parametrize('action', ['discrete', 'multi_discrete', 'multi_binary', 'tuple'])
def test_gradient_of_forbidden_choices_is_exactly_zero(action: str) -> None:
    """The gradient of policy loss, entropy bonus and cloning KL, at the output of the policy head."""
    policy, rollout = rollout_of(config_of(action, ACTIONS[action][0], masked=True, learn=dict(executor='eager')))
    samples = policy.collect_mode.get_train_sample(rollout)
    mask = samples['obs']['action_mask']
    raw: list[Tensor] = []

    def keep(module: Any, inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        raw.append(output)

    handle = policy.model.policy_head.register_forward_hook(keep)
    logit = policy.model.compute_actor(samples['obs'])
    handle.remove()
    dist, old = policy.dist, 0.5 * samples['logit']  # masked entries stay masked
    log_ratio = dist.log_prob(logit, samples['action']) - dist.log_prob(old, samples['action'])
    ((log_ratio.exp() * samples['adv']) + dist.entropy(logit) + dist.kl(old, logit)).sum().backward()
    (output,) = raw
    assert output.grad is not None and output.grad.isfinite().all()
    if action == 'tuple':  # parts: 2 choices, 2 + 3 choices, 2 bits, all of which take a mask
        assert output.shape[-1] == mask.shape[-1] == 9
    assert (output.grad[~mask] == 0).all() and (output.grad[mask] != 0).any()


@pytest.mark.slow
def test_multi_discrete_of_one_entry_trains_as_discrete() -> None:
    """Bit-equal parameters after an update, in C and eagerly."""
    import gymnasium

    class Bandit(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,), np.float32)

        def __init__(self, is_multi: bool) -> None:
            self.action_space = gymnasium.spaces.MultiDiscrete([4]) if is_multi else gymnasium.spaces.Discrete(4)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

        def step(self, action: Any) -> Any:
            return self.np_random.uniform(-1, 1, 3).astype(np.float32), float(np.ravel(action)[0] == 2), True, False, {}

    for executor in ('eager', 'auto'):
        found = []
        for is_multi in (False, True):
            env = dict(id=Bandit, kwargs=dict(is_multi=is_multi), collector_env_num=4)
            learn = dict(batch_size=64, executor=executor)
            policy_cfg = dict(type='ppo', collect=dict(n_step=32), learn=learn)
            cfg = resolve_config(dict(exp_name='x', max_env_step=10_000, env=env, policy=policy_cfg))
            policy, rollout = rollout_of(cfg)
            policy.learn_mode.forward(policy.collect_mode.get_train_sample(rollout))
            found.append([p.detach().clone() for p in policy.model.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize('distribution', ['squashed_gaussian', 'beta'])
def test_bounded_distributions_act_within_the_bounds_and_refuse_rescaling(distribution: str) -> None:
    policy, rollout = rollout_of(config_of('box_2d', distribution))
    action = policy.dist.env_action(rollout.data['action'])
    space = policy.action_space
    low, high = (torch.as_tensor(x.ravel()) for x in (space.low, space.high))
    assert ((action > low - 1e-6) & (action < high + 1e-6)).all() and action.std() > 0.1
    cfg = config_of('box_2d', distribution)
    cfg.env.action_mode = 'rescale'
    with pytest.raises(UserError, match=r"env.action_mode is 'rescale' but the actions of a .* use .*'clip'"):
        rollout_of(cfg)


@pytest.mark.long
@pytest.mark.slow
def test_critic_alone_sees_an_entry_that_acting_may_miss(tmp_path: Path) -> None:
    sections = dict(model=dict(actor_obs=['vector'], critic_obs=['vector', 'image']), collect=dict(n_step=16))
    env = dict(id='any_space', kwargs=dict(obs='dict', action='box'), collector_env_num=2)
    result = train(tmp_path, 256, env, learn=dict(batch_size=32), **sections)
    policy = load_policy(result.run_dir)
    vector = np.zeros(3, np.float32)
    whole = {'vector': vector, 'image': np.zeros((40, 40, 3), np.uint8)}
    np.testing.assert_array_equal(policy.act({'vector': vector}), policy.act(whole))
    said = r"has the entries \['image'\] but must have 'vector' \('image' may be missing\);"
    with pytest.raises(UserError, match=said):
        policy.act({'image': whole['image']})


CENTRAL = {'actor_obs': ['own'], 'critic_obs': ['bits', 'own'], 'obs_norm': True}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('kind', ['ppo', 'ppg'])
@pytest.mark.parametrize('model', [CENTRAL, {'obs_norm': True}], ids=['central critic', 'same entries'])
def test_run_over_several_entries_in_c_resumes_bit_equal_and_ends_where_eager_does(
    kind: str, model: dict[str, Any], tmp_path: Path, native: Any
) -> None:
    """Six rollouts with masks; PPG has two auxiliary phases. The observations are nested, with indices and bits."""
    env = dict(id='any_space', kwargs=dict(obs='nested_mask', action='multi_discrete'), collector_env_num=4)
    sections = dict(type=kind, model=model, collect=dict(n_step=16), eval=dict(eval_freq=384, n_episode=1))
    learn: dict[str, Any] = dict(batch_size=32, learning_rate=1e-3)
    if kind == 'ppg':
        learn |= dict(aux_freq=3, aux_batch_size=32, aux_train_epoch=2)

    def config(name: str, executor: str) -> Any:
        policy = dict(sections, learn=dict(learn, executor=executor))
        logger = dict(root=str(tmp_path / name), **QUIET)
        return resolve_config(dict(exp_name='x', max_env_step=384, env=env, policy=policy, logger=logger))

    ends = []
    for executor in ('native', 'eager'):
        with SerialJob(config(executor, executor)) as job:
            for i in range(6):
                if i == 3:
                    job.reset_env()  # a resume starts new episodes
                job.iteration()
            job.save()
            run_dir = job.run_dir
            ends.append(job.state_dict()['policy']['model'])
    with SerialJob(config('half', 'native')) as job:
        for _ in range(3):
            job.iteration()
        job.save()
        checkpoint = load_checkpoint(job.run_dir)
    with SerialJob(resolve_config(checkpoint.meta['config']), checkpoint=checkpoint) as job:
        for _ in range(3):
            job.iteration()
        resumed = job.state_dict()['policy']['model']
    in_c, eager = ends
    assert all(torch.equal(x, resumed[name]) for name, x in in_c.items())
    assert not all(torch.equal(x, eager[name]) for name, x in in_c.items())  # C rounds otherwise
    for name, x in in_c.items():
        torch.testing.assert_close(x, eager[name], rtol=1e-4, atol=1e-5, msg=lambda text: f'{name}: {text}')  # noqa: B023
    acting = load_policy(run_dir)
    obs = {'own': {'place': np.zeros(2, np.float32), 'kind': 1}, 'bits': np.ones(3, np.int8)}
    obs['action_mask'] = np.ones(5, np.int8)
    answer = acting.act(obs)
    if model is CENTRAL:
        del obs['bits']
        np.testing.assert_array_equal(acting.act(obs), answer)


def test_observations_of_a_rollout_are_trees() -> None:
    env = dict(id='any_space', kwargs=dict(obs='tuple', action='discrete'), collector_env_num=3)
    policy = dict(type='ppo', collect=dict(n_step=8), learn=dict(batch_size=24))
    cfg = resolve_config(dict(exp_name='x', max_env_step=10_000, env=env, policy=policy))
    policy, rollout = rollout_of(cfg)
    dtypes = {name: x.dtype for name, x in rollout.data['obs'].items()}
    assert dtypes == {'0': torch.float32, '1': torch.int64, '2': torch.bool}
    samples = policy.collect_mode.get_train_sample(rollout)
    assert first_leaf(samples['obs']).shape == (24, 2) and samples['obs']['2'].shape == (24, 2, 2)


@pytest.mark.soak
@pytest.mark.parametrize(
    'action, distribution',
    [
        *((action, ACTIONS[action][0]) for action in ('discrete', 'multi_discrete', 'multi_binary', 'box_2d', 'tuple')),
        *(('box', distribution) for distribution in ('squashed_gaussian', 'gsde', 'beta')),
    ],
)
def test_every_distribution_learns_a_one_step_env(action: str, distribution: str, seed: int, tmp_path: Path) -> None:
    """The best return is 1, that of random actions about 0; 20k env steps reach 0.95, also with `--seeds 3`."""
    n_step = 20_480
    learn: dict[str, Any] = dict(learning_rate=dict(start=5e-3, end=0.0), batch_size=256, epoch_per_collect=8)
    model: dict[str, Any] = dict(distribution='auto' if distribution == 'composite' else distribution)
    if distribution == 'gsde':  # its deviation grows with the 64 features; in episodes of one step all noise is new
        model |= dict(log_std_init=-2.0, sde_sample_freq=1)
        learn['learning_rate'] = dict(start=2e-3, end=0.0)
    if distribution == 'squashed_gaussian':  # tanh is flat where the target may be; 5e-3 ends between .949 and .98
        learn['learning_rate'] = dict(start=1e-2, end=0.0)
    policy = dict(model=model, learn=learn, collect=dict(n_step=128), eval=dict(n_episode=64, eval_freq=n_step))
    env = dict(id='one_step', kwargs=dict(action=action), collector_env_num=8)
    result = train(tmp_path, n_step, env, seed=seed, **policy)
    assert result.last_return is not None and result.last_return >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    ('kind', 'action'),
    [
        *((kind, action) for kind in ('ppo', 'ppg') for action in SMALL_INTEGERS),
        *((kind, 'multi') for kind in ('a2c', 'trpo', 'ppo_offpolicy', 'impala')),
        *(('dqn', action) for action in ('discrete', 'from_2')),
    ],
)
def test_every_policy_acts_in_the_number_type_of_the_space(kind: str, action: str) -> None:
    """Oracle: gymnasium's `contains`, which refuses integers that cannot be cast to the type of the space."""
    env = dict(id=StrictEnv, kwargs=dict(action=action))
    policy = make_policy(dict(policy=dict(type=kind), env=env))
    own = StrictEnv(action).action_space
    assert evaluate(policy, env, 2).returns == [5.0, 5.0]  # in an evaluation
    obs = np.zeros(2, np.float32)
    assert own.contains(policy.act(obs))
    assert kind == 'dqn' or own.contains(policy.act(obs, deterministic=False))
    session = policy.session()
    assert own.contains(session.act(obs)) and own.contains(session.act(obs))


@pytest.mark.many
@pytest.mark.parametrize('how', ['sync', 'async', 'given'])
@pytest.mark.parametrize('action', list(SMALL_INTEGERS))
def test_envs_get_actions_in_the_number_type_of_their_space(how: str, action: str) -> None:
    """Oracle: `contains` of the env's own space, and of the batched space of a vector env."""
    taken: list[bool] = []

    class Batch(gymnasium.vector.SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            taken.append(self.action_space.contains(actions))
            return super().step(actions)

    def batch(num_envs: int) -> Any:
        return Batch([lambda: StrictEnv(action)] * num_envs)

    source = dict(id=batch) if how == 'given' else dict(id=StrictEnv, kwargs=dict(action=action), vectorization=how)
    vector = make_vector_env(EnvConfig(**source), 2)
    width = sum(action_width(leaf) for _, leaf in leaf_spaces(vector.action_space))
    dtype = torch.float32 if isinstance(vector.action_space, Dict) else torch.int64
    steps = play(vector, torch.ones((2, width) if action != 'discrete' and action != 'from_2' else 2, dtype=dtype))
    assert steps[0].reward.tolist() == [1, 1] and all(taken) and len(taken) == (how == 'given')


@pytest.mark.long
@pytest.mark.parametrize('kind', list(DOTTED))
@pytest.mark.parametrize(
    'more',
    [
        dict(policy=dict(type='ppg', learn=dict(aux_freq=1, aux_batch_size=32))),
        dict(env=dict(window=3)),
        dict(policy=dict(model=dict(recurrent=dict(cell='gru')))),
    ],
    ids=['ppg', 'window', 'recurrent'],
)
def test_entries_with_dots_or_empty_names_train_and_are_saved(kind: str, more: Any, tmp_path: Path) -> None:
    policy = merged(dict(learn=dict(batch_size=32), collect=dict(n_step=16)), more.get('policy', {}))
    env = merged(dict(id=DottedEnv, kwargs=dict(kind=kind), collector_env_num=2), more.get('env', {}))
    cfg = dict(exp_name='x', max_env_step=64, env=env, policy=policy, logger=dict(QUIET, root=str(tmp_path)))
    result = serial_pipeline(cfg)
    again = load_policy(result.run_dir, trust=True)
    assert evaluate(again, env, 1).returns == [4.0]
    if 'env' in more:
        return
    obs = DOTTED[kind]().sample()
    assert again.value(obs) == pytest.approx(float(result.policy.value(obs)))
    for path in leaves_by_path(again.obs_space):  # each entry changes the value
        changed = copy.deepcopy(obs)
        inner = changed
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = inner[path[-1]] * -2 + 1
        assert abs(float(again.value(changed)) - float(again.value(obs))) > 1e-4, path


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {**one, **{key: merged(one.get(key, {}), x) if isinstance(x, dict) else x for key, x in other.items()}}
