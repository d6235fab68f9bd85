"""A checkpoint loads no code that the user did not name, in this process or in this command."""

from __future__ import annotations

import json
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
from zoo.run.checkpoint import consent
from zoo.run.checkpoint.file import CheckpointError, load_checkpoint
from zoo.run.checkpoint.schema import saved_run
from zoo.run.policy_file import env_config_of
from zoo.worker.evaluator import evaluate

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
    """A folder on the import path with a module that creates a file when it is imported."""
    (tmp_path / 'trap_of_test.py').write_text(TRAP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(consent, 'given', set())
    yield tmp_path
    sys.modules.pop('trap_of_test', None)
    sys.modules.pop('parts_of_test', None)
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
        ('policy.model.distribution', 'trap_of_test:Maker', 'trap_of_test'),
        ('policy.collect.exploration', 'trap_of_test:make', 'trap_of_test'),
        ('policy.collect.exploration', {'type': 'trap_of_test:make'}, 'trap_of_test'),
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


@pytest.mark.parametrize(
    ('words', 'attribute'),
    [
        (True, 'make'),
        (['trap_of_test'], 'Trapped-v0'),
        (['other', 'trap_of_test'], 'Maker.make'),
        (['trap_of_test'], 'maker'),
    ],
)
def test_name_is_loaded_with_consent(folder: Path, words: Any, attribute: str) -> None:
    path = with_value(folder / 'c', 'meta.config.env.id', f'trap_of_test:{attribute}')
    assert resume(path, trust=words).env_step > 152
    assert is_sprung(folder)


def test_code_that_trust_loads_may_register_what_the_config_names(folder: Path) -> None:
    registers = 'from zoo import POLICY_REGISTRY\nfrom zoo.policy.ppo import PPOPolicy\n' + (
        "POLICY_REGISTRY.register('trap_ppo', force=True)(type('TrapPolicy', (PPOPolicy,), {}))\n"
    )
    (folder / 'trap_of_test.py').write_text(registers + TRAP)

    def change(state: dict[str, Any], meta: dict[str, Any]) -> None:
        meta['config']['env']['id'], meta['config']['policy']['type'] = 'trap_of_test:make', 'trap_ppo'

    assert resume(crafted(folder / 'c', change), trust=True).env_step > 152


def test_error_of_a_file_that_trust_loads_is_said_as_it_is(folder: Path) -> None:
    (folder / 'broken_of_test.py').write_text("raise RuntimeError('the simulator is not there')")
    path = with_value(folder / 'c', 'meta.config.env.id', f'{folder}/broken_of_test.py:make')
    with pytest.raises(UserError, match='line 1 with RuntimeError: the simulator is not there'):
        resume(path, trust=True)


def test_consent_to_a_module_is_none_to_another(folder: Path) -> None:
    path = with_value(folder / 'c', 'meta.config.env.id', 'trap_of_test:make')
    for words in (['trap'], ['trap_of_test.inner'], ['os'], [], False):
        with pytest.raises(CheckpointError, match='needs? your consent|only with your consent'):
            resume(path, trust=words)
    assert not is_sprung(folder)


@pytest.mark.parametrize(
    ('attribute', 'home'),
    [  # Path is of pathlib._local from Python 3.13 on
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


def test_callback_of_a_module_is_made_with_consent_only_and_not_to_evaluate(folder: Path) -> None:
    path = with_value(folder / 'c', 'meta.config.callbacks', ['trap_of_test:Watcher'])
    for words in ((), ['other']):
        with pytest.raises(CheckpointError, match=r"'trap_of_test' \(callbacks is .*only with your consent"):
            resume(path, trust=words)
    assert env_config_of(load_checkpoint(path)).id == 'CartPole-v1'  # to evaluate, no callback is made
    assert not is_sprung(folder)
    assert resume(path, trust=['trap_of_test']).env_step > 152
    assert (folder / 'watched').exists()


@pytest.mark.parametrize('key', ['stop', 'logger.sinks'])
@pytest.mark.parametrize('is_dict', [False, True])
def test_sink_or_stop_rule_of_a_module_needs_consent_and_is_not_made_to_evaluate(
    folder: Path, key: str, is_dict: bool
) -> None:
    spec: Any = {'type': 'trap_of_test:Maker'} if is_dict else 'trap_of_test:Maker'
    path = with_value(folder / 'c', f'meta.config.{key}', [spec])
    with pytest.raises(CheckpointError, match=r"'trap_of_test' \(.*only with your consent"):
        resume(path, trust=['other'])
    assert env_config_of(load_checkpoint(path)).id == 'CartPole-v1'  # to evaluate, neither is made
    assert not is_sprung(folder)
    with pytest.raises(UserError, match="'trap_of_test:Maker'"):  # it is loaded, but is no sink or rule
        resume(path, trust=['trap_of_test'])


CODE = [  # (key, value with {} at the place of the name) for each way in which a config names code to import
    *(
        (f'{envs}{key}', form)
        for envs in ('env.', 'policy.eval.env.', 'policy.eval.sets.other.')
        for key, form in (
            ('id', '{}'),
            ('reset_options', '{}'),
            ('wrappers', ['{}']),
            ('wrappers', [{'type': '{}'}]),
            ('wrappers', [{'type': 'gymnasium.wrappers:TransformReward', 'func': '{}'}]),
        )
    ),
    ('callbacks', ['{}']),
    ('stop', ['{}']),
    ('stop', [{'type': '{}'}]),
    ('logger.sinks', ['{}']),
    ('logger.sinks', [{'type': '{}'}]),
]


def with_name(path: Path, key: str, form: Any, name: str) -> Path:
    """Writes a checkpoint whose config names code in this key, at the place {} of this form."""
    value: Any = json.loads(json.dumps(form).replace('{}', name))
    if key.startswith('policy.eval.'):
        *group, last = key.removeprefix('policy.eval.').split('.')
        value = {last: value}
        for outer in reversed(group):
            value = {outer: value}
        ((key, value),) = value.items()
        key = f'policy.eval.{key}'
    return with_value(path, f'meta.config.{key}', value)


@pytest.mark.parametrize(('key', 'form'), CODE)
def test_each_key_of_code_loads_nothing_that_a_module_with_consent_has_imported(
    folder: Path, key: str, form: Any
) -> None:
    path = with_name(folder / 'c', key, form, 'trap_of_test:system')
    with pytest.raises(CheckpointError, match=r"names code of module 'trap_of_test' \(.*only with your consent"):
        resume(path)
    assert not is_sprung(folder)
    with pytest.raises(CheckpointError, match="which is code of module 'posix' and not of 'trap_of_test'"):
        resume(path, trust=['trap_of_test'])


@pytest.mark.slow
def test_texts_that_are_data_need_no_consent(folder: Path) -> None:
    stop = [{'type': 'bound', 'metric': 'mine:a', 'above': 5.0}]
    path = with_value(folder / 'c', 'meta.config.stop', stop)
    assert resume(path).env_step > 152
    options = {'id': 'a:b', 'level': ['my.levels:first'], 'file': 'my.py:x'}
    for key in ('env.reset_options', 'policy.eval.env', 'policy.eval.sets'):
        value: Any = {'env.reset_options': options, 'policy.eval.env': {'reset_options': options}}.get(key)
        path = with_value(folder / key, f'meta.config.{key}', value or {'other': {'reset_options': options}})
        assert resume(path).env_step > 152


def test_texts_that_are_data_are_no_code_after_a_key_whose_value_is() -> None:
    env = {'id': 'my_envs:Env', 'reset_options': {'level': 'my.levels:first'}}
    stop = [{'type': 'my_rules:Rule', 'metric': 'mine:a'}]
    assert consent.modules_of({'env': env, 'stop': stop}) == ['my_envs', 'my_rules']


@pytest.mark.parametrize('name', ['a.reset_options', 'a.b', ''])
def test_set_whose_name_makes_its_keys_look_like_data_is_refused(folder: Path, name: str) -> None:
    value = {name: {'wrappers': ['trap_of_test:make']}}
    path = with_value(folder / 'c', 'meta.config.policy.eval.sets', value)
    for use in (lambda: env_config_of(load_checkpoint(path), name=name), lambda: resume(path)):
        with pytest.raises(CheckpointError, match=r'policy.eval.sets has an evaluation .* use letters, digits'):
            use()
    assert not is_sprung(folder)


@pytest.mark.parametrize('key', ['env', 'sets'])
def test_policy_is_loaded_without_its_evaluation_envs_whose_code_needs_consent_to_be_used(
    folder: Path, key: str
) -> None:
    env: Any = {'id': 'trap_of_test:make'}
    path = with_value(folder / 'c', f'meta.config.policy.eval.{key}', env if key == 'env' else {'other': env})
    assert load_policy(path).act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    with pytest.raises(CheckpointError, match=rf'policy.eval.{key}.*only with your consent'):
        env_config_of(load_checkpoint(path))
    assert not is_sprung(folder)


PARTS = """
from pathlib import Path

def trace(what):
    (Path(__file__).parent / what).touch()

trace('sprung')

class Watcher:
    def on_start(self, job):
        trace('watched')

def rule(job):
    trace('asked')

class Sink:
    def open(self, cfg, run_dir):
        trace('opened')

    def write(self, env_step, metrics): ...

    def close(self): ...
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ('key', 'attribute', 'trace', 'form'),
    [
        ('callbacks', 'Watcher', 'watched', '{}'),
        ('stop', 'rule', 'asked', '{{type: {}}}'),
        ('logger.sinks', 'Sink', 'opened', '{{type: {}}}'),
    ],
)
def test_code_in_a_file_is_named_by_its_path_and_needs_consent_from_any_folder(
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    attribute: str,
    trace: str,
    form: str,
) -> None:
    file, name = folder / 'parts_of_test.py', f'./parts_of_test.py:{attribute}'
    file.write_text(PARTS)
    monkeypatch.chdir(folder)
    config = job_config(folder / 'runs', 'CartPole-v1')
    run_dir = serial_pipeline(config, overrides=[f'{key}=[{form.format(name)}]']).run_dir
    assert is_sprung(folder) and (folder / trace).exists()
    monkeypatch.chdir(tmp_path_factory.mktemp('other'))
    monkeypatch.setattr(consent, 'given', set())  # as in another process
    sys.modules.pop('parts_of_test')
    for left in ('sprung', trace):
        (folder / left).unlink()
    for words in ((), ['other.py']):
        with pytest.raises(CheckpointError, match=rf'code of the file .*parts_of_test.py.*--import {file}'):
            serial_pipeline(resume=run_dir, max_env_step=320, trust=words)
    saved = load_checkpoint(run_dir)
    assert evaluate(load_policy(saved), env_config_of(saved), 1).lengths  # to evaluate, none is made
    assert not is_sprung(folder)
    assert serial_pipeline(resume=run_dir, max_env_step=320, trust=[str(file)]).env_step > 256
    assert (folder / trace).exists()
    (folder / 'sprung').unlink()
    monkeypatch.setattr(consent, 'given', set())
    sys.modules.pop('parts_of_test')
    serial_pipeline(resume=run_dir, max_env_step=384, overrides=[f'{key}=[]'])  # replaces the code that needs consent
    assert not is_sprung(folder)


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


@pytest.mark.slow
def test_run_of_this_process_is_resumed_without_consent_and_in_another_process_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = serial_pipeline(job_config(folder))  # env.id is 'tests.envs:limit_env'
    assert serial_pipeline(resume=first.run_dir, max_env_step=320).env_step == 320
    monkeypatch.setattr(consent, 'given', set())
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
        load_policy(checkpoint)
    assert not is_sprung(folder)


# --- sizes that a file asks for ---

SMALL = {'policy.n_thread': 2, 'policy.collect.n_step': 16}


@pytest.mark.parametrize(
    ('key', 'most'),
    [
        ('env.collector_env_num', 65_536),
        ('env.evaluator_env_num', 65_536),
        ('env.max_episode_steps', 262_144),
        ('env.window', 4_096),
        ('policy.n_thread', 1_024),
        ('policy.collect.n_step', 67_108_864),
        ('policy.learn.batch_size', 67_108_864),
        ('policy.learn.epoch_per_collect', 1_000),
        ('policy.learn.aux_freq', 65_536),
        ('policy.learn.sequence.len', 65_536),
    ],
)
def test_unusual_size_needs_consent(folder: Path, key: str, most: int) -> None:
    *_, parent, last = f'meta.config.{key}'.split('.')
    value = {last: most + 1} if parent == 'sequence' else most + 1
    path = with_value(folder / 'c', f'meta.config.{key}'.removesuffix('.len'), value)
    with pytest.raises(CheckpointError, match=f'asks for {key}={most + 1}: more than {most} needs your consent'):
        resume(path)
    if key in SMALL:
        assert resume(path, f'{key}={SMALL[key]}').env_step > 152


def test_samples_that_no_memory_holds_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consent, 'machine_memory', lambda: 1 << 30)
    path = with_value(folder / 'c', 'meta.config.buffer.size', 1 << 24, source='ppo_offpolicy_categorical')
    # (4 x 4 bytes of observation + 64) x 2^24 = 1.3 GB
    with pytest.raises(CheckpointError, match='asks for 1 GB of memory for samples but this machine has '):
        resume(path)
    assert resume(path, 'buffer.size=8192').env_step > 152


# --- folders that a file names ---


@pytest.mark.parametrize('root', ['/', '/etc', '..', 'a/../../b', '~/../..', '~/x', '/tmp/elsewhere'])
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


@pytest.mark.slow
def test_run_that_was_moved_continues_next_to_its_old_folder(folder: Path) -> None:
    first = serial_pipeline(job_config(folder / 'first'))
    (folder / 'first').rename(folder / 'moved')
    run = folder / 'moved' / first.run_dir.relative_to(folder / 'first')
    assert serial_pipeline(resume=run, max_env_step=320).run_dir == run
    second = serial_pipeline(resume=run, max_env_step=320, overrides=['exp_name=new'])
    assert second.run_dir.parent == folder / 'moved' / 'new' and not (folder / 'first').exists()


def test_many_env_processes_need_consent_but_not_other_large_numbers_beside_them(folder: Path) -> None:
    most = 1_024

    def change(state: dict[str, Any], meta: dict[str, Any]) -> None:
        meta['config']['env'] |= {'vectorization': 'async', 'collector_env_num': most + 1}
        meta['config']['policy']['learn']['batch_size'] = most + 1

    path = crafted(folder / 'c', change)
    with pytest.raises(
        CheckpointError, match=f'asks for env.collector_env_num={most + 1}: more than {most} needs your con'
    ):
        resume(path)
    with pytest.raises(CheckpointError, match='asks for env.collector_env_num'):
        resume(path, 'policy.learn.batch_size=64')
    run = saved_run(load_checkpoint(path))
    consent.check_sizes(run, ['env', 'policy'], overrides=['env.collector_env_num=2'])
