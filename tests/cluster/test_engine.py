"""The engine of this process, and which engine a config names."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import zoo.cluster.engine as engine_module
from tests.cluster.runners import Numbers, Spec
from zoo.cluster.engine import InlineEngine
from zoo.cluster.messages import Lost, Order
from zoo.cluster.remote_collector import make_engine


@pytest.fixture(name='engine')
def _engine(monkeypatch: pytest.MonkeyPatch) -> InlineEngine:
    monkeypatch.setattr(engine_module, 'Runner', Numbers)
    engine = InlineEngine('run')
    specs: Any = [Spec(0), Spec(1)]
    engine.start(specs)
    return engine


def weights(value: int) -> np.ndarray:
    return np.full(16, value, np.uint8)


def test_an_order_is_done_with_its_version_and_one_without_with_the_newest(engine: InlineEngine) -> None:
    engine.publish(weights(5), 0)
    engine.ask(Order('run', 0, 0, 0, 0))
    engine.ask(Order('run', 1, 0, None, 0))
    engine.publish(weights(6), 1)
    (first,), (second,) = engine.wait(0.0), engine.wait(0.0)
    assert (first.group, first.version, second.group, second.version) == (0, 0, 1, 1)  # type: ignore[union-attr]
    assert first.blocks['steps.reward'][0, 0] == 5 and second.blocks['steps.reward'][0, 0] == 6  # type: ignore[union-attr]
    assert engine.wait(0.0) == []


def test_a_runner_that_is_ended_is_lost_with_its_orders(engine: InlineEngine) -> None:
    engine.publish(weights(5), 0)
    for group in (0, 1):
        engine.ask(Order('run', group, 0, 0, 0))
    engine.kill(0, 'a test')
    assert engine.wait(0.0) == [Lost(0, 'a test')]
    (parcel,) = engine.wait(0.0)
    assert parcel.group == 1 and engine.wait(0.0) == [] and engine.pids().keys() == {0, 1}


def test_a_call_comes_after_the_orders_before_it_whose_parcels_are_kept(engine: InlineEngine) -> None:
    engine.publish(weights(5), 0)
    engine.ask(Order('run', 0, 0, 0, 0))
    engine.call(0, 'close')
    (parcel,) = engine.wait(0.0)
    assert parcel.group == 0 and engine.wait(0.0) == []


@pytest.mark.long
def test_the_engine_of_this_process_loads_no_other() -> None:
    words = (
        'import sys; from zoo.cluster.remote_collector import make_engine; '
        "make_engine({'engine': 'inline', 'runner_num': 2}, 'run'); "
        "print([m for m in ('ray', 'zoo.cluster.ray_engine', 'zoo.cluster.process_engine', 'optuna') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, '-c', words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == '[]'


def test_a_config_names_its_engine() -> None:
    assert isinstance(make_engine({'engine': 'inline', 'runner_num': 2}, 'run'), InlineEngine)
