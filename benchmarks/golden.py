"""Golden test: checks that a change of the code changes no number, by training every config of golden_configs.py.

    python benchmarks/golden.py check --before CHECKOUT   # compares with another checkout, or a commit, on this machine
    python benchmarks/golden.py check --before            # compares with the commit at which golden.json was recorded: with
                                                          # the file, and what is unlike it with the code of then
    python benchmarks/golden.py check                     # compares with golden.json, on the machine that recorded it
    python benchmarks/golden.py record                    # writes results/golden.json
    options: [--only WORDS ...] [--jobs 2] [--list]

For each run, every tensor and number of the last checkpoint and every logged metric is hashed; times and paths are left out.
On another processor or with another torch the last digits differ, so only --before can compare there. Exit code 0:
all configs are equal; 1: some differ, the output lists the differences; 3: nothing could be compared.

The script uses only zoo's public names, config keys and run files, so that it works with old and new checkouts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from golden_configs import ALL, CASES, CHANGED, Case
from golden_runs import LIMIT_S, fingerprint

from report import HERE, REPO, RESULTS, last_words, machine, one_thread_env, versions

GOLDEN = RESULTS / 'golden.json'
RECORDED = 'the recorded commit'
N_SHOWN = 4  # names of a group that a message lists

# -- all runs of a checkout ------------------------------------------------------------------------------------------------


def run_here(names: Sequence[str], folder: Path, n_job: int) -> None:
    """Trains cases in forks of this process, which has imported zoo; each writes FOLDER/<number>.json and .txt (output)."""
    import torch

    from zoo import serial_pipeline  # noqa: F401  # loaded once for all forks

    torch.set_num_threads(1)
    running: set[int] = set()
    for name in sorted(names, key=lambda name: not is_slow(CASES[name])):
        if len(running) == n_job:
            running.discard(os.wait()[0])
        running.add(start(name, folder))
    for _ in running:
        os.wait()


def is_slow(case: Case) -> bool:
    """Whether a case takes seconds and should therefore begin early."""
    return case.traced or case.ranks > 1 or 'cluster' in case.config


def start(name: str, folder: Path) -> int:
    """Trains a case in a fork of this process; returns the fork's process id."""
    if pid := os.fork():
        return pid
    place = folder / f'{list(CASES).index(name)}'
    result: dict[str, Any] = {}
    try:
        place.mkdir()
        signal.alarm(LIMIT_S)
        with open(place.with_suffix('.txt'), 'wb') as out:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
        result = {'found': fingerprint(CASES[name], place)}
    except BaseException as error:  # any error is the case's result
        at = traceback.extract_tb(error.__traceback__)[-1]
        result = {'error': f'{type(error).__name__}: {error} ({at.filename}:{at.lineno})'}
    finally:
        if os.environ.get('RANK', '0') == '0':
            place.with_suffix('.json').write_text(json.dumps(result))
            shutil.rmtree(place, ignore_errors=True)
        sys.stdout.flush()
        os._exit(0)


def run_all(checkout: Path, names: Sequence[str], n_job: int) -> dict[str, Any]:
    """The fingerprints of cases trained by the code of a checkout; for a failed case, the error as text."""
    if not names:
        return {}
    build_native(checkout)
    with tempfile.TemporaryDirectory(prefix='zoo-golden-') as folder:
        words = [
            sys.executable,
            str(HERE / 'golden.py'),
            'run',
            '--into',
            folder,
            '--jobs',
            str(n_job),
            '--only-these',
            *names,
        ]
        done = subprocess.run(words, cwd=folder, env=environment(checkout), capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f'{checkout} cannot run: {last_words(done.stderr)}')
        found: dict[str, Any] = {}
        for name in names:
            file = Path(folder) / f'{list(CASES).index(name)}.json'
            answer = json.loads(file.read_text()) if file.exists() else {}
            found[name] = answer.get('found') or answer.get('error') or f'it was ended, perhaps after {LIMIT_S} s'
    return found


def environment(checkout: Path) -> dict[str, str]:
    """Environment variables of a process with one thread that imports zoo from a checkout."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith('ZOO_')}
    return {
        **plain,
        **{k: v for k, v in one_thread_env().items() if k.endswith('_THREADS')},
        'PYTHONPATH': str(checkout),
    }


def build_native(checkout: Path) -> None:
    """Compiles a checkout's native executor if it is missing or older than its sources, when zoo would not use it."""
    files = list((checkout / 'zoo').rglob('*.*'))
    built = [file.stat().st_mtime for file in files if file.match('_native*.so')]
    if built and max(built) >= max(file.stat().st_mtime for file in files if file.suffix in ('.c', '.h', '.inc')):
        return
    words = [sys.executable, '-m', 'zoo.backend.native.build']
    subprocess.run(words, cwd=checkout, env=environment(checkout), check=True, stdout=subprocess.DEVNULL)


# -- comparison ------------------------------------------------------------------------------------------------------------


def differences(before: Any, after: Any, but: Sequence[str] = ()) -> list[str]:
    """Differences of two fingerprints, one line per group; for a failed run, its error. but: names that are not compared."""
    errors = [f'{side}: {x}' for side, x in (('before', before), ('after', after)) if isinstance(x, str)]
    if errors:
        return errors
    if ALL in but:
        return []
    lines = []
    for group in dict.fromkeys([*before, *after]):
        was, now = before.get(group, {}), after.get(group, {})
        names = [name for name in dict.fromkeys([*was, *now]) if name not in but and was.get(name) != now.get(name)]
        if names:
            shown = ', '.join(change(name, was.get(name), now.get(name)) for name in names[:N_SHOWN])
            more = f' and {len(names) - N_SHOWN} more' if len(names) > N_SHOWN else ''
            lines.append(f'{group}, {len(names)} of {len({**was, **now})}: {shown}{more}')
    return lines


def change(name: str, was: str | None, now: str | None) -> str:
    """A name, with its last value before and after where both are known."""
    if was is None or now is None:
        return f'{name} ({"is new" if was is None else "is gone"})'
    old, new = was.split()[-1], now.split()[-1]
    return name if old == new or old.startswith('#') else f'{name} {old} -> {new}'


def refused(before: Any, after: Any) -> str | None:
    """The common error with which both sides refuse a config that this machine cannot run; None if there is none."""
    if not (isinstance(before, str) and isinstance(after, str)):
        return None
    was, now = (each.rpartition(' (')[0] for each in (before, after))  # without the line of code
    return now if was == now and now.startswith('UserError: ') else None


def unlike(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """The cases whose fingerprints differ, or are known on one side alone."""
    return [
        name
        for name, found in after.items()
        if name not in before or differences(before[name], found, CHANGED.get(name, ()))
    ]


def compare(before: Mapping[str, Any], after: Mapping[str, Any], seconds: float) -> int:
    """Prints the differences and the number of equal cases; returns the exit code."""
    n_equal = n_refused = 0
    for name, found in after.items():
        was = before.get(name, 'it is not in golden.json; record it')
        if sentence := refused(was, found):
            print(f'{name}\n    not run here, both before and after: {sentence}')
            n_refused += 1
        elif lines := differences(was, found, CHANGED.get(name, ())):
            print(f'{name}\n    ' + '\n    '.join(lines))
        else:
            n_equal += 1
    note = f', {n_refused} refused on this machine' if n_refused else ''
    note += ''.join(f', {name} but for {" and ".join(CHANGED[name])}' for name in CHANGED if name in after)
    print(f'{n_equal} of {len(after)} configs equal{note} ({seconds:.0f} s)')
    return int(n_equal + n_refused < len(after))


# -- commands --------------------------------------------------------------------------------------------------------------


def this_machine() -> dict[str, str]:
    """The processor and the package versions on which the last digits depend."""
    return {'cpu': machine().split(',')[0], **versions(('torch', 'numpy'))}


def git(*words: str) -> str:
    """The output of a git command in this repository; '' if it fails."""
    done = subprocess.run(('git', *words), cwd=REPO, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ''


def checkout_of(place: str) -> Path | None:
    """The folder `place`; if it is a commit, build/golden-<commit>, where it is extracted; None if there is neither."""
    if Path(place).is_dir():
        return Path(place).resolve()
    commit = git('rev-parse', '--short', '--verify', '--quiet', f'{place}^{{commit}}')
    if not commit:
        return None
    folder = REPO / 'build' / f'golden-{commit}'
    if not folder.exists():
        part = folder.with_suffix(f'.{os.getpid()}')
        part.mkdir(parents=True)
        archive = subprocess.run(('git', 'archive', commit), cwd=REPO, capture_output=True, check=True).stdout
        subprocess.run(('tar', '-x', '-C', str(part)), input=archive, check=True)
        part.rename(folder)
    return folder


def record(names: Sequence[str], n_job: int) -> int:
    """Writes golden.json; with --only its other cases are kept if they are of this machine and commit."""
    is_changed = git('status', '--porcelain', '--', 'zoo') != ''
    commit = git('log', '-1', '--format=%h', '--', 'zoo') + ('+' if is_changed else '')
    about = {'commit': commit, 'machine': this_machine()}
    found = run_all(REPO, names, n_job)
    if failed := {name: x for name, x in found.items() if isinstance(x, str)}:
        print('\n'.join(f'{name}: {error}' for name, error in failed.items()))
        return 1
    old = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    kept = old.get('cases', {}) if {key: old.get(key) for key in about} == about else {}
    cases = {name: found.get(name, kept.get(name)) for name in CASES if name in found or name in kept}
    lines = [f'  {json.dumps(name)}: {json.dumps(x, separators=(",", ":"))}' for name, x in cases.items()]
    head = json.dumps(about, indent=1).removesuffix('\n}')
    GOLDEN.write_text(head + ',\n "cases": {\n' + ',\n'.join(lines) + '\n }\n}\n')
    print(f'{len(found)} configs recorded at {commit}: {GOLDEN}')
    return 0


def check(names: Sequence[str], n_job: int, before: str | None) -> int:
    """Compares the present code with another checkout, or with golden.json; returns the exit code."""
    begin = time.perf_counter()
    golden = json.loads(GOLDEN.read_text())
    checkout = None
    if before is not None:
        commit = golden['commit'] if before == RECORDED else before
        checkout = checkout_of(commit)
        if checkout is None and before != RECORDED:
            raise SystemExit(f'--before is {before!r}, which is no folder, and no commit here; name one of the two')
        if checkout is None:
            print(f'commit {commit}, of golden.json, is not in this repository: its numbers are looked at alone')
    if checkout is None and golden['machine'] != (here := this_machine()):
        print(f'golden.json is of {golden["machine"]}, and this machine is {here}: last digits differ between these.')
        print('Compare with another checkout on this machine: python benchmarks/golden.py check --before COMMIT')
        return 3
    now = run_all(REPO, names, n_job)
    was = golden['cases'] if before is None or before == RECORDED else {}
    if checkout is not None:
        was = {**was, **run_all(checkout, unlike(was, now), n_job)}
    return compare(was, now, time.perf_counter() - begin)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('command', choices=('check', 'record', 'run'), nargs='?', default='check')
    parser.add_argument(
        '--before', nargs='?', const=RECORDED, help='folder of a checkout, or a commit; none: that of golden.json'
    )
    parser.add_argument(
        '--only', nargs='+', default=[], metavar='WORD', help='cases whose names have one of these words'
    )
    parser.add_argument('--only-these', nargs='+', default=[], metavar='NAME', help=argparse.SUPPRESS)
    parser.add_argument('--jobs', type=int, default=2, help='processes at once, each of one thread')
    parser.add_argument('--list', action='store_true', help='only list the cases')
    parser.add_argument('--into', type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    names = [name for name in CASES if not args.only or any(word in name for word in args.only)]
    if args.list:
        print('\n'.join(names))
        return 0
    if not names:
        parser.error(f'no case has {" or ".join(args.only)} in its name; --list shows all')
    if args.command == 'run':
        run_here(args.only_these, args.into, args.jobs)
        return 0
    return record(names, args.jobs) if args.command == 'record' else check(names, args.jobs, args.before)


if __name__ == '__main__':
    sys.exit(main())
