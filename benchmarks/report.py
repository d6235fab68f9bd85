"""Common functions of the benchmarks: machine and versions, Markdown tables, child processes, result files.

The files of this folder run as scripts of a checkout (`python benchmarks/speed.py`). In an installed wheel the folder is
named zoo_benchmarks, and `zoo bench` runs them.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPO = HERE.parent
IN_CHECKOUT = HERE.name == 'benchmarks' and (REPO / 'setup.py').exists()
RESULTS = HERE / 'results' if IN_CHECKOUT else Path('zoo_bench')  # of an installed wheel: in the current folder
PEERS_DIR = HERE / 'peers'
VENVS = Path(os.environ.get('ZOO_BENCH_VENVS', REPO.parent / 'venvs' if IN_CHECKOUT else 'venvs'))
PACKAGES = ('torch', 'numpy', 'gymnasium', 'mujoco', 'box2d')


def machine(device: str = 'cpu') -> str:
    """One line with the CPU, its number of cores and the memory; the GPU comes first, if the device is one."""
    info = Path('/proc/cpuinfo')
    names = (
        [line.split(':', 1)[1].strip() for line in info.read_text().splitlines() if line.startswith('model name')]
        if info.exists()
        else []
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()
    memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30
    host = f'{names[0] if names else platform.machine()}, {cores} cores, {memory:.0f} GiB, {platform.system()}'
    if device == 'cpu':
        return host
    import torch  # takes seconds, which most benchmarks need not spend here

    return f'{torch.cuda.get_device_name(device)}; {host}'


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python and of the packages that affect speed and returns, if they are installed."""
    found = {'python': platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_commit(paths: Sequence[str] = ()) -> str:
    """The commit of this checkout, 7 digits, with '+' if files differ from it; without git the version, as 'zoo 0.1.0'.

    paths: if given, the newest commit that changed one of these; only their files are compared with it.
    """

    def git(*args: str) -> str:
        return subprocess.run(('git', *args), cwd=REPO, capture_output=True, text=True, check=False).stdout.strip()

    # an installed zoo, or its unpacked sources, may lie in the git repository of another project
    if not IN_CHECKOUT or shutil.which('git') is None or not same_folder(git('rev-parse', '--show-toplevel')):
        from zoo.core import VERSION

        return f'zoo {VERSION}'
    # result files of benchmarks do not change the measured code
    changed = git('status', '--porcelain', '--', *(paths or (':!benchmarks/results',)))
    return git('log', '-1', '--format=%H', '--', *paths)[:7] + ('+' if changed else '')  # %h grows with the repository


def same_folder(path: str) -> bool:
    """Whether a path names the folder of this checkout."""
    return bool(path) and Path(path).resolve() == REPO


def results_folder(chosen: Path | None, quick: bool) -> Path:
    """The folder that a benchmark writes to: the chosen one; else RESULTS, or a temporary one for a quick run."""
    return (chosen or (Path(tempfile.gettempdir()) / 'zoo_bench' if quick else RESULTS)).absolute()


def one_thread_env(*paths: Path) -> dict[str, str]:
    """Environment variables of a child process with one thread that imports zoo of this checkout, and modules in `paths`.

    The folder of an installed zoo is not added to PYTHONPATH: it contains all other packages too, which drivers of other
    libraries must not import.
    """
    own = [str(REPO)] if IN_CHECKOUT else []
    known = [*map(str, paths), *own, os.environ.get('PYTHONPATH', '')]
    return {
        **os.environ,
        'OMP_NUM_THREADS': '1',
        'MKL_NUM_THREADS': '1',
        'PYTHONPATH': os.pathsep.join(path for path in known if path),
    }


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [columns, ['---'] * len(columns), *rows]
    return '\n'.join('| ' + ' | '.join(str(cell) for cell in line) + ' |' for line in lines) + '\n'


def write_json(path: Path, data: Any, indent: int | None = 1) -> None:
    """Writes JSON through a temporary file, so that an interrupted run leaves no incomplete file. indent: None: one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix('.part')
    separators = (',', ':') if indent is None else None
    part.write_text(json.dumps(data, indent=indent, separators=separators) + '\n', encoding='utf-8')
    part.replace(path)


def last_json_line(text: str) -> dict[str, Any] | None:
    """The last line of a driver's output that begins with '{', parsed as JSON; None if there is no such line."""
    lines = [line for line in text.splitlines() if line.startswith('{')]
    return json.loads(lines[-1]) if lines else None


def holds(now: Any, recorded: Any) -> bool:
    """Whether the config `now` has every value of a recorded config.

    Keys that are only in `now` do not matter, since the schema has got new ones; but those of `kwargs` do: an env has all of them
    from its config. Old keys of the recorded policy are translated to those of today.
    """
    if not isinstance(now, dict) or not isinstance(recorded, dict):
        return now == recorded
    if isinstance(recorded.get('policy'), dict):
        from zoo.policy.config import migrate_old_keys

        recorded = {**recorded, 'policy': dict(recorded['policy'])}
        migrate_old_keys(recorded['policy'])
    return all(
        key in now and (now[key] == recorded[key] if key == 'kwargs' else holds(now[key], recorded[key]))
        for key in recorded
    )


def settings(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved config without keys that change no return: `logger`, and the threads (a benchmark's run has one)."""
    policy = {key: value for key, value in resolved['policy'].items() if key != 'n_thread'}
    return {**{key: value for key, value in resolved.items() if key != 'logger'}, 'policy': policy}


def metric_rows(run_dir: Path) -> list[dict[str, Any]]:
    """The lines that a run has logged so far; none if it has logged nothing yet."""
    path = run_dir / 'metrics.jsonl'
    return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()] if path.exists() else []


def metric_curve(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    """(env_step, value) of every log line that has a value of that name."""
    return [(row['env_step'], row[name]) for row in rows if row.get(name) is not None]


def versions_line(found: Mapping[str, str]) -> str:
    return ', '.join(f'{name} {number}' for name, number in found.items())


def last_words(stderr: str) -> str:
    """The last line that a failed process wrote: the error, without the traceback before it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1] if lines else 'it said nothing'


def without_folders(text: str) -> str:
    """A text for a results file: paths in this checkout become relative to it, paths in the home folder begin with ~."""
    for folder, name in ((str(REPO), ''), (os.path.expanduser('~'), '~/')):
        text = re.sub(rf'(?<![\w.-]){re.escape(folder + os.sep)}', name, text)  # only at the beginning of a path
    return text


def today() -> str:
    return time.strftime('%Y-%m-%d', time.gmtime())
