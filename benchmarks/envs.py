"""Env packages of others: which train with `zoo train --env ID` and nothing else; writes benchmarks/results/envs.md.

    python benchmarks/envs.py [--only NAME ...] [--venvs FOLDER] [--limit 300] [--steps 2048] [--before CHECKOUT]

The packages, their releases and the names of their envs are data (env_packages.yaml). Each package is installed into an
environment of its own, which also sees the packages of the Python that runs this script: torch is installed once, and two
packages that exclude each other both run. Nothing of a package is imported here.

An env *trains at once* if `zoo train --env ID [--import MODULE]` learns (an update is in the log) and `zoo eval` plays the
run. What stops instead is quoted: the last sentence of zoo, or of the package. A train command that still runs after --limit
seconds is stopped; it counts if the log has an update by then. --before measures an older checkout of zoo too.
Results of packages that are not measured this time are kept (envs.json).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from report import (
    HERE,
    REPO,
    RESULTS,
    VENVS,
    git_commit,
    machine,
    one_thread_env,
    table,
    today,
    versions,
    versions_line,
    write_json,
)

PACKAGES = HERE / 'env_packages.yaml'
INSTALL_LIMIT_S = 1_800  # pybullet is compiled
IMPORT_LIMIT_S = 120
EVAL_LIMIT_S = 180
AT_ONCE = 'trains at once'
STOPPED = 'stopped'
NO_ENV = 'no env to try'
NOT_INSTALLED = 'not installable'
NOT_IMPORTED = 'not importable'


class Package(NamedTuple):
    """A row of env_packages.yaml."""

    name: str
    version: str
    envs: Mapping[str, str | None]
    """Names for --env, and what --import takes for each."""
    requirements: Sequence[str]
    """Further requirements of pip."""
    no_deps: bool
    """Install without what the package asks for."""
    variables: Mapping[str, str]
    settings: Mapping[str, Sequence[str]]
    """Overrides that an env needs to be one at all, such as the game of envpool."""
    reason: str | None
    """Why an env of this package does not train at once, or why there is none to try."""


def packages() -> list[Package]:
    """The packages of env_packages.yaml, in its order."""
    rows = yaml.safe_load(PACKAGES.read_text(encoding='utf-8'))
    return [
        Package(
            name=name,
            version=str(row['version']),
            envs=row.get('envs', {}),
            requirements=row.get('with', []),
            no_deps=row.get('no_deps', False),
            variables=row.get('variables', {}),
            settings=row.get('settings', {}),
            reason=row.get('reason'),
        )
        for name, row in rows.items()
    ]


def install(package: Package, venvs: Path) -> str | None:
    """Installs a package into its environment; the last line of pip if that fails."""
    folder = venvs / package.name
    done = folder / '.installed'
    wanted = [f'{package.name}=={package.version}', *package.requirements]
    if done.exists() and done.read_text(encoding='utf-8').split('\n') == wanted:
        return None
    if folder.exists():
        shutil.rmtree(folder)
    subprocess.run([sys.executable, '-m', 'venv', str(folder)], check=True)
    site = next(folder.glob('lib/python*/site-packages'))
    (site / 'zoo_base.pth').write_text(sysconfig.get_path('purelib') + '\n', encoding='utf-8')
    pip = [str(folder / 'bin' / 'python'), '-m', 'pip', '--disable-pip-version-check', 'install', '-q']
    commands = [[*pip, *wanted]]
    if package.no_deps:
        commands = [[*pip, '--no-deps', wanted[0]], [*pip, *package.requirements]]
    for command in commands:
        process = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
        if process.returncode:
            return last_sentence(process.stderr)
    done.write_text('\n'.join(wanted), encoding='utf-8')
    return None


def import_error(package: Package, venvs: Path) -> str | None:
    """The error with which the modules of a package cannot be imported; None if they can."""
    modules = sorted({module for module in package.envs.values() if module})
    modules += sorted({name.partition(':')[0] for name in package.envs if ':' in name and not is_maker(name)})
    for module in modules:
        process = run([python_of(package, venvs), '-c', f'import {module}'], package, REPO, Path.cwd(), IMPORT_LIMIT_S)
        if process.returncode:
            return last_sentence(process.stderr)
    return None


def is_maker(env: str) -> bool:
    """Whether the name of an env is a function of env_makers.py."""
    return '.py:' in env


def python_of(package: Package, venvs: Path) -> str:
    """The interpreter of the environment of a package."""
    return str(venvs / package.name / 'bin' / 'python')


class Ended(NamedTuple):
    """A process that has ended, or was stopped at its limit."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    at_limit: bool


def run(command: Sequence[str], package: Package, checkout: Path, folder: Path, limit_s: float) -> Ended:
    """Runs a command with zoo of `checkout` and stops it, and all that it has started, after limit_s."""
    variables = {**one_thread_env(), 'PYTHONPATH': str(checkout), 'COLUMNS': '200', **package.variables}
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors='replace',
        start_new_session=True,
    )
    at_limit = False
    try:
        stdout, stderr = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        at_limit = True
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
    return Ended(process.returncode, stdout, stderr, time.monotonic() - start, at_limit)


def last_sentence(text: str) -> str:
    """The last line of an output that says something, without colours, at most 300 characters."""
    plain = re.sub(r'\x1b\[[0-9;]*m', '', text)
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    return lines[-1][:300] if lines else 'no output'


def try_env(package: Package, env: str, venvs: Path, checkout: Path, limit_s: float, steps: int) -> dict[str, Any]:
    """Trains and evaluates with one env as a new user would, and says how it ended."""
    module = package.envs[env]
    imports = ['--import', module] if module else []
    zoo = [python_of(package, venvs), '-m', 'zoo']
    settings = package.settings.get(env, [])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(HERE / 'env_makers.py', folder)  # files of the current folder need no --import
        train = run(
            [*zoo, 'train', '--env', env, *imports, '--steps', str(steps), *settings],
            package,
            checkout,
            folder,
            limit_s,
        )
        runs = [path.parent for path in folder.glob('runs/**/metrics.jsonl')]
        has_learnt = any('"learn/' in (path / 'metrics.jsonl').read_text(encoding='utf-8') for path in runs)
        result = {
            'env': env,
            'import': module,
            'returncode': train.returncode,
            'at_limit': train.at_limit,
            'seconds': round(train.seconds, 1),
            'has_learnt': has_learnt,
            'warnings': warnings_of(train.stderr),
            'last': last_sentence(train.stderr),
        }
        if not has_learnt or (train.returncode != 0 and not train.at_limit):
            return {**result, 'outcome': STOPPED}
        if train.at_limit:
            return {**result, 'outcome': AT_ONCE}
        ended = run([*zoo, 'eval', str(runs[0]), *imports], package, checkout, folder, EVAL_LIMIT_S)
        played = ended.returncode == 0 or ended.at_limit
        last = result['last'] if played else last_sentence(ended.stderr)
        return {**result, 'outcome': AT_ONCE if played else STOPPED, 'eval': ended.returncode, 'last': last}


def warnings_of(text: str) -> list[str]:
    """The lines in which zoo warns, each once."""
    lines = [re.sub(r'\x1b\[[0-9;]*m', '', line).strip() for line in text.splitlines()]
    return list(dict.fromkeys(line[:300] for line in lines if re.search(r'\bwarning\b', line, re.IGNORECASE)))[:6]


def measure(package: Package, venvs: Path, checkout: Path, limit_s: float, steps: int) -> dict[str, Any]:
    """The result of a package: each of its envs, or why none could be tried."""
    commit = git_commit() if checkout == REPO else checkout_name(checkout)
    result: dict[str, Any] = {'version': package.version, 'commit': commit, 'steps': steps, 'envs': []}
    error = install(package, venvs)
    if error is not None:
        return {**result, 'outcome': NOT_INSTALLED, 'last': error}
    error = import_error(package, venvs)
    if error is not None:
        return {**result, 'outcome': NOT_IMPORTED, 'last': error}
    if not package.envs:
        return {**result, 'outcome': NO_ENV, 'last': ''}
    result['envs'] = [try_env(package, env, venvs, checkout, limit_s, steps) for env in package.envs]
    n_trained = sum(env['outcome'] == AT_ONCE for env in result['envs'])
    outcome = AT_ONCE if n_trained == len(package.envs) else f'{n_trained} of {len(package.envs)} train at once'
    return {**result, 'outcome': outcome if n_trained else STOPPED}


def page(
    results: Mapping[str, Mapping[str, Any]], before: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]
) -> str:
    """The results as a Markdown page."""
    reasons = {package.name: package.reason for package in packages()}
    rows = []
    for name, result in results.items():
        envs = ', '.join(f'`{env["env"]}`' for env in result['envs'])
        said = reasons.get(name)
        if said is None and result['outcome'] != AT_ONCE:
            said = next((env['last'] for env in result['envs'] if env['outcome'] == STOPPED), result.get('last', ''))
        earlier = [before[name]['outcome']] if name in before else ['']
        columns = earlier if before else []
        rows.append(
            [f'{name} {result["version"]}', envs, result['outcome'], *columns, (said or '').replace('|', '\\|')]
        )
    judged = [result for result in results.values() if result['outcome'] not in (NOT_INSTALLED, NOT_IMPORTED, NO_ENV)]
    n_whole = sum(result['outcome'] == AT_ONCE for result in judged)
    sentence = (
        f'{len(results)} packages, each in an environment of its own with the newest gymnasium that it allows. '
        f'{len(judged)} can be installed, imported and tried; of those, {n_whole} train at once with each env tried.'
    )
    if before:
        n_before = sum(before[name]['outcome'] == AT_ONCE for name in results if name in before)
        commits = sorted({each['commit'] for each in before.values()})
        sentence += f' With zoo before ({", ".join(commits)}) it was {n_before}.'
    heads = ['package', 'envs', 'outcome', *(['before'] if before else []), 'reason']
    return '\n'.join(
        [
            '# Env packages of others',
            '',
            f'{sentence} *Trains at once*: `zoo train --env ID [--import MODULE] --steps N` learns, and `zoo eval` plays the run, '
            'with no other setting.',
            '`python benchmarks/envs.py` makes this table; envs.json has the warnings and last sentences of each run.',
            '',
            f'{about["when"]}, {about["machine"]}; {about["versions"]}; {runs_of(results)}.',
            '',
            table(heads, rows),
        ]
    )


def runs_of(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The commits of zoo and the env steps with which the packages were measured."""
    commits = sorted({result['commit'] for result in results.values()})
    steps = sorted({result['steps'] for result in results.values()})
    return f'commits {", ".join(commits)}; N is {" or ".join(map(str, steps))}'


def write(kept: dict[str, Any], part: str, folder: Path) -> None:
    """Writes envs.json and envs.md, after each package, so that a run that is stopped keeps its results."""
    order = [package.name for package in packages()]
    kept[part] = {name: kept[part][name] for name in order if name in kept[part]}
    kept['about'] = {'when': today(), 'machine': machine(), 'versions': versions_line(versions())}
    write_json(folder / 'envs.json', kept)
    if kept['results']:
        (folder / 'envs.md').write_text(page(kept['results'], kept['before'], kept['about']), encoding='utf-8')


def main() -> int:
    """Installs and tries the chosen packages, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', metavar='NAME', help='packages of env_packages.yaml')
    parser.add_argument('--venvs', type=Path, default=VENVS / 'envs', help='folder of the environments')
    parser.add_argument('--limit', type=float, default=300.0, help='seconds of a train command')
    parser.add_argument('--steps', type=int, default=2_048, help='env steps of a train command')
    parser.add_argument(
        '--before', type=Path, metavar='CHECKOUT', help='measure this older zoo, into the column before'
    )
    parser.add_argument('--out', type=Path, default=RESULTS, help='folder of envs.md and envs.json')
    args = parser.parse_args()
    chosen = [package for package in packages() if args.only is None or package.name in args.only]
    if not chosen:
        parser.error(f'no package of that name; there are {", ".join(package.name for package in packages())}')
    file = args.out / 'envs.json'
    kept = json.loads(file.read_text(encoding='utf-8')) if file.exists() else {'results': {}, 'before': {}, 'about': {}}
    part = 'results' if args.before is None else 'before'
    checkout = REPO if args.before is None else args.before.resolve()
    for package in chosen:
        result = measure(package, args.venvs.resolve(), checkout, args.limit, args.steps)
        kept[part][package.name] = result
        write(kept, part, args.out)
        print(
            package.name,
            result['outcome'],
            [env['last'] for env in result['envs'] if env['outcome'] == STOPPED],
            flush=True,
        )
    return 0


def checkout_name(checkout: Path) -> str:
    """The commit of another checkout, 7 digits."""
    command = ['git', '-C', str(checkout), 'rev-parse', 'HEAD']
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout[:7]


if __name__ == '__main__':
    sys.exit(main())
