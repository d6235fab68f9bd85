"""Env families. A user's own family is LimitVectorEnv, in training with a clipped reward and two ends per game."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from tests.envs import LimitEnv, LimitSameStepVectorEnv, LimitVectorEnv
from zoo.core.registry import ENV_REGISTRY
from zoo.env import (
    EnvConfig,
    EnvContractError,
    EnvError,
    EnvKwargsError,
    EnvRequest,
    MissingExtraError,
    UnknownEnvError,
    UnsupportedEnvError,
    check_env,
    env_family,
    make_env,
    make_vector_env,
)
from zoo.env.families.family import ActionCheck, import_extra
from zoo.env.infos import RAW, RAW_END, RAW_REWARD
from zoo.env.inspection.family import random_actions
from zoo.env.make import env_name, find_env
from zoo.env.make_vector import constructor_seeds
from zoo.env.workers import WorkerVectorEnv


class RawVectorEnv(LimitVectorEnv):
    """Pays 5 a step and ends a game every `limit` steps; in training the reward is 1 and the 2nd step ends an episode.

    In reset rows its raw reward is 7 and its raw end is true, which zoo must not pass on.
    """

    def __init__(self, request: EnvRequest, limit: int) -> None:
        super().__init__(request.n_env, limit)
        self.metadata = {**self.metadata, RAW: request.training}
        self.request, self.seeds = request, []

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        self.seeds.append(seed)
        return super().reset(seed=None, options=options)

    def step(self, actions: Any) -> Any:
        was_reset = self._ended.copy()
        obs, reward, terminated, truncated, info = super().step(actions)
        over = terminated | truncated | was_reset
        raw = np.where(was_reset, 7, 5)
        if not self.metadata[RAW]:
            return obs, raw, terminated, truncated, info
        lost = self._n_step == 2
        self._ended |= lost
        return obs, np.sign(raw), terminated | lost, truncated, {**info, RAW_REWARD: raw, RAW_END: over}


@ENV_REGISTRY.register('raw_test', force=True)
@env_family(games=('short', 'long'))
def make_raw(request: EnvRequest, limit: int = 3) -> RawVectorEnv:
    return RawVectorEnv(request, limit)


@ENV_REGISTRY.register('plain_test', force=True)
@env_family(one_seed=True)
def make_plain(request: EnvRequest) -> RawVectorEnv:
    return RawVectorEnv(request, 3)


def config(**fields: Any) -> EnvConfig:
    return EnvConfig(**{'id': 'raw_test', 'game': 'short', **fields})


ACTION = torch.zeros(2, dtype=torch.int64)


def test_make_vector_env_tells_the_family_what_the_config_asks_for() -> None:
    env = make_vector_env(config(max_episode_steps=9, kwargs={'limit': 4}), 2, training=True)
    inner: Any = env.env
    seed = constructor_seeds(0, training=True, first=0, n_env=1)[0]
    assert inner.request == ('raw_test/short', 'short', 2, True, 9, 'cpu', False, seed, 0) and inner.limit == 4
    assert not make_vector_env(config(), 3).env.request.training  # type: ignore[attr-defined]


def test_step_training_keeps_the_games_own_rewards_and_ends_separately() -> None:
    env = make_vector_env(config(), 2, training=True)
    env.reset(0)
    steps = [env.step(ACTION) for _ in range(4)]
    # step 2 ends an episode but no game; the 3rd row is only a reset: no reward, no end
    assert [step.reward.tolist() for step in steps] == [[1, 1], [1, 1], [0, 0], [1, 1]]
    assert [bool(step.terminated.any()) for step in steps] == [False, True, False, False]
    assert [step.raw_reward.tolist() for step in steps] == [[5, 5], [5, 5], [0, 0], [5, 5]]
    assert [step.raw_end.tolist() for step in steps] == [[False, False]] * 4
    assert steps[0].raw_reward.dtype == torch.float32 and steps[0].raw_end.dtype == torch.bool


def test_step_evaluation_has_nothing_but_the_games_own() -> None:
    env = make_vector_env(config(), 2)
    env.reset(0)
    steps = [env.step(ACTION) for _ in range(3)]
    assert [step.reward.tolist() for step in steps] == [[5, 5]] * 3
    assert [bool(step.truncated.all()) for step in steps] == [False, False, True]
    assert all(step.raw_reward is None and step.raw_end is None for step in steps)


@pytest.mark.parametrize(('env_id', 'game', 'n_seed'), [('raw_test', 'short', 3), ('plain_test', None, None)])
def test_reset_seeds_each_env_or_all_together(env_id: str, game: str | None, n_seed: int | None) -> None:
    env = make_vector_env(EnvConfig(id=env_id, game=game), 3)
    env.reset(0)
    seed = env.env.seeds[-1]  # type: ignore[attr-defined]
    assert isinstance(seed, int) if n_seed is None else len(set(seed)) == n_seed


@pytest.mark.parametrize(
    ('fields', 'error', 'message'),
    [
        (
            {'vectorization': 'async'},
            UnsupportedEnvError,
            "'async' but 'raw_test/short' steps all its envs at once; use",
        ),
        ({'autoreset': 'same_step'}, UnsupportedEnvError, "'raw_test/short' does 'next_step'; use 'auto'.$"),
        ({'kwargs': {'limt': 3}}, EnvKwargsError, "env.kwargs has 'limt' but raw_test/short takes limit; correct the"),
    ],
)
def test_make_vector_env_what_a_family_cannot_do_raises(fields: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        make_vector_env(config(**fields), 2)


MISSING, UNKNOWN = 'env.game is missing: env {!r} has {}', 'unknown game {!r}: did you mean {!r}?'


@pytest.mark.parametrize(
    ('env_id', 'game', 'message'),
    [
        ('raw_test', None, MISSING.format('raw_test', 'short, long; set env.game to one of them.')),
        ('raw_test', 'shrt', UNKNOWN.format('shrt', 'short') + " env 'raw_test' has short, long; set env.game"),
        ('raw_test', 'qqq', "unknown game 'qqq': env 'raw_test' has short, long"),
        (
            'plain_test',
            'short',
            "env.game is 'short' but env 'plain_test' has no games to choose from; leave env.game ",
        ),
        ('CartPole-v1', 'short', "env.game is 'short' but env 'CartPole-v1' has no games"),
        ('raw_tst', 'short', "unknown env 'raw_tst': did you mean 'raw_test'"),
        ('torch', 'CartPole', UNKNOWN.format('CartPole', 'CartPole-v1')),
        ('torch', 'cartpole-v1', UNKNOWN.format('cartpole-v1', 'CartPole-v1')),
        ('torch', None, MISSING.format('torch', 'Acrobot-v1, CartPole-v1, ')),
        ('atari', 'pong', UNKNOWN.format('pong', 'Pong') + " env 'atari' has Adventure, AirRaid, Alien and "),
        ('atari', 'SpaceInvader', UNKNOWN.format('SpaceInvader', 'SpaceInvaders')),
        ('atari', None, 'env.game is missing'),
        ('envpool', 'CartPole-v2', "unknown game 'CartPole-v2': did you mean 'CartPole-v0' or 'CartPole-v1'? env '"),
        (
            'envpool',
            'minigrid-doorkey-6x6-v0',
            UNKNOWN.format('minigrid-doorkey-6x6-v0', 'MiniGrid-DoorKey-6x6-v0')[:-1],
        ),
        ('envpool', None, MISSING.format('envpool', 'Adventure-v5, ')),
        ('envpool', 'MultiDuel-v1', "unknown game 'MultiDuel-v1'"),  # a reset ended the process
        ('envpool', 'Cig-v1', "unknown game 'Cig-v1'"),
        ('procgen', 'starpilt', UNKNOWN.format('starpilt', 'starpilot') + " env 'procgen' has big"),
        ('procgen', 'StarPilot', UNKNOWN.format('StarPilot', 'starpilot')),
        ('procgen', None, MISSING.format('procgen', 'bigfish, bossfight, caveflyer, ')),
    ],
)
def test_game_of_any_family_that_does_not_fit_says_which_do(env_id: str, game: str | None, message: str) -> None:
    needs_extra(env_id)
    cfg = EnvConfig(id=env_id, game=game)
    calls = [lambda: make_vector_env(cfg, 2), lambda: find_env(cfg.id, cfg.game), lambda: check_env(cfg)]
    for call in calls if 'raw' in env_id else calls[:1]:
        with pytest.raises(UnknownEnvError) as raised:
            call()
        assert str(raised.value).startswith(message)


PIP = "env '{}' needs the {} extra, which is not installed; run: pip install '.[{}]' in the checkout of zoo"


@pytest.mark.parametrize(
    ('env_id', 'game', 'module', 'name'),
    [
        ('atari', 'Pong', 'ale_py', 'atari'),
        ('envpool', 'CartPole-v1', 'envpool', 'envpool'),
        ('procgen', 'maze', 'envpool', 'procgen/maze'),
        ('sim', None, 'not_there', 'sim/walk'),  # as a family of a user's own may
    ],
)
def test_family_without_its_extra_names_the_pip_command(
    env_id: str, game: str | None, module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as raised:
        import_extra(module, env_id, name) if game is None else make_vector_env(EnvConfig(id=env_id, game=game), 1)
    assert str(raised.value) == PIP.format(name, env_id, env_id)


@pytest.mark.parametrize('name', ['raw_test/short', 'torch/CartPole-v1'])
def test_make_env_of_a_family_says_that_there_are_only_vectors(name: str) -> None:
    with pytest.raises(UnsupportedEnvError, match=f"env '{name}' is available as a vector only; use make_vector_env"):
        make_env(EnvConfig(id=name.split('/')[0], game=name.split('/')[1]))


def test_find_env_takes_a_family_by_its_place_too() -> None:
    cfg = EnvConfig(id=f'{__name__}:make_raw', game='long')
    assert find_env(cfg.id, cfg.game) is make_raw and env_name(cfg) == f'{__name__}:make_raw/long'


# --- the contract

EXTRAS = {'atari': ['ale_py'], 'envpool': ['envpool'], 'procgen': ['envpool', 'PyQt5']}
TASKS = [('envpool', game) for game in ('CartPole-v1', 'HalfCheetah-v4', 'LunarLander-v3', 'MiniGrid-DoorKey-6x6-v0')]


def needs_extra(env_id: str) -> None:
    if any(find_spec(name) is None for name in EXTRAS.get(env_id, ())):
        pytest.skip(f'the extra {env_id} is not installed')


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ('env_id', 'game'),
    [
        ('raw_test', 'short'),
        ('atari', 'Breakout'),
        *TASKS,
        ('envpool', 'Breakout-v5'),
        ('procgen', 'coinrun'),
    ],
)
def test_check_env_finds_nothing_in_any_family(env_id: str, game: str) -> None:
    """No warning either that two episodes with one seed differ."""
    needs_extra(env_id)
    assert check_env(EnvConfig(id=env_id, game=game), n_step=30) == []


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(('env_id', 'game'), [('atari', 'Breakout'), *TASKS, ('procgen', 'starpilot')])
def test_seed_gives_env_i_the_same_episodes_in_a_larger_vector(env_id: str, game: str) -> None:
    needs_extra(env_id)
    runs = []
    for n_env, seed in ((2, 7), (3, 7), (2, 8)):
        env = make_vector_env(EnvConfig(id=env_id, game=game), n_env)
        obs, rng = [env.reset(seed)[:2].clone()], torch.Generator().manual_seed(0)
        for _ in range(40):
            action = random_actions(env.action_space, 3, rng)[:n_env]
            obs.append(env.step(action).obs[:2])
        runs.append(torch.stack(obs))
        env.close()
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


class DrawVectorEnv(LimitSameStepVectorEnv):
    """From step `since` on (0: the reset) env 1 has a random number that no seed reaches in its obs or reward."""

    rng = np.random.default_rng(0)

    def __init__(self, request: EnvRequest, what: str, since: int) -> None:
        super().__init__(request.n_env, limit=1000)
        self.what, self.since = what, since

    def observed(self) -> np.ndarray:
        obs = super().observed()
        if self.what == 'obs' and self._n_step[0] >= self.since:
            obs[1] += self.rng.random()
        return obs

    def step(self, actions: Any) -> Any:
        obs, reward, *rest = super().step(actions)
        if self.what == 'reward' and self._n_step[0] >= self.since:
            reward[1] += self.rng.random()
        return (obs, reward, *rest)


@pytest.mark.parametrize(
    ('what', 'since', 'message'),
    [
        ('obs', 0, 'step 0: the observations of two resets with seed=0 differ'),
        ('obs', 3, 'step 3: the observations of two runs with the same actions with seed=0 differ'),
        ('reward', 2, 'step 2: the rewards of two runs with the same actions with seed=0 differ'),
    ],
)
def test_check_env_family_that_no_seed_reaches_is_a_warning(what: str, since: int, message: str) -> None:
    ENV_REGISTRY.register('draw_test', force=True)(env_family(one_seed=True)(DrawVectorEnv))
    (sentence,) = check_env(EnvConfig(id='draw_test', kwargs={'what': what, 'since': since}))
    assert sentence.startswith(f"env 'draw_test', index 1, {message}")
    assert sentence.endswith('can be repeated; seed all random numbers in reset, or set env.check=false.')


# --- actions and extras

FLOATS = Box(np.array([-1, 0], np.float32), np.array([1, 2], np.float32))


@pytest.mark.parametrize(
    ('space', 'actions', 'message'),
    [
        (Discrete(3), [0, 1, 2], r"env 'e', step 4: the actions have shape \(3,\), wanted \(2,\); pass one action"),
        (Discrete(3), [[0], [1]], r'the actions have shape \(2, 1\), wanted \(2,\)'),
        (
            Discrete(3),
            [0.0, 1.0],
            "step 4: the actions are of float64, wanted integers; pass the policy's output unchanged",
        ),
        (Discrete(3), [0, 3], "env 'e', index 1, step 4: the action is 3, wanted 0 to 2; look at the policy."),
        (Discrete(3, start=5), [4, 5], 'index 0, step 4: the action is 4, wanted 5 to 7; look'),
        (FLOATS, [[0, 0], [0, 0]], 'the actions are of int64, wanted floats'),
        (FLOATS, [[0.0, 0.0]], r'the actions have shape \(1, 2\), wanted \(2, 2\)'),
        (FLOATS, [[0.0, 0.0], [0.0, 2.5]], r'index 1, step 4: the action is \[0.  2.5\], wanted numbers inside its'),
        (FLOATS, [[0.0, np.nan], [0.0, 0.0]], r'index 0, step 4: the action is \[ 0. nan\]'),
    ],
    ids=str,
)
def test_action_check_refuses_with_got_wanted_do(space: gymnasium.Space, actions: list, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        ActionCheck('e', space, 2)(np.array(actions), 4)


@pytest.mark.parametrize(
    ('space', 'actions'),
    [
        (Discrete(3), np.array([0, 2])),
        (Discrete(3, start=5), np.array([5, 7], np.int32)),
        (FLOATS, np.array([[-1, 0], [1, 2]], np.float32)),
        (FLOATS, np.zeros((2, 2))),
    ],
    ids=str,
)
def test_action_check_takes_all_of_the_space(space: gymnasium.Space, actions: np.ndarray) -> None:
    ActionCheck('e', space, 2)(actions, 1)
    assert all(space.contains(action.astype(space.dtype)) for action in actions)


POOL, HALF = ('envpool', 'CartPole-v1'), ('envpool', 'HalfCheetah-v4')


@pytest.mark.slow
@pytest.mark.parametrize(
    ('env', 'action', 'message'),
    [
        (('atari', 'Pong'), [0, 0, 0], r"env 'atari/Pong', step 2: the actions have shape \(3,\), wanted \(2,\)"),
        (
            ('atari', 'Pong'),
            [0, 6],
            "env 'atari/Pong', index 1, step 2: the action is 6, wanted 0 to 5; look at the policy",
        ),
        (POOL, [0], r"env 'envpool/CartPole-v1', step 2: the actions have shape \(1,\), wanted \(2,\)"),
        (POOL, [0.0, 0.5], "step 2: the actions are of float32, wanted integers; pass the policy's"),
        (POOL, [0, 2], "env 'envpool/CartPole-v1', index 1, step 2: the action is 2, wanted 0 to 1"),
        (POOL, [-1, 0], 'index 0, step 2: the action is -1, wanted 0 to 1'),
        (HALF, [[0.0] * 6], r'the actions have shape \(1, 6\), wanted \(2, 6\)'),
        (HALF, [[0.0] * 6, [np.nan] * 6], 'index 1, step 2: the action is .*nan.*, wanted num'),
    ],
)
def test_step_action_that_does_not_fit_is_refused_before_the_family_sees_it(
    env: tuple[str, str], action: list, message: str
) -> None:
    needs_extra(env[0])
    made = make_vector_env(EnvConfig(id=env[0], game=env[1]), 2)
    made.reset(0)
    good = random_actions(made.action_space, 2, torch.Generator().manual_seed(0))
    made.step(good)
    with pytest.raises(EnvError, match=message):
        made.step(torch.tensor(action))
    assert made.step(good).obs.isfinite().all()  # the process and the game continue
    made.close()


def test_need_error_inside_of_the_module_passes_through(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'half_there.py').write_text('import no_such_dependency\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match='no_such_dependency'):
        import_extra('half_there', 'sim', 'sim/walk')


class NineMixin:
    """Overrides step: the reward is 9."""

    def step(self: Any, actions: Any) -> Any:
        obs, _, *rest = super().step(actions)  # type: ignore[misc]
        return obs, np.full(self.num_envs, 9.0), *rest


class NineWorkers(NineMixin, WorkerVectorEnv):
    pass


class NineAsync(NineMixin, gymnasium.vector.AsyncVectorEnv):
    pass


class NineWrapper(gymnasium.vector.VectorWrapper):
    def step(self, actions: Any) -> Any:
        obs, _, *rest = self.env.step(actions)
        return obs, np.full(self.num_envs, 9.0), *rest


SAME_STEP = gymnasium.vector.AutoresetMode.SAME_STEP
OWN_STEPS = {
    'subclass of workers': lambda n_env: NineWorkers([LimitEnv] * n_env, SAME_STEP, 30.0, 'own'),
    'subclass of AsyncVectorEnv': lambda n_env: NineAsync([LimitEnv] * n_env, autoreset_mode=SAME_STEP),
    'wrapper': lambda n_env: NineWrapper(WorkerVectorEnv([LimitEnv] * n_env, SAME_STEP, 30.0, 'own')),
}


@ENV_REGISTRY.register('own_step_test', force=True)
@env_family(games=tuple(OWN_STEPS))
def make_own_step(request: EnvRequest) -> Any:
    return OWN_STEPS[request.game](request.n_env)


@pytest.mark.parametrize('game', OWN_STEPS)
def test_step_of_ones_own_is_what_steps_envs_in_processes(game: str) -> None:
    """The overridden step is called, not the two halves of a step of the base class or the inner env."""
    env = make_vector_env(EnvConfig(id='own_step_test', game=game), 2)
    env.reset(0)
    assert env.step(ACTION).reward.tolist() == [9.0, 9.0]
    env.close()


@ENV_REGISTRY.register('five_test', force=True)
@env_family()
def make_five(request: EnvRequest) -> LimitVectorEnv:
    return LimitVectorEnv(5)


def test_family_that_makes_another_number_of_envs_is_refused() -> None:
    with pytest.raises(EnvContractError, match="'five_test': 5 envs were made, wanted 2; make as many as are asked"):
        make_vector_env(EnvConfig(id='five_test'), 2)
    assert make_vector_env(EnvConfig(id='five_test'), 5).n_env == 5
