"""The distribution: dependencies, public names, pins, the Makefile's set-up, the built files, the bundled configs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import zoo
from structure import nodes_of
from zoo import TrainResult, make_policy
from zoo.config.source import bundled_configs, load_config
from zoo.run.config import explain_config, resolve_config

REPO = Path(__file__).resolve().parents[1]
CONFIGS = sorted(path for path in (REPO / 'dizoo_configs').glob('*.py') if path.stem != '__init__')
SOURCES = sorted((REPO / 'zoo').rglob('*.py')) + CONFIGS
MODULE_OF = {'pyyaml': 'yaml', 'tensorboardx': 'tensorboardX'}  # packages whose module has another name
EXTRA_OF_MODULE = {  # module: (extra, package); loaded only when a feature needs it
    'mujoco': ('mujoco', 'mujoco'),
    'ray': ('ray', 'ray'),
    'optuna': ('sweep', 'optuna'),
    'matplotlib': ('plot', 'matplotlib'),
    'imageio_ffmpeg': ('video', 'imageio-ffmpeg'),
    'pygame': ('video', 'pygame-ce'),
    'onnx': ('export', 'onnx'),
    'onnxscript': ('export', 'onnxscript'),
    'onnxruntime': ('export', 'onnxruntime'),
    'minari': ('minari', 'minari'),
}
OF_A_PLACE = {
    ('IPython', 'zoo/run/log/logger.py'),  # a notebook always has it
    ('jax', 'zoo/env/tensor/jax_games.py'),
    ('jax', 'zoo/env/tensor/jax_program.py'),  # envs written in JAX: whoever names one has its package
    *((name, 'zoo/env/tensor/jax_packages.py') for name in ('brax', 'gymnax', 'jax', 'jumanji', 'mujoco_playground')),
}
EXTRA_OF_ENV = {
    'LunarLander': 'Box2D',
    'HalfCheetah': 'mujoco',
    'Hopper': 'mujoco',
    'Walker2d': 'mujoco',
    'atari': 'ale_py',
    'envpool': 'envpool',
    'minatar': 'minatar',
    'minigrid_memory': 'envpool',
    'mpe2': 'mpe2',
    'pettingzoo': 'pettingzoo',
    'procgen': 'envpool',
}


@pytest.fixture(scope='module')
def package(tmp_path_factory) -> dict:
    """The keyword arguments that setup.py hands to setuptools."""
    import setuptools

    kept: dict = {}
    folder, setup = Path.cwd(), setuptools.setup
    try:
        os.chdir(REPO)
        setuptools.setup = kept.update
        runpy.run_path(str(REPO / 'setup.py'))
    finally:
        setuptools.setup = setup
        os.chdir(folder)
    return kept


def pins() -> dict[str, Requirement]:
    lines = [line.split('#')[0].strip() for line in (REPO / 'constraints.txt').read_text().splitlines()]
    return {canonicalize_name(pin.name): pin for pin in (Requirement(line) for line in lines if line)}


def make(*args: str, cwd: Path = REPO) -> subprocess.CompletedProcess[str]:
    program = shutil.which('make')
    if program is None:
        pytest.skip('no make on this machine')
    outer = ('MAKEFLAGS', 'MAKEOVERRIDES', 'MFLAGS', 'VENV', 'PYTHON', 'CONSTRAINTS')  # from the make that runs pytest
    env = {name: value for name, value in os.environ.items() if name not in outer}
    return subprocess.run([program, *args], cwd=cwd, capture_output=True, text=True, check=False, env=env)


def test_every_folder_of_sources_is_a_package_that_setup_ships(package):
    folders = {path.parent for path in SOURCES}
    benchmarks = {'zoo_benchmarks', 'zoo_benchmarks.peers'}  # the folder benchmarks/, which zoo bench runs
    assert package['package_dir'] == {'zoo_benchmarks': 'benchmarks'}
    names = {str(folder.relative_to(REPO)).replace(os.sep, '.') for folder in folders}
    assert names | benchmarks == set(package['packages'])


def core_names(package: dict) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in package['install_requires']}


@pytest.mark.long
@pytest.mark.slow
def test_third_party_imports_are_the_core_dependencies(package):
    core, found = core_names(package), set()
    for path in SOURCES:
        for node in nodes_of(path):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ''] if isinstance(node, ast.ImportFrom) else []
            found |= {(name.split('.')[0], str(path.relative_to(REPO))) for name in names}
    # pydantic pins pydantic_core, which belongs to it; the CUDA builds of torch pin triton; setuptools builds the
    # native executor
    own = {'zoo', 'dizoo_configs', 'pydantic_core', 'triton', 'setuptools'}
    known = {MODULE_OF.get(name, name) for name in core} | set(sys.stdlib_module_names) | own
    undeclared = {(name, path) for name, path in found if name not in known and name not in EXTRA_OF_MODULE}
    assert undeclared == OF_A_PLACE
    used = {name for name, _ in found}
    assert {name for name in core if MODULE_OF.get(name, name) not in used} == {'crc32c'}
    import tensorboardX.crc32c

    assert tensorboardX.crc32c._crc32c_native is not None  # tensorboardX uses crc32c if it is installed


def test_extras_install_the_packages_of_their_modules_and_are_no_dependencies_of_the_core(package: dict) -> None:
    for extra, name in EXTRA_OF_MODULE.values():
        assert name in {Requirement(line).name for line in package['extras_require'][extra]}
    extras = {name for _, name in EXTRA_OF_MODULE.values()} | {'wandb', 'mlflow-skinny', 'pandas'}
    assert not core_names(package) & extras
    assert 'docs' in package['extras_require']


@pytest.mark.long
@pytest.mark.slow
def test_help_and_a_run_of_one_process_load_no_module_of_an_extra_and_make_no_process_group(tmp_path: Path) -> None:
    names = [*EXTRA_OF_MODULE, 'pandas', 'mkdocs', 'imageio', 'IPython', 'wandb', 'mlflow', 'PIL']
    names += [f'zoo.{name}' for name in ('cluster.runner', 'cluster.torch_ranks', 'tools.media.recording')]
    names += [f'zoo.{name}' for name in ('tools.media.video', 'tools.media.film')]
    code = (
        'import sys, contextlib, torch, zoo, zoo.policy, zoo.tools.cli, zoo.tools.sweep\n'
        f'def loaded(): return sorted({{*{names}}} & set(sys.modules))\n'
        'with contextlib.suppress(SystemExit), contextlib.redirect_stdout(sys.stderr): zoo.tools.cli.main(["--help"])\n'
        'before = loaded()\n'
        "few = ['logger.console=off', 'policy.eval.n_episode=1']\n"
        "zoo.serial_pipeline('cartpole_ppo', max_env_step=1024, overrides=few)\n"
        'print([before, loaded(), torch.distributed.is_initialized()])\n'
    )
    done = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == '[[], [], False]'


@pytest.mark.slow(first=True)
@pytest.mark.parametrize(
    'name', ['zoo', 'zoo.buffer', 'zoo.env', 'zoo.model', 'zoo.policy', 'zoo.rl_utils', 'zoo.run.log']
)
def test_every_name_of_a_package_is_there_and_listed(name):
    package = importlib.import_module(name)
    names = [each for each in dir(package) if not each.startswith('_')]
    assert len(names) >= 5 and set(getattr(package, '__all__', ())) <= set(names)
    for each in names:
        assert getattr(package, each) is not None


def test_dir_has_the_public_names_alone() -> None:
    assert sorted([*zoo.__all__, '__version__']) == dir(zoo)


@pytest.mark.parametrize(
    ('name', 'words'),
    [
        ('train', "did you mean zoo.serial_pipeline('cartpole_ppo')"),
        ('PPO', "did you mean zoo.serial_pipeline({'policy': {'type': 'ppo'}})"),
        ('make', "did you mean zoo.serial_pipeline({'env': {'id': 'CartPole-v1'}})"),
        ('predict', r"did you mean zoo.load_policy('runs/...').act(obs)"),
        ('serial_pipline', 'did you mean serial_pipeline?'),
        ('zzz', 'it has evaluate, exploitability, fork, '),
    ],
)
def test_a_name_that_zoo_does_not_have_names_what_is_meant(name: str, words: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(zoo, name)
    assert f'module zoo has no attribute {name!r}; {words}' in str(caught.value)


def test_objects_are_shown_in_a_few_lines() -> None:
    policy = make_policy('cartpole_ppo', ['policy.model.hidden_sizes=[8]'])
    # actor 4 * 8 + 8, 8 * 2 + 2; critic 4 * 8 + 8, 8 + 1: 58 + 49
    assert repr(policy).startswith(
        "<PPOPolicy 'ppo': VAC of 107 parameters on cpu\n  observations Box (4,) float32 in "
    )
    assert repr(policy).endswith('\n  actions Discrete(2)>')
    assert repr(policy.cfg.model) == 'VACConfig(hidden_sizes=[8])'
    result = TrainResult(policy, Path('runs/x'), 51_200, 800, 500.0, None, 4.25, 12_000.0, 'enough')
    assert repr(result) == (
        "TrainResult(policy='ppo', env_step=51,200, best_return=500, last_return=none,\n"
        "  wall_s=4.2, env_step_per_s=12,000, stop_reason='enough',\n  run_dir='runs/x')"
    )


IMPORT_EACH = """
import importlib, os, sys
import gymnasium, pydantic, torch
for name in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(name)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(f'{name} cannot be the first module that is imported')
"""


@pytest.mark.soak
@pytest.mark.skipif(not hasattr(os, 'fork'), reason='it forks')
def test_every_module_can_be_the_first_that_is_imported():
    names = ['.'.join(path.relative_to(REPO).with_suffix('').parts) for path in sorted((REPO / 'zoo').rglob('*.py'))]
    names = [name.removesuffix('.__init__') for name in names if '.kernels' not in name and '__main__' not in name]
    words, env = [sys.executable, '-c', IMPORT_EACH, *names], {**os.environ, 'PYTHONPATH': str(REPO)}
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    assert len(names) > 100 and (done.returncode, done.stderr) == (0, '')


def python(*words: str, cwd: Path, **env: str) -> str:
    """Runs Python, which must succeed; returns its stdout."""
    options = dict(capture_output=True, text=True, timeout=300)
    done = subprocess.run([sys.executable, *words], cwd=cwd, env={**os.environ, **env}, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Built(NamedTuple):
    """The distribution files, built from a copy of the checkout, and the folders where they are unpacked and installed."""

    checkout: Path
    files: list[Path]
    sources: Path  # the unpacked source distribution
    site: Path  # where the wheel is installed, without the packages that it needs

    def run(self, *words: str, cwd: Path) -> str:
        """Runs Python with the installed wheel; returns its stdout."""
        return python(*words, cwd=cwd, PYTHONPATH=str(self.site), XDG_STATE_HOME=str(cwd / 'state'))


@pytest.fixture(scope='module')
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The source distribution and the wheel, by `python -m build`, which builds the wheel from the source distribution."""
    here = tmp_path_factory.mktemp('built')
    ignored = shutil.ignore_patterns('.*', 'runs', 'build', 'dist', '*.egg-info', '__pycache__', '*.so', '*.TXT')
    checkout = shutil.copytree(REPO, here / 'checkout', ignore=ignored)

    python('-m', 'build', '--no-isolation', '--outdir', str(here / 'dist'), '.', cwd=checkout)
    files = sorted((here / 'dist').iterdir())
    wheel, archive = (next(path for path in files if path.name.endswith(end)) for end in ('.whl', '.tar.gz'))
    with tarfile.open(archive) as packed:
        packed.extractall(here / 'unpacked', filter='data')
    (sources,) = (here / 'unpacked').iterdir()
    words = ['--no-deps', '--no-build-isolation', '--no-compile', '--target', str(here / 'site'), str(wheel)]
    python('-m', 'pip', 'install', '-q', '--disable-pip-version-check', *words, cwd=checkout)
    return Built(checkout, files, sources, here / 'site')


@pytest.mark.soak
def test_source_distribution_has_all_files_and_its_tests_pass_with_the_installed_wheel(built, tmp_path):
    def files(root: Path, *patterns: str) -> set[str]:
        return {str(path.relative_to(root)) for each in patterns for path in root.glob(each) if path.is_file()}

    folders = ('zoo', 'dizoo_configs', 'tests', 'docs', 'examples', 'benchmarks')
    wanted, packed = files(built.checkout, '*', *(f'{name}/**/*' for name in folders)), files(built.sources, '**/*')
    assert {'zoo/py.typed', 'tests/conftest.py', 'docs/index.md', 'constraints.txt', 'Makefile', 'mkdocs.yml'} <= packed
    assert wanted - packed == set()
    # some of its tests, in a copy without zoo and dizoo_configs: these come from the installed wheel
    ignore = shutil.ignore_patterns('zoo', 'dizoo_configs')
    elsewhere = shutil.copytree(built.sources, tmp_path / 'sources', ignore=ignore)
    some = 'rl_utils/test_gae benchmarks/test_report tools/cli/test_listing config/test_section backend/test_choose'
    said = built.run('-m', 'pytest', '-m', 'not slow', *(f'tests/{name}.py' for name in some.split()), cwd=elsewhere)
    assert re.search(r'\d{2,} passed', said) and 'failed' not in said


@pytest.mark.long
def test_built_files_pass_the_checks_of_the_package_index_and_install_all_files(built):
    said = built.run('-m', 'twine', 'check', '--strict', *map(str, built.files), cwd=built.sources)
    assert said.count('PASSED') == 2
    (wheel,) = (path.name for path in built.files if path.suffix == '.whl')
    assert '-cp310-abi3-' in wheel  # one wheel for all versions of Python
    installed = {path.relative_to(built.site) for path in (built.site / 'zoo').rglob('*')}
    sources = {path.relative_to(built.sources) for path in (built.sources / 'zoo').rglob('*')}
    assert Path('zoo/py.typed') in installed  # type checkers read the annotations of the installed package
    assert sources - installed == set()


@pytest.mark.soak
def test_installed_wheel_benches_into_the_current_folder(built, tmp_path):
    where = ('-P', '-m') if sys.version_info >= (3, 11) else ('-m',)
    words = ('bench', 'learning', '--only', 'cartpole_ppo', '--repeats', '1', '--scale', '0.02')
    assert built.run(*where, 'zoo', *words, cwd=tmp_path) == f'results: {tmp_path / "zoo_bench"}\n'
    (raw,) = (tmp_path / 'zoo_bench' / 'learning_raw').glob('*.json')
    record = json.loads(raw.read_text())
    version = runpy.run_path(str(REPO / 'zoo' / 'core' / '__init__.py'))['VERSION']
    assert record['commit'] == f'zoo {version}' and record['machine'] and record['versions']['torch']
    assert {path.name for path in tmp_path.iterdir()} == {'zoo_bench'}  # the run's folder is in it


@pytest.mark.long
def test_three_commands_of_readme_take_an_env_in_a_file_to_a_trained_and_evaluated_policy(built, tmp_path):
    readme = (REPO / 'README.md').read_text()
    block = readme[readme.index('<!-- newcomer -->') : readme.index('<!-- /newcomer -->')]
    install, *commands = (line.partition('#')[0].split() for line in block.splitlines()[1:] if line.strip())
    assert install == ['pip', 'install', '.']
    assert [words[:2] for words in commands] == [['zoo', 'init'], ['zoo', 'train'], ['zoo', 'eval']]
    where = ('-P', '-m') if sys.version_info >= (3, 11) else ('-m',)
    _, said, result = (built.run(*where, *words, cwd=tmp_path) for words in commands)
    assert re.search(r'(?m)^evaluate it: zoo eval \S*mine$', said)
    returned = float(re.findall(r'return (-?[\d.]+) ', result)[0])
    assert returned > 0.8 and 'is_success' in result  # the best is 0.96: 4.5 steps of -0.01, then 1


def test_ranges_have_a_floor_and_hold_one_exact_public_version_that_constraints_pin(package):
    fixed = pins()
    for line in [*package['install_requires'], *sum(package['extras_require'].values(), [])]:
        wanted = Requirement(line)
        assert all(spec.operator in ('>=', '>') for spec in wanted.specifier), f'{line} is a pin or has a cap'
        pin = fixed[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(next(iter(pin.specifier)).version), f'constraints.txt: {pin}, setup.py: {line}'
    for pin in fixed.values():
        assert [spec.operator for spec in pin.specifier] == ['=='], str(pin)
        assert '+' not in str(pin.specifier), f'{pin} is a local build that an index does not have'
    assert str(fixed['torch'].specifier) == '==2.13.0'


@pytest.mark.parametrize(
    'target, age, installs, command',
    [
        ('train', None, [], 'zoo train cartpole_ppo'),  # stamps are newer than setup.py
        ('test', None, [], 'pytest --dist worksteal -n 2'),
        ('train', 0, ['torch', '-e .'], 'zoo train cartpole_ppo'),
        ('test-fast', 0, ['torch', "-e '.[test]'"], 'pytest --dist worksteal -n 2'),
        ('docs', 0, ['torch', "-e '.[docs]'"], 'mkdocs build --strict'),
    ],
)
def test_make_installs_only_after_a_change_of_setup(target, age, installs, command, tmp_path):
    (tmp_path / 'bin').mkdir()
    for name in ('bin/python', '.installed-core', *(() if age == 0 else ('.installed-dev',))):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, age if age is None else (age, age))
    lines = make('-n', target, f'VENV={tmp_path}').stdout.splitlines()
    assert [line.split('constraints.txt ')[1] for line in lines if ' -m pip ' in line] == installs
    assert any(command in line for line in lines) and not any('-m venv' in line for line in lines)


@pytest.mark.parametrize('fault', ['none', 'moved', 'python gone'])
def test_make_creates_the_environment_again_if_it_was_moved(fault, tmp_path):
    here = tmp_path / 'here'
    venv = here / '.venv'
    (here / 'zoo').mkdir(parents=True)
    for name in ('setup.py', 'constraints.txt', 'zoo/__init__.py'):
        (here / name).touch()
    shutil.copy(REPO / 'Makefile', here)
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', venv], check=True)
    next(venv.glob('lib/python*/site-packages')).joinpath('zoo.pth').write_text(str(here))
    (venv / '.installed-core').touch()
    if fault == 'moved':
        here = here.rename(tmp_path / 'there')
    elif fault == 'python gone':
        for link in venv.glob('bin/python*'):
            link.unlink()
            link.symlink_to('/nowhere/python')
    plan = make('-n', 'train', cwd=here)
    for words in ('-m venv --clear .venv', 'install -q -c constraints.txt -e .'):
        assert (words in plan.stdout) == (fault != 'none')
    assert '.venv/bin/zoo train cartpole_ppo' in plan.stdout


def test_make_with_an_old_python_says_what_to_do(tmp_path):
    old = tmp_path / 'python-old'
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.8.1\nexit 1\n')
    old.chmod(0o755)
    done = make('train', f'VENV={tmp_path / "venv"}', f'PYTHON={old}')
    assert done.returncode != 0
    assert 'is Python 3.8.1, zoo needs Python 3.10 or newer' in done.stderr
    assert not (tmp_path / 'venv').exists()


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_bundled_config_is_a_script_is_found_by_name_and_named_after_itself(path):
    name = path.stem.removesuffix('_config')
    config = resolve_config(name)
    assert config.exp_name == name
    kind = config.policy.type
    if config.agents.state != 'off':  # with a central critic
        kind = f'ma{kind}'
    if config.agents.self_play is not None:  # by ppo where no other policy is named
        kind = {'ppo': 'selfplay'}.get(kind, f'selfplay_{kind}')
    assert name.endswith(f'_{kind}')
    main = ast.parse(path.read_text(encoding='utf-8')).body[-1]
    script = "if __name__ == '__main__':\n    from zoo import serial_pipeline\n    serial_pipeline(config)"
    assert ast.unparse(main) == script
    # named after the env; in a family of games after the game, or after the family if the user chooses the game
    in_code = re.search(r'(\w+?)(?:_v\d+)?:', config.env.id)  # the name of the module, or of the class
    ids = [
        config.env.id,
        config.env.game,
        *(in_code.groups() if in_code else []),
        re.split('[:/]', config.env.id)[-1],
    ]
    names = {re.sub(r'-v\d+$', '', env or '').replace('-', '').lower() for env in ids}
    stem = name.removesuffix(f'_{kind}').replace('_', '')  # the name of a variant may follow
    assert any(env and stem.startswith(env.replace('_', '')) for env in names)


@pytest.mark.slow
@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_bundled_config_trains_one_rollout(path, tmp_path, monkeypatch):
    from zoo import serial_pipeline

    config = runpy.run_path(str(path))['config']
    extra = next((module for env, module in EXTRA_OF_ENV.items() if config['env']['id'].startswith(env)), None)
    if extra and importlib.util.find_spec(extra) is None:
        pytest.skip(f'{extra} is not installed')
    monkeypatch.chdir(tmp_path)
    shrink(config)
    resolved = resolve_config(config)
    one_rollout = resolved.policy.collect.n_sample
    config['policy']['eval'] = {'n_episode': 1, 'eval_freq': 10**9}
    config['logger'] = {'tensorboard': False, 'console': 'off'}
    result = serial_pipeline(config, max_env_step=one_rollout)
    assert 0.9 * one_rollout < result.env_step <= one_rollout  # rows that only reset an env are no env steps
    assert result.train_iter == steps_per_rollout(resolved) * N_AGENT.get(name_of(path), 1)


N_AGENT = {
    'simple_spread_ppo': 3,
    'simple_spread_mappo': 3,
    'simple_tag_ppo': 4,  # three predators of one policy, and a prey of another
    'two_step_game_ppo': 2,
    'tictactoe_selfplay': 2,
    'connect_four_selfplay': 2,
    'kuhn_poker_selfplay': 2,
    'kuhn_poker_selfplay_ppg': 2,
    'leduc_poker_selfplay': 2,
    'leduc_poker_selfplay_ppg': 2,
}
"""The agents whose rows policies learn from, by config."""


def name_of(path: Path) -> str:
    return path.stem.removesuffix('_config')


def shrink(config: dict) -> None:
    """Sets fewer envs, steps and samples, and episodes of 50 steps. Games get no env check; tests/env tests their families."""
    policy, buffer, is_game = config['policy'], config.get('buffer', {}), config['env']['id'] in ('atari', 'procgen')
    config['env'] |= {'collector_env_num': 1 if is_game else 2, 'evaluator_env_num': 1, 'check': not is_game}
    if config['env']['id'] == 'atari':
        config['env'].setdefault('kwargs', {})['noop_max'] = 0  # no-op actions are played at each reset
    if config['env']['id'] != 'procgen':
        config['env']['max_episode_steps'] = 50
    n_step = 16 if is_game else 32
    collect = policy.setdefault('collect', {})
    collect['n_step'] = min(collect.get('n_step', n_step), n_step)
    sizes = () if policy['type'] in ('a2c', 'impala', 'pg') else ('batch_size', 'aux_batch_size')
    policy['learn'] |= dict.fromkeys(sizes if policy['type'].startswith(('ppg', 'dna')) else sizes[:1], n_step)
    for part in [each for each in buffer.values() if isinstance(each, dict)] or [buffer] * bool(buffer):
        part['n_sample'] = 2 * n_step


def steps_per_rollout(config) -> int:
    """Gradient steps on the first rollout, with those of the auxiliary phase only if every rollout has one."""
    learn, rollout = config.policy.learn, {'n_sample': config.policy.collect.n_sample, 'update_per_collect': 1}
    parts = {'policy': 'actor_epoch_per_collect', 'value': 'critic_epoch_per_collect'}
    if 'actor_epoch_per_collect' not in learn:
        parts = {'policy': 'epoch_per_collect'}  # pg and dqn have no such key: one pass
    draws = {part: config.buffer.get(part, config.buffer if 'n_sample' in config.buffer else rollout) for part in parts}
    n_step = int(config.policy.type in ('trpo', 'npg'))  # one policy step, before the steps of the critic
    for part, draw in draws.items():
        n_minibatch = draw['n_sample'] // (learn.batch_size or draw['n_sample'])
        n_step += n_minibatch * draw['update_per_collect'] * learn.get(parts[part], 1)
    if learn.get('aux_freq') == 1:
        n_step += learn.aux_train_epoch * config.policy.collect.n_sample // learn.aux_batch_size
    return n_step


def leaves(config: dict, path: str = ''):
    for key, value in config.items():
        where = f'{path}.{key}'.lstrip('.')
        yield from leaves(value, where) if isinstance(value, dict) and 'start' not in value else [(where, value)]


@pytest.mark.parametrize('name', sorted(bundled_configs()))
def test_bundled_config_lists_differences_only(name):
    config, _ = load_config(name)
    alike = {'env': {'id': 'CartPole-v1'}, 'policy': {'type': config['policy']['type']}}
    defaults = {row.key: row.value for row in explain_config(alike)}
    said = {'exp_name', 'max_env_step', 'env.id', 'policy.type'}  # a config may always state these, default or not
    assert [key for key, value in leaves(config) if key not in said and defaults.get(key, ...) == value] == []
