"""Start-up of zoo: from the command `zoo train CONFIG` to the first line of metrics that an update wrote.

    python benchmarks/startup.py [--before CHECKOUT] [--rounds 11] [--config cartpole_ppo]

Whole processes take turns: zoo of this checkout, that of the other one, and `import torch` alone, which no zoo can go below.
Each is started once before, so that Python's bytecode is there, as it is for users from the second command on. Processes with
`-X importtime` then say how long the modules of zoo take themselves, without those that they import. Medians are printed and
written to results/startup.json: seconds, and CPU seconds, which other programs on the machine change less.
The C library of the other checkout has to be built there, as `make train` does.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from report import (
    REPO,
    git_commit,
    last_words,
    machine,
    one_thread_env,
    results_folder,
    table,
    today,
    versions,
    write_json,
)

LIMIT_S = 240.0  # of one process; the first of all compiles torch to bytecode
IMPORT = re.compile(r'import time:\s*(\d+) \|\s*\d+ \|\s*(\S+)')  # microseconds of a module itself, and its name
log = logging.getLogger('startup')


class Start(NamedTuple):
    """Seconds of a process, CPU seconds of all its threads, and what it wrote to stderr."""

    wall_s: float
    cpu_s: float
    stderr: str


def users_env(checkout: Path, bytecode: Path) -> dict[str, str]:
    """Environment variables of a process that imports zoo of a checkout and keeps bytecode in a folder, one thread."""
    env = {**one_thread_env(), 'PYTHONPATH': str(checkout.resolve()), 'PYTHONPYCACHEPREFIX': str(bytecode)}
    env.pop('PYTHONDONTWRITEBYTECODE', None)
    return env


def first_update(config: str, env: Mapping[str, str], options: Sequence[str] = ()) -> Start:
    """Starts `zoo train CONFIG` and ends it after its first update. Args: options: of Python."""
    with tempfile.TemporaryDirectory() as folder:
        # logger.freq=1: the first update is written when it is done, not some rollouts later
        command = [sys.executable, *options, '-m', 'zoo', 'train', config, 'logger.freq=1']

        def has_learned() -> bool:
            return any('"learn/' in path.read_text() for path in Path(folder).glob('runs/*/*/metrics.jsonl'))

        return started(command, env, Path(folder), has_learned)


def torch_alone(env: Mapping[str, str]) -> Start:
    """Starts a process that imports torch and does nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        done = Path(folder) / 'done'
        code = f'import torch, time; open({str(done)!r}, "w").close(); time.sleep({LIMIT_S})'
        return started([sys.executable, '-c', code], env, Path(folder), done.exists)


def started(command: Sequence[str], env: Mapping[str, str], folder: Path, is_done: Callable[[], bool]) -> Start:
    """Starts a process, and kills it as soon as `is_done`. Raises: RuntimeError if it ends before."""
    said = folder / 'stderr'
    with said.open('w') as stderr:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=stderr
        )
        seconds = 0.0
        has_ended = False
        while not has_ended and not is_done() and seconds < LIMIT_S:
            time.sleep(0.002)
            seconds = time.perf_counter() - start
            has_ended = process.poll() is not None
    assert process.stdin is not None
    process.stdin.close()
    if not has_ended:
        process.send_signal(signal.SIGKILL)
    usage = _usage_of(process)
    text = said.read_text(errors='replace')
    if has_ended or seconds >= LIMIT_S:
        raise RuntimeError(f'`{" ".join(command[1:])}` ended or took {LIMIT_S:.0f} s: {last_words(text)}')
    return Start(seconds, usage, text)


def _usage_of(process: subprocess.Popen[bytes]) -> float:
    """CPU seconds of a process that is about to end; 0 where it has been waited for."""
    if process.returncode is not None:
        return 0.0
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def import_seconds(lines: str) -> Iterator[tuple[str, float]]:
    """Yields each module that `-X importtime` names, and the seconds that it took itself."""
    for line in lines.splitlines():
        match = IMPORT.match(line)
        if match:
            yield match[2], int(match[1]) / 1e6


def own_import_s(lines: str, package: str = 'zoo') -> float:
    """Seconds that the modules of a package took themselves, by what `-X importtime` wrote."""
    return sum(s for name, s in import_seconds(lines) if name.partition('.')[0] == package)


def measure(config: str, checkouts: Mapping[str, Path], n_round: int) -> dict[str, dict[str, list[float]]]:
    """Starts the processes of all rounds; returns their numbers by the names of the checkouts, and of torch alone."""
    with tempfile.TemporaryDirectory() as bytecode:
        envs = {name: users_env(path, Path(bytecode)) for name, path in checkouts.items()}
        for env in envs.values():
            first_update(config, env)
        found: dict[str, dict[str, list[float]]] = {name: {} for name in (*envs, 'torch')}

        def add(name: str, start: Start) -> None:
            found[name].setdefault('wall_s', []).append(start.wall_s)
            found[name].setdefault('cpu_s', []).append(start.cpu_s)

        for index in range(n_round):
            for name in list(envs)[:: 1 - 2 * (index % 2)]:  # every second round in reverse order
                add(name, first_update(config, envs[name]))
                imports = own_import_s(first_update(config, envs[name], ['-X', 'importtime']).stderr)
                found[name].setdefault('own_imports_s', []).append(imports)
            add('torch', torch_alone(next(iter(envs.values()))))
            log.info('round %d of %d', index + 1, n_round)
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes results/startup.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--before', type=Path, metavar='CHECKOUT', help='also another zoo')
    parser.add_argument('--config', default='cartpole_ppo', help='a bundled config (default cartpole_ppo)')
    parser.add_argument('--rounds', type=int, default=11)
    parser.add_argument('-o', '--results', type=Path, metavar='FOLDER', help='of startup.json')
    words = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    checkouts = {'now': REPO}
    if args.before is not None:
        checkouts = {'before': args.before, **checkouts}
    found = measure(args.config, checkouts, args.rounds)
    medians = {
        name: {key: round(statistics.median(values), 3) for key, values in numbers.items()}
        for name, numbers in found.items()
    }
    columns = ['', 'seconds', 'CPU seconds', "zoo's own imports"]
    rows = [[name, *numbers.values()] for name, numbers in medians.items()]
    rows[-1].append('')
    print(f'`zoo train {args.config}`, command to first update; medians of {args.rounds}\n\n{table(columns, rows)}')
    data = {
        'machine': machine(),
        'versions': versions(),
        'date': today(),
        'commit': git_commit(),
        'command': ' '.join(['python benchmarks/startup.py', *words]).replace(str(args.before), 'CHECKOUT'),
        'medians': medians,
        'runs': {name: {key: [round(x, 3) for x in each] for key, each in x.items()} for name, x in found.items()},
    }
    path = results_folder(args.results, quick=False) / 'startup.json'
    write_json(path, data)
    print(f'wrote {path}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
