"""Compatibility with commit 7e7fb52: its files load and continue as before, and all that users could name still exists.

The files in `files/` were written at that commit, and nothing writes them again. A failing test means that zoo has broken a
promise, or that numbers changed on purpose, which the message of the commit then says. The tests use only public names, the
command and the format of files; only `surface` knows how to list all names.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.forked import run_python
from tests.old_house import behaviour, surface
from tests.old_house.behaviour import FILES, USER
from zoo import CheckpointError, load_policy, read_run, serial_pipeline
from zoo.config.section import has_key, value_at
from zoo.run.config import defaults_for, resolve_config

ROOT = Path(__file__).parents[2]
MACHINE, SURFACE, RUNS, SWEEP, SAVED, COMMANDS = (
    json.loads((FILES / f'{name}.json').read_text())
    for name in ('machine', 'surface', 'runs', 'sweep', 'saved', 'commands')
)
# Sums of floats depend on the processor and on torch. On the machine that recorded the files, all is compared bit for bit;
# elsewhere with a tolerance: another order of a sum changes about 1e-7 of it in each of the at most 40 gradient steps of a run.
IS_SAME_MACHINE = behaviour.machine() == MACHINE
TOLERANCE = 1e-5
OLD_KEYS = {  # keys that are still accepted, with a value and the key that has it today
    'policy.learn.value_clip': (True, 'policy.learn.value_loss'),
    'policy.collect.temperature': (2.0, 'policy.collect.exploration'),
}
OLD_NAMES = r'(^|[./])(value_clip|temperature)$'
FAR_CARTPOLE = {'policy.collect.discount_factor': None, 'policy.collect.gae_lambda': None}
TUNED = {  # bundled configs whose values have changed since then; None: the default
    'acrobot_ppo': {
        'max_env_step': 300_000,
        'policy.learn.epoch_per_collect': 10,
        'policy.learn.learning_rate': {'start': 0.001, 'end': 0.0, 'over': 300_000},
    },
    'cartpole_pg': {'policy.learn.entropy_weight': 0.01, 'policy.model.obs_norm': True},
    'cartpole_ppg': FAR_CARTPOLE,
    'cartpole_ppg_ewma': FAR_CARTPOLE,
    'cartpole_ppo': FAR_CARTPOLE | {'policy.learn.learning_rate': {'start': 0.002, 'end': 0.0, 'over': 100_000}},
    'cartpole_ppo_ewma': FAR_CARTPOLE | {'policy.learn.learning_rate': {'start': 0.003, 'end': 0.0, 'over': 100_000}},
    'cartpole_ppo_offpolicy': FAR_CARTPOLE,
    'halfcheetah_ppo': {'env.collector_env_num': 64, 'policy.collect.n_step': 32},
    'hopper_ppo': {
        'policy.model.hidden_sizes': [256, 256],
        'policy.model.log_std_init': None,
        'policy.collect.discount_factor': 0.995,
    },
    'humanoid_ppo': {
        'env.collector_env_num': 64,
        'env.action_mode': 'rescale',
        'policy.model.log_std_init': -1.0,
        'policy.collect.n_step': 32,
        'policy.collect.discount_factor': 0.98,
        'policy.collect.gae_lambda': 0.9,
    },
    'lunarlander_continuous_ppo': {
        'policy.learn.epoch_per_collect': 10,
        'policy.collect.n_step': 256,
        'policy.collect.n_sample': 4096,
    },
    'mountaincar_continuous_ppo': {
        'max_env_step': 100_000,
        'policy.model.log_std_init': 0.5,
        'policy.learn.learning_rate': {'start': 0.0003, 'end': 0.0, 'over': 100_000},
        'policy.eval.eval_freq': None,
    },
    'swimmer_ppo': {
        'policy.learn.epoch_per_collect': 20,
        'policy.collect.n_step': 2048,
        'policy.collect.n_sample': 8192,
    },
    'taxi_ppo': {
        'env.collector_env_num': 64,
        'policy.learn.epoch_per_collect': 20,
        'policy.learn.entropy_weight': {'start': 0.1, 'end': 0.0, 'over': 500_000},
        'policy.collect.n_sample': 8192,
    },
    'pendulum_bins_ppo': {'policy.collect.discount_factor': 0.98, 'policy.learn.value_norm': True},
    'pendulum_ppg': {'policy.collect.discount_factor': 0.98},
    'pendulum_ppo': {'policy.collect.discount_factor': 0.98, 'policy.learn.value_norm': True},
}
# {(run, env step): what the log has now}: the weight of the update, where 7e7fb52 had that of the next one, 0.03125
LOGGED_NOW = {('rich', 62): {'learn/kl_weight': 0.0625}}
IN_PROCESS = [name for name in RUNS if name != 'own_registered']  # it registers a name that others should not find
POLICIES = sorted(SURFACE['config'])
GROUPS = {  # {group of entry points: the registry of `zoo` that gets the entries of packages}
    'zoo.policies': 'POLICY_REGISTRY',
    'zoo.models': 'MODEL_REGISTRY',
    'zoo.encoders': 'ENCODER_REGISTRY',
    'zoo.envs': 'ENV_REGISTRY',
    'zoo.buffers': 'BUFFER_REGISTRY',
    'zoo.distributions': 'DISTRIBUTION_REGISTRY',
    'zoo.surrogates': 'SURROGATE_REGISTRY',
    'zoo.value_losses': 'VALUE_LOSS_REGISTRY',
    'zoo.penalties': 'PENALTY_REGISTRY',
    'zoo.estimators': 'ESTIMATOR_REGISTRY',
    'zoo.optimizers': 'OPTIMIZER_REGISTRY',
    'zoo.explorations': 'EXPLORATION_REGISTRY',
    'zoo.draws': 'DRAW_REGISTRY',
    'zoo.proximal_policies': 'PROXIMAL_REGISTRY',
    'zoo.corrections': 'CORRECTION_REGISTRY',
    'zoo.phases': 'PHASE_REGISTRY',
    'zoo.intrinsic_rewards': 'INTRINSIC_REGISTRY',
    'zoo.plasticity': 'PLASTICITY_REGISTRY',
    'zoo.pipelines': 'PIPELINE_REGISTRY',
    'zoo.sinks': 'SINK_REGISTRY',
    'zoo.stop_rules': 'STOP_REGISTRY',
}


@pytest.fixture(autouse=True)
def own_house(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports the user's file from a folder of modules, where `zoo train` found it."""
    monkeypatch.syspath_prepend(str(USER))
    importlib.import_module('own_house')


@pytest.fixture(scope='module')
def now() -> dict[str, Any]:
    """The public surface of the zoo that is tested."""
    done = run_python('-m', 'tests.old_house.surface', cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def zoo(*words: str, cwd: Path) -> Any:
    """The output of a command; parsed, if the command was asked for JSON."""
    path = os.pathsep.join([str(ROOT), str(USER)])
    done = run_python('-P', '-m', 'zoo', *words, cwd=cwd, PYTHONPATH=path)
    assert done.returncode == 0, f'zoo {" ".join(words)}\n{done.stderr}'
    return json.loads(done.stdout) if '--json' in words else done.stdout


def house(folder: Path) -> Path:
    """A copy of all files, where tests may write."""
    return Path(shutil.copytree(FILES, folder / 'house'))


def run_copy(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(FILES / 'runs' / name / 'old', folder / 'runs' / name / 'old'))


def assert_same(got: Any, want: Any, at: str = '') -> None:
    """Asserts that JSON values are equal; on another machine, floats within `TOLERANCE`. `got` may have new keys.

    Old keys that had their defaults may be gone.
    """
    if isinstance(want, dict):
        want = {key: x for key, x in want.items() if not (re.search(OLD_NAMES, key) and x in (False, 1.0))}
        assert isinstance(got, dict) and not want.keys() - got.keys(), f'{at} lacks {want.keys() - got.keys()}'
        for key in want:
            assert_same(got[key], want[key], f'{at}/{key}')
    elif isinstance(want, list):
        assert isinstance(got, list) and len(got) == len(want), at
        for i, (one, other) in enumerate(zip(got, want, strict=True)):
            assert_same(one, other, f'{at}/{i}')
    elif isinstance(want, float) and not IS_SAME_MACHINE:
        assert got == pytest.approx(want, rel=TOLERANCE, abs=TOLERANCE, nan_ok=True), at
    else:
        assert got == want or (got != got and want != want), at


def assert_same_checkpoint(got: Path, want: Path) -> None:
    tensors, values = behaviour.content(got)
    old_tensors, old_values = behaviour.content(want)
    assert tensors.keys() == old_tensors.keys()
    for name, old in old_tensors.items():
        assert (tensors[name].dtype, tensors[name].shape) == (old.dtype, old.shape), name
        if IS_SAME_MACHINE or old.dtype.kind != 'f':
            np.testing.assert_array_equal(tensors[name], old, err_msg=name)
        else:
            np.testing.assert_allclose(tensors[name], old, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
    assert_same(values, old_values)


# --- runs


@pytest.mark.slow(first=True)
@pytest.mark.parametrize('name', IN_PROCESS)
def test_loaded_policy_answers_as_before(name: str) -> None:
    want = RUNS[name]
    policy = load_policy(FILES / 'runs' / name / 'old', trust=want['trust'])
    assert_same(behaviour.answers(policy, behaviour.observations(want['kind'])), want['answers'])


COUNTED_ANEW = {'ppg_offpolicy'}
"""Runs whose numbers differ since statistics of observations count each row once, when it is collected, not when it is drawn."""


@pytest.mark.slow
@pytest.mark.parametrize('name', IN_PROCESS)
def test_resumed_run_ends_as_before(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Compared after two rounds: parameters, moments, statistics, memories, buffers, counters, random streams; log; files."""
    want, copy = RUNS[name], run_copy(name, tmp_path)
    if name == 'ppo_native':
        request.getfixturevalue('native')  # builds it, or skips where there is no compiler
    more = [f'max_env_step={want["max_env_step"]}']
    result = serial_pipeline(resume=copy, overrides=more, trust=want['trust'])
    assert Path(result.run_dir) == copy, 'it continues in its folder'
    assert (result.env_step, result.train_iter) == (want['env_step'], want['train_iter'])
    assert result.stop_reason == want['stop_reason']
    if name in COUNTED_ANEW:
        old, now = (
            behaviour.content(path)[0] for path in (FILES / 'continued' / f'{name}.safetensors', behaviour.newest(copy))
        )
        assert {key: x.shape for key, x in old.items()} == {key: x.shape for key, x in now.items()}
        return
    assert_same_checkpoint(behaviour.newest(copy), FILES / 'continued' / f'{name}.safetensors')
    lines = [{**line, **LOGGED_NOW.get((name, line['env_step']), {})} for line in want['metrics']]
    assert_same(behaviour.metrics(copy), lines)
    files = {path.relative_to(copy).as_posix() for path in copy.rglob('*') if path.is_file()}
    assert not set(want['files']) - files
    if want['diary'] is not None:
        assert_same(json.loads((copy / 'diary.json').read_text()), want['diary'])


@pytest.mark.long
@pytest.mark.parametrize(
    ('name', 'said'), [('own', 'own_house'), ('own_mixed', 'own_house'), ('own_registered', 'old_house_soft')]
)
def test_code_of_a_user_needs_consent(name: str, said: str, tmp_path: Path) -> None:
    """Runs in a new process: in this one, an earlier test may have given the consent."""
    done = run_python('-P', '-m', 'zoo', 'train', '--resume', run_copy(name, tmp_path), cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and '--import' in done.stderr


def test_damaged_file_is_refused(tmp_path: Path) -> None:
    file = behaviour.newest(run_copy('ppo', tmp_path))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match='checksum'):
        load_policy(file)


def test_read_run_gives_what_the_log_has() -> None:
    run = read_run(FILES / 'runs' / 'ppo' / 'old')
    steps, returns = run.curve('eval/return_mean')
    lines = [line for line in behaviour.metrics(run.path) if 'eval/return_mean' in line]
    assert steps.tolist() == [line['env_step'] for line in lines]
    assert returns.tolist() == [line['eval/return_mean'] for line in lines]
    assert (run.state, run.seed, run.config['policy']['type']) == ('done', 5, 'ppo')


@pytest.mark.slow
def test_new_run_has_the_same_files_keys_and_format(tmp_path: Path) -> None:
    """The new run is trained with the config from the folder of the old run."""
    old, new = FILES / 'runs' / 'ppo' / 'old', tmp_path / 'new'
    more = [f'logger.root={tmp_path}', 'checkpoint.freq=16']
    serial_pipeline(old / 'config.yaml', overrides=more, run_dir=new)
    assert {path.name for path in new.iterdir()} == {path.name for path in old.iterdir()}
    assert (new / 'checkpoints' / 'best.safetensors').exists()
    results = [json.loads((folder / 'result.json').read_text()) for folder in (new, old)]
    shapes = [behaviour.shape_of({**each, 'commit': None}) for each in results]
    assert_same(*shapes)
    got, want = behaviour.content(behaviour.newest(new)), behaviour.content(behaviour.newest(old))
    assert got[0].keys() == want[0].keys()
    assert not {key for key in want[1].keys() - got[1].keys() if not re.search(OLD_NAMES, key)}
    assert got[1]['zoo_format'] == want[1]['zoo_format'] == '4'
    for one, other in zip(behaviour.metrics(new), behaviour.metrics(old), strict=True):
        assert not other.keys() - one.keys()
    columns, old_columns = (set((each / 'progress.csv').read_text().split('\n')[0].split(',')) for each in (new, old))
    assert not old_columns - columns


# --- other files


@pytest.mark.parametrize('name', SAVED['loaded'])
def test_saved_policy_answers_as_before(name: str) -> None:
    want = SAVED['loaded'][name]
    policy = load_policy(FILES / 'saved' / f'{name}.safetensors')
    assert_same(behaviour.answers(policy, behaviour.observations(want['kind'])), want['answers'])


def test_saved_policy_is_saved_again_as_it_was(tmp_path: Path) -> None:
    old = FILES / 'saved' / 'ppo_all.safetensors'
    load_policy(old, fields='all').save(tmp_path / 'new.safetensors')
    assert_same_checkpoint(tmp_path / 'new.safetensors', old)


@pytest.mark.long
def test_demonstrations_are_imitated_as_before(tmp_path: Path) -> None:
    files = house(tmp_path)
    shutil.move(files / 'imitated', files / 'old_imitated')
    printed = zoo(*SAVED['pretrain'], '--run-dir', 'imitated', cwd=files)
    old = {key: x for key, x in SAVED['imitated'].items() if isinstance(x, int | float) and not key.endswith('_s')}
    assert_same(printed, old)
    assert_same_checkpoint(behaviour.newest(files / 'imitated'), behaviour.newest(files / 'old_imitated'))


@pytest.mark.slow
def test_run_begins_with_imitated_weights_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(house(tmp_path))
    result = serial_pipeline('sweep/tiny.yaml', max_env_step=64, overrides=['init_from=imitated'], run_dir='begun')
    assert_same_checkpoint(behaviour.newest(result.run_dir), FILES / 'continued' / 'imitated.safetensors')


@pytest.mark.long
def test_sweep_continues_with_its_third_trial(tmp_path: Path) -> None:
    folder = house(tmp_path) / 'sweep'
    printed = zoo(*SWEEP['words'], '--n', '2', cwd=folder)
    assert _trials(printed) == _trials(SWEEP['first']), 'nothing is left to do'
    printed = zoo(*SWEEP['words'], '--n', '3', cwd=folder)
    assert_same(behaviour.shape_of(printed), behaviour.shape_of(SWEEP['third']))
    if IS_SAME_MACHINE:
        assert _trials(printed) == _trials(SWEEP['third'])
    assert _trials(printed)[:2] == _trials(SWEEP['first'])
    made = Path(printed['trials'][2]['runs'][0]['run_dir'])
    assert made.is_relative_to(folder), 'in the copy, wherever the others were'
    zoo('train', 'runs/tiny_sweep/best.yaml', '--quiet', cwd=folder)


def _trials(printed: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(each['number'], each['state'], each['value'], each['values']) for each in printed['trials']]


# --- commands


@pytest.mark.long
@pytest.mark.parametrize(('words', 'want'), COMMANDS['printed'], ids=lambda x: x[0] if isinstance(x, list) else '')
def test_command_says_of_old_runs_what_it_said(words: list[str], want: Any, tmp_path: Path) -> None:
    got = zoo(*words, cwd=house(tmp_path))
    if words[0] == 'eval' and IS_SAME_MACHINE:
        assert_same(got, want)
    assert_same(behaviour.shape_of(got), behaviour.shape_of(want))


@pytest.mark.long
def test_report_and_plot_of_old_runs(tmp_path: Path) -> None:
    folder = house(tmp_path)
    zoo('plot', 'runs/ppo', 'runs/ppg', '-o', 'curve.svg', cwd=folder)
    zoo('report', 'runs/ppo', 'runs/ppg', '-o', 'report.html', cwd=folder)
    assert (folder / 'curve.svg').stat().st_size > 1_000
    assert 'CartPole-v1' in (folder / 'report.html').read_text()


@pytest.mark.long
@pytest.mark.parametrize(('name', 'module'), [('own', 'own_house'), ('own_registered', 'own_surrogate')])
def test_train_command_continues_a_run_with_code_of_a_user(name: str, module: str, tmp_path: Path) -> None:
    copy, want = run_copy(name, tmp_path), RUNS[name]
    words = ['--resume', str(copy), f'max_env_step={want["max_env_step"]}', '--import', module, '--json', '--quiet']
    printed = zoo('train', *words, cwd=tmp_path)
    assert (printed['env_step'], Path(printed['run_dir'])) == (want['env_step'], copy)
    assert_same_checkpoint(behaviour.newest(copy), FILES / 'continued' / f'{name}.safetensors')


# --- what users write


@pytest.mark.long
def test_public_and_registered_names_are_there(now: dict[str, Any]) -> None:
    assert not set(SURFACE['all']) - set(now['all'])
    assert not set(SURFACE['lists']) - set(now['lists'])
    for kind in ('offers', 'registries'):
        for home, names in SURFACE[kind].items():
            assert not set(names) - set(now[kind][home]), home


TAKES_MORE = {
    'logger.console': "one of 'auto', 'live', 'plain', 'table', 'off'",
    'policy.model.distribution': 'text or a function',
    'policy.collect.exploration': 'a name or {type: name, its options} or a function',
}
"""Keys that accept more values than before."""


@pytest.mark.long
@pytest.mark.parametrize('policy', POLICIES)
def test_config_keys_have_their_defaults_and_take_the_same_values(policy: str, now: dict[str, Any]) -> None:
    keys = _keys(now, policy)
    for key, (default, wanted) in _keys(SURFACE, policy).items():
        if key in OLD_KEYS:
            _accepts_old_key(policy, key, default, *OLD_KEYS[key])
            continue
        assert key in keys, f'{key} is gone'
        assert keys[key] == [default, TAKES_MORE.get(key, wanted)], key


def _accepts_old_key(policy: str, key: str, default: Any, value: Any, today: str) -> None:
    def of_today(value: Any) -> Any:
        config = resolve_config({'env': {'id': 'CartPole-v1'}, 'policy': {'type': policy}}, [f'{key}={value}'])
        assert not has_key(config, key)
        return value_at(config, today)

    assert of_today(default) == value_at(defaults_for({'type': policy}), today)
    if (policy, key) != ('pg', 'policy.learn.value_clip'):  # it has no critic, and says so
        assert of_today(value) != of_today(default)


def _keys(found: dict[str, Any], policy: str) -> dict[str, Any]:
    """{key: [default, accepted values]} of a policy: those of ppo, changed by the stored differences."""
    config = found['config']
    return {key: row for key, row in {**config['ppo'], **config[policy]}.items() if row is not None}


@pytest.mark.long
def test_options_of_components_have_their_defaults(now: dict[str, Any]) -> None:
    for key, specs in SURFACE['sections'].items():
        for name, old in specs.items():
            new = now['sections'][key][name]
            old, new = (old[0], new[0]) if isinstance(old, list) else (old, new)
            assert {option: new.get(option) for option in old} == old, f'{key}: {name}'


@pytest.mark.long
def test_bundled_configs_say_the_same() -> None:
    has_taxi_4 = 'Taxi-v4' in gymnasium.registry  # older versions of gymnasium have Taxi-v3
    now = surface.bundled(name for name in SURFACE['bundled'] if name != 'taxi_ppo' or has_taxi_4)
    for name in now:
        values = SURFACE['bundled'][name]
        new, values = now[name], {**values, **TUNED.get(name, {})}
        if values.pop('policy.learn.value_clip', False):
            values['policy.learn.value_loss'] = 'clip'
        assert {key: as_far_as(values[key], new.get(key)) for key in values} == values, name


def as_far_as(old: Any, new: Any) -> Any:
    """A new value; of a dict the keys that the old one has: it may have got more."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {key: new.get(key) for key in old}
    return new


@pytest.mark.long
def test_commands_have_their_options(now: dict[str, Any]) -> None:
    for command, old in SURFACE['commands'].items():
        new = now['commands'][command]
        assert new['positional'][: len(old['positional'])] == old['positional'], command
        for option, value in old['options'].items():
            now_value = new['options'].get(option, '')
            if value.startswith('{'):  # there may be more choices
                assert set(value.strip('{}').split(',')) <= set(now_value.strip('{}').split(',')), (command, option)
            else:
                assert now_value == value, (command, option)


@pytest.mark.long
def test_calls_take_their_arguments(now: dict[str, Any]) -> None:
    """Old parameters keep order, kind and default; new ones have a default. Classes keep the members that pages name."""
    of_old_keys = [key.rpartition('.')[2] for key in OLD_KEYS]
    for package, items in SURFACE['signatures'].items():
        for name, old in items.items():
            new = now['signatures'][package][name]
            assert not set(old.get('members', ())) - {*new.get('members', ()), *of_old_keys}, f'{package}.{name}'
            calls = {'': old.get('parameters', []), **old.get('methods', {})}
            if (package, name) in (('zoo.model', 'VAC'), ('zoo.model', 'PPG')):
                calls.pop(
                    ''
                )  # 7e7fb52 showed `__new__(cfg=None, *spaces)`; now it is `__init__`, which took three then too
            new_calls = {'': new.get('parameters', []), **new.get('methods', {})}
            for method, parameters in calls.items():
                _check_parameters(_as_before(new_calls[method]), parameters, f'{package}.{name}.{method}')


def _as_before(parameters: list[list[str]]) -> list[list[str]]:
    """Gradient steps take `loss` before `numbers` now. Calls with the older `numbers`, which has both, continue: test_old_steps.py."""
    names = [name for name, *_ in parameters]
    if names[-2:] == ['loss', 'numbers'] and 'minibatch' in names:
        return [each for each in parameters if each[0] != 'loss']
    return parameters


def _check_parameters(new: list[list[str]], old: list[list[str]], at: str) -> None:
    names = [each[0] for each in old]
    assert [each for each in new if each[0] in names] == old, at
    positional = [each for each in old if each[1].startswith('POSITIONAL')]
    assert new[: len(positional)] == positional, at
    for name, kind, default in new:
        assert name in names or default or kind.startswith('VAR'), f'{at}: {name} is new and has no default'


IMPORTS = [*SURFACE['mentioned'].items(), *SURFACE['homes'].items()]
"""Modules with names that pages and examples import, and those that the reference shows as the homes of public names."""


@pytest.mark.parametrize(('module', 'names'), IMPORTS, ids=lambda x: x if isinstance(x, str) else '')
def test_module_of_pages_is_imported_with_no_warning_but_that_it_has_moved(module: str, names: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', DeprecationWarning)
        found = importlib.import_module(module)
        assert [name for name in names if not hasattr(found, name)] == []


@pytest.mark.long
def test_entry_points_of_packages_are_registered(tmp_path: Path) -> None:
    """A package has an entry in each group of 7e7fb52; they are read in a new interpreter."""
    info = tmp_path / 'old_guest-1.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: old-guest\nVersion: 1.0\n')
    (info / 'entry_points.txt').write_text(''.join(f'[{group}]\nold_guest = old_guest:Guest\n' for group in GROUPS))
    (tmp_path / 'old_guest.py').write_text('class Guest:\n    """A guest."""\n')
    code = f'import zoo\nprint([x for x in {list(GROUPS.values())} if "old_guest" not in getattr(zoo, x).names()])'
    env = {**os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), str(tmp_path)])}
    done = subprocess.run([sys.executable, '-c', code], env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == '[]\n', done.stderr
