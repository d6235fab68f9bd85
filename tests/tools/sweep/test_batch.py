"""Several runs of one command: the grid of values; real runs in processes equal single runs, and a signal saves them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes import left
from zoo import load_policy, read_run, serial_pipeline
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.run.checkpoint import consent
from zoo.tools.cli.command import main
from zoo.tools.sweep import batch
from zoo.tools.sweep.batch import grid_of, train_many
from zoo.tools.sweep.team import Ended


def names(*texts: str, **more: int) -> list[str]:
    return [member.name for member in grid_of(texts, **more)[0]]


def test_range_of_seeds_has_both_ends() -> None:
    members, fixed = grid_of(['seed=0..4', 'max_env_step=100'])
    assert [member.values for member in members] == [{'seed': str(k)} for k in range(5)]
    assert fixed == ['max_env_step=100']


def test_seeds_begin_with_the_given_one_and_replace_a_single_seed() -> None:
    members, fixed = grid_of(['seed=7'], seeds=2, first_seed=7)
    assert [member.overrides for member in members] == [['seed=7'], ['seed=8']] and fixed == []


def test_values_are_combined_with_seeds_changing_fastest() -> None:
    rate = 'policy.learn.learning_rate'
    members, _ = grid_of(['seed=0,1', f'{rate}=1e-3,3e-4'])
    values = [tuple(member.values.values()) for member in members]
    assert values == [('1e-3', '0'), ('1e-3', '1'), ('3e-4', '0'), ('3e-4', '1')]
    assert members[0].name == 'seed0_learning_rate=1e-3' and members[3].overrides == [f'{rate}=3e-4', 'seed=1']


ONE = ('policy.model.hidden_sizes=[64,64]', 'env.kwargs={a: 1, b: 2}', 'env.kwargs.x="a,b"', 'exp_name=a,b')


@pytest.mark.parametrize('text', [*ONE, 'policy.learn.learning_rate={start: 1e-3, end: 0}', 'env.id=a..b'])
def test_one_value_with_commas_stays_one(text: str) -> None:
    members, fixed = grid_of([text])
    assert len(members) == 1 and members[0].values == {} and fixed == [text]


def test_lists_are_values_too() -> None:
    sizes = [m.values['policy.model.hidden_sizes'] for m in grid_of(['policy.model.hidden_sizes=[64,64],[256]'])[0]]
    assert sizes == ['[64,64]', '[256]']


def test_folder_names_hold_no_other_letters() -> None:
    assert names('policy.model.hidden_sizes=[64, 64],[8]') == ['hidden_sizes=-64-64-', 'hidden_sizes=-8-']


@pytest.mark.parametrize(
    'texts, words',
    [
        (['seed=4..1'], r'seed=4..1 counts down, .* write seed=1..4'),
        (['seed=0,,1'], 'empty value; there are no spaces around commas: seed=0,1'),
        (['seed=0,1,0'], 'twice; write seed=0,1'),
        (['seed=0,00,1'], r'seed=0,00,1 has a value twice \(0 and 00 are equal\); write seed=0,1'),
        (['a.rate=1e-3,0.001'], r'\(1e-3 and 0.001 are equal\); write a.rate=1e-3'),
        (['a.n=1,1.0'], r'\(1 and 1.0 are equal\)'),
        (['a.sizes=[64,64],[64, 64]'], r'\[64, 64\] are equal'),
        (['a.b=none,null'], 'none and null are equal'),
        (['seed=1-4'], r'seed=1-4 is no range; write seed=1..4'),
        (['seed=1...4'], 'write seed=1..4'),
        (['seed=0..1', 'seed=2,3'], 'several values twice'),
        (['seed=0..100000'], '100,001 values'),
        (['seed=0..99', 'a.b=' + ','.join(map(str, range(20)))], '2,000 runs'),
    ],
)
def test_lists_without_meaning_are_refused(texts: list[str], words: str) -> None:
    with pytest.raises((ConfigError, UserError), match=words):
        grid_of(texts)


def test_two_ways_of_naming_seeds_are_refused() -> None:
    with pytest.raises(UserError, match='--seeds 3 and seed=0,1 both'):
        grid_of(['seed=0..1'], seeds=3)
    with pytest.raises(UserError, match='--seeds is 0'):
        grid_of([], seeds=0)


def test_values_that_look_alike_as_names_have_folders_of_their_own() -> None:
    found = names('env.kwargs.level=a/b,a-b,A-B,c')
    assert len({name.casefold() for name in found}) == 4 and found[3] == 'level=c'
    assert all(len(name) < 120 for name in names(f'env.kwargs.x={"a" * 300},{"b" * 300}'))


def test_range_of_one_seed_is_that_seed() -> None:
    assert grid_of(['seed=3..3']) == ([({}, '')], ['seed=3'])


@pytest.mark.parametrize('text', ['a.b=true,1', 'a.b="00","0"', 'a.b=x,X', 'a.b=0.1,0.10000000001', 'a.b=[1,2],[2,1]'])
def test_values_that_only_look_alike_are_two(text: str) -> None:
    assert len(grid_of([text])[0]) == 2


def test_last_values_of_a_key_count_as_for_single_overrides() -> None:
    assert grid_of(['a=1..3', 'b=5', 'a=2']) == ([({}, '')], ['b=5', 'a=2'])
    members, fixed = grid_of(['a=7', 'b=5', 'a=1..2'])
    assert [member.values for member in members] == [{'a': '1'}, {'a': '2'}] and fixed == ['b=5']


SHORT = ['max_env_step=2_048', 'policy.eval.n_episode=1', 'logger.tensorboard=false']


BROKEN = """
import gymnasium


class Broken(gymnasium.wrappers.TimeLimit):
    def __init__(self, at=0):
        super().__init__(gymnasium.make('CartPole-v1'), 500)
        self.at, self.n = at, 0

    def step(self, action):
        self.n += 1
        if self.at and self.n == self.at:
            raise RuntimeError('a wire is loose')
        return super().step(action)
"""


def zoo(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, '-m', 'zoo', *words], cwd=cwd, capture_output=True, text=True, timeout=240)


def parameters(run: Path) -> dict[str, Any]:
    return load_policy(run).state_dict()['model']


@pytest.mark.soak
def test_runs_end_as_single_runs_do_and_continue_in_their_folder(tmp_path: Path) -> None:
    # on one episode, CartPole is solved after 1,980 steps: a run that ends so does not continue
    members, fixed = grid_of([*SHORT, 'policy.eval.stop_value=null', 'seed=0..1'])
    ended: list[int] = []
    options: Any = dict(jobs=2, run_dir=tmp_path / 'runs', on_end=lambda outcome, n: ended.append(n))
    outcomes = train_many('cartpole_ppo', members, fixed, **options)
    assert [outcome.state for outcome in outcomes] == ['done', 'done'] and ended == [1, 2]
    assert [outcome.run_dir for outcome in outcomes] == [tmp_path / 'runs' / f'seed{k}' for k in range(2)]
    alone = serial_pipeline('cartpole_ppo', overrides=[*fixed, 'seed=1', f'logger.root={tmp_path}'])
    one, other = parameters(alone.run_dir), parameters(tmp_path / 'runs' / 'seed1')
    assert one.keys() == other.keys() and all((one[name] == other[name]).all() for name in one)
    more = [text for text in fixed if 'max_env_step' not in text] + ['max_env_step=4_096']
    train_many('cartpole_ppo', members, more, run_dir=tmp_path / 'runs')
    assert all(read_run(tmp_path / 'runs' / f'seed{k}').env_step > 3_000 for k in range(2))


@pytest.mark.soak
def test_run_that_fails_ends_no_other_and_the_command_with_1(tmp_path: Path) -> None:
    (tmp_path / 'broken.py').write_text(BROKEN)
    done = zoo('train', 'broken.py:Broken', 'env.kwargs.at=0,50', *SHORT, '--json', cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert [run['state'] for run in found['runs']] == ['done']
    assert found['failed'][0]['values'] == {'env.kwargs.at': '50'} and 'a wire is loose' in found['failed'][0]['reason']
    failed = json.loads((tmp_path / found['failed'][0]['run_dir'] / 'result.json').read_text())
    assert failed['state'] == 'failed' and 'env.kwargs.at=50' in failed['command']
    listed = zoo('runs', '--json', cwd=tmp_path)
    assert sorted(run['state'] for run in json.loads(listed.stdout)['runs']) == ['done', 'failed']


@pytest.mark.soak
def test_signal_lets_all_runs_save_and_leaves_no_process(tmp_path: Path) -> None:
    words = ['cartpole_ppo', '--seeds', '3', '--jobs', '2', 'max_env_step=100_000_000', 'policy.eval.stop_value=null']
    with open(tmp_path / 'log', 'wb') as log:
        command = [sys.executable, '-m', 'zoo', 'train', *words, 'logger.freq=1', 'logger.tensorboard=false']
        process = subprocess.Popen(command, cwd=tmp_path, stderr=log, stdout=log)
    try:
        end = time.monotonic() + 120
        while len(list(tmp_path.glob('runs/*/*/metrics.jsonl'))) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 130, (tmp_path / 'log').read_text()
    finally:
        process.kill()
    runs = [read_run(path.parent) for path in tmp_path.glob('runs/*/*/config.yaml')]
    assert [run.state for run in runs] == ['stopped', 'stopped']  # the third run never started
    assert all(list(run.path.glob('checkpoints/step_*')) for run in runs)
    assert '0 of 3 runs done' in (tmp_path / 'log').read_text()
    assert not left([int(path.name) for path in Path('/proc').glob('[0-9]*') if _is_of(path, tmp_path)])


def _is_of(process: Path, folder: Path) -> bool:
    try:
        return Path(os.readlink(process / 'cwd')) == folder
    except OSError:
        return False


def test_command_of_each_run_imports_the_file_that_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command must name the file: its module name can be imported only from the file's own folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'sub').mkdir()
    (tmp_path / 'sub' / 'parts_of_mine.py').write_text('')
    given: dict[str, Any] = {}

    def train_many(*args: Any, **options: Any) -> list[Any]:
        given.update(options)
        return []

    monkeypatch.setattr(consent, 'given_imports', [])
    monkeypatch.setattr(batch, 'train_many', train_many)
    assert main(['train', 'cartpole_ppo', '--seeds', '2', '--import', 'sub/parts_of_mine.py']) == 0
    assert given['command'] == ['zoo', 'train', 'cartpole_ppo', '--import', 'sub/parts_of_mine.py']


@pytest.mark.soak
def test_each_run_keeps_the_command_that_repeats_it_and_a_folder_of_another_config_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusal changes no file, so config.yaml still describes the trained run."""
    words = ['train', 'cartpole_ppo', '--seeds', '2', '--json', '--run-dir', 'g', *SHORT]
    rate = 'policy.learn.learning_rate'
    first = zoo(*words, f'{rate}=1e-3', cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    before = {file: file.read_bytes() for file in (tmp_path / 'g').glob('*/config.yaml')}
    result = json.loads((tmp_path / 'g/seed1/result.json').read_text())
    command = ['zoo', 'train', 'cartpole_ppo', *SHORT, f'{rate}=1e-3', 'seed=1', '--run-dir', 'g/seed1']
    assert result['command'] == command
    other = zoo(*words, f'{rate}=3e-4', cwd=tmp_path)
    said = f'the run in g/seed0 has {rate}=0.001, not 0.0003; name another --run-dir, or give the values that it has'
    assert other.returncode == 2 and said in other.stderr and 'Traceback' not in other.stderr
    assert {file: file.read_bytes() for file in before} == before and len(before) == 2
    assert json.loads((tmp_path / 'g/seed1/result.json').read_text()) == result
    again = zoo(*words, f'{rate}=1e-3', cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    alone = zoo(*command[1:-2], '--run-dir', 'alone', cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    one, same = parameters(tmp_path / 'alone'), parameters(tmp_path / 'g/seed1')
    assert all((one[name] == same[name]).all() for name in one)


@pytest.mark.soak
def test_killed_run_has_its_folder_in_the_outcome(tmp_path: Path) -> None:
    (tmp_path / 'dies.py').write_text(BROKEN.replace("raise RuntimeError('a wire is loose')", 'os._exit(9)'))
    text = (tmp_path / 'dies.py').read_text()
    (tmp_path / 'dies.py').write_text(f'import os\n{text}')
    members, fixed = grid_of(['env.kwargs.at=50,60', *SHORT, f'logger.root={tmp_path}'])
    env = {'id': f'{tmp_path}/dies.py:Broken', 'vectorization': 'sync', 'check': False}
    source = {'env': env, 'policy': {'type': 'ppo'}}
    outcomes = train_many(source, members, fixed, jobs=2)
    folders = [outcome.run_dir for outcome in outcomes]
    assert [outcome.state for outcome in outcomes] == ['failed', 'failed']
    assert all(folder is not None and (folder / 'config.yaml').is_file() for folder in folders)
    assert len(set(folders)) == 2


@pytest.mark.parametrize(
    ('exit_code', 'received', 'reason'),
    [
        (128 + signal.SIGTERM, [signal.SIGINT], 'by Ctrl-C'),  # `Team.stop` passes Ctrl-C on as SIGTERM
        (128 + signal.SIGTERM, [], 'by SIGTERM'),
        (-signal.SIGTERM, [signal.SIGINT], 'by Ctrl-C before it began'),
    ],
)
def test_stopped_run_names_the_signal_of_the_user(exit_code: int, received: list[int], reason: str) -> None:
    [member], _ = grid_of([])
    outcome = batch._outcome(member, Ended(None, exit_code, None, None), received)
    assert (outcome.state, outcome.reason) == ('stopped', reason)


def test_all_configs_are_checked_before_anything_starts(tmp_path: Path) -> None:
    members, fixed = grid_of(['seed=0,1', 'policy.learn.batch_size=64,7', f'logger.root={tmp_path}'])
    with pytest.raises(ConfigError, match='batch_size is 7'):
        train_many('cartpole_ppo', members, fixed)
    assert not list(tmp_path.iterdir())


def test_jobs_below_one_and_torchrun_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    members, _ = grid_of(['seed=0,1'])
    with pytest.raises(UserError, match='jobs is 0'):
        train_many('cartpole_ppo', members, jobs=0)
    monkeypatch.setenv('WORLD_SIZE', '2')
    with pytest.raises(UserError, match='torchrun'):
        train_many('cartpole_ppo', members)
