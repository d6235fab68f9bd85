"""The contract of every engine; the inline engine, which imports no other engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

import zoo.cluster.engine as engine_module
from tests.cluster.engine_contract import EngineContract, request, shown, until, weights
from tests.cluster.runners import Numbers, Spec
from zoo.cluster.engine import InlineEngine
from zoo.cluster.messages import Lost


class TestInlineEngine(EngineContract):
    @pytest.fixture
    def engine(self, monkeypatch: pytest.MonkeyPatch) -> InlineEngine:
        monkeypatch.setattr(engine_module, 'Runner', Numbers)
        engine, specs = InlineEngine(), [Spec(0), Spec(1)]
        engine.start(specs)  # type: ignore[arg-type]
        engine.publish(weights(100), 0)
        return engine

    def test_runner_that_is_ended_is_lost_with_its_orders(self, engine: InlineEngine) -> None:
        for group in (0, 1):
            engine.ask(request(group, 0))
        engine.kill(0, 'a test')
        lost, reply = until(engine, 2)
        assert lost == Lost(0, 'a test') and shown(reply)[0] == 1
        assert engine.wait(0.0) == [] and engine.pids().keys() == {0, 1}


@pytest.mark.long
def test_the_engine_of_this_process_loads_no_other() -> None:
    words = (
        'import sys; from zoo.cluster.remote_collector import make_engine; '
        "print(type(make_engine({'engine': 'inline', 'runner_num': 2}, 'run')).__name__, "
        "[m for m in ('ray', 'zoo.cluster.ray_engine', 'zoo.cluster.process_engine', 'optuna') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, '-c', words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == 'InlineEngine []'
