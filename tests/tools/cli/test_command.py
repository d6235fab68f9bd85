"""The `zoo` command: its output on stdout and stderr, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import run_python
from tests.run.crafted import with_value
from tests.tools.cli.commands import LINE_ENV, Zoo, run_in

pytestmark = pytest.mark.slow  # every test starts processes

QUICK = ['max_env_step=2_048', 'policy.eval.n_episode=2', 'logger.console=off', 'logger.tensorboard=false']


def test_train_json_then_eval_json_agree_on_the_run(in_tmp: Path, zoo: Zoo) -> None:
    trained = zoo('train cartpole_ppo seed=3 --json', *QUICK).data
    keys = 'run_dir env_step train_iter best_return last_return wall_s env_step_per_s stop_reason'
    assert set(trained) == set(keys.split())
    assert trained['run_dir'].endswith('_seed3') and 0 < trained['env_step'] <= 2_048
    again, evaluated = (zoo('eval --episodes 3 --seed 5 --json', trained['run_dir']).data for _ in range(2))
    of_returns = {'return_mean', 'return_std', 'return_min', 'return_median', 'return_max', 'length_mean'}
    assert set(evaluated) == {*of_returns, 'episodes', 'episodes_cut', 'env_step', 'infos'}
    assert evaluated['episodes'] == 3 and evaluated['env_step'] == trained['env_step']
    assert again == evaluated  # same seed, same episodes


@pytest.mark.skipif(sys.platform != 'linux', reason='other systems may give a thread a stack of any size')
def test_thread_that_the_system_refuses_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / 'huge.py').write_text('import threading\nthreading.stack_size(2**46)\n')  # of each new thread, 64 TiB
    done = run_in('train', 'cartpole_ppo', '--import', 'huge.py', *QUICK, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert 'no further thread could be started' in done.stderr and 'ulimit -u' in done.stderr
    assert 'Traceback' not in done.stderr and done.stderr.count('no further thread') == 1


@pytest.mark.long
def test_profile_is_said_on_stderr_and_kept_in_the_run_folder(tmp_path: Path) -> None:
    # rollouts of 8 x 32 env steps: 2 + 2 + 3 of the 8 iterations are profiled
    words = ['--profile', '2', 'policy.collect.n_step=32', 'env.vectorization=sync', '--json']
    done = run_in('train', 'cartpole_ppo', *words, *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = Path(json.loads(done.stdout)['run_dir'])
    said = [line.removeprefix('zoo: ') for line in done.stderr.splitlines() if 'USDT' not in line]  # torch's own
    kept = (tmp_path / run / 'profile.txt').read_text().splitlines()
    assert said[-len(kept) :] == kept and kept[0] == 'profile of 2 iterations, env steps 512 to 1,024'
    assert f'trace of 3 iterations: {run / "trace.json"}' in kept[-1] and (tmp_path / run / 'trace.json').exists()


def test_profile_without_a_number_may_stand_before_an_override(
    in_tmp: Path, zoo: Zoo, caplog: pytest.LogCaptureFixture
) -> None:
    zoo('train --profile cartpole_ppo --profile policy.collect.n_step=32', *QUICK)
    assert 'a profile takes 15 iterations (2 to warm up, 10 timed, 3 traced) but max_env_step leaves 8' in caplog.text


BREAKING_ENV = LINE_ENV.replace('float(action)', "float('nan') if self.total == 601 else 1.0").replace(
    'self.n += 1', 'self.n += 1; Line.total = getattr(Line, "total", 0) + 1'
)


@pytest.mark.long
def test_run_that_fails_is_one_sentence_and_exit_1_and_continues_from_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / 'breaking.py').write_text(BREAKING_ENV)
    words = ['env.id=breaking:Line', 'env.vectorization=sync', 'checkpoint.freq=512', 'policy.collect.n_step=32']
    done = run_in('train', 'cartpole_ppo', *words, *QUICK, cwd=tmp_path)
    assert done.returncode == 1 and 'Traceback' not in done.stderr
    assert all(word in done.stderr for word in ('breaking:Line', 'nan', 'the run failed; it is saved up to env step'))
    run = next(tmp_path.glob('runs/*/*'))
    evaluated = run_in('eval', str(run), '--episodes', '1', '--json', '--import', 'breaking', cwd=tmp_path)
    assert json.loads(evaluated.stdout)['return_mean'] == 10.0  # ten steps of reward 1
    (tmp_path / 'breaking.py').write_text(LINE_ENV)
    resumed = run_in(*done.stderr.partition('continue with: zoo ')[2].split('\n')[0].split(), cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr


@pytest.mark.many
@pytest.mark.parametrize(
    ('words', 'code'),
    [
        ('train ends.py', 2),
        ('train ends.py:Line', 2),
        ('train cartpole_ppo --import ends.py', 2),
        ('train cartpole_ppo --import ends', 2),
        ('train cartpole_ppo env.id=ends:Line', 2),
        ('config ends.py', 2),
        ('check-env ends.py:Line', 2),
        ('train cartpole_ppo callbacks=[ends:Line]', 2),
        ('train cartpole_ppo policy.eval.env.id=ends:Line', 2),
        ('train cartpole_ppo stop=[ends:Line]', 2),
    ],
)
def test_code_that_ends_the_process_while_it_is_loaded_is_a_sentence_and_no_success(
    words: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / 'ends.py').write_text(f'{LINE_ENV}\nimport sys\nsys.exit(0)\n')
    done = run_in(*words.split(), *(QUICK if words.startswith('train') else ()), cwd=tmp_path)
    assert done.returncode == code and 'SystemExit: 0' in done.stderr and 'Traceback' not in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / 'runs').exists()


def test_policy_that_ends_the_process_in_an_update_is_a_sentence_and_no_success(tmp_path: Path) -> None:
    (tmp_path / 'mine.py').write_text(
        'import sys\nfrom zoo.core.registry import POLICY_REGISTRY\nfrom zoo.policy.ppo import PPOPolicy\n\n'
        "@POLICY_REGISTRY.register('ending')\nclass Ending(PPOPolicy):\n"
        '    def _forward_learn(self, *args, **kwargs):\n        sys.exit(0)\n'
    )
    done = run_in('train', 'cartpole_ppo', 'policy.type=ending', '--import', 'mine.py', *QUICK, cwd=tmp_path)
    assert done.returncode == 1 and 'raised SystemExit: 0 (mine.py:8)' in done.stderr
    assert 'Traceback' not in done.stderr


LEFT = {  # what an env leaves, and what the warning names
    'thread': ('threading.Thread(target=threading.Event().wait, name="client").start()', "the thread 'client'"),
    'atexit': ('atexit.register(threading.Event().wait)', 'a function of atexit, or a process'),
    'process': ('multiprocessing.get_context("fork").Process(target=threading.Event().wait).start()', 'a process'),
    # the C library waits for a signal after Python's end: no thread of Python runs any more, so no warning is possible
    'C library': ('ctypes.CDLL(None).on_exit(ctypes.CDLL(None).pause, None)', ''),
}


@pytest.mark.long
@pytest.mark.parametrize('left', LEFT)
def test_command_ends_with_its_exit_code_whatever_an_env_leaves(left: str, tmp_path: Path) -> None:
    line, words = LEFT[left]
    imports = 'import atexit, ctypes, multiprocessing, threading\n'
    text = LINE_ENV.replace('    def reset', f'    def __init__(self):\n        {line}\n    def reset')
    (tmp_path / 'leaving.py').write_text(imports + text)
    options = ['env.vectorization=sync', 'env.collector_env_num=2', 'env.step_timeout=2', *QUICK]
    command = [sys.executable, '-m', 'zoo', 'train', 'leaving.py:Line', '--steps', '512', *options]
    environ = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[3]))
    with open(tmp_path / 'err', 'w') as err:  # a pipe would stay open in the process that the env leaves
        done = subprocess.run(command, cwd=tmp_path, env=environ, stdout=err, stderr=err, timeout=200)
    said = (tmp_path / 'err').read_text()
    assert done.returncode == 0 and words in said, said
    assert json.loads(next(tmp_path.glob('runs/*/*/result.json')).read_text())['state'] == 'done'


LIGHT = """
import os, sys
from zoo.tools.cli import main

for words in ['--help'], ['plot', '--help'], ['compare', '--help']:
    try:
        main(words)
    except SystemExit:
        pass
sys.argv = ['zoo', 'list', 'configs']
spins = []
for given in {}, {'GOMP_SPINCOUNT': '7'}, {'OMP_WAIT_POLICY': 'active'}:
    for name in 'GOMP_SPINCOUNT', 'OMP_WAIT_POLICY':
        os.environ.pop(name, None)
    os.environ |= given
    main()
    spins.append(os.environ.get('GOMP_SPINCOUNT'))
print(spins, {'torch', 'numpy', 'matplotlib'} & {*sys.modules})
"""


@pytest.mark.long
def test_help_and_lists_load_no_torch_and_threads_that_wait_leave_their_core() -> None:
    """GOMP_SPINCOUNT is 1000 unless the user sets it or OMP_WAIT_POLICY."""
    done = subprocess.run([sys.executable, '-c', LIGHT], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and 'train' in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "['1000', '7', None] set()"


@pytest.mark.long
def test_output_cut_short_by_its_reader_is_no_error(tmp_path: Path) -> None:
    command = f'{sys.executable} -m zoo list envs | head -1'
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.stderr == '' and done.stdout.count('\n') == 1


OWN = """
import gymnasium
from zoo import ENV_REGISTRY, POLICY_REGISTRY
from zoo.policy import PPOPolicy

@POLICY_REGISTRY.register('of_mine')
class OfMine(PPOPolicy):
    pass

@ENV_REGISTRY.register('cart_of_mine')
def cart_of_mine():
    return gymnasium.make('CartPole-v1')

config = dict(exp_name='mine', env=dict(id='cart_of_mine'), policy=dict(type='of_mine'))
"""


@pytest.mark.soak
def test_own_policy_and_env_are_evaluated_and_resumed_with_import(tmp_path: Path) -> None:
    (tmp_path / 'own.py').write_text(OWN)
    assert run_in('train', 'own.py', *QUICK, cwd=tmp_path).returncode == 0
    run = str(next(tmp_path.glob('runs/mine/*')))
    without = run_in('eval', run, cwd=tmp_path)
    assert without.returncode == 2 and without.stderr.count('\n') == 1
    assert "unknown policy 'of_mine'" in without.stderr and '--import' in without.stderr
    assert run_in('eval', run, '--episodes', '1', '--import', 'own.py', cwd=tmp_path).returncode == 0
    resumed = run_in('train', '--resume', run, '--import', 'own', 'max_env_step=4_096', cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert run_in('eval', run, '--import', 'nothing', cwd=tmp_path).returncode == 2


PART = """
from zoo import SURROGATE_REGISTRY

@SURROGATE_REGISTRY.register('soft_of_mine')
def soft_of_mine(log_ratio, ratio, adv, clip_ratio):
    return log_ratio * adv
"""


@pytest.mark.soak
def test_own_part_that_is_not_imported_is_named_with_the_way(tmp_path: Path) -> None:
    (tmp_path / 'part.py').write_text(PART)
    words = ['policy.learn.surrogate=soft_of_mine', '--run-dir', 'run']
    assert run_in('train', 'cartpole_ppo', *QUICK, '--import', 'part.py', *words, cwd=tmp_path).returncode == 0
    for command in ('eval run', 'export run -o x.onnx', 'train --run-dir run', 'train --resume run'):
        done = run_in(*command.split(), cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.count('\n') == 1, done.stderr
        assert "policy.learn.surrogate: unknown surrogate 'soft_of_mine'" in done.stderr
        assert done.stderr.endswith(' If it is your own, import the file that registers it: --import my_file.py\n')


@pytest.mark.parametrize(
    'words',
    [
        'cartpole_ppo policy.learn.surrogate=clop',
        '--env CartPole-v1 policy.learn.surrogate=clop',
        'env.id=CartPole-v1 policy.learn.surrogate=clop',
        '--env CartPole-v1 --policy pgg',
        '--env CartPol-v1',
        'cartpol_ppo',
        'cartpole_ppo policy.lern.gamma=1',
    ],
)
def test_mistake_in_what_is_typed_has_the_same_words_with_a_run_folder(words: str, in_tmp: Path, zoo: Zoo) -> None:
    said, in_a_folder = (zoo(f'train {words} {more} -q', code=2).err for more in ('', '--run-dir new'))
    assert said == in_a_folder and said.count('\n') == 1 and not Path('new').exists()


TRAP = """
import os
from pathlib import Path
import gymnasium
Path('sprung').touch()
def make(command=''):
    return gymnasium.make('CartPole-v1')
"""


@pytest.mark.long
@pytest.mark.parametrize('command', [['eval'], ['train', '--resume'], ['train', 'max_env_step=192', '--resume']])
@pytest.mark.parametrize('name', ['localmod:make', 'os:system'])
def test_checkpoint_that_names_code_is_refused_in_one_line_and_runs_nothing(
    tmp_path: Path, command: list[str], name: str
) -> None:
    (tmp_path / 'localmod.py').write_text(TRAP)
    checkpoint = with_value(tmp_path / 'c', 'meta.config.env', {'id': name, 'kwargs': {'command': 'touch pwned'}})
    done = run_in(*command, str(checkpoint), cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count('\n') == 1 and done.stdout == ''
    module = name.partition(':')[0]
    assert f"names code of module '{module}'" in done.stderr and f'--import {module} or --trust' in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != '__pycache__') == ['c', 'localmod.py']


@pytest.mark.long
@pytest.mark.parametrize('consent', [['--import', 'localmod'], ['--import', 'localmod.py'], ['--trust']])
def test_checkpoint_that_names_code_is_used_with_consent(tmp_path: Path, consent: list[str]) -> None:
    (tmp_path / 'localmod.py').write_text(TRAP)
    checkpoint = with_value(tmp_path / 'c', 'meta.config.env.id', 'localmod:make')
    evaluated = run_in('eval', str(checkpoint), '--episodes', '1', '--json', *consent, cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    resumed = run_in('train', '--resume', str(checkpoint), 'max_env_step=192', *consent, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert 'evaluate it: zoo eval ' in resumed.stdout and resumed.stdout.rstrip().endswith(' --import localmod')


@pytest.mark.long
def test_consent_to_one_module_is_none_to_another(tmp_path: Path) -> None:
    (tmp_path / 'localmod.py').write_text(TRAP)
    for name in ('os:system', 'localmod:os.system', 'localmod:Path.touch'):
        env = {'id': name, 'kwargs': {'command': 'touch pwned'}}
        checkpoint = with_value(tmp_path / 'c', 'meta.config.env', env)
        done = run_in('eval', str(checkpoint), '--import', 'localmod', cwd=tmp_path)
        assert done.returncode == 2 and '--trust' in done.stderr and not (tmp_path / 'pwned').exists()


IN_PATH = """
import os, sys
from zoo.tools.cli import main
for words in {commands}:
    if not os.fork():
        main(words)
        print(os.getcwd() in sys.path, *words, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.long
def test_current_folder_is_on_the_import_path_only_where_the_user_names_code(tmp_path: Path) -> None:
    commands = {
        'eval nowhere': False,
        'train --resume nowhere': False,
        'train --resume nowhere seed=1': False,
        'train --resume nowhere env.id=mine:make': True,
        'train cartpole_ppo --resume nowhere': True,
        'eval nowhere --trust': True,
        'eval nowhere --import json': True,
        'check-env Nothing-v0': True,
    }
    (tmp_path / 'in_path.py').write_text(IN_PATH.format(commands=[words.split() for words in commands]))
    done = run_python('-P', 'in_path.py', cwd=tmp_path)
    found = dict(line.split(' ', 1)[::-1] for line in done.stdout.splitlines() if line.startswith(('True ', 'False ')))
    assert found == {words: str(is_there) for words, is_there in commands.items()}, done.stderr


@pytest.mark.parametrize('kind', ['device', 'pipe'])
def test_eval_of_what_is_no_file_ends_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / 'pipe'
    os.mkfifo(path)
    done = run_in('eval', '/dev/zero' if kind == 'device' else str(path), cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count('\n') == 1
    assert f'is a {"named " * (kind == "pipe")}{kind}' in done.stderr


def _shell(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = command.replace('zoo ', f'{sys.executable} -m zoo ', 1)
    return subprocess.run(command, shell=True, cwd=cwd, capture_output=True, text=True, timeout=120)


def test_no_arguments_print_the_help_and_exit_2(tmp_path: Path) -> None:
    done = run_in(cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ''
    assert done.stderr.startswith('usage: zoo ') and 'check-env' in done.stderr


@pytest.mark.soak
@pytest.mark.skipif(not Path('/dev/full').exists(), reason='no full device')
@pytest.mark.parametrize(
    'command',
    ['list envs', 'list configs --json', 'config cartpole_ppo', f'train cartpole_ppo {" ".join(QUICK)} --json'],
)
def test_output_that_cannot_be_written_is_one_line_and_exit_1(tmp_path: Path, command: str) -> None:
    done = _shell(f'zoo {command} >/dev/full', tmp_path)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith('zoo: error: the output cannot be written (No space left on device); ')
    assert 'Traceback' not in done.stderr and 'Exception ignored' not in done.stderr
    assert command[:5] != 'train' or list(tmp_path.glob('runs/*/*/checkpoints/*.safetensors'))


@pytest.mark.long
def test_characters_that_the_encoding_of_the_output_lacks_are_escaped(tmp_path: Path) -> None:
    done = _shell('PYTHONIOENCODING=ascii zoo config cartpole_ppo exp_name=\u65e5\u672c', tmp_path)
    assert done.returncode == 0 and '\\u65e5\\u672c' in done.stdout


@pytest.mark.long
@pytest.mark.skipif(not Path('/dev/full').exists(), reason='no full device')
def test_errors_that_cannot_be_written_keep_the_exit_code(tmp_path: Path) -> None:
    assert _shell('zoo config nothing 2>/dev/full', tmp_path).returncode == 2
    assert _shell('zoo list configs >/dev/full 2>/dev/full', tmp_path).returncode == 1


@pytest.mark.long
def test_run_with_all_standard_streams_closed_trains_and_saves(tmp_path: Path) -> None:
    done = _shell(f'zoo train cartpole_ppo {" ".join(QUICK)} logger.console=plain <&- >&- 2>&-', tmp_path)
    assert done.returncode == 0
    run = next(tmp_path.glob('runs/*/*'))
    assert [json.loads(line) for line in (run / 'metrics.jsonl').read_text().splitlines()]  # it has only JSON lines
    assert run_in('eval', str(run), '--episodes', '1', '--json', cwd=tmp_path).returncode == 0


@pytest.mark.parametrize('command', ['list configs', 'config cartpole_ppo', 'eval /nowhere', 'train cartpole_ppo'])
def test_current_folder_that_is_gone_is_said_in_one_line(tmp_path: Path, command: str) -> None:
    (tmp_path / 'gone').mkdir()
    done = _shell(f'cd gone; rmdir ../gone; zoo {command}', tmp_path)
    assert done.returncode == 2 and done.stdout == ''
    assert done.stderr == 'zoo: error: the current folder does not exist any more; change to one that does\n'


UNEXPECTED = """
from zoo import ENV_REGISTRY, POLICY_REGISTRY
from zoo.policy import PPOPolicy

@POLICY_REGISTRY.register('of_mine')
class OfMine(PPOPolicy):
    def __init__(self, *args, **kwargs):
        {}['x']

config = dict(env=dict(id='CartPole-v1'), policy=dict(type='of_mine'))
"""


@pytest.mark.long
def test_error_that_nobody_expects_shows_its_lines_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / 'own.py').write_text(UNEXPECTED)
    done = run_in('train', 'own.py', *QUICK, cwd=tmp_path)
    assert done.returncode == 1 and "KeyError: 'x'" in done.stderr and "{}['x']" in done.stderr
    assert done.stderr.splitlines()[-1].startswith('zoo: error: KeyError was not expected: ')
    (tmp_path / 'failing.py').write_text('config = dict(env=dict(id=nothing))')
    done = run_in('train', 'failing.py', cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count('\n') == 1
    assert "failing.py failed in line 1 with NameError: name 'nothing' is not defined" in done.stderr
    done = run_in('train', 'failing.py', '--debug', cwd=tmp_path)
    assert done.returncode == 1 and 'Traceback' in done.stderr and 'was not expected' not in done.stderr


def test_name_with_a_line_end_is_one_line_of_an_error(in_tmp: Path) -> None:
    done = run_python('-m', 'zoo', 'plot', 'a\nzoo: error: forged', '-o', 'x.svg')
    assert done.returncode == 2 and done.stderr.count('\n') == 1 and 'problems' not in done.stderr, done.stderr
