"""Exceptions of an env's own code: they pass through with env and index; the command prints them as one sentence."""

from __future__ import annotations

from asyncio import CancelledError
from pathlib import Path
from typing import Any

import pytest

from tests.env import raising_envs
from tests.env.raising_envs import RaisingEnv, SimulatorError
from tests.envs import play
from zoo.core.processes import GivenUp
from zoo.env import EnvConfig, EnvError, check_env, make_env, make_vector_env
from zoo.run.checkpoint.file import load_checkpoint
from zoo.tools.cli import main

QUICK = (
    'max_env_step=64 env.check=false env.collector_env_num=2 env.evaluator_env_num=1 logger.console=off '
    'policy.collect.n_step=16 policy.learn.batch_size=16 policy.eval.n_episode=1 logger.tensorboard=false'
).split()
HOME = raising_envs.__name__
HERE = Path(raising_envs.__file__)
CALLS = ['constructor', 'reset', 'step']


def run(how: str, **kwargs: Any) -> None:
    env_id: Any = 'Raising-v0' if how == 'batched' else RaisingEnv
    play(make_vector_env(EnvConfig(id=env_id, kwargs=kwargs, vectorization=how), 2), [0, 0])  # type: ignore[arg-type]


def place(how: str, call: str) -> str:
    name = 'Raising-v0' if how == 'batched' else f'{HOME}:RaisingEnv'
    when = {'constructor': 'while it was made', 'reset': 'step 0', 'step': 'step 1'}[call]
    return f"env '{name}'{'' if how == 'batched' else ', index 0'}, {when}"


@pytest.mark.parametrize('call', CALLS)
@pytest.mark.parametrize('how', ['sync', 'async', 'batched'])
def test_env_exception_passes_through_with_env_index_and_step(how: str, call: str) -> None:
    with pytest.raises(SimulatorError) as raised:
        run(how, call=call)
    assert str(raised.value) == 'a joint\nis loose'
    where, at = raised.value.env_place  # type: ignore[attr-defined]
    assert where == place(how, call)
    assert at == f'{HERE}:{line_of("raise self.error")}'
    if hasattr(raised.value, '__notes__'):  # from Python 3.11 on
        assert raised.value.__notes__ == [f'in {where}']
    if how == 'async' and call != 'constructor':  # which is called in this process first
        assert 'raise self.error' in str(raised.value.__cause__)  # the worker's traceback


def line_of(code: str) -> int:
    return next(i for i, line in enumerate(HERE.read_text().splitlines(), 1) if code in line)


@pytest.mark.parametrize('call', CALLS)
def test_check_env_and_make_env_name_the_env(call: str) -> None:
    config = EnvConfig(id=RaisingEnv, kwargs={'call': call}, action_mask='off')
    with pytest.raises(SimulatorError) as raised:
        check_env(config)
    step = {'constructor': 'while it was made', 'reset': 'index 0, step 0', 'step': 'index 0, step 1'}[call]
    assert raised.value.env_place[0] == f"env '{HOME}:RaisingEnv', {step}"  # type: ignore[attr-defined]
    if call == 'constructor':
        with pytest.raises(SimulatorError) as raised:
            make_env(config)
        assert 'while it was made' in raised.value.env_place[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ('how', 'call'), [('sync', 'constructor'), ('batched', 'reset'), ('sync', 'step'), ('batched', 'step')]
)
@pytest.mark.parametrize('kind', [SystemExit, StopIteration, CancelledError, GeneratorExit])
def test_env_that_exits_the_program_or_a_loop_is_an_error_and_no_exit(how: str, call: str, kind: type) -> None:
    with pytest.raises(EnvError) as raised:
        run(how, call=call, error=kind)
    assert str(raised.value).startswith(
        f'{place(how, call)}: its code raised {kind.__name__}: a joint is loose at {HERE}:'
    )


def test_env_that_raises_keyboard_interrupt_in_this_process_is_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt):
        run('sync', call='step', error=KeyboardInterrupt)


def test_request_to_stop_that_arrives_in_env_code_stays_a_request_to_stop() -> None:
    with pytest.raises(GivenUp):
        run('sync', call='step', error=GivenUp)


def test_env_that_was_cancelled_is_made_again_with_on_error_restart() -> None:
    cfg = EnvConfig(id=RaisingEnv, kwargs={'call': 'step', 'error': CancelledError, 'n_step': 2}, on_error='restart')
    first, broken = play(make_vector_env(cfg, 1), [0], [0])
    assert (float(first.obs[0, 0]), float(broken.obs[0, 0])) == (1.0, 0.0)  # the second step begins a new episode


# --- the command line


@pytest.mark.slow
@pytest.mark.parametrize(('how', 'call'), [('batched', 'constructor'), ('sync', 'reset'), ('async', 'step')])
def test_train_says_one_sentence_and_exits_1(
    how: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    env_id = 'Raising-v0' if how == 'batched' else f'{HOME}:RaisingEnv'
    env = [f'env.id={env_id}', f'env.kwargs={{call: {call}}}', f'env.vectorization={how}', 'env.collector_group_num=1']
    assert main(['train', 'cartpole_ppo', *QUICK, *env, 'env.action_mask=off']) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if 'error' in line or 'Traceback' in line]
    wanted = place(how, call).replace(f'{HOME}:RaisingEnv', env_id)
    assert lines == [
        f'zoo: error: {wanted}: its code raised SimulatorError: a joint is loose '
        f'({HERE}:{line_of("raise self.error")}); --debug shows the traceback'
    ]


def test_train_with_debug_shows_the_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = [f'env.id={HOME}:RaisingEnv', 'env.kwargs={call: reset}', 'env.action_mask=off']
    with pytest.raises(SimulatorError):
        main(['train', 'cartpole_ppo', *QUICK, *env, '--debug'])


class BrokenPipeEnv(RaisingEnv):
    """The simulator's pipe is broken, which must not be taken for a closed output pipe of the command."""

    def __init__(self) -> None:
        super().__init__('step', BrokenPipeError, 40)


class CancelledEnv(RaisingEnv):
    """A task of its event loop is cancelled, which is no Exception."""

    def __init__(self) -> None:
        super().__init__('step', CancelledError, 40)


class InterruptingEnv(RaisingEnv):
    def __init__(self) -> None:
        super().__init__('step', KeyboardInterrupt, 40)


@pytest.mark.parametrize(
    ('env', 'code', 'said'),
    [
        ('BrokenPipeEnv', 1, 'index 0, step 40: its code raised BrokenPipeError'),
        ('CancelledEnv', 1, 'index 0, step 40: its code raised CancelledError'),
        ('InterruptingEnv', 130, ''),
    ],
)
def test_train_whose_env_fails_late_is_saved(
    env: str, code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fields = [f'env.id={__name__}:{env}', 'env.action_mask=off', 'env.vectorization=sync', 'max_env_step=512']
    assert main(['train', 'cartpole_ppo', *QUICK, *fields, 'env.collector_group_num=1']) == code
    assert said in capsys.readouterr().err
    run_dir = next(tmp_path.glob('**/config.yaml')).parent
    assert load_checkpoint(run_dir).meta['env_step'] == 64  # 2 rollouts of 2 x 16; the third breaks at its 8th step
