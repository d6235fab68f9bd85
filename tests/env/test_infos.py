"""Infos of single envs from the info of a vector. In `steer_env` the info of step n has step=n, that of a reset step=-1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import tests.steer_envs
from tests.envs import play
from zoo.env import EnvConfig, make_vector_env
from zoo.env.errors import EnvContractError, UnsupportedEnvError
from zoo.env.infos import end_infos, number, numbers_of, requested_of, step_values

SINGLE = [
    dict(id='tests.steer_envs:steer_env', vectorization=how, autoreset=mode)
    for how, mode in (('sync', 'same_step'), ('async', 'next_step'), ('sync', 'disabled'), ('async', 'same_step'))
]
BATCHED = [
    dict(id=f'tests.steer_envs:Steer{mode}-v0', vectorization='batched') for mode in ('', 'SameStep', 'Disabled')
]


def name_of(env: dict[str, Any]) -> str:
    return f'{env["id"].rpartition(":")[2]}-{env["vectorization"]}-{env.get("autoreset", "")}'


def steps(env: dict[str, Any], n_step: int, watch: tuple[str, ...] = ()) -> Any:
    """(info, indices of the ended envs) of each step of two envs, and the autoreset mode."""
    vector = make_vector_env(EnvConfig(**env), 2)
    vector.request_infos(watch)
    steps = play(vector, *[[0, 0]] * n_step)
    return [(x.info, (x.terminated | x.truncated).nonzero().flatten().tolist()) for x in steps], vector.autoreset


@pytest.mark.slow
@pytest.mark.parametrize('env', SINGLE, ids=name_of)
def test_end_infos_are_the_numbers_of_the_last_step_of_an_episode(env: dict[str, Any]) -> None:
    found, mode = steps(env, 8)
    info, ended = found[4]
    assert ended == [0, 1]
    want = {'step': 5, 'odd/a': 1, 'is_success': True, 'score': 2.5}  # no text or array of several numbers
    assert end_infos(info, ended, mode) == [want, want]
    assert all('final_info' not in info and end_infos(info, [1], mode) == [{}] for info, ended in found if not ended)


@pytest.mark.parametrize('env', BATCHED, ids=name_of)
def test_end_infos_of_batched_envs_are_those_of_the_last_step_not_of_the_reset(env: dict[str, Any]) -> None:
    found, mode = steps(env, 8)
    info, ended = found[4]
    assert ended == [0, 1]
    assert end_infos(info, ended, mode) == [{'step': 5.0}, {'step': 5.0}]


@pytest.mark.parametrize('env', [*SINGLE, *BATCHED], ids=name_of)
def test_step_values_of_a_watched_entry_are_those_of_each_step_in_every_autoreset_mode(env: dict[str, Any]) -> None:
    found, mode = steps(env, 8, ('step',))
    values = []
    for info, _ in found:
        step = step_values(info, 'step', 2)
        values.append(None if step is None else step[0].tolist())
    is_next = mode == 'next_step'
    reset = [None if env['vectorization'] != 'batched' else [-1.0, -1.0]] if is_next else []
    rest = [[n, n] for n in (1.0, 2, 3)]
    assert values == ([[n, n] for n in (1.0, 2, 3, 4, 5)] + reset + rest)[:8]


@pytest.mark.slow
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_watched_entries_have_masks_and_others_are_not_gathered(how: str) -> None:
    env = dict(id='tests.steer_envs:steer_env', vectorization=how)
    found, _ = steps(env, 2, ('even', 'place', 'title', 'no_such'))
    assert set(found[0][0]) == {'place', '_place'}  # 'even' comes with even steps, 'title' is no number
    info = found[1][0]
    assert info['even'].tolist() == [2.0, 2.0] and info['_even'].tolist() == [True, True]
    assert info['place'].tolist() == [[2.0, 0.5]] * 2
    assert 'title' not in info and step_values(info, 'title', 2) is None


def test_an_entry_of_different_shapes_is_refused_by_name() -> None:
    class Grows(tests.steer_envs.SteerEnv):
        n_made = 0

        def __init__(self) -> None:
            super().__init__()
            Grows.n_made += 1
            self._n = Grows.n_made

        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            return *rest, {**info, 'place': np.zeros(self._n)}

    with pytest.raises(EnvContractError, match=r"index 1.*entry 'place'.*\(2,\).*\(1,\).*one shape"):
        steps(dict(id=Grows, vectorization='sync', action_mask='off'), 1, ('place',))


def test_infos_of_unnamed_forms() -> None:
    arrays = {'lives': np.array([3, 4]), 'env_id': np.array([0, 1]), 'players': {'x': 1}, 'final_obs': np.zeros((2, 1))}
    assert end_infos(arrays, [1], 'same_step') == [{'lives': 4, 'env_id': 1}]  # of a family without these masks
    assert end_infos(None, [0, 1], 'same_step') == [{}, {}]
    half = {'a': np.array([1.0, 2.0]), '_a': np.array([True, False])}
    assert end_infos(half, [0, 1], 'next_step') == [{'a': 1.0}, {}]
    assert step_values({'a': np.array([1.0, 2.0]), '_a': np.array([False, False])}, 'a', 2) is None


def test_numbers_are_scalars_and_bools_alone() -> None:
    assert number(np.float32(2.5)) == 2.5 and number(torch.tensor(3)) == 3 and number(np.array([4])) == 4
    assert number(np.True_) is True
    assert number(10**308) == 10**308 and number(-(10**400)) is None and number(10**309) is None
    big = {'a': 10**400, 'b': 1}
    assert numbers_of(big) == {'b': 1} and requested_of(['a', 'b'], big).keys() == {'b'}
    assert step_values({'a': [10**400, 1]}, 'a', 2) is None
    assert [number(x) for x in ('a', None, [1], {'a': 1}, np.zeros(2), torch.zeros(2), 1j)] == [None] * 7
    assert numbers_of({'a': 1, 'b': 'text', 3: 2.0}) == {'a': 1, '3': 2.0} and numbers_of(None) == {}


def test_tensor_envs_refuse_infos() -> None:
    with pytest.raises(UnsupportedEnvError, match=r'tensor program and has no infos.*info_columns'):
        make_vector_env(dict(id='torch', game='CartPole-v1', info_columns=['x']), 2)


class Speeds(NamedTuple):
    forward: float
    name: str


@dataclass
class Terms:
    drag: float
    speeds: Speeds


NESTED = {
    'rewards': {'speed': 0.25, 'collided': np.True_, 'text': 'a', 'vector': np.zeros(3)},
    'terms': Terms(1.5, Speeds(2.0, 'b')),
}
PATHS = {'rewards/speed': 0.25, 'rewards/collided': True, 'terms/drag': 1.5, 'terms/speeds/forward': 2.0}


def test_numbers_of_nested_infos_have_their_paths_as_names() -> None:
    assert numbers_of(NESTED) == PATHS
    own = {'episode': {'r': 1.0}, 'final_obs': {'x': 1.0}}  # of wrappers
    assert numbers_of({**NESTED, **own, 'rewards/speed': 7}) == {**PATHS, 'rewards/speed': 7}
    endless: dict[str, Any] = {'n': 1}
    endless['again'] = endless
    assert numbers_of(endless) == {'n': 1, 'again/n': 1, 'again/again/n': 1, 'again/again/again/n': 1}


def test_paths_of_nested_infos_can_be_requested_of_every_step() -> None:
    found = requested_of(['rewards/speed', 'terms/speeds/forward', 'rewards/none', 'none/speed', 'terms'], NESTED)
    assert {key: value.tolist() for key, value in found.items()} == {'rewards/speed': 0.25, 'terms/speeds/forward': 2.0}


def test_nested_infos_of_a_batched_env_are_read_by_their_paths() -> None:
    """gymnasium's form: arrays and masks in the nested dict, and a mask of the dict itself."""
    info = {
        'rewards': {'speed': np.array([0.25, 0.5, 0.0]), '_speed': np.array([True, True, False])},
        '_rewards': np.array([True, True, False]),
    }
    assert end_infos(info, [0, 1, 2], 'next_step') == [{'rewards/speed': 0.25}, {'rewards/speed': 0.5}, {}]
    values, given = step_values(info, 'rewards/speed', 3) or ([], [])
    assert list(values) == [0.25, 0.5, 0.0] and list(given) == [True, True, False]
    assert step_values(info, 'rewards/none', 3) is None
