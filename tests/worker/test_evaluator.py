"""Returns and lengths of an evaluation, with no bias to short episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.envs import LimitEnv
from tests.policy_envs import HandModel, job_config, make_policy
from zoo import serial_pipeline
from zoo.core.errors import UserError
from zoo.core.seeding import stream
from zoo.core.spaces import Box, Discrete
from zoo.env import EnvConfig, EnvContractError, TensorEnv, TensorVectorEnv, make_vector_env
from zoo.worker.evaluator import LONG, Evaluation, Evaluator, evaluate

LIMIT = 'tests.envs:limit_env'
MODES = {
    'same_step': dict(id=LIMIT, vectorization='sync', autoreset='same_step'),
    'next_step': dict(id=LIMIT, vectorization='sync', autoreset='next_step'),
    'disabled': dict(id=LIMIT, vectorization='sync', autoreset='disabled'),
    'batched': dict(id='tests.envs:Limit-v0', vectorization='batched'),
}


def run(env: dict[str, Any], n_env: int, n_episode: int, seed: int = 0) -> Evaluation:
    vector = make_vector_env(EnvConfig(**env), n_env)
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['eval'])
    try:
        return Evaluator(vector, policy.eval_mode, n_episode).evaluate(stream(seed, 'test'))
    finally:
        vector.close()


@pytest.mark.parametrize('end', ['truncated', 'terminated'])
@pytest.mark.parametrize('mode', MODES)
def test_returns_and_lengths_are_right_in_every_mode(mode: str, end: str) -> None:
    evaluation = run({**MODES[mode], 'kwargs': {'end': end}}, 2, 6)
    assert evaluation.returns == [5.0] * 6 and evaluation.lengths == [5] * 6


@pytest.mark.parametrize('mode', ['same_step', 'next_step', 'disabled'])
@pytest.mark.parametrize(
    ('n_env', 'n_episode', 'shares'), [(4, 8, [2, 2, 2, 2]), (4, 6, [2, 2, 1, 1]), (4, 3, [1, 1, 1, 0]), (1, 3, [3])]
)
def test_each_env_gives_its_share_however_long_its_episodes_are(
    mode: str, n_env: int, n_episode: int, shares: list[int]
) -> None:
    env = {
        **MODES[mode],
        'id': 'tests.policy_envs:uneven_env',
    }  # every env has episodes of 2 or all of 20 steps, as its seed says
    for seed in range(20):
        one_each = run(env, n_env, n_env, seed).lengths
        if len(set(one_each)) == min(2, n_env):
            break
    want = [length for length, share in zip(one_each, shares, strict=True) for _ in range(share)]
    evaluation = run(env, n_env, n_episode, seed)
    assert evaluation.lengths == want and evaluation.returns == want


def test_rewards_of_reset_rows_are_no_part_of_a_return() -> None:
    assert set(run(dict(id='tests.policy_envs:Garbage-v0', vectorization='batched'), 2, 6).returns) == {5.0}


def test_mean_and_deviation() -> None:
    evaluation = Evaluation([1.0, 2.0, 6.0], [1, 1, 1])
    assert evaluation.return_mean == 3 and evaluation.return_std == pytest.approx((14 / 3) ** 0.5)  # (4 + 1 + 9) / 3


def test_evaluation_depends_on_its_seed_alone() -> None:
    env = EnvConfig(id='CartPole-v1')
    vector = make_vector_env(env, 2)
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['eval'])
    evaluator = Evaluator(vector, policy.eval_mode, 8)
    a, other, b = (evaluator.evaluate(stream(seed, 'test')) for seed in (1, 2, 1))
    assert a == b and a != other


def test_evaluate_takes_an_eval_only_policy() -> None:
    env = EnvConfig(id=LIMIT)
    vector = make_vector_env(env, 1)
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['eval'])
    assert evaluate(policy, env, 3).returns == [5.0] * 3


def test_evaluation_acts_as_act_does() -> None:
    """The same greedy episode by hand, one raw observation at a time."""
    import gymnasium

    cfg = EnvConfig(id='Pendulum-v1', max_episode_steps=30, vectorization='sync')
    vector = make_vector_env(cfg, 1)
    policy = make_policy(vector.obs_space, vector.action_space, model=dict(obs_norm=True), enable_field=['eval'])
    got = Evaluator(vector, policy.eval_mode, 1).evaluate(stream(0, 'test'))
    env = gymnasium.make('Pendulum-v1', max_episode_steps=30)
    first = vector.reset(stream(0, 'test'))[0].numpy()
    theta, speed = np.arctan2(first[1], first[0]), first[2]
    env.reset()
    env.unwrapped.state = np.array([theta, speed])
    obs, total = first, 0.0
    for _ in range(30):
        obs, reward, _, _, _ = env.step(policy.act(obs))
        total += float(reward)
    assert got.returns == [pytest.approx(total, rel=1e-3)] and got.lengths == [30]


def test_evaluation_that_is_told_to_stop_gives_none() -> None:
    vector = make_vector_env(EnvConfig(**MODES['same_step']), 2)
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['eval'])
    asked = iter([False] * 7 + [True])
    try:
        evaluator = Evaluator(vector, policy.eval_mode, 6)  # 3 episodes of 5 steps in each env
        assert evaluator.evaluate(stream(0, 'test'), lambda: next(asked)) is None
        assert next(asked, None) is None  # it stopped at the eighth step, not later
    finally:
        vector.close()


class Blowup(TensorEnv):
    """Its state is nan from the third step on, and so never beyond the end."""

    obs_space, action_space = Box(np.zeros(1), np.full(1, np.inf)), Discrete(2)

    def reset(self, noise: Tensor) -> Tensor:
        return torch.zeros(len(noise), 1)

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = torch.where(state < 2, state + 1, torch.nan)
        return state, torch.zeros(len(state)), (state > 9)[:, 0]


def test_evaluation_whose_episodes_cannot_end_for_nan_raises() -> None:
    vector = TensorVectorEnv(Blowup(), EnvConfig(id='torch', game='test'), 'torch/test', 2)
    mode = make_policy(vector.obs_space, vector.action_space, enable_field=['eval']).eval_mode
    asked = iter([False] * 1001)
    with pytest.raises(EnvContractError, match='index 0, step 3: the observation or the reward is not finite'):
        Evaluator(vector, mode, 2).evaluate(stream(0, 'test'), lambda: next(asked, True))
    assert len(list(asked)) == 1  # at step 1,000


@pytest.mark.parametrize('mode', ['same_step', 'next_step', 'disabled', 'batched'])
def test_episodes_that_never_end_are_cut_off_and_counted(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    vector = make_vector_env(EnvConfig(**{**MODES[mode], 'kwargs': {'limit': 10**9}}), 2)
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['eval'])
    evaluator = Evaluator(vector, policy.eval_mode, 5, max_episode_steps=7)
    for seed in (1, 2):
        evaluation = evaluator.evaluate(stream(seed, 'test'))
        assert evaluation == Evaluation([7.0] * 5, [7] * 5, cut=[True] * 5)  # a reward of 1 at each of 7 steps
    (words,) = [record.getMessage() for record in caplog.records]  # once, not at each evaluation
    assert '5 of 5 evaluation episodes' in words and 'policy.eval.max_episode_steps' in words


def test_episodes_that_end_in_time_are_those_without_a_bound() -> None:
    vector = make_vector_env(EnvConfig(id='tests.policy_envs:uneven_env'), 3)
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['eval'])
    bounded, free = (Evaluator(vector, policy.eval_mode, 7, limit) for limit in (20, None))
    for seed in range(5):  # episodes of 2 or of 20 steps, and one of 20 ends at the bound
        got = bounded.evaluate(stream(seed, 'test'))
        assert got == free.evaluate(stream(seed, 'test')) and got.n_cut == 0


def test_only_the_episode_that_is_too_long_is_cut_off() -> None:
    vector = make_vector_env(EnvConfig(id='tests.policy_envs:uneven_env'), 3)
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['eval'])
    for seed in range(20):
        whole = Evaluator(vector, policy.eval_mode, 3, None).evaluate(stream(seed, 'test'))
        if set(whole.lengths) == {2, 20}:
            break
    got = Evaluator(vector, policy.eval_mode, 3, 10).evaluate(stream(seed, 'test'))
    assert got.lengths == [min(n, 10) for n in whole.lengths] and got.n_cut == whole.lengths.count(20)


def test_evaluation_of_an_endless_env_by_its_policy_ends() -> None:
    env = EnvConfig(id=LIMIT, kwargs={'limit': 10**9})
    vector = make_vector_env(env, 1)
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['eval'], eval=dict(max_episode_steps=11))
    assert evaluate(policy, env, 2) == Evaluation([11.0] * 2, [11] * 2, cut=[True] * 2)


class CountingEnv(LimitEnv):
    """Episodes of 100 steps; the reward is the action."""

    def __init__(self) -> None:
        super().__init__(100)

    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, float(action), *rest


def counting_env() -> gymnasium.Env:
    return CountingEnv()


def biased_model() -> HandModel:
    """Action 1 with probability .7 in every state."""
    model = HandModel(lambda x: x)
    model.zero.data = torch.tensor([0.3, 0.7]).log()
    return model


def biased_policy(**options: Any) -> Any:
    vector = make_vector_env(EnvConfig(id=counting_env), 1)
    return make_policy(vector.obs_space, vector.action_space, network=biased_model(), device='cpu', **options)


@pytest.mark.slow
def test_actions_that_are_drawn_have_their_probabilities() -> None:
    """Over 100 episodes x 100 steps the deviation of a share of .7 is sqrt(.7 * .3 / 10,000) = .0046."""
    policy = biased_policy()
    assert evaluate(policy, counting_env, 100).return_mean == 100  # greedy
    drawn = evaluate(policy, counting_env, 100, deterministic=False)
    assert drawn.return_mean / 100 == pytest.approx(0.7, abs=0.02)


def test_drawn_actions_depend_on_the_seed_alone() -> None:
    policy = biased_policy()
    torch.manual_seed(1)
    a = evaluate(policy, counting_env, 10, seed=3, deterministic=False)
    torch.manual_seed(2)
    assert evaluate(policy, counting_env, 10, seed=3, deterministic=False) == a
    assert evaluate(policy, counting_env, 10, seed=4, deterministic=False) != a


def test_the_config_says_whether_actions_are_drawn() -> None:
    policy = biased_policy(eval=dict(deterministic=False))
    assert evaluate(policy, counting_env, 2).return_mean < 100
    assert evaluate(policy, counting_env, 2, deterministic=True).return_mean == 100


@pytest.mark.slow
def test_a_run_evaluates_drawn_actions(tmp_path: Path) -> None:
    options = dict(eval_freq=64, n_episode=8)
    greedy, drawn = (
        serial_pipeline(
            job_config(tmp_path / str(i), counting_env, policy=dict(eval={**options, 'deterministic': not i}))
        )
        for i in range(2)
    )
    assert greedy.last_return in (0, 100) and 20 < (drawn.last_return or 0) < 80  # near its start it chooses evenly


@pytest.mark.slow
def test_an_epsilon_greedy_policy_draws_with_its_last_epsilon() -> None:
    """eps .3 takes the other one of two actions with probability .15, in 10,000 steps +- .0036."""
    vector = make_vector_env(EnvConfig(id=counting_env), 1)
    policy = make_policy(
        vector.obs_space,
        vector.action_space,
        type='dqn',
        network=biased_model(),
        device='cpu',
        collect=dict(eps=0.3),
        enable_field=['eval'],
    )
    drawn = evaluate(policy, counting_env, 100, deterministic=False)
    assert drawn.return_mean / 100 == pytest.approx(0.85, abs=0.02)


@pytest.mark.parametrize('env', ['Pendulum-v1', 'CartPole-v1'])
def test_a_policy_with_a_memory_draws_too(env: str) -> None:
    vector = make_vector_env(EnvConfig(id=env), 1)
    options = dict(model=dict(recurrent={'cell': 'lstm', 'hidden_size': 8}), collect=dict(n_step=32), device='cpu')
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['eval'], **options)
    drawn = [evaluate(policy, env, 2, deterministic=False, max_step=50).returns for _ in range(2)]
    assert drawn[0] == drawn[1] != evaluate(policy, env, 2, max_step=50).returns


def test_a_policy_that_draws_no_actions_says_so() -> None:
    from zoo.core.registry import POLICY_REGISTRY
    from zoo.policy.base import Policy

    policy = biased_policy()

    class Silent(POLICY_REGISTRY.get('ppo')):  # type: ignore[misc]
        _forward_sample = Policy._forward_sample

    policy.__class__ = Silent
    assert evaluate(policy, counting_env, 1).returns == [100.0]
    with pytest.raises(UserError, match='no _forward_sample'):
        evaluate(policy, counting_env, 1, deterministic=False)


def test_max_step_cuts_episodes_off_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    policy = biased_policy()
    caplog.clear()
    found = evaluate(policy, counting_env, 3, max_step=7)
    assert found.returns == [7.0] * 3 and found.n_cut == 3 and not caplog.records


def test_the_callback_gets_the_row_of_each_episode_when_it_ends() -> None:
    seen: list[dict[str, Any]] = []
    found = evaluate(biased_policy(), 'tests.worker.info_envs:info_env', 4, callback=seen.append)
    assert [row['episode'] for row in seen] == [0, 1, 2, 3]
    assert seen[0] == {
        'episode': 0,
        'return': 5.0,
        'length': 5,
        'cut': False,
        'steps': 5.0,
        'speed': 10.0,
        'is_success': found.infos['is_success'][0],
    }
    assert seen == found.rows()  # one episode in each of four envs, which end together


@pytest.mark.slow
def test_an_episode_that_lasts_very_long_is_told_before_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    env = dict(id=LIMIT, kwargs={'limit': 10**9})
    vector = make_vector_env(EnvConfig(**env), 2)
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['eval'], device='cpu')
    n_step = iter(range(LONG + 5))
    Evaluator(vector, policy.eval_mode, 2).evaluate(stream(0, 'test'), lambda: next(n_step, None) is None)
    (words,) = [record.getMessage() for record in caplog.records]
    assert '2 episodes of tests.envs:limit_env have not ended after 10,000 steps' in words
    assert 'up to 100,000 steps' in words and 'env.max_episode_steps' in words


@pytest.mark.parametrize(
    ('options', 'words'),
    [
        (dict(n_episode=0), 'n_episode is 0 but must be an integer >= 1'),
        (dict(max_step=0), 'max_step is 0 but must be an integer >= 1'),
        (dict(deterministic=1), 'deterministic is 1 but must be True, False, or None'),
        (dict(callback=3), 'callback is 3 but must be a function'),
    ],
)
def test_arguments_of_another_kind_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        evaluate(biased_policy(), counting_env, **options)
