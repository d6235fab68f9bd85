"""A file with which the user has trained needs no new consent as long as it is unchanged; other code still needs consent."""

from __future__ import annotations

import importlib.util
import json
import marshal
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.forked import run_python
from zoo.core.errors import UserError
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint import consent
from zoo.run.checkpoint.file import load_checkpoint
from zoo.run.policy_file import env_config_of

ENV = """
import gymnasium

class Coin(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.low, {}
    def step(self, action):
        return self.observation_space.high, float(action), True, False, {}

class Other(Coin): pass
"""
FEW = [
    'max_env_step=256',
    'policy.collect.n_step=32',
    'policy.learn.batch_size=128',
    'logger.console=off',
    'policy.learn.executor=eager',
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a run on an env in a file of the current folder; this process forgets its consent, like a new one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))
    monkeypatch.setattr(consent, 'given', set())
    Path('my_coin.py').write_text(ENV)
    folder = serial_pipeline(env='my_coin.py:Coin', overrides=FEW).run_dir
    consent.given.clear()
    yield folder


def _env_of(run: Path, name: str | None = None) -> str:
    checkpoint = load_checkpoint(run)
    if name is not None:
        checkpoint.meta['config']['env']['id'] = name
    return env_config_of(checkpoint).id


def test_file_with_which_the_user_trained_needs_no_consent(run: Path) -> None:
    assert _env_of(run).endswith('my_coin.py:Coin')
    assert serial_pipeline(resume=run, overrides=['max_env_step=512']).env_step == 512


def test_command_needs_no_import(run: Path) -> None:
    done = run_python('-m', 'zoo', 'eval', run, '--episodes', 2, XDG_STATE_HOME=os.environ['XDG_STATE_HOME'])
    assert done.returncode == 0 and 'over 2 episodes' in done.stdout, done.stderr


def test_file_that_was_changed_needs_consent_again(run: Path) -> None:
    Path('my_coin.py').write_text(f'{ENV}\n')
    with pytest.raises(UserError, match=r'only with your consent.*--import'):
        _env_of(run)
    Path('my_coin.py').write_text(ENV)
    assert _env_of(run)


def test_other_class_of_the_file_needs_consent(run: Path) -> None:
    with pytest.raises(UserError, match='only with your consent'):
        _env_of(run, 'my_coin.py:Other')


def test_file_of_another_folder_needs_consent(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'elsewhere').mkdir()
    monkeypatch.chdir(tmp_path / 'elsewhere')
    with pytest.raises(UserError, match='only with your consent'):
        _env_of(run)
    Path('my_coin.py').write_text(ENV)  # the same content, but nobody trained with this file
    with pytest.raises(UserError, match='only with your consent'):
        _env_of(run, 'my_coin.py:Coin')


def test_what_is_kept_is_no_part_of_a_run_and_damage_means_consent(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / 'state' / 'zoo' / 'trained_on.json'
    assert list(json.loads(kept.read_bytes())) == [f'{tmp_path / "my_coin.py"}:Coin']
    assert not [path for path in run.rglob('*') if path.name == kept.name]
    for damaged in (b'', b'[1, 2]', b'{"a": ', b'{"my_coin.py:Coin": null}', b'\xff', b'[' * 200_000, b'[["a", "b"]]'):
        kept.write_bytes(damaged)
        with pytest.raises(UserError, match='only with your consent'):
            _env_of(run)


def test_only_training_of_ones_own_config_is_remembered(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / 'state' / 'zoo' / 'trained_on.json'
    kept.unlink()
    serial_pipeline(resume=run, overrides=['max_env_step=512'], trust=['my_coin.py'])
    assert not kept.exists()
    config = dict(env=dict(id='CartPole-v1', kwargs=dict()), callbacks=['my_callback.py:Silent'])
    Path('my_callback.py').write_text(
        'from zoo import Callback\nclass Silent(Callback):\n    def on_end(self, run, result): pass\n'
    )
    serial_pipeline({**config, 'max_env_step': 256, 'policy': {'type': 'ppo'}}, overrides=FEW)
    assert not kept.exists()


def test_code_that_is_no_env_needs_consent(run: Path) -> None:
    checkpoint = load_checkpoint(run)
    checkpoint.meta['config']['env']['kwargs'] = {'make': str(Path('my_coin.py').absolute()) + ':Coin'}
    with pytest.raises(UserError, match='only with your consent'):
        env_config_of(checkpoint)


def test_bytecode_next_to_the_file_is_not_run(run: Path) -> None:
    """A .pyc of other code, marked as unchecked: Python itself would run it instead of the file."""
    other = compile('raise SystemExit("other code")', 'my_coin.py', 'exec')
    cached = Path(importlib.util.cache_from_source(str(Path('my_coin.py').absolute())))
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(importlib.util.MAGIC_NUMBER + (1).to_bytes(4, 'little') + bytes(8) + marshal.dumps(other))
    done = run_python('-m', 'zoo', 'eval', run, '--episodes', 2, XDG_STATE_HOME=os.environ['XDG_STATE_HOME'])
    assert done.returncode == 0 and 'over 2 episodes' in done.stdout, done.stderr


@pytest.mark.parametrize(
    'name', ['nul\0.py:Coin', 'sub/../my_coin.py:Coin', '\ud800.py:Coin', 'link/../my_coin.py:Coin']
)
def test_odd_names_need_consent(run: Path, name: str) -> None:
    with pytest.raises(UserError, match='consent|cannot be'):
        _env_of(run, str(Path.cwd() / name))


def test_pipe_in_place_of_file_or_memory_is_not_waited_for(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / 'state' / 'zoo' / 'trained_on.json'
    for path in (kept, Path('my_coin.py')):
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(UserError, match='only with your consent'):
            _env_of(run)
        path.unlink()  # hypothesis would open it: it reads the files of all modules


@pytest.mark.parametrize('state', ['state', '~'])
def test_memory_is_never_in_the_current_folder(run: Path, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if state == '~':  # as if no home folder is known
        Path('~').symlink_to('state')
    monkeypatch.setenv('XDG_STATE_HOME', state)
    with pytest.raises(UserError, match='only with your consent'):
        _env_of(run)


def test_state_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('XDG_STATE_HOME', os.devnull)
    monkeypatch.setattr(consent, 'given', set())
    Path('my_coin.py').write_text(ENV)
    folder = serial_pipeline(env='my_coin.py:Coin', overrides=FEW).run_dir
    consent.given.clear()
    with pytest.raises(UserError, match='only with your consent'):
        _env_of(folder)
