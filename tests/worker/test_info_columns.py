"""Columns of a rollout with entries of the infos of its steps: rows, shapes, groups, entries that are missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.policy_envs import make_policy
from tests.steer_envs import SteerEnv
from zoo.core.seeding import stream
from zoo.env import EnvConfig, make_vector_env
from zoo.env.errors import EnvContractError
from zoo.worker.collector import Collector

NAN = float('nan')
STEER = 'tests.steer_envs:steer_env'
EVERY = [
    *(dict(id=STEER, vectorization=how, autoreset=mode)
      for how in ('sync', 'async') for mode in ('same_step', 'next_step', 'disabled')),
    *(dict(id=f'tests.steer_envs:Steer{mode}-v0', vectorization='batched') for mode in ('', 'SameStep', 'Disabled')),
]  # fmt: skip


def rollouts(env: dict[str, Any], n_step: int, n_rollout: int = 1, n_group: int = 1) -> list[Any]:
    """Copies of the columns of rollouts, 2 envs in each group."""
    vectors = [make_vector_env(EnvConfig(**env), 2, first=2 * i) for i in range(n_group)]
    try:
        spaces = vectors[0].obs_space, vectors[0].action_space
        mode = make_policy(*spaces, collect=dict(n_step=n_step), enable_field=['collect']).collect_mode
        collector = Collector(vectors, mode)
        collector.reset(stream(0, 'test'))
        return [{name: x.clone() for name, x in collector.collect().data.items()} for _ in range(n_rollout)]
    finally:
        for vector in vectors:
            vector.close()


def same(column: torch.Tensor, want: list[float]) -> bool:
    return torch.equal(column.nan_to_num(-9), torch.tensor(want).nan_to_num(-9)[:, None].expand_as(column))


@pytest.mark.many
@pytest.mark.parametrize('env', EVERY, ids=lambda e: f'{e["id"][17:]}-{e["vectorization"]}-{e.get("autoreset", "")}')
def test_the_value_of_step_t_is_in_row_t_in_every_autoreset_mode(env: dict[str, Any]) -> None:
    first, second = rollouts({**env, 'info_columns': ['step']}, 7, 2)
    has_reset_row = 'is_reset' in first
    assert same(first['info/step'], [1, 2, 3, 4, 5, *([NAN, 1] if has_reset_row else [1, 2])])
    assert same(second['info/step'], [2, 3, 4, 5, NAN, 1, 2] if has_reset_row else [3, 4, 5, 1, 2, 3, 4])


@pytest.mark.slow
@pytest.mark.parametrize('how', ['sync', 'async'])
def test_entries_may_be_arrays_or_missing_in_some_steps_and_groups_are_joined(how: str) -> None:
    env = dict(id=STEER, vectorization=how, info_columns=['even', 'place', 'score'])
    (data,) = rollouts(env, 6, n_group=2)
    assert data['info/even'].shape == (6, 4) and same(data['info/even'], [NAN, 2, NAN, 4, NAN, NAN])
    assert data['info/place'].shape == (6, 4, 2) and data['info/place'][:, 3].tolist()[:2] == [[1.0, 0.5], [2.0, 0.5]]
    assert same(data['info/score'], [NAN] * 4 + [2.5, NAN])  # only at the end of an episode


class Grows(SteerEnv):
    """The shape of 'place' changes at step `at` of an episode; with None it differs between envs."""

    n_made = 0

    def __init__(self, at: int | None = 3) -> None:
        super().__init__()
        Grows.n_made += 1
        self._n, self._at = Grows.n_made, at

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        n = 1 + (self._n > 2) if self._at is None else 1 if self._n_step < self._at else 2
        return *rest, {**info, 'place': np.zeros(n)}


def test_an_entry_whose_shape_changes_from_step_to_step_or_group_to_group_is_refused_by_name() -> None:
    env: dict[str, Any] = dict(id=Grows, action_mask='off', vectorization='sync', info_columns=['place'])
    shape = r"the entry 'place' of its info has the shape \(2,\), wanted that of the {}, \(1,\); give it one shape"
    with pytest.raises(EnvContractError, match=f'Grows.*, step 3 of a rollout: {shape.format("steps before")}'):
        rollouts(env, 4)
    Grows.n_made = 0
    with pytest.raises(EnvContractError, match=f'Grows.*, 2 envs of a group: {shape.format("other envs")}'):
        rollouts({**env, 'kwargs': {'at': None}}, 4, n_group=2)


def test_an_entry_that_no_step_has_is_a_warning_and_nan(caplog: pytest.LogCaptureFixture) -> None:
    first, _ = rollouts(dict(id=STEER, info_columns=['stepp', 'title']), 4, 2)
    assert [r.message for r in caplog.records if 'info_columns' in r.message] == [
        "env.info_columns has 'stepp', 'title', but no step of the first rollout had a number of that name in its info: the "
        'column is nan there; correct the name, or read it only where it is given'
    ]
    assert first['info/stepp'].isnan().all() and first['info/title'].shape == (4, 2)


def test_a_policy_finds_the_entries_in_process_transition() -> None:
    vector = make_vector_env(EnvConfig(id=STEER, info_columns=['step']), 2)
    policy = make_policy(vector.obs_space, vector.action_space, collect=dict(n_step=4), enable_field=['collect'])
    seen: list[Any] = []

    def process(obs: Any, output: Any, steps: Any) -> Any:
        seen.append(steps.info)
        return policy.collect_mode.process_transition(obs, output, steps)

    collector = Collector([vector], policy.collect_mode._replace(process_transition=process))
    collector.reset(stream(0, 'test'))
    collector.collect()
    assert list(seen[0]) == ['step'] and same(seen[0]['step'], [1, 2, 3, 4])
