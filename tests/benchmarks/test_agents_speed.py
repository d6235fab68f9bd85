"""benchmarks/agents_speed.py: turns of drivers, ratios of their times, and the env of its works."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import agents_speed
import numpy as np
import pytest
from agents_speed import Driver, Round, Work

WORK = Work('x', 'x', 4, 8, (Driver('one', ''), Driver('other', '', every=2)), ('at least 2',))


def tag_env() -> Any:
    pytest.importorskip('pettingzoo', reason='the extra agents')
    path = Path(agents_speed.__file__).parent / 'peers' / 'tag_env.py'
    spec = importlib.util.spec_from_file_location('tag_env', path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_drivers_take_turns_and_warm_up():
    calls: list[str] = []

    def trainer(name: str) -> Any:
        def take() -> Round:
            calls.append(name)
            return Round(len(calls), 0.0, math.nan)

        return take

    found = agents_speed.take_rounds({'a': trainer('a'), 'b': trainer('b')}, {'a': 1, 'b': 2}, 3)
    assert calls == ['a', 'b', 'b', 'a', 'a', 'b', 'a', 'a', 'b']  # rounds -2 and -1 by both; b leaves out round 1
    assert {name: {i: x.wall_s for i, x in rounds.items()} for name, rounds in found.items()} == {
        'a': {0: 5, 1: 7, 2: 8},
        'b': {0: 6, 2: 9},
    }


def test_ratio_is_of_rounds_that_both_took():
    rounds = {
        'one': {i: Round(1.0, 2.0, 0.5) for i in range(3)} | {1: Round(100.0, 2.0, 0.5)},
        'other': {0: Round(3.0, 2.0, 1.5), 2: Round(3.0, 2.0, 1.5)},
    }
    entry = agents_speed.compare(WORK, WORK.drivers, rounds)
    times = entry['times']['other']
    assert [times[name]['ratio'] for name in ('wall_s', 'cpu_s', 'learn_s')] == [3.0, 1.0, 3.0]
    assert times['wanted'] == 'at least 2'
    assert entry['drivers']['one']['agent_step_per_s'] == 16 * 4 * 8 / 1.0
    assert entry['drivers']['other']['rounds'] == 2


def test_driver_that_is_not_installed_is_missing(tmp_path):
    assert not agents_speed.python_of(agents_speed.SB3, tmp_path).exists()
    assert agents_speed.python_of(Driver('zoo', ''), tmp_path).exists()


def test_tables_name_every_driver_and_ratio():
    rounds = {'one': {0: Round(1.0, 2.0, 0.5)}, 'other': {0: Round(3.0, 2.0, 1.5)}}
    data = {
        'works': {'x': agents_speed.compare(WORK, WORK.drivers, rounds)},
        'table': {'env': 0.1, 'table': 2.0, 'vector': 3.0},
    }
    text = agents_speed.tables_of(data)
    assert '| x | one | 512 | 1000.0 |' in text
    assert '| x | other / one | 3.00 (3.00 to 3.00) |' in text
    assert '| 0.1 | 2.0 | 3.0 | at most 10 more than the env |' in text


def test_tag_shows_each_agent_the_others_relative_to_itself():
    env = tag_env().Tag()
    obs, _ = env.reset(seed=0)
    places = {agent: x[:2] for agent, x in obs.items()}
    assert all(x.shape == (16,) and x.dtype == np.float32 for x in obs.values())
    # the others come in their order: of chaser_1 chaser_0, chaser_2, runner; four numbers each
    assert obs['chaser_1'][4:6] == pytest.approx(places['chaser_0'] - places['chaser_1'])
    assert obs['chaser_1'][12:14] == pytest.approx(places['runner'] - places['chaser_1'])


def test_tag_pays_the_runner_the_distance_to_the_nearest_chaser_for_100_steps():
    env = tag_env().Tag()
    env.reset(seed=0)
    n = 0
    while env.agents:
        obs, rewards, terminated, truncated, _ = env.step(dict.fromkeys(env.agents, 1 + n % 4))
        n += 1
    gaps = [np.hypot(*(obs['runner'][4 + 4 * i : 6 + 4 * i])) for i in range(3)]
    assert n == 100
    assert rewards['runner'] == pytest.approx(min(gaps))
    assert rewards['chaser_2'] == -rewards['runner']
    assert all(truncated.values()) and not any(terminated.values())
