"""Sequence spaces as padded sets: by hand, in both forms of values; a run on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Graph, Sequence, Text, Tuple

from tests.policy_envs import job_config, rows
from zoo.env.adapter import convert_space
from zoo.env.errors import UnsupportedEnvError
from zoo.env.padded_sets import PaddedSets
from zoo.pipeline import serial_pipeline

UNIT = Dict({'kind': Discrete(2), 'place': Box(-9.0, 9.0, (2,), np.float32)})


class ShownEnv(gymnasium.Env):
    """Shows values of a space, one after the other."""

    action_space = Discrete(2)

    def __init__(self, space: gymnasium.Space, *values: Any) -> None:
        self.observation_space = space
        self._values = values
        self._n_step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        self._n_step = 0
        return self._values[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._n_step += 1
        return self._values[self._n_step % len(self._values)], 0.0, self._n_step == 5, False, {}


class PayingUnits(gymnasium.Env):
    """One step: up to five units, each with a side (0 or 1) and a pay; the action is the side of the best paid unit."""

    observation_space = Dict({'units': Sequence(Box(-1.0, 1.0, (3,), np.float32))})
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        n = int(self.np_random.integers(1, 6))
        side = self.np_random.integers(0, 2, n)
        pay = self.np_random.random(n).astype(np.float32)
        self._best = int(side[pay.argmax()])
        units = np.stack((pay, side, 1 - side), 1).astype(np.float32)
        return {'units': tuple(units)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return {'units': ()}, float(action == self._best), True, False, {}


def padded(space: gymnasium.Space, value: Any, n_max: int = 3, **options: Any) -> Any:
    env = PaddedSets(ShownEnv(space, value), n_max, **options)
    obs, _ = env.reset()
    assert env.observation_space.contains(obs)
    return obs


@pytest.mark.parametrize('stack', [False, True])
def test_entities_of_a_dict_are_flattened_and_padded_as_worked_by_hand(stack: bool) -> None:
    if stack:
        value: Any = {'kind': np.array([1, 0]), 'place': np.array([[2.0, 3.0], [4.0, 5.0]], np.float32)}
    else:
        value = tuple(
            {'kind': kind, 'place': np.array(place, np.float32)} for kind, place in ((1, (2, 3)), (0, (4, 5)))
        )
    space = Sequence(UNIT, stack=stack)
    found = padded(space, value)
    assert found['items'].tolist() == [[0, 1, 2, 3], [1, 0, 4, 5], [0, 0, 0, 0]]  # kind one-hot, place
    assert found['mask'].tolist() == [1, 1, 0]


@pytest.mark.parametrize('stack', [False, True])
def test_entities_of_a_tuple_and_of_a_box(stack: bool) -> None:
    pairs = Tuple((Discrete(2), Box(-9.0, 9.0, (1,), np.float32)))
    value: Any = ((1, np.array([7.0], np.float32)),)
    boxes: Any = (np.array([7.0, 8.0], np.float32),)
    if stack:
        value = (np.array([1]), np.array([[7.0]], np.float32))
        boxes = np.array([[7.0, 8.0]], np.float32)
    assert padded(Sequence(pairs, stack=stack), value)['items'][0].tolist() == [0, 1, 7]
    box = Box(-9.0, 9.0, (2,), np.float32)
    assert padded(Sequence(box, stack=stack), boxes)['items'].tolist() == [[7, 8], [0, 0], [0, 0]]


def test_empty_sequence_and_one_that_is_cut_off() -> None:
    space = Sequence(Discrete(2))
    assert padded(space, ())['mask'].tolist() == [0, 0, 0]
    found = padded(space, (0, 1, 1, 0), truncate=True)
    assert found['items'].tolist() == [[1, 0], [0, 1], [0, 1]] and found['mask'].tolist() == [1, 1, 1]


def test_sequences_inside_of_dicts_and_tuples_are_padded_and_the_rest_stays() -> None:
    space = Dict({'own': Discrete(3), 'both': Tuple((Sequence(Discrete(2)), Discrete(4)))})
    found = padded(space, {'own': 2, 'both': ((1,), 3)})
    assert found['own'] == 2 and found['both'][1] == 3
    assert found['both'][0]['mask'].tolist() == [1, 0, 0]


def test_sequence_that_is_too_long_ends_the_run_in_a_sentence(tmp_path: Path) -> None:
    class LongEnv(ShownEnv):
        def __init__(self) -> None:
            super().__init__(Sequence(Discrete(2)), (0, 1), (0, 1, 1, 0))

    wrapper = {'type': 'zoo.env.padded_sets:PaddedSets', 'n_max': 3}
    with pytest.raises(
        Exception, match=r'a sequence of 4 entities, wanted at most 3, the n_max of PaddedSets; raise n_max'
    ):
        serial_pipeline(job_config(tmp_path, LongEnv, env={'wrappers': [wrapper]}))


def test_spaces_that_cannot_be_padded_are_refused() -> None:
    with pytest.raises(UnsupportedEnvError, match='entities are Text.*, whose numbers are not of a fixed count'):
        PaddedSets(ShownEnv(Sequence(Text(4)), ()), 3)
    with pytest.raises(UnsupportedEnvError, match='n_max is 0 but must be 1 or more'):
        PaddedSets(ShownEnv(Sequence(Discrete(2)), ()), 0)


def test_sentences_about_sequences_and_graphs_say_what_to_do() -> None:
    with pytest.raises(
        UnsupportedEnvError, match=r"pad it by env.wrappers=\[{type: 'zoo.env.padded_sets:PaddedSets', n_max: 16}\]"
    ):
        convert_space(Sequence(UNIT), 'observation', 'x')
    graph = Graph(Box(-1.0, 1.0, (2,), np.float32), None)
    with pytest.raises(UnsupportedEnvError, match='give its nodes as a Sequence, with what edges say of them'):
        convert_space(graph, 'observation', 'x')


def config(root: Path, **changes: Any) -> dict[str, Any]:
    env = {'wrappers': [{'type': 'zoo.env.padded_sets:PaddedSets', 'n_max': 6}], 'collector_env_num': 8}
    model = {'encoder': {'type': 'entities', 'hidden_size': 16, 'n_head': 2}}
    return job_config(root, PayingUnits, env=env, policy={'model': model}) | changes


@pytest.mark.slow
def test_run_on_a_sequence_trains_the_encoder_of_entities(tmp_path: Path) -> None:
    result = serial_pipeline(config(tmp_path))
    assert result.train_iter > 0
    assert result.policy.act({'units': {'items': np.zeros((6, 3), np.float32), 'mask': np.zeros(6, np.int8)}}) in (0, 1)


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.slow
def test_policy_finds_the_best_of_a_varying_number_of_entities(tmp_path: Path) -> None:
    cfg = config(tmp_path, max_env_step=60_000)
    cfg['policy']['collect']['n_step'] = 64
    cfg['policy']['learn'] |= {'batch_size': 128, 'learning_rate': 3e-3}
    cfg['policy']['eval']['n_episode'] = 200
    result = serial_pipeline(cfg)
    # all units on one side, or one unit: about .37 of the episodes, where any policy that sees units is right; half of the rest: .69
    assert result.last_return > 0.9
    assert rows(result.run_dir)
