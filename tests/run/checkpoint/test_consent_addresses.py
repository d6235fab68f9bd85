"""A checkpoint reaches no address without consent; an unchanged file with which the user has trained needs none."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import marshal
import os
import re
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Literal, get_args, get_origin

import pytest

from tests.forked import run_python
from tests.policy_envs import job_config
from tests.run.crafted import with_value
from zoo import Sink, serial_pipeline
from zoo.cluster.config import STARTED_BY
from zoo.config.components import options_of
from zoo.config.section import fields_of, is_section, sections_of
from zoo.config.user_code import load_code
from zoo.config.yaml_io import save_yaml
from zoo.core.errors import UserError
from zoo.core.registry import (
    BUFFER_REGISTRY,
    COMPONENTS,
    ENCODER_REGISTRY,
    MODEL_REGISTRY,
    POLICY_REGISTRY,
    SINK_REGISTRY,
)
from zoo.env import make_env
from zoo.run.checkpoint import consent, consent_memory
from zoo.run.checkpoint.file import CheckpointError, load_checkpoint, save_checkpoint
from zoo.run.config import job_schema
from zoo.run.policy_file import env_config_of, load_policy
from zoo.tools.cli.command import main
from zoo.worker.evaluator import evaluate

SINK = """
from zoo import Sink


class Reaching(Sink):
    def __init__(self, *, host: str = 'us'):
        self.host = host

    def write(self, step, metrics):
        pass
"""


@pytest.fixture(autouse=True)
def _is_another_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(consent, 'given', set())
    monkeypatch.setenv('XDG_STATE_HOME', str(tmp_path / 'state'))


def resume(path: Path, *overrides: str, **more: Any) -> Any:
    few = ['max_env_step=192', f'logger.root={path.parent}', 'logger.console=off', 'policy.learn.executor=eager']
    return serial_pipeline(resume=path, overrides=[*few, *overrides], **more)


@pytest.mark.parametrize(
    ('key', 'value', 'named'),
    [
        ('logger.sinks', [{'type': 'mlflow', 'uri': 'http://127.0.0.1:9'}], 'logger.sinks.type'),
        ('logger.sinks', ['mlflow'], 'logger.sinks'),
        ('logger.sinks', [{'entity': 'them', 'type': 'wandb', 'project': 'theirs'}], 'logger.sinks.entity'),
        ('logger.sinks', ['csv', 'of_a_plugin'], 'logger.sinks'),
        ('cluster', {'address': '127.0.0.1:9', 'engine': 'process', 'runner_num': 1}, 'cluster.address'),
        ('cluster', {'engine': 'ray', 'runner_num': 1}, 'cluster.engine'),
        ('cluster', {'learner_num': 2}, 'cluster.learner_num'),
        ('cluster', {'working_dir': '/etc/ssl'}, 'cluster.working_dir'),
    ],
)
def test_address_in_a_checkpoint_needs_consent_which_the_error_says(
    tmp_path: Path, key: str, value: Any, named: str
) -> None:
    path = with_value(tmp_path / 'c', f'meta.config.{key}', value)
    for trust in ((), ['mlflow', 'wandb', 'ray']):  # consent to code is not consent to an address
        what = 'asks for a cluster' if named in ('cluster.engine', 'cluster.learner_num') else 'names an address'
        what = 'would write to .*' if key == 'logger.sinks' else what
        with pytest.raises(CheckpointError, match=rf'{what} \({re.escape(named)} is .* add --trust') as error:
            resume(path, trust=trust)
        assert '\n' not in str(error.value) and 'in Python trust=True' in str(error.value)
    assert evaluate(load_policy(load_checkpoint(path)), env_config_of(load_checkpoint(path)), 1).lengths


def test_consent_to_the_code_of_a_sink_is_consent_to_what_it_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'my_reaching_sinks.py').write_text(SINK)
    monkeypatch.syspath_prepend(tmp_path)
    own = [{'type': 'my_reaching_sinks:Reaching', 'host': 'theirs.org'}]
    path = with_value(tmp_path / 'c', 'meta.config.logger.sinks', own)
    with pytest.raises(CheckpointError, match="names code of module 'my_reaching_sinks'"):
        resume(path)
    assert resume(path, trust=['my_reaching_sinks']).env_step > 152
    file = {'type': f'{tmp_path}/my_reaching_sinks.py:Reaching', 'host': 'elsewhere.org'}
    monkeypatch.chdir(tmp_path)
    path = with_value(tmp_path / 'e', 'meta.config.logger.sinks', [file])
    assert resume(path, trust=['my_reaching_sinks.py']).env_step > 152  # the same file by another path
    path = with_value(tmp_path / 'd', 'meta.config.logger.sinks', [*own, {'type': 'of_a_plugin', 'host': 'theirs.org'}])
    with pytest.raises(CheckpointError, match=r"write to the sink 'of_a_plugin' \(logger.sinks.\w+ is"):
        resume(path, trust=['my_reaching_sinks'])


@pytest.mark.slow
def test_override_is_consent_to_an_address(tmp_path: Path) -> None:
    path = with_value(tmp_path / 'c', 'meta.config.logger.sinks', [{'type': 'mlflow', 'uri': 'http://127.0.0.1:9'}])
    assert resume(path, 'logger.sinks=[csv]').env_step > 152
    path = with_value(tmp_path / 'd', 'meta.config.cluster', {'working_dir': '/etc/ssl'})
    assert resume(path, 'cluster.working_dir=null').env_step > 152


def test_words_to_continue_a_run_have_the_consent_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consent, 'given', set())
    monkeypatch.setattr(consent, 'given_imports', [])
    config = job_config(tmp_path, 'CartPole-v1')
    consent.give_names(config)
    assert consent.consent_words(config) == ''
    config['logger']['sinks'] = [{'type': 'mlflow', 'uri': 'http://here'}]
    consent.give_names(config)
    assert consent.consent_words(config) == ' --trust'
    assert consent.consent_words() == ''  # an evaluation reaches nobody


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


# --- runs that the user started ---


class MyTracker(Sink):
    def __init__(self, *, project: str = 'none') -> None: ...

    def write(self, step: int, metrics: dict[str, float]) -> None: ...


@pytest.fixture
def tracked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run with a tracker, which the user started; this process then forgets its consent, like a new one."""
    monkeypatch.setitem(SINK_REGISTRY.entries, 'my_tracker', MyTracker)
    monkeypatch.setitem(SINK_REGISTRY.places, 'my_tracker', 'here')
    sinks = ['csv', {'type': 'my_tracker', 'project': 'tour'}]
    config = job_config(
        tmp_path, 'CartPole-v1', max_env_step=64, logger={'sinks': sinks, 'root': str(tmp_path / 'runs')}
    )
    folder = serial_pipeline(config).run_dir
    consent.given.clear()
    return folder


def longer(path: Path, *overrides: str, **more: Any) -> Any:
    return serial_pipeline(resume=path, overrides=['max_env_step=128', *overrides], **more)


def test_run_that_the_user_started_reaches_its_tracker_without_asking_again(tracked: Path) -> None:
    assert longer(tracked).env_step > 64
    consent.given.clear()
    assert consent.consent_words(load_checkpoint(tracked).meta['config'], tracked) == ''
    assert serial_pipeline(resume=tracked, max_env_step=192).env_step > 128


def test_copy_of_a_run_needs_consent_to_its_tracker(tracked: Path) -> None:
    copy = tracked.with_name('copy')
    shutil.copytree(tracked, copy)
    for again in range(2):  # consent by trust holds for one command
        with pytest.raises(CheckpointError, match=r"would write to the sink 'my_tracker' .*--trust"):
            longer(copy)
        assert consent.consent_words(load_checkpoint(copy).meta['config'], copy) == ' --trust'
        assert again or longer(copy, trust=True).env_step > 64
        consent.given.clear()


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('logger.sinks', ['csv', {'type': 'my_tracker', 'project': 'theirs'}]),
        ('cluster.working_dir', '/etc/ssl'),
        ('exp_name', 'theirs'),
    ],
)
def test_other_addresses_in_the_folder_of_a_run_need_consent(tracked: Path, key: str, value: Any) -> None:
    checkpoint = load_checkpoint(tracked)
    *sections, last = key.split('.')
    section = checkpoint.meta['config']
    for name in sections:
        section = section[name]
    section[last] = value
    save_checkpoint(checkpoint.path, checkpoint.state, checkpoint.meta)
    with pytest.raises(CheckpointError, match='needs your consent'):
        longer(tracked)


def test_memory_of_runs_that_is_not_ones_own_is_not_believed(tracked: Path, tmp_path: Path) -> None:
    kept = tmp_path / 'state' / 'zoo' / 'started_runs.txt'
    for path in (kept, kept.parent, tracked):
        mode = path.stat().st_mode
        path.chmod(mode | 0o002)
        with pytest.raises(CheckpointError, match='needs your consent'):
            longer(tracked)
        path.chmod(mode)
    for damaged in (b'', b'\xff\n', b'[]\n', kept.read_bytes()[:40]):
        kept.write_bytes(damaged)
        with pytest.raises(CheckpointError, match='needs your consent'):
            longer(tracked)


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


@pytest.mark.parametrize(
    ('sink', 'words'),
    [
        ({'type': 'wandb', 'project': 'tour'}, "would write to the W&B project 'tour' ("),
        ({'type': 'wandb', 'project': 'tour', 'entity': 'us'}, "would write to the W&B project 'tour' of 'us' ("),
        ('wandb', 'would write to W&B ('),
        ({'type': 'mlflow'}, 'would write to MLflow ('),
    ],
)
def test_error_about_a_tracker_says_what_would_be_written_to(tmp_path: Path, sink: Any, words: str) -> None:
    path = with_value(tmp_path / 'c', 'meta.config.logger.sinks', ['csv', sink])
    with pytest.raises(CheckpointError, match=re.escape(words)):
        resume(path)


class _Tracker(BaseHTTPRequestHandler):
    """A server that counts requests and answers each with 404."""

    n_request = 0

    def _answer(self) -> None:
        _Tracker.n_request += 1
        self.send_response(404)
        self.end_headers()

    do_GET = do_POST = do_PUT = do_PATCH = _answer

    def log_message(self, *args: Any) -> None: ...


@pytest.fixture
def uri(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(_Tracker, 'n_request', 0)
    server = ThreadingHTTPServer(('127.0.0.1', 0), _Tracker)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}'
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_tracker_that_a_file_names_gets_no_request_by_any_door(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip('matplotlib')  # zoo report
    run = tmp_path / 'runs' / 'old' / 'run'
    (run / 'checkpoints').mkdir(parents=True)
    sinks = [{'type': 'mlflow', 'uri': uri}, {'type': 'wandb', 'entity': 'them'}]
    path = with_value(run / 'checkpoints' / 'step_000000152.safetensors', 'meta.config.logger.sinks', sinks)
    save_yaml(load_checkpoint(path).meta['config'], run / 'config.yaml')
    (run / 'metrics.jsonl').write_text(json.dumps({'env_step': 8, 'wall_s': 1.0, 'eval/return_mean': 1.0}) + '\n')
    files = {file: file.is_file() and file.read_bytes() for file in tmp_path.rglob('*')}
    for words in (['train', '--resume', run], ['train', '--run-dir', run], ['train', '--resume', path]):
        assert main([*map(str, words), 'max_env_step=320']) == 2
        assert f"would write to MLflow at '{uri}' (logger.sinks.type is 'mlflow')" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match='would write to MLflow'):
        serial_pipeline(run_dir=run)
    assert {file: file.is_file() and file.read_bytes() for file in tmp_path.rglob('*')} == files
    for words in (['eval', run, '--episodes', '1'], ['runs', run.parent], ['report', run, '-o', tmp_path / 'r.html']):
        assert main([*map(str, words)]) == 0
    assert _Tracker.n_request == 0


@pytest.mark.slow
def test_tracker_is_reached_with_consent(tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip('mlflow.tracking')
    monkeypatch.setenv('MLFLOW_HTTP_REQUEST_MAX_RETRIES', '0')
    path = with_value(tmp_path / 'c', 'meta.config.logger.sinks', [{'type': 'mlflow', 'uri': uri}])
    assert resume(path, trust=True).env_step > 152
    assert _Tracker.n_request > 0


# --- a class for each key ---

TEXTS = {
    'name of a registered component': r'policy\.type|policy\.model\.(type|encoder|distribution)|buffer\.type|pipeline|'
    r'policy\.(learn|collect)\.(surrogate|proximal|correction|value_loss|penalties|optimizer|draw|phase|intrinsic|'
    r'plasticity|options|estimator|exploration)',
    'name of a folder, which a file cannot choose: see root_of': r'exp_name|logger\.root',
    'path that a run which continues does not read': r'init_from',
    'names and patterns of entries': r'init_from_keys|policy\.learn\.freeze|policy\.model\.(actor|critic)_obs|'
    r'env\.(info_columns|drop_obs|ends\.(bootstrap_if|terminal_if))|logger\.info_(step_)?keys',
    'options of an env, in which names of code are found': r'env\.(game|kwargs|schedule)',
    'keys of the section env, each of its class': r'policy\.eval\.(env|sets)',
    'name of a device': r'policy\.device',
    'name of a metric': r'stop\.metric',
    'registered component inside of another one': r'policy\.learn\.intrinsic\.encoder|policy\.model\.encoder\.(encoders|join)',
    'names of layers': r'policy\.learn\.plasticity\.layers',
}
"""Keys whose texts are content, by the meaning of the text. A new key must be added here; but if it leads to code or to an
address, to CODE_PATH or ADDRESSES of zoo/run/checkpoint/consent.py."""
NUMBERS_OF_CLUSTER = {
    *('runner_num', 'max_lag', 'runner_cpu', 'runner_gpu', 'runner_timeout', 'start_timeout', 'restart_limit'),
}
"""Keys of section `cluster` that are content. Its other keys need a class even if they are numbers or closed choices."""


def holds_text(annotation: Any) -> bool:
    """Whether a value of this type may be or have a text that is not one of a closed set of choices."""
    if get_origin(annotation) is Literal or annotation in (int, float, bool, type(None)):
        return False
    if sections := sections_of(annotation):
        fields = [field for section in sections for field in section.model_fields.values()]
        rest = [arg for arg in get_args(annotation) if not sections_of(arg)]
        return any(holds_text(field.annotation) for field in fields) or any(map(holds_text, rest))
    arguments = get_args(annotation)
    if get_origin(annotation) is not None and hasattr(annotation, '__metadata__'):  # Annotated
        arguments = arguments[:1]
    return any(map(holds_text, arguments)) if arguments else True


def every_field() -> Iterator[tuple[str, Any]]:
    """Yields (key, type) of every field that a config may have, including options of components."""
    for policy, model in itertools.product(POLICY_REGISTRY.names(), MODEL_REGISTRY.names()):
        for buffer in BUFFER_REGISTRY.names():
            schema = job_schema({'policy': {'type': policy, 'model': {'type': model}}, 'buffer': {'type': buffer}})
            yield from ((key, field.annotation) for key, field in fields_of(schema) if not is_section(field))
    for where, registry in {**COMPONENTS, 'policy.model.encoder': ENCODER_REGISTRY}.items():
        for name in registry.names():
            section = options_of(registry.get(name))
            yield from ((f'{where}.{key}', field.annotation) for key, field in fields_of(section))


def classes_of(key: str, annotation: Any) -> list[str]:
    """Returns the classes of a key: 'code', 'address', 'content'; [] if it has none yet."""
    found = ['code'] if consent.CODE_PATH.fullmatch(key) else []
    if key in consent.ADDRESSES or key.startswith('logger.sinks.'):
        found.append('address')
    is_number = key.removeprefix('cluster.') in NUMBERS_OF_CLUSTER or not key.startswith('cluster.')
    texts = [what for what, keys in TEXTS.items() if re.fullmatch(keys, key)]
    if not found and (texts or is_number and not holds_text(annotation)):
        found.append('content')
    return found


@pytest.mark.slow
def test_every_key_of_the_config_is_content_code_or_address() -> None:
    fields = dict(every_field())
    assert len(fields) > 200 and {'logger.sinks.uri', 'policy.eval.sets', 'cluster.engine'} <= fields.keys()
    assert [key for key, annotation in fields.items() if not classes_of(key, annotation)] == []


@pytest.mark.parametrize(
    ('key', 'annotation', 'classes'),
    [
        ('logger.server', str | None, []),
        ('cluster.transport', Literal['tcp', 'shared'], []),
        ('cluster.port', int, []),
        ('policy.learn.teacher', dict[str, Any], []),
        ('policy.learn.teacher', int | None, ['content']),
        ('cluster.engine', Literal['auto', 'ray'], ['address']),
        ('logger.sinks', list[str], ['code', 'address']),
    ],
)
def test_new_key_without_a_class_is_found(key: str, annotation: Any, classes: list[str]) -> None:
    assert classes_of(key, annotation) == classes


# --- files with which the user has trained ---


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
