"""Processes of one command: their values and errors reach the first process; a task that cannot be pickled is refused."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_python
from tests.policy_envs import differing
from zoo.core.errors import RunError, UserError
from zoo.core.processes import n_core
from zoo.run.checkpoint.file import load_checkpoint
from zoo.tools.sweep.team import Ended, Team, Tell, say_if_too_many


class OwnError(UserError):
    """An error that pickle cannot restore: its constructor takes two arguments."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f'{first} {second}')


def work(task: str, received: list[int], tell: Tell) -> dict[str, Any]:
    import torch

    if task == 'refuse':
        raise OwnError('no', 'way')
    if task == 'break':
        raise ZeroDivisionError('by hand')
    if task == 'die':
        tell('first')
        tell('last words')
        os.kill(os.getpid(), signal.SIGKILL)
    if task == 'exit':
        sys.exit(0)
    if task == 'leave a thread':
        threading.Thread(target=threading.Event().wait, name='client').start()
    if task == 'leave a function':
        atexit.register(threading.Event().wait)
    if task == 'go elsewhere':
        os.chdir('/')
        sys.argv = ['another', 'command']
    if task == 'where':
        return {'pid': os.getpid(), 'folder': os.getcwd(), 'words': sys.argv}
    return {'threads': torch.get_num_threads(), 'received': received, 'group': os.getpgrp() == os.getpid()}


@pytest.mark.soak
def test_values_errors_and_deaths_reach_the_first_process() -> None:
    team = Team(work, [])
    with team.follow_signals():
        for task in ('value', 'refuse', 'break', 'die', 'exit', 'leave a thread', 'leave a function'):
            team.start(task)
        ends: dict[str, Ended] = {}
        while team.members:
            ends |= {ended.task: ended for ended in team.ended()}
    assert ends['value'].value == {'threads': 1, 'received': [], 'group': True} and ends['value'].exitcode == 0
    assert type(ends['refuse'].error) is UserError and str(ends['refuse'].error) == 'no way'
    assert type(ends['break'].error) is RunError and str(ends['break'].error) == 'ZeroDivisionError: by hand'
    assert ends['die'].exitcode == -signal.SIGKILL and ends['die'].error is ends['die'].value is None
    assert ends['die'].told == 'last words' and ends['value'].told == ''
    assert type(ends['exit'].error) is RunError and str(ends['exit'].error) == 'SystemExit: 0'
    for task in ('leave a thread', 'leave a function'):  # nothing ends these; the process does
        assert ends[task].value == ends['value'].value and ends[task].exitcode == 0


@pytest.mark.long
def test_process_takes_the_next_task_unless_one_failed_or_left_a_thread() -> None:
    team = Team(work, [])
    places = []
    with team.follow_signals():
        for task in ('where', 'go elsewhere', 'where', 'refuse', 'where', 'leave a thread', 'where'):
            team.start(task)
            ends = []
            while not ends:
                ends = team.ended()
            if task == 'where':
                places.append(ends[0].value)
        assert not team.members
    first, second, after_error, after_thread = (place['pid'] for place in places)
    assert first == second and len({second, after_error, after_thread}) == 3
    assert places[0] == places[1]  # the folder and the words are those of the process, not of the task before


@pytest.mark.long
@pytest.mark.slow
def test_runs_of_the_command_in_one_process_are_those_of_a_process_each(tmp_path: Path) -> None:
    words = 'cartpole_ppo max_env_step=2048 policy.eval.n_episode=1 logger.tensorboard=false'.split()
    together = ['train', *words, 'seed=0,1', '--run-dir', 'together', '--quiet']
    alone = ['train', *words, 'policy.n_thread=1', 'seed=1', '--run-dir', 'alone', '--quiet']
    for command in (together, alone):
        done = run_python('-m', 'zoo', *command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    states = [load_checkpoint(tmp_path / folder).state['policy'] for folder in ('together/seed1', 'alone')]
    assert differing(*states) == []


@pytest.mark.soak
def test_stop_signals_at_any_moment_of_the_start_leave_no_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    team = Team(work, [])
    team.start('value')
    (process,) = team.members
    os.kill(process.pid, signal.SIGINT)  # as Ctrl-C in a terminal, whose process group it is still in
    os.kill(process.pid, signal.SIGTERM)  # as `Team.stop`
    ends: list[Ended] = []
    while team.members:
        ends += team.ended()
    (ended,) = ends
    # the first signal that it counts is `Team.stop`; Ctrl-C may count too, and then the second one ends it at once
    assert ended.value == {'threads': 1, 'received': [signal.SIGTERM], 'group': True} or ended.exitcode in (130, 143)
    assert capfd.readouterr().err == ''


def test_task_that_cannot_be_sent_is_refused() -> None:
    team = Team(work, [])
    with pytest.raises(UserError, match='cannot be sent to other processes'):
        team.start(lambda: None)
    assert not team.members


def test_more_processes_than_cores_are_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level('INFO')
    say_if_too_many(n_core())
    assert not caplog.records
    say_if_too_many(n_core() + 3)
    assert f'{n_core() + 3} processes share' in caplog.text and f'use --jobs {n_core()}' in caplog.text
