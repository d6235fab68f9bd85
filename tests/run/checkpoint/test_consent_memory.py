"""Memory of consent: an unchanged file with which the user has trained needs none; runs that the user started."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import marshal
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forked import run_python
from zoo import serial_pipeline
from zoo.cluster.config import STARTED_BY
from zoo.config.user_code import load_code
from zoo.core.errors import UserError
from zoo.env import make_env
from zoo.run.checkpoint import consent, consent_memory
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


@pytest.fixture(autouse=True)
def _is_another_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(consent, 'given', set())
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))


def resume(path: Path, *overrides: str, **more: Any) -> Any:
    few = ['max_env_step=192', f'logger.root={path.parent}', 'logger.console=off', 'policy.learn.executor=eager']
    return serial_pipeline(resume=path, overrides=[*few, *overrides], **more)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a run on an env in a file of the current folder; this process forgets its consent, like a new one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))
    monkeypatch.setattr(consent, 'given', set())
    monkeypatch.setattr(consent, 'given_elsewhere', set())
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


@pytest.mark.parametrize('trust', [False, True])
def test_error_about_a_file_that_was_moved_names_the_override_that_gives_its_new_place(run: Path, trust: bool) -> None:
    def env_of(*overrides: str) -> str:
        env = env_config_of(load_checkpoint(run), trust=trust, overrides=overrides)
        return str(make_env(env).unwrapped.__class__.__name__)

    Path('sub').mkdir()
    Path('my_coin.py').rename('sub/my_coin.py')
    with pytest.raises(UserError, match=r'env\.id=NEW\.py:Coin'):
        env_of()
    os.chdir('sub')
    with pytest.raises(UserError, match=r'env\.id=my_coin\.py:Coin'):  # the file of that name is here
        env_of()
    assert env_of('env.id=my_coin.py:Coin') == 'Coin'


def test_what_is_kept_is_no_part_of_a_run_and_damage_means_consent(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / 'state' / 'zoo' / 'trained_on.json'
    assert list(json.loads(kept.read_bytes())) == [f'{tmp_path / "my_coin.py"}:Coin']
    assert not [path for path in run.rglob('*') if path.name == kept.name]
    for damaged in (b'', b'[1, 2]', b'{"a": ', b'{"my_coin.py:Coin": null}', b'\xff', b'[' * 200_000, b'[["a", "b"]]'):
        kept.write_bytes(damaged)
        with pytest.raises(UserError, match='only with your consent'):
            _env_of(run)


@pytest.mark.parametrize('what', ['trained_on.json', '.'])
def test_memory_that_everybody_may_write_is_not_believed(what: str, run: Path, tmp_path: Path) -> None:
    kept = (tmp_path / 'state' / 'zoo' / what).resolve()
    mode = kept.stat().st_mode
    kept.chmod(mode | 0o002)
    with pytest.raises(UserError, match='only with your consent'):
        _env_of(run)
    kept.chmod(mode)
    assert _env_of(run)


def test_text_that_ran_is_remembered_and_not_one_that_replaced_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))
    path = tmp_path / 'replaced_coin.py'
    path.write_text(ENV)
    load_code(f'{path}:Coin', 'env.id')  # it runs
    path.write_text(f'{ENV}\n# of somebody else\n')
    consent.give_names({'env': {'id': f'{path}:Coin'}}, remembers_env=True)
    kept = json.loads((tmp_path / 'state' / 'zoo' / 'trained_on.json').read_text())
    assert kept == {f'{path}:Coin': hashlib.sha256(ENV.encode()).hexdigest()}


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


INSTALLED = 'gymnasium.envs.classic_control.cartpole:CartPoleEnv'


@pytest.fixture
def run_of_package(run: Path) -> Path:
    """The folder of a run on an env of an installed package; this process forgets its consent, like a new one."""
    folder = serial_pipeline(env=INSTALLED, overrides=[*FEW, 'env.max_episode_steps=50']).run_dir
    consent.given.clear()
    return folder


def test_env_of_an_installed_package_with_which_the_user_trained_needs_no_consent(run_of_package: Path) -> None:
    assert _env_of(run_of_package) == INSTALLED
    assert consent.consent_words() == ''
    for other in (
        'gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv',
        'gymnasium.envs.classic_control.acrobot:AcrobotEnv',
    ):
        with pytest.raises(UserError, match='only with your consent'):
            _env_of(run_of_package, other)


def test_env_id_that_an_installed_package_registers_needs_no_consent_either(run: Path) -> None:
    folder = serial_pipeline(env='gymnasium:CartPole-v1', overrides=FEW).run_dir
    consent.given.clear()
    assert _env_of(folder) == 'gymnasium:CartPole-v1'


@pytest.mark.parametrize('what', ['own file', 'package', 'place'])
@pytest.mark.slow(ci=True)
def test_env_of_an_installed_package_that_is_another_now_needs_consent(
    what: str, run_of_package: Path, tmp_path: Path
) -> None:
    """The memory has another hash or path than the package now, as after an upgrade, or of another Python."""
    kept = tmp_path / 'state' / 'zoo' / 'trained_on.json'
    memory = json.loads(kept.read_bytes())
    package, own = memory[INSTALLED]
    changed = {
        'own file': {own: '0' * 64},
        'package': {package: '0' * 64},
        'place': {'/elsewhere/cartpole.py': '0' * 64},
    }
    memory[INSTALLED] |= changed[what]
    kept.write_text(json.dumps(memory))
    with pytest.raises(UserError, match='only with your consent'):
        _env_of(run_of_package)


def test_module_of_the_current_folder_needs_consent(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python would run bytecode next to it, so its text says nothing; the name of its file is remembered."""
    monkeypatch.syspath_prepend(str(Path.cwd()))
    folder = serial_pipeline(env='my_coin:Coin', overrides=FEW).run_dir
    consent.given.clear()
    with pytest.raises(UserError, match='only with your consent'):
        _env_of(folder)


def test_learner_remembers_no_env_since_its_config_may_be_of_a_trusted_checkpoint(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / 'state' / 'zoo' / 'trained_on.json'
    kept.unlink()
    monkeypatch.setenv(STARTED_BY, 'ray')
    serial_pipeline(load_checkpoint(run).meta['config'], trust=True)
    assert not kept.exists()


def test_code_that_is_no_env_needs_consent(run: Path) -> None:
    checkpoint = load_checkpoint(run)
    checkpoint.meta['config']['env']['kwargs'] = {'make': str(Path('my_coin.py').absolute()) + ':Coin'}
    with pytest.raises(UserError, match='only with your consent'):
        env_config_of(checkpoint)


@pytest.mark.long
def test_command_needs_no_import_and_runs_no_bytecode_next_to_the_file(run: Path) -> None:
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


def test_memory_is_read_for_envs_in_files_alone(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads this memory warns of it."""
    monkeypatch.setattr(consent, 'given', set())
    (tmp_path / 'state' / 'zoo' / 'trained_on.json').chmod(0o666)
    consent.give_names({'env': {'id': 'CartPole-v1'}, 'callbacks': ['my_coin:Silent']}, remembers_env=True)
    assert 'my_coin' in consent.consent_words() and caplog.text == ''
    consent.give_names({'env': {'id': f'{tmp_path / "my_coin.py"}:Coin'}})
    assert 'my_coin.py' in consent.consent_words() and 'may be written by another user' in caplog.text


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


def test_state_folder_that_cannot_be_written_is_no_error(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('XDG_STATE_HOME', os.devnull)
    folder = serial_pipeline(env='my_coin.py:Coin', overrides=FEW).run_dir
    consent.given.clear()
    with pytest.raises(UserError, match='only with your consent'):
        _env_of(folder)


def test_memory_of_runs_forgets_the_oldest_where_it_is_long(tmp_path: Path) -> None:
    kept = tmp_path / 'state' / 'zoo' / 'started_runs.txt'
    consent_memory.remember_run(tmp_path / 'old', [1])
    old = kept.read_bytes()
    kept.write_bytes(old + b''.join(b'%064d\n' % n for n in range(17_000)))  # 1.1 MB
    consent_memory.remember_run(tmp_path / 'new', [1])
    assert consent_memory.is_remembered(tmp_path / 'new', [1]) is False  # no such folder
    (tmp_path / 'new').mkdir()
    assert consent_memory.is_remembered(tmp_path / 'new', [1]) and not consent_memory.is_remembered(
        tmp_path / 'new', [2]
    )
    assert len(kept.read_bytes().splitlines()) == 8_502 and old not in kept.read_bytes()


def test_words_to_use_a_run_name_no_file_with_which_the_user_trained(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consent, 'given_imports', [])
    monkeypatch.setattr(consent, 'given_elsewhere', set())
    file = tmp_path / 'my_coin.py'
    consent.give_names({'env': {'id': f'{file}:Coin'}})
    assert consent.consent_words() == ''
    file.write_text(f'{ENV}\n')  # another content needs consent
    assert consent.consent_words() == f' --import {file}'
    file.write_text(ENV)
    consent.give_names({'env': {'id': 'CartPole-v1'}, 'policy': {'eval': {'env': {'id': f'{file}:Coin'}}}})
    assert consent.consent_words() == f' --import {file}'  # only env.id is remembered
