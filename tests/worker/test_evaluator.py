"""Evaluations: no bias to short episodes, episodes that are cut off, drawn actions, and statistics of the results."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.envs import LimitSameStepVectorEnv
from tests.policy_envs import HandModel, make_policy
from tests.worker.counting_envs import counting_env
from zoo.core.errors import UserError
from zoo.core.seeding import stream
from zoo.core.spaces import Box, Discrete
from zoo.env import EnvConfig, EnvContractError, TensorEnv, TensorVectorEnv, VectorEnv, make_vector_env
from zoo.env.infos import RAW, RAW_END, RAW_REWARD
from zoo.policy.base import Policy
from zoo.policy.ppo import PPOPolicy
from zoo.worker.evaluator import Evaluation, Evaluator, evaluate

LIMIT = 'tests.envs:limit_env'
MODES = {
    'same_step': dict(id=LIMIT, vectorization='sync', autoreset='same_step'),
    'next_step': dict(id=LIMIT, vectorization='sync', autoreset='next_step'),
    'disabled': dict(id=LIMIT, vectorization='sync', autoreset='disabled'),
    'batched': dict(id='tests.envs:Limit-v0', vectorization='batched'),
}


Make = Callable[..., Evaluator]


@pytest.fixture(name='make')
def _make() -> Iterator[Make]:
    """Makes evaluators of untrained policies from the fields of the envs, their number and the arguments of `Evaluator`."""
    vectors = []

    def make(env: dict[str, Any], n_env: int, *args: Any, policy: Any = None) -> Evaluator:
        vectors.append(make_vector_env(EnvConfig(**env), n_env))
        return Evaluator(vectors[-1], (policy or policy_of(vectors[-1])).eval_mode, *args)

    yield make
    for vector in vectors:
        vector.close()


def policy_of(env: Any, **options: Any) -> Any:
    """A policy with an eval mode only. Args: env: a vector env, or the id of an env."""
    vector = env if isinstance(env, VectorEnv | TensorVectorEnv) else make_vector_env(EnvConfig(id=env), 1)
    return make_policy(vector.obs_space, vector.action_space, enable_field=['eval'], **options)


@pytest.mark.parametrize(
    'env',
    [
        *MODES.values(),
        {**MODES['same_step'], 'kwargs': {'end': 'terminated'}},
        {**MODES['batched'], 'kwargs': {'end': 'terminated'}},
        dict(id='tests.policy_envs:Garbage-v0', vectorization='batched'),  # its reset rows have rewards
    ],
)
def test_returns_and_lengths_are_those_of_the_episodes_in_every_mode(env: dict[str, Any], make: Make) -> None:
    evaluation = make(env, 2, 6).evaluate(stream(0, 'test'))
    assert evaluation.returns == [5.0] * 6 and evaluation.lengths == [5] * 6


@pytest.mark.parametrize(
    ('mode', 'n_env', 'n_episode', 'shares'),
    [
        ('same_step', 4, 8, [2, 2, 2, 2]),
        ('same_step', 4, 6, [2, 2, 1, 1]),
        ('next_step', 4, 6, [2, 2, 1, 1]),
        ('disabled', 4, 6, [2, 2, 1, 1]),
        ('disabled', 4, 3, [1, 1, 1, 0]),
        ('next_step', 1, 3, [3]),
    ],
)
def test_each_env_gives_its_share_however_long_its_episodes_are(
    mode: str, n_env: int, n_episode: int, shares: list[int], make: Make
) -> None:
    env = {**MODES[mode], 'id': 'tests.policy_envs:uneven_env'}  # an env's seed sets all its episodes to 2 or 20 steps
    one_each = make(env, n_env, n_env)
    for seed in range(20):
        lengths = one_each.evaluate(stream(seed, 'test')).lengths
        if len(set(lengths)) == min(2, n_env):
            break
    want = [length for length, share in zip(lengths, shares, strict=True) for _ in range(share)]
    evaluation = make(env, n_env, n_episode).evaluate(stream(seed, 'test'))
    assert evaluation.lengths == want and evaluation.returns == want


def test_evaluation_depends_on_its_seed_alone(make: Make) -> None:
    evaluator = make(dict(id='CartPole-v1'), 2, 8)
    a, other, b = (evaluator.evaluate(stream(seed, 'test')) for seed in (1, 2, 1))
    assert a == b and a != other


def test_evaluation_acts_as_act_does(make: Make) -> None:
    """The same greedy episode by hand, one raw observation at a time."""
    fields = dict(id='Pendulum-v1', max_episode_steps=30, vectorization='sync')
    policy = policy_of('Pendulum-v1', model=dict(obs_norm=True))
    got = make(fields, 1, 1, policy=policy).evaluate(stream(0, 'test'))
    obs = make_vector_env(EnvConfig(**fields), 1).reset(stream(0, 'test'))[0].numpy()
    env = gymnasium.make('Pendulum-v1', max_episode_steps=30)
    env.reset()
    env.unwrapped.state = np.array([np.arctan2(obs[1], obs[0]), obs[2]])
    total = 0.0
    for _ in range(30):
        obs, reward, _, _, _ = env.step(policy.act(obs))
        total += float(reward)
    assert got.returns == [pytest.approx(total, rel=1e-3)] and got.lengths == [30]


def test_evaluation_that_is_told_to_stop_gives_none(make: Make) -> None:
    asked = iter([False] * 7 + [True])
    evaluator = make(MODES['same_step'], 2, 6)  # 3 episodes of 5 steps in each env
    assert evaluator.evaluate(stream(0, 'test'), lambda: next(asked)) is None
    assert next(asked, None) is None  # it stopped at the eighth step, not later


class Blowup(TensorEnv):
    """Its state is nan from the third step on, so the condition of its end is never true."""

    obs_space, action_space = Box(np.zeros(1), np.full(1, np.inf)), Discrete(2)

    def reset(self, noise: Tensor) -> Tensor:
        return torch.zeros(len(noise), 1)

    def step(self, state: Tensor, action: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        state = torch.where(state < 2, state + 1, torch.nan)
        return state, torch.zeros(len(state)), (state > 9)[:, 0]


@pytest.mark.slow
def test_evaluation_whose_episodes_cannot_end_for_nan_raises() -> None:
    vector = TensorVectorEnv(Blowup(), EnvConfig(id='torch', game='test'), 'torch/test', 2)
    mode = policy_of(vector).eval_mode
    asked = iter([False] * 1001)
    with pytest.raises(EnvContractError, match='index 0, step 3: the observation or the reward is not finite'):
        Evaluator(vector, mode, 2).evaluate(stream(0, 'test'), lambda: next(asked, True))
    assert len(list(asked)) == 1  # it raised at step 1,000


@pytest.mark.parametrize('mode', MODES)
def test_episodes_that_never_end_are_cut_off_and_counted(
    mode: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    evaluator = make({**MODES[mode], 'kwargs': {'limit': 10**9}}, 2, 5, 7)
    for seed in (1, 2):
        evaluation = evaluator.evaluate(stream(seed, 'test'))
        assert evaluation == Evaluation([7.0] * 5, [7] * 5, cut=[True] * 5)  # a reward of 1 at each of 7 steps
    (words,) = [record.getMessage() for record in caplog.records]  # once, not at each evaluation
    assert '5 of 5 evaluation episodes' in words and 'policy.eval.max_episode_steps' in words


def test_only_episodes_that_are_too_long_are_cut_off(make: Make) -> None:
    whole, at_end, at_10 = (make(dict(id='tests.policy_envs:uneven_env'), 3, 7, n) for n in (None, 20, 10))
    for seed in range(20):  # episodes of 2 or of 20 steps, by the seed of each env
        free = whole.evaluate(stream(seed, 'test'))
        if set(free.lengths) == {2, 20}:
            break
    assert at_end.evaluate(stream(seed, 'test')) == free and free.n_cut == 0  # an episode of 20 ends at the bound
    got = at_10.evaluate(stream(seed, 'test'))
    assert got.lengths == [min(n, 10) for n in free.lengths] and got.n_cut == free.lengths.count(20)


def test_evaluation_of_an_endless_env_by_its_policy_ends() -> None:
    policy = policy_of(LIMIT, eval=dict(max_episode_steps=11))
    env = EnvConfig(id=LIMIT, kwargs={'limit': 10**9})
    assert evaluate(policy, env, 2) == Evaluation([11.0] * 2, [11] * 2, cut=[True] * 2)


def biased_policy(**options: Any) -> Any:
    """A policy that takes action 1 with probability .7 in every state."""
    model = HandModel(lambda x: x)
    model.zero.data = torch.tensor([0.3, 0.7]).log()
    return policy_of(counting_env, network=model, device='cpu', **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('options', 'share'),
    [
        ({}, 0.7),
        # eps .3 takes the other one of two actions with probability .15
        (dict(type='dqn', collect=dict(eps=0.3)), 0.85),
    ],
)
def test_actions_that_are_drawn_have_their_probabilities(options: dict[str, Any], share: float) -> None:
    """Over 100 episodes x 100 steps the standard error of a share of .7 is sqrt(.7 * .3 / 10,000) = .0046."""
    drawn = evaluate(biased_policy(**options), counting_env, 100, deterministic=False)
    assert drawn.return_mean / 100 == pytest.approx(share, abs=0.02)


@pytest.mark.slow
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


@pytest.mark.parametrize('env', ['Pendulum-v1', 'CartPole-v1'])
def test_a_policy_with_a_memory_draws_too(env: str) -> None:
    options = dict(model=dict(recurrent={'cell': 'lstm', 'hidden_size': 8}), collect=dict(n_step=32), device='cpu')
    policy = policy_of(env, **options)
    drawn = [evaluate(policy, env, 2, deterministic=False, max_step=50).returns for _ in range(2)]
    assert drawn[0] == drawn[1] != evaluate(policy, env, 2, max_step=50).returns


def test_a_policy_that_draws_no_actions_says_so() -> None:
    policy = biased_policy()

    class Silent(PPOPolicy):
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
        'parts/drag': 1.0,
        'is_success': found.infos['is_success'][0],
    }
    assert seen == found.rows()  # one episode in each of four envs, which end together


@pytest.mark.slow
def test_an_episode_that_lasts_very_long_is_told_before_it_ends(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr('zoo.worker.evaluator.LONG', 1000)
    n_step = iter(range(1005))
    endless = make(dict(id=LIMIT, kwargs={'limit': 10**9}), 2, 2)
    endless.evaluate(stream(0, 'test'), lambda: next(n_step, None) is None)
    (words,) = [record.getMessage() for record in caplog.records]
    assert '2 episodes of tests.envs:limit_env have not ended after 1,000 steps' in words
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


# --- results of an evaluation


FOUR = Evaluation(
    [1.0, 2.0, 6.0, 3.0], [10, 20, 30, 40], [False, True, False, False], {'is_success': [1.0, 0.0, 1.0, 1.0]}
)


def test_returns_in_numbers() -> None:
    assert FOUR.return_mean == 3 and FOUR.return_std == pytest.approx((14 / 4) ** 0.5)  # (4 + 1 + 9 + 0) / 4
    assert (FOUR.return_min, FOUR.return_max, FOUR.length_mean, FOUR.n_cut) == (1, 6, 25, 1)


def test_a_quantile_lies_between_the_returns_on_a_straight_line() -> None:
    assert [FOUR.return_quantile(q) for q in (0, 0.5, 0.75, 1)] == [1, 2.5, 3.75, 6]  # 3 + .25 * (6 - 3)


def test_rows_have_one_dict_per_episode() -> None:
    assert FOUR.rows()[1] == {'episode': 1, 'return': 2.0, 'length': 20, 'cut': True, 'is_success': 0.0}
    assert [row['episode'] for row in FOUR.rows()] == [0, 1, 2, 3]
    assert Evaluation([1.0], [2]).rows() == [{'episode': 0, 'return': 1.0, 'length': 2, 'cut': False}]


def test_an_info_key_that_is_a_column_already_gets_another_name() -> None:
    assert Evaluation([1.0], [2], infos={'length': [5.0]}).rows()[0] == {
        'episode': 0, 'return': 1.0, 'length': 2, 'cut': False, 'info/length': 5.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ('infos', 'rate'),
    [
        ({'is_success': [1.0, 0.0]}, 0.5),
        ({'success': [1.0, 1.0]}, 1.0),
        ({'success': [1.0, 1.0], 'is_success': [0.0, 0.0]}, 0.0),
        ({'is_success': [1.0, math.nan]}, 1.0),
        ({'other': [1.0, 1.0]}, None),
    ],
)
def test_success_rate(infos: dict[str, list[float]], rate: float | None) -> None:
    assert Evaluation([0.0, 0.0], [1, 1], infos=infos).success_rate == rate


def test_metrics_have_the_names_of_the_log() -> None:
    whole = FOUR._replace(sets={'unseen': Evaluation([7.0], [1])})
    metrics = whole.metrics()
    assert metrics['return_mean'] == 3 and metrics['return_max'] == 6 and metrics['episode_cut'] == 1
    assert metrics['info/is_success_mean'] == metrics['success_rate'] == 0.75
    assert metrics['unseen/return_mean'] == 7 and 'unseen/success_rate' not in metrics


def test_an_evaluation_can_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(FOUR)) == FOUR


class RawVectorEnv(LimitSameStepVectorEnv):
    """Games of 5 steps with a raw reward of 5 per step; for learning it returns reward 1 and an end after every step."""

    metadata: ClassVar[dict[str, Any]] = {**LimitSameStepVectorEnv.metadata, RAW: True}

    def step(self, actions: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(actions)
        over, always = terminated | truncated, np.ones(self.num_envs, dtype=bool)
        info = {**info, RAW_REWARD: 5 * reward, RAW_END: over, 'final_obs': info.get('final_obs', obs)}
        return obs, reward, terminated | always, truncated, info


def test_returns_and_lengths_are_those_of_the_game_where_others_are_learned_from() -> None:
    vector = make_vector_env(EnvConfig(id=RawVectorEnv), 2)
    policy = make_policy(vector.obs_space, vector.action_space, enable_field=['eval'])
    found = Evaluator(vector, policy.eval_mode, 4).evaluate(stream(0, 'test'))
    assert found is not None and found.returns == [25.0] * 4 and found.lengths == [5] * 4
