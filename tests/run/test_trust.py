"""What a checkpoint may load: nothing that the user did not name, in this process or in this command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from tests.policy_envs import job_config
from tests.run.crafted import crafted, with_value
from zoo import load_policy, serial_pipeline
from zoo.core.errors import UserError
from zoo.run import sizes, trust
from zoo.run.checkpoint import CheckpointError, load_checkpoint
from zoo.run.load import env_config_of, policy_of

TRAP = """
import os
from os import system
from pathlib import Path
import gymnasium

Path(__file__).with_name('sprung').touch()
gymnasium.register('Trapped-v0', entry_point=lambda: gymnasium.make('CartPole-v1'))

def make():
    return gymnasium.make('CartPole-v1')

class Maker:
    make = staticmethod(make)

    def __call__(self):
        return make()

maker = Maker()

class Watcher:
    def on_start(self, job):
        Path(__file__).with_name('watched').touch()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the import path with a module that leaves a trace when it is imported."""
    (tmp_path / 'trap_of_test.py').write_text(TRAP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(trust, '_given', set())
    yield tmp_path
    sys.modules.pop('trap_of_test', None)
    gymnasium.registry.pop('Trapped-v0', None)


def resume(path: Path, *overrides: str, **more: Any) -> Any:
    few = ['max_env_step=192', f'logger.root={path.parent}', 'logger.console=off', 'policy.learn.executor=eager']
    return serial_pipeline(resume=path, overrides=[*few, *overrides], **more)


def is_sprung(folder: Path) -> bool:
    return (folder / 'sprung').exists()


@pytest.mark.parametrize(
    ('key', 'name', 'module'),
    [
        ('env.id', 'trap_of_test:make', 'trap_of_test'),
        ('env.id', 'trap_of_test:Trapped-v0', 'trap_of_test'),
        ('env.id', 'os:system', 'os'),
        ('env.id', 'zoo.config.source:import_module_or_file', 'zoo.config.source'),
        ('env.kwargs', {'inner': {'make': ['trap_of_test:make']}}, 'trap_of_test'),
        ('policy.learn.callback', 'trap_of_test:make', 'trap_of_test'),
        ('policy.model.type', 'trap_of_test:make', 'trap_of_test'),
    ],
)
def test_name_with_a_module_needs_consent_which_the_error_says(folder: Path, key: str, name: Any, module: str) -> None:
    path = with_value(folder / 'c', f'meta.config.{key}', name)
    for use in (lambda: env_config_of(load_checkpoint(path)), lambda: resume(path)):
        with pytest.raises(CheckpointError) as error:
            use()
        said = str(error.value)
        assert f"names code of module '{module}'" in said and f'--import {module} or --trust' in said
        assert f"trust=['{module}']" in said and '\n' not in said
    assert not is_sprung(folder)


@pytest.mark.parametrize(
    'name', [' trap_of_test:make', 'trap_of_test:', 'trap_of_test :make', ':make', 'a;b c:make', 'GymV26Environment-v0']
)
def test_odd_name_of_an_env_needs_consent_too(folder: Path, name: str) -> None:
    path = with_value(folder / 'c', 'meta.config.env.id', name)
    with pytest.raises(CheckpointError, match='names code of module .*--trust'):
        env_config_of(load_checkpoint(path))
    assert not is_sprung(folder)


@pytest.mark.parametrize('kwargs', [{}, {'text': 'see http://a.b/c and d:e f'}, {'device': 'cuda:0', 'time': '12:30'}])
def test_registered_name_and_harmless_kwargs_need_no_consent(folder: Path, kwargs: dict[str, Any]) -> None:
    checkpoint = load_checkpoint(with_value(folder / 'c', 'meta.config.env.kwargs', kwargs))
    assert env_config_of(checkpoint).kwargs == kwargs


@pytest.mark.parametrize('consent', [True, ['trap_of_test'], ['other', 'trap_of_test']])
@pytest.mark.parametrize('attribute', ['make', 'Trapped-v0', 'Maker.make', 'maker'])
def test_name_is_loaded_with_consent(folder: Path, consent: Any, attribute: str) -> None:
    path = with_value(folder / 'c', 'meta.config.env.id', f'trap_of_test:{attribute}')
    assert resume(path, trust=consent).env_step > 152
    assert is_sprung(folder)


def test_consent_to_a_module_is_none_to_another(folder: Path) -> None:
    path = with_value(folder / 'c', 'meta.config.env.id', 'trap_of_test:make')
    for consent in (['trap'], ['trap_of_test.inner'], ['os'], [], False):
        with pytest.raises(CheckpointError, match='needs? your consent|only with your consent'):
            resume(path, trust=consent)
    assert not is_sprung(folder)


@pytest.mark.parametrize(
    ('attribute', 'home'),
    [  # pathlib._local from Python 3.13 on
        ('os.system', 'os'),
        ('system', 'posix'),
        ('gymnasium.make', 'gymnasium'),
        ('Path', r'pathlib(\._local)?'),
    ],
)
def test_consent_to_a_module_is_none_to_what_it_imports(folder: Path, attribute: str, home: str) -> None:
    path = with_value(folder / 'c', 'meta.config.env.id', f'trap_of_test:{attribute}')
    with pytest.raises(CheckpointError, match=f"code of module '{home}' and not of 'trap_of_test'.*--trust"):
        resume(path, trust=['trap_of_test'])


def test_callback_of_a_module_with_consent_is_made_and_one_that_it_imports_is_not(folder: Path) -> None:
    path = with_value(folder / 'c', 'meta.config.callbacks', ['trap_of_test:Watcher'])
    for consent in ((), ['other']):
        with pytest.raises(CheckpointError, match=r"'trap_of_test' \(callbacks is .*only with your consent"):
            resume(path, trust=consent)
    assert env_config_of(load_checkpoint(path)).id == 'CartPole-v1'  # to evaluate, no callback is made
    assert not is_sprung(folder)
    assert resume(path, trust=['trap_of_test']).env_step > 152
    assert (folder / 'watched').exists()
    path = with_value(folder / 'd', 'meta.config.callbacks', ['trap_of_test:Path'])
    with pytest.raises(CheckpointError, match=r"code of module 'pathlib(\._local)?' and not of 'trap_of_test'"):
        resume(path, trust=['trap_of_test'])


@pytest.mark.parametrize('key', ['stop', 'logger.sinks'])
@pytest.mark.parametrize('is_dict', [False, True])
def test_sink_or_stop_rule_of_a_module_needs_consent_and_one_that_it_imports_is_refused(
    folder: Path, key: str, is_dict: bool
) -> None:
    spec: Any = {'type': 'trap_of_test:Maker'} if is_dict else 'trap_of_test:Maker'
    path = with_value(folder / 'c', f'meta.config.{key}', [spec])
    with pytest.raises(CheckpointError, match=r"'trap_of_test' \(.*only with your consent"):
        resume(path, trust=['other'])
    assert env_config_of(load_checkpoint(path)).id == 'CartPole-v1'  # to evaluate, neither is made
    assert not is_sprung(folder)
    with pytest.raises(UserError, match="'trap_of_test:Maker'"):  # it is loaded, and is neither
        resume(path, trust=['trap_of_test'])
    spec = {'type': 'trap_of_test:system'} if is_dict else 'trap_of_test:system'
    path = with_value(folder / 'd', f'meta.config.{key}', [spec])
    with pytest.raises(CheckpointError, match="and not of 'trap_of_test'"):
        resume(path, trust=['trap_of_test'])


@pytest.mark.parametrize('name', ['trap_of_test : Watcher', 'trap_of_test:f.<locals>.Watcher', ':Watcher', 'trap-of:W'])
def test_callback_by_an_odd_name_is_refused_and_imports_nothing(folder: Path, name: str) -> None:
    path = with_value(folder / 'c', 'meta.config.callbacks', [name])
    with pytest.raises(UserError, match="which is no 'module:Class'"):
        resume(path, trust=['trap_of_test'])
    assert not is_sprung(folder)


def test_text_as_trust_is_refused(folder: Path) -> None:
    path = with_value(folder / 'c', 'meta.config.env.id', 'trap_of_test:make')
    with pytest.raises(UserError, match="write trust=\\['trap_of_test'\\]"):
        resume(path, trust='trap_of_test')
    assert not is_sprung(folder)


def test_override_of_the_name_is_consent(folder: Path) -> None:
    path = with_value(folder / 'c', 'meta.config.env.id', 'os:system')
    assert resume(path, 'env.id=CartPole-v1').env_step > 152
    assert resume(path, 'env.id=trap_of_test:make').env_step > 152


def test_config_of_the_user_is_consent(folder: Path) -> None:
    path = with_value(folder / 'c', 'meta.config.env.id', 'os:system')
    config = load_checkpoint(path).meta['config']
    config['env']['id'] = 'trap_of_test:make'
    assert serial_pipeline(config, resume=path, max_env_step=192, overrides=[f'logger.root={folder}']).env_step > 152


def test_run_of_this_process_is_resumed_without_consent_and_in_another_process_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = serial_pipeline(job_config(folder))  # env.id is 'tests.envs:limit_env'
    assert serial_pipeline(resume=first.run_dir, max_env_step=320).env_step == 320
    monkeypatch.setattr(trust, '_given', set())
    with pytest.raises(CheckpointError, match="names code of module 'tests.envs'"):
        serial_pipeline(resume=first.run_dir, max_env_step=384)
    assert serial_pipeline(resume=first.run_dir, max_env_step=384, trust=['tests.envs']).env_step == 384


def test_policy_is_loaded_without_its_env(folder: Path) -> None:
    policy = load_policy(with_value(folder / 'c', 'meta.config.env.id', 'trap_of_test:make'))
    assert policy.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert not is_sprung(folder)


def test_names_in_the_policy_need_consent_to_load_it(folder: Path) -> None:
    checkpoint = load_checkpoint(with_value(folder / 'c', 'meta.config.policy.learn.callback', 'trap_of_test:make'))
    with pytest.raises(CheckpointError, match="policy.learn.callback is 'trap_of_test:make'"):
        policy_of(checkpoint)
    assert not is_sprung(folder)


# --- sizes that a file asks for ---

SMALL = {'env.max_episode_steps': 20, 'policy.collect.n_step': 16, 'policy.learn.batch_size': 16}


@pytest.mark.parametrize(
    'key',
    [
        'env.collector_env_num',
        'env.evaluator_env_num',
        'env.max_episode_steps',
        'policy.n_thread',
        'policy.collect.n_step',
        'policy.learn.batch_size',
        'policy.learn.epoch_per_collect',
    ],
)
def test_unusual_size_needs_consent(folder: Path, key: str) -> None:
    path = with_value(folder / 'c', f'meta.config.{key}', 10**9)
    with pytest.raises(CheckpointError, match=f'asks for {key}=1000000000: more than [0-9]+ needs your consent'):
        resume(path)
    assert resume(path, f'{key}={SMALL.get(key, 2)}').env_step > 152


def test_samples_that_no_memory_holds_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, 'machine_memory', lambda: 1 << 30)
    path = with_value(folder / 'c', 'meta.config.buffer.size', 1 << 24, source='ppo_offpolicy_categorical')
    # (4 x 4 bytes of observation + 64) x 2^24 = 1.3 GB
    with pytest.raises(CheckpointError, match='asks for 1 GB of memory for samples but this machine has 1 GB'):
        resume(path)
    assert resume(path, 'buffer.size=8192').env_step > 152


# --- folders that a file names ---


@pytest.mark.parametrize('root', ['/', '/etc', '..', 'a/../../b', '~/../..', '/tmp/elsewhere'])
def test_folder_elsewhere_that_a_file_names_is_not_written_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch, root: str
) -> None:
    (folder / 'here').mkdir()
    monkeypatch.chdir(folder / 'here')

    def change(state: dict[str, Any], meta: dict[str, Any]) -> None:
        meta['config']['logger']['root'] = root
        meta['config'] |= {'max_env_step': 192}

    result = serial_pipeline(resume=crafted(folder / 'c', change), overrides=['logger.console=off'])
    assert result.run_dir.absolute().is_relative_to(folder / 'here' / 'runs' / 'old')


def test_run_that_was_moved_goes_on_beside_its_old_folder(folder: Path) -> None:
    first = serial_pipeline(job_config(folder / 'first'))
    (folder / 'first').rename(folder / 'moved')
    run = folder / 'moved' / first.run_dir.relative_to(folder / 'first')
    assert serial_pipeline(resume=run, max_env_step=320).run_dir == run
    second = serial_pipeline(resume=run, max_env_step=320, overrides=['exp_name=new'])
    assert second.run_dir.parent == folder / 'moved' / 'new' and not (folder / 'first').exists()
