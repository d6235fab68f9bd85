"""A checkpoint reaches no address without consent."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Literal, get_args, get_origin

import pytest

from tests.policy_envs import job_config
from tests.run.crafted import with_value
from zoo import Sink, serial_pipeline
from zoo.config.components import options_of
from zoo.config.section import fields_of, is_section, sections_of
from zoo.config.yaml_io import save_yaml
from zoo.core.registry import (
    BUFFER_REGISTRY,
    COMPONENTS,
    ENCODER_REGISTRY,
    MODEL_REGISTRY,
    POLICY_REGISTRY,
    SINK_REGISTRY,
)
from zoo.run.checkpoint import consent
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


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.slow
def test_tracker_is_reached_with_consent(tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip('mlflow.tracking')
    monkeypatch.setenv('MLFLOW_HTTP_REQUEST_MAX_RETRIES', '0')
    path = with_value(tmp_path / 'c', 'meta.config.logger.sinks', [{'type': 'mlflow', 'uri': uri}])
    assert resume(path, trust=True).env_step > 152
    assert _Tracker.n_request > 0


# --- a class for each key ---

TEXTS = {
    'name of a registered component': r'policy\.type|policy\.model\.(type|encoder|recurrent)|buffer\.type|pipeline|'
    r'policy\.(learn|collect)\.(surrogate|proximal|correction|value_loss|penalties|optimizer|draw|phase|intrinsic|'
    r'constraint|'
    r'plasticity|options|estimator)',
    'name of a folder, which a file cannot choose: see root_of': r'exp_name|logger\.root',
    'path that a run which continues does not read': r'init_from',
    'names and patterns of entries': r'init_from_keys|policy\.learn\.freeze|policy\.model\.(actor|critic)_obs|'
    r'env\.(info_columns|observe_info|drop_obs|ends\.(bootstrap_if|terminal_if))|logger\.info_(step_)?keys',
    'options of an env, in which names of code are found': r'env\.(game|kwargs|schedule)',
    'keys of the section env, each of its class': r'policy\.eval\.(env|sets)',
    'name of a device': r'policy\.device',
    'name of a metric': r'stop\.metric',
    'registered component inside of another one': r'policy\.learn\.(intrinsic|constraint)\.encoder|policy\.model\.encoder\.(encoders|join)',
    'names of layers': r'policy\.learn\.plasticity\.layers',
    'names of policies and agents': r'agents\.(train|score)',
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
