"""`zoo train`: envs without a config, short forms, and the amount of its output."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.cli.commands import LINE_ENV, Zoo, run_in
from zoo.tools.cli.train import evaluations_hint

pytestmark = pytest.mark.slow

QUICK = ['--steps', '2_048', 'policy.eval.n_episode=2', 'logger.tensorboard=false']


def trained(zoo: Zoo, words: str) -> dict[str, Any]:
    return zoo(f'train {words}', *QUICK, 'logger.console=off', '--json').data


def test_env_with_a_bundled_config_trains_with_it(in_tmp: Path, zoo: Zoo, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level('INFO')
    run = trained(zoo, '--env CartPole-v1 --seed 3')
    assert 'training with the bundled config cartpole_ppo' in caplog.text
    assert 'cartpole_ppo' in run['run_dir'] and run['run_dir'].endswith('_seed3') and 0 < run['env_step'] <= 2_048
    trained(zoo, 'ppg --env CartPole-v1')
    assert 'training with the bundled config cartpole_ppg' in caplog.text


@pytest.mark.parametrize(
    ('words', 'name', 'policy'),
    [
        ('line.py:make', 'make', 'ppo'),
        ('--env line.py:Line', 'Line', 'ppo'),
        ('--env ./line.py:make --policy ppg', 'make', 'ppg'),
        ('env.id=line.py:make', 'make', 'ppo'),
    ],
)
def test_env_of_a_file_trains(
    words: str, name: str, policy: str, in_tmp: Path, zoo: Zoo, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO')
    (in_tmp / 'line.py').write_text(LINE_ENV)
    folder = Path(trained(zoo, words)['run_dir'])
    assert folder.parent.name == name and f'type: {policy}' in (folder / 'config.yaml').read_text()
    assert 'no bundled config is for' in caplog.text


@pytest.mark.long
def test_the_evaluation_that_it_prints_works_in_another_process(in_tmp: Path) -> None:
    (in_tmp / 'line.py').write_text(LINE_ENV)
    trained = run_in('train', 'line.py:make', *QUICK, 'logger.console=off', 'env.kwargs.size=4')
    assert trained.returncode == 0, trained.stderr
    command = trained.stdout.splitlines()[-1].partition('evaluate it: zoo ')[2].split()
    evaluated = run_in(*command)
    assert evaluated.returncode == 0, evaluated.stderr
    assert evaluated.stdout.startswith('return ')


@pytest.mark.parametrize(
    ('words', 'keys'),
    [
        ('policy.learn.lr=1 seed=-1 env.idd=3', ['policy.learn.lr', 'seed', 'env.idd']),
        ('policy.model.hidden_sizes=64,32', ['one list of them is policy.model.hidden_sizes=[64,32]']),
    ],
)
def test_all_problems_of_a_config_are_on_the_screen(words: str, keys: list[str], in_tmp: Path, zoo: Zoo) -> None:
    err = zoo(f'train cartpole_ppo {words}', code=2).err
    assert err.startswith('zoo: error: 3 problems:\n') and err.count('\n') == 3 + 1
    assert all(key in err for key in keys) and '--debug' not in err and not list(in_tmp.iterdir())


@pytest.mark.long
def test_log_level_chooses_what_is_logged(in_tmp: Path) -> None:
    words = ['train', 'cartpole_ppo', *QUICK[2:], '--steps', '2000', 'policy.collect.n_step=128']
    said = {level: run_in(*words, 'logger.console=off', '--log-level', level).stderr for level in ('info', 'warning')}
    assert "run in zoo's C code" in said['info'] and said['warning'] == ''
    assert 'the run ends with its last whole rollout' in said['info']
    before = said['info'][: said['info'].index('the run ends')]
    # 8 envs x 128 steps are 1024 env steps, so 2000 is enough for at least 1 rollout and 2 x 1024 for 2
    assert 'max_env_step=2000 is enough for at least 1 rollout, max_env_step=2048 for 2' in before


@pytest.mark.long
def test_quiet_says_nothing_but_warnings(in_tmp: Path) -> None:
    loud, quiet = (run_in('train', 'cartpole_ppo', *QUICK, *more) for more in ([], ['--quiet']))
    assert 'cartpole_ppo' in loud.stderr and 'run folder' in loud.stdout
    assert quiet.returncode == 0 and quiet.stderr == '' and 'run folder' in quiet.stdout


@pytest.mark.parametrize(('more', 'is_colored'), [({}, True), ({'NO_COLOR': '1'}, False), ({'TERM': 'dumb'}, False)])
def test_errors_are_colored_on_a_terminal_unless_the_user_wants_none(
    more: dict[str, str], is_colored: bool, in_tmp: Path
) -> None:
    master, slave = pty.openpty()
    env = {key: value for key, value in os.environ.items() if key != 'NO_COLOR'} | {'TERM': 'xterm'} | more
    child = subprocess.Popen([sys.executable, '-m', 'zoo', 'trian'], stderr=slave, env=env)
    os.close(slave)
    assert child.wait(timeout=60) == 2
    said = os.read(master, 4096)
    os.close(master)
    assert (b'\x1b[31mzoo: error:\x1b[0m' in said) == is_colored and b'zoo: error:' in said


@pytest.mark.long
def test_same_command_with_run_makes_a_run_and_continues_it_as_resume_does(in_tmp: Path, zoo: Zoo) -> None:
    first = trained(zoo, 'cartpole_ppo --run mine')
    assert Path(first['run_dir']) == in_tmp / 'mine' and first['env_step'] <= 2048
    log = (in_tmp / 'mine' / 'metrics.jsonl').read_text()
    again = trained(zoo, 'cartpole_ppo --run mine')  # nothing is left to train
    assert (again['env_step'], again['run_dir']) == (first['env_step'], first['run_dir'])
    assert (in_tmp / 'mine' / 'metrics.jsonl').read_text() == log
    for way, n in (('--run', 3_072), ('--resume', 4_096)):
        longer = zoo(f'train {way} mine --steps {n} logger.console=off --json').data
        assert first['env_step'] < longer['env_step'] <= n and longer['train_iter'] > first['train_iter']
        assert longer['run_dir'] == first['run_dir']
        first = longer
    steps = [json.loads(line)['env_step'] for line in (in_tmp / 'mine' / 'metrics.jsonl').read_text().splitlines()]
    assert steps == sorted(steps)  # one history


@pytest.mark.long
def test_resume_takes_the_words_by_which_eval_names_a_run(in_tmp: Path, zoo: Zoo) -> None:
    first = trained(zoo, 'cartpole_ppo --run runs/cartpole_ppo/mine')
    for n, word in enumerate(('last', 'cartpole_ppo', 'runs', 'runs/cartpole_ppo/mine'), start=1):
        longer = zoo(f'train --resume {word} --steps {2_048 + 1_024 * n} logger.console=off --json').data
        assert Path(longer['run_dir']).resolve() == in_tmp / 'runs' / 'cartpole_ppo' / 'mine'
        assert longer['env_step'] > first['env_step']
        first = longer


def test_run_of_other_settings_is_refused_and_resume_may_change_them(in_tmp: Path, zoo: Zoo) -> None:
    first = trained(zoo, 'cartpole_ppo --run mine')
    before = {file: file.read_bytes() for file in Path('mine').rglob('*') if file.is_file()}
    rate = 'policy.learn.learning_rate'
    for word, said in (
        ('seed=3', 'seed=0, not 3'),
        (f'{rate}=0.5', f'{rate}={{start: 0.002, end: 0.0, over: 2048}}, not 0.5'),
    ):
        err = zoo('train cartpole_ppo --run mine', *QUICK, word, code=2).err
        assert err.count('\n') == 1 and f'the run in mine has {said}; name another --run-dir' in err, err
        assert "(zoo train --resume mine KEY=VALUE continues it with other values, in Python resume='mine')" in err
    assert {file: file.read_bytes() for file in before} == before
    changed = zoo(f'train --resume mine {rate}=0.5 --steps 4_096 logger.console=off --json').data
    assert changed['run_dir'] == first['run_dir'] and changed['env_step'] > first['env_step']


def test_run_with_few_evaluations_is_told_how_often_to_evaluate() -> None:
    said = 'this run has 2 evaluations; policy.eval.eval_freq=20_000 gives a curve'  # one every 100,000 of 200,000 env steps
    assert evaluations_hint('lunarlander_ppo', ['max_env_step=200_000']) == said
    assert evaluations_hint('lunarlander_ppo', ['max_env_step=400_000']) == ''
    assert evaluations_hint('cartpole_ppo', ['max_env_step=2_048']) == ''  # two rollouts make no curve
    assert evaluations_hint('lunarlander_ppo', ['max_env_step=x']) == evaluations_hint('my.py', []) == ''
