"""The line on several runs: its words for wide and narrow terminals, the time left, shares read from logs."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.sweep.tiny import ROOT
from zoo.tools.sweep.progress import TimeLeft, Work, progress_words, share_of, shown_progress

WORK = Work(5, 1, {'seed0': 0.419, 'seed1': 0.39})


@pytest.mark.parametrize(
    ('width', 'said'),
    [
        (None, '2 of 5 running: seed0 41%, seed1 39%, left 0:04:10'),
        (51, '2 of 5 running: seed0 41%, seed1 39%, left 0:04:10'),  # 50 characters, and one for the cursor
        (50, '2 of 5 running: 41%, 39%, left 0:04:10'),
        (20, '2 of 5 running'),
        (10, '2 of 5 ru'),
    ],
)
def test_line_loses_names_before_shares_where_it_does_not_fit(width: int | None, said: str) -> None:
    assert progress_words(WORK, 250.2, width) == said


def test_many_shares_are_a_range_where_they_do_not_fit() -> None:
    work = Work(40, 0, {f'seed{i}': i / 100 for i in range(3, 23)})
    assert progress_words(work, None, 60) == '20 of 40 running: 3% to 22%, left -'


def test_time_left_is_that_of_the_work_of_this_command() -> None:
    left = TimeLeft()
    assert left.seconds(Work(4, 1, {}), 100.0) is None
    # run b was at 50% when this command began; a quarter of a and a quarter of b in 10 s
    assert left.seconds(Work(4, 1, {'a': 0.0, 'b': 0.5}), 100.0) is None
    # 4 - 1 - 0.25 - 0.75 = 2 runs are left: 2 / 0.5 * 10 s
    assert left.seconds(Work(4, 1, {'a': 0.25, 'b': 0.75}), 110.0) == pytest.approx(40.0)
    # b has ended: 0.5 of a, 0.5 of b, and c has just begun; 1.5 runs are left, 1 was done in 20 s
    assert left.seconds(Work(4, 2, {'a': 0.5, 'c': 0.0}), 120.0) == pytest.approx(30.0)


def test_share_is_that_of_the_last_complete_line_of_the_log(tmp_path: Path) -> None:
    assert share_of(tmp_path) == 0.0
    (tmp_path / 'config.yaml').write_text('exp_name: a\nmax_env_step: 2000\n')
    assert share_of(tmp_path) == 0.0
    log = tmp_path / 'metrics.jsonl'
    log.write_text(''.join(json.dumps({'env_step': step}) + '\n' for step in (100, 500)) + '{"env_step": 19')
    assert share_of(tmp_path) == 0.25
    log.write_text(f'{{"text": "{"x" * 200_000}"}}\n{{"env_step": 4000}}\n')
    assert share_of(tmp_path) == 1.0
    for line in ('[]', '{}', '{"env_step": null}', 'x'):
        log.write_text(f'{line}\n')
        assert share_of(tmp_path) == 0.0


def test_quiet_commands_look_at_nothing(caplog: pytest.LogCaptureFixture) -> None:
    looks: list[Work] = []

    def look() -> Work:
        looks.append(Work(2, 0, {}))
        return looks[-1]

    with caplog.at_level(logging.WARNING, 'zoo'), shown_progress(look):
        pass
    with caplog.at_level(logging.INFO, 'zoo'), shown_progress(look, ['logger.console=off']):
        pass
    assert looks == []
    with caplog.at_level(logging.INFO, 'zoo'), shown_progress(look):
        pass
    assert looks  # any other command looks at once


@pytest.mark.soak
@pytest.mark.parametrize('words', ['train cartpole_ppo --seeds 2 --jobs 2', 'sweep cartpole_ppo --n 2 --jobs 2'])
def test_line_is_rewritten_on_a_terminal(words: str, tmp_path: Path) -> None:
    if words.startswith('sweep'):
        pytest.importorskip('optuna')
    here, there = pty.openpty()
    more = '--steps 40_000 policy.eval.n_episode=1 policy.eval.stop_value=null logger.tensorboard=false'
    env = {**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1', 'TERM': 'xterm'}
    command = [sys.executable, '-m', 'zoo', *words.split(), *more.split()]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=there, cwd=tmp_path, env=env) as process:
        os.close(there)
        shown = b''
        try:
            while data := os.read(here, 1 << 16):
                shown += data
        except OSError:  # the other end is closed
            pass
    os.close(here)
    assert process.returncode == 0, shown
    text = shown.decode()
    names = 'trial 0', 'trial 1'
    if words.startswith('train'):
        names = 'seed0', 'seed1'
    assert re.search(rf'\r\x1b\[K2 of 2 running: {names[0]} \d+%, {names[1]} \d+%, left ', text), text
    assert 'Traceback' not in text and '\n2 of 2' not in text
    ended = [line for line in text.splitlines() if ' of 2: ' in line]
    assert len(ended) == 2 and all('\r\x1b[Kzoo: ' in line for line in text.split('\n') if ' of 2: ' in line)
