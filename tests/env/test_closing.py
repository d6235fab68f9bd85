"""Envs whose close raises or never returns: this is only a warning, and the run ends normally."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.spaces import Box, Text

from tests.env.closing_envs import Closing
from tests.envs import LimitEnv, LimitVectorEnv
from tests.forked import run_python
from tests.policy_envs import job_config
from zoo.config.yaml_io import save_yaml
from zoo.env import EnvConfig, check_env, make_vector_env
from zoo.env.closing import close_in_time
from zoo.env.errors import EnvContractError, UnsupportedEnvError
from zoo.pipeline import serial_pipeline
from zoo.run.config import resolve_config

ROOT = Path(__file__).parents[2]


WORDS = {
    'raise': 'close raised ValueError: no such window',
    'exit': 'close raised SystemExit: bye',
    'hang': 'close has not returned after',
}


@pytest.mark.long
def test_result_of_a_run_is_kept_though_its_envs_hang_in_close(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = dict(kwargs={'how': 'hang'}, step_timeout=0.2, check=True, vectorization='sync', evaluator_env_num=1)
    result = serial_pipeline(job_config(tmp_path, Closing, env=dict(env, collector_env_num=2), max_env_step=64))
    assert result.env_step == 64 and result.last_return == 5.0
    warnings = [text for text in caplog.messages if WORDS['hang'] in text]
    assert [', index 0 and 1 more: ' in words for words in warnings].count(True) == 1  # the two training envs
    assert len(warnings) == 3  # the env of the check, that of evaluation, the two of training


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('how', WORDS)
def test_batched_env_closes_in_time(how: str, caplog: pytest.LogCaptureFixture) -> None:
    env = make_vector_env(EnvConfig(id='Closing-v0', kwargs={'how': how}, step_timeout=0.2), 2)
    env.close()
    assert f"env 'Closing-v0': {WORDS[how]}" in caplog.text


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('how', ['exit', 'hang'])
def test_check_ends_though_its_env_does_not_close(how: str, caplog: pytest.LogCaptureFixture) -> None:
    check_env(EnvConfig(id=Closing, kwargs={'how': how}, step_timeout=0.2))
    assert WORDS[how] in caplog.text


class CountedEnv(LimitEnv):
    """The third instance raises in its constructor, or has another observation space."""

    made: ClassVar[list[CountedEnv]] = []
    closed: ClassVar[list[int]] = []

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.made.append(self)
        self._index = len(self.made) - 1
        if self._index == 2 and fault == 'raise':
            raise OSError('no port is free')
        if self._index == 2:
            self.observation_space = Box(0.0, 1.0, (2,), np.float32)

    def close(self) -> None:
        self.closed.append(self._index)


@pytest.mark.parametrize(
    ('fault', 'error', 'words', 'closed'),
    [
        ('raise', OSError, 'no port is free', [0, 1]),
        (
            'space',
            EnvContractError,
            r'CountedEnv., index 2, .*space is Box\(0.0, 1.0, .* make all envs alike',
            [0, 1, 2],
        ),
    ],
)
def test_envs_made_before_one_that_cannot_be_are_closed(
    fault: str, error: type[Exception], words: str, closed: list[int]
) -> None:
    CountedEnv.made.clear()
    CountedEnv.closed.clear()
    with pytest.raises(error, match=words) as raised:
        make_vector_env(EnvConfig(id=CountedEnv, kwargs={'fault': fault}, action_mask='off'), 4)
    assert CountedEnv.closed == closed
    place = getattr(raised.value, 'env_place', ('', ''))[0]  # that of an exception of the env's own code
    assert place.endswith("CountedEnv', index 2, while it was made") == (fault == 'raise')


def test_a_vector_that_zoo_cannot_take_is_closed() -> None:
    closed = []

    class TextVector(LimitVectorEnv):
        def __init__(self, num_envs: int) -> None:
            super().__init__(num_envs)
            self.single_observation_space = Text(3)  # type: ignore[assignment]

        def close_extras(self, **kwargs: Any) -> None:
            closed.append(self)

    with pytest.raises(UnsupportedEnvError, match='Text'):
        make_vector_env(EnvConfig(id=TextVector), 2)
    assert len(closed) == 1


@pytest.mark.long
@pytest.mark.slow
def test_one_that_hangs_does_not_keep_the_others_from_closing(caplog: pytest.LogCaptureFixture) -> None:
    closed, hold = [], threading.Event()
    close_in_time({'a': hold.wait, 'b': lambda: closed.append('b')}, 0.05)
    hold.set()
    assert closed == ['b'] and [r.getMessage()[:2] for r in caplog.records] == ['a:']


@pytest.mark.soak
def test_process_ends_though_an_env_hangs_in_close(tmp_path: Path) -> None:
    env = dict(kwargs={'how': 'hang'}, step_timeout=0.2, vectorization='sync')
    cfg = job_config(tmp_path, 'tests.env.closing_envs:Closing', env=env, max_env_step=64)
    save_yaml(resolve_config(cfg), tmp_path / 'config.yaml')
    done = run_python('-m', 'zoo', 'train', tmp_path / 'config.yaml', cwd=ROOT, PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr
    assert '64 env steps' in done.stdout and WORDS['hang'] in done.stderr
