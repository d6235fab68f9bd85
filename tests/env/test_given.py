"""The user's own vector envs: classes, functions and existing objects; their seeds, numbers of envs and limits."""

from __future__ import annotations

import logging
import re
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from tests.envs import LimitEnv, LimitSameStepVectorEnv, LimitVectorEnv, limit_env, play
from zoo import serial_pipeline
from zoo.core.errors import UserError
from zoo.env import EnvConfig, EnvError, EnvKwargsError, UnsupportedEnvError, check_env, make_env, make_vector_env
from zoo.env.given import takes_one_seed
from zoo.env.interface import autoreset_of


def limits(num_envs: int, limit: int = 5) -> SyncVectorEnv:
    return SyncVectorEnv([partial(limit_env, limit)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def annotated(num_envs: Any, limit: int = 5) -> gymnasium.vector.VectorEnv:
    return limits(num_envs, limit)


class Maker:
    """A callable object."""

    def __call__(self, num_envs: int) -> Any:
        return limits(num_envs)


def train(env: dict[str, Any], **config: Any) -> Any:
    policy = dict(learn=dict(batch_size=None), collect=dict(n_step=64), eval=dict(n_episode=2))
    quiet = dict(console='off', tensorboard=False)
    return serial_pipeline(dict(max_env_step=512, env=env, policy=policy, logger=quiet, **config))


def episode_len(env: dict[str, Any], n_env: int = 2) -> int:
    """The number of steps of the first episode, the same in all envs; asserts that each step has reward 1."""
    vector = make_vector_env(env, n_env, training=True)
    vector.reset(0)
    n_step, is_over = 0, False
    while not is_over:
        step = vector.step(torch.zeros(n_env, dtype=torch.int64))
        assert vector.n_env == n_env and step.reward.tolist() == [1.0] * n_env
        n_step, is_over = n_step + 1, bool(step.truncated.all())
    vector.close()
    return n_step


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    'make',
    [
        LimitVectorEnv,
        LimitSameStepVectorEnv,
        limits,
        annotated,
        lambda num_envs: limits(num_envs),
        partial(limits, limit=5),
        Maker(),
        'tests.envs:LimitVectorEnv',
        f'{__name__}:limits',
        'tests/env/test_given.py:limits',
    ],
)
def test_what_makes_a_vector_is_asked_for_the_number_of_envs(make: Any, pytestconfig: pytest.Config) -> None:
    if isinstance(make, str) and make.startswith('tests/'):
        make = str(pytestconfig.rootpath / make)
    assert episode_len(dict(id=make), 4) == episode_len(dict(id=make), 2) == 5


def test_function_that_makes_vectors_trains() -> None:
    result = train(dict(id=limits, collector_env_num=4, evaluator_env_num=2))
    assert result.last_return == 5 and result.env_step > 400


def test_vector_that_steps_as_one_equals_single_envs_that_step_one_by_one() -> None:
    """The oracle: gymnasium's envs made one by one, seeded from the same children of the seed."""
    cartpole = lambda num_envs: SyncVectorEnv(  # noqa: E731
        [lambda: gymnasium.make('CartPole-v1')] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP
    )
    own = make_vector_env({'id': cartpole}, 3)
    single = make_vector_env({'id': 'CartPole-v1', 'vectorization': 'sync'}, 3)
    assert torch.equal(own.reset(7), single.reset(7))
    for i in range(60):
        action = torch.tensor([i % 2, 0, 1])
        a, b = own.step(action), single.step(action)
        assert torch.equal(a.obs, b.obs) and torch.equal(a.terminated, b.terminated)


def test_check_env_of_a_vector_of_ones_own_finds_what_no_seed_repeats() -> None:
    class Chance(LimitVectorEnv):
        def observed(self) -> np.ndarray:
            return np.random.default_rng().uniform(0, 9, (self.num_envs, 1)).astype(np.float32)

    assert check_env({'id': LimitVectorEnv}) == []
    (warning,) = check_env({'id': Chance})
    assert 'the observations of two resets with seed=0 differ' in warning


# --- seeds


class Seeded(LimitVectorEnv):
    """Remembers the seeds it got."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.seeds = seed if seed is not None else self.seeds
        return super().reset(options=options)


class OneSeed(Seeded):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed, options=options)


class ManySeeds(Seeded):
    def reset(self, *, seed: int | list[int] | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed, options=options)


class Unsaid(Seeded):
    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        return super().reset(seed=seed, options=options)


class UnsaidOne(LimitVectorEnv):
    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        self.seeds = seed
        return super().reset(seed=seed, options=options)  # gymnasium's reset takes one int and refuses a list


@pytest.mark.parametrize(('make', 'one'), [(OneSeed, True), (ManySeeds, False), (Unsaid, False), (UnsaidOne, True)])
def test_seeds_are_one_or_a_list_as_the_reset_takes_them(make: Any, one: bool) -> None:
    assert takes_one_seed(make(3)) is one
    env = make_vector_env({'id': make}, 3)
    env.reset(0)
    seeds = env.env.seeds  # type: ignore[union-attr]
    assert isinstance(seeds, int) if one else len(set(seeds)) == 3


# --- existing vector envs


def test_vector_env_that_exists_trains_itself_and_evaluates_on_a_copy() -> None:
    given = Seeded(4)
    result = train(dict(id=given))  # the numbers of envs follow from it
    assert result.last_return == 5
    assert given.step(np.zeros(4, int))[0].max() > 1 and given.seeds is not None  # training stepped it, not a copy
    config = (result.run_dir / 'config.yaml').read_text()
    assert 'collector_env_num: 4' in config and 'test_given:Seeded' in config


class Few(LimitEnv):
    max_num_envs, max_horizon = 4, 20


class FewAtOnce(LimitVectorEnv):
    max_num_envs = 4


OTHER_NUMBER = 'the vector env given has 4 envs but the config asks for 2 in a group'
FEW = r'env.collector_env_num is 6 but .*Few. supports 4 envs at most, its max_'


@pytest.mark.parametrize(
    ('env', 'message'),
    [
        (dict(id=LimitVectorEnv(4), collector_env_num=2), OTHER_NUMBER),
        (dict(id=LimitVectorEnv(4), collector_group_num=2), OTHER_NUMBER),
        (
            dict(id=LimitVectorEnv(4), max_episode_steps=3),
            'env.max_episode_steps is 3 but env.id is a vector env that exis',
        ),
        (dict(id=limit_env()), 'env.id is an env of class LimitEnv, and a run makes several of them; give what'),
        (dict(id=Few, collector_env_num=6, collector_group_num=2, vectorization='async'), FEW),
    ],
)
def test_env_whose_class_or_object_is_for_another_number_than_the_config_is_refused(env: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        train(env)


def test_vector_env_with_processes_is_refused_and_stays_whole() -> None:
    env = gymnasium.vector.AsyncVectorEnv([limit_env] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(UnsupportedEnvError, match='cannot be copied .*give a function of num_envs'):
        train(dict(id=env))
    assert env.reset(seed=0)[0].shape == (2, 1)  # its pipes are still open
    env.close()


# --- vector envs that are refused


def untold(n: int = 2) -> Any:
    return limits(n)


def no_vector(num_envs: int) -> Any:
    return limit_env()


@pytest.mark.parametrize(
    ('fields', 'message'),
    [
        (dict(kwargs={'limt': 3}), "env.kwargs has 'limt' but tests.envs:LimitVectorEnv takes limit, end"),
        (dict(kwargs={'num_envs': 3}), "env.kwargs has 'num_envs', which the config gives by"),
        (dict(max_episode_steps=3), 'makes whole vectors and has no argument max_episode_steps; give it'),
        (dict(vectorization='sync'), "env.vectorization is 'sync' but 'tests.envs:LimitVectorEnv' steps"),
        (dict(window=3), "env.window is set but 'tests.envs:LimitVectorEnv' steps all its envs at once"),
        (
            dict(id=untold),
            'what was made is a vector of 2 envs (SyncVectorEnv), and zoo cannot tell its maker how many',
        ),
        (dict(id=no_vector), 'was asked for num_envs=3 and returned a LimitEnv, wanted a gymnasium.vector.VectorEnv'),
    ],
)
def test_vector_that_does_not_fit_is_refused_with_what_to_do(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        make_vector_env({'id': LimitVectorEnv, **fields}, 3)


def test_argument_max_episode_steps_of_a_maker_gets_the_limit() -> None:
    def make(num_envs: int, max_episode_steps: int = 9) -> Any:
        return limits(num_envs, max_episode_steps)

    assert episode_len(dict(id=make, max_episode_steps=3)) == 3 and episode_len(dict(id=make)) == 9


def test_id_with_a_vector_entry_point_alone_is_checked_and_made() -> None:
    gymnasium.register('OnlyVector-v0', vector_entry_point='tests.envs:LimitVectorEnv', kwargs={'limit': 4})
    try:
        assert check_env({'id': 'OnlyVector-v0'}) == []
        assert episode_len(dict(id='OnlyVector-v0')) == 4
        with pytest.raises(EnvKwargsError, match="env.kwargs has 'foo' but OnlyVector-v0 takes limit, end, action"):
            make_vector_env({'id': 'OnlyVector-v0', 'kwargs': {'foo': 1}}, 2)
        with pytest.raises(UnsupportedEnvError, match='available as a vector only'):
            make_env({'id': 'OnlyVector-v0'})
    finally:
        gymnasium.registry.pop('OnlyVector-v0')


# --- limits of a class


@pytest.mark.parametrize(
    ('fields', 'n_env', 'words'),
    [
        (dict(id=Few), 5, 'env.evaluator_env_num is 5 but'),
        (dict(id=FewAtOnce), 5, 'env.collector_env_num is 5 but .*supports 4 envs at most'),
        (
            dict(id=Few, max_episode_steps=21),
            2,
            'env.max_episode_steps is 21 but .* supports episodes of 20 steps at most',
        ),
    ],
)
def test_more_envs_or_steps_than_a_class_supports_are_refused(fields: dict[str, Any], n_env: int, words: str) -> None:
    with pytest.raises(UnsupportedEnvError, match=words):
        make_vector_env(fields, n_env, training='collector' in words)
    make_vector_env({'id': fields['id']}, 4).close()


def test_max_horizon_cuts_episodes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert episode_len(dict(id=Few, kwargs={'limit': 99})) == 20
    assert caplog.messages == [f'env {__name__ + ":Few"!r}: episodes are cut after 20 steps, its max_horizon']
    assert episode_len(dict(id=Few, kwargs={'limit': 99}, max_episode_steps=7)) == 7


def test_torch_tensors_of_a_vector_env_are_read() -> None:
    class Tensors(LimitVectorEnv):
        def observed(self) -> Any:
            return torch.as_tensor(super().observed())

        def step(self, actions: Any) -> Any:
            obs, *rest, info = super().step(actions)
            return obs, *map(torch.as_tensor, rest), info

    assert episode_len(dict(id=Tensors)) == 5


def test_autoreset_of_a_vector_env_is_its_own_whatever_others_did_to_the_metadata_of_the_class() -> None:
    class Own(SyncVectorEnv):
        """Has its autoreset mode in the metadata of the object."""

        def __init__(self) -> None:
            super().__init__([limit_env] * 2)
            self.metadata = {**self.metadata, 'autoreset_mode': AutoresetMode.SAME_STEP}

    given = SyncVectorEnv([limit_env] * 2)
    given.metadata = {'autoreset_mode': AutoresetMode.SAME_STEP}  # so in gymnasium 1.1 after a SAME_STEP env was made
    assert autoreset_of(given) == autoreset_of(gymnasium.vector.VectorWrapper(given)) == 'next_step'
    assert autoreset_of(Own()) == 'same_step'


class SilentVectorEnv(LimitVectorEnv):
    """Does not say when it resets an ended episode; it does so in the same step, and gives the last observations by an old key."""

    metadata: ClassVar[dict[str, Any]] = {'render_modes': []}

    def step(self, actions: Any) -> Any:
        self._n_step += 1
        ended = self._n_step == self.limit
        last = self._n_step[:, None].astype(np.float32)
        self._n_step[ended] = 0
        info = {'final_observation': last} if ended.any() else {}
        obs = self._n_step[:, None].astype(np.float32)
        return obs, np.ones(self.num_envs), np.zeros(self.num_envs, bool), ended, info


def silent_vector(num_envs: int) -> gymnasium.vector.VectorEnv:
    return SilentVectorEnv(num_envs)


def test_vector_env_that_does_not_say_its_autoreset_mode_is_asked_for_it_and_takes_that_of_the_config() -> None:
    with pytest.raises(
        EnvError, match=r"'autoreset_mode'\] of the vector env is None.* set env.autoreset to same_step, next_"
    ):
        make_vector_env(EnvConfig(id=silent_vector), 2)
    *_, step = play(make_vector_env(EnvConfig(id=silent_vector, autoreset='same_step'), 2), *[[0, 0]] * 5)
    assert step.obs.tolist() == [[0], [0]] and step.final_obs.tolist() == [[5], [5]]
