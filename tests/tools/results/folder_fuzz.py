"""Changes run folders at random, gives each to runs, plot, report, compare, eval and a resume, and watches the process.

To run in a separate process: python -m tests.tools.results.folder_fuzz FOLDER FIRST N
In FOLDER it makes `inside`, the current folder with the runs, and `outside`, which no command may read or change.
Prints one JSON object: how the commands ended, and everything that they must not do but did.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import random
import resource
import shutil
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.run import checkpoint_fuzz
from tests.run.checkpoint_fuzz import STARTS, TEXTS as JSON_TEXTS, VALUES, Watch, fault_of, paths_of

LIMIT_S = 10  # seconds of processor time, on a busy machine; a command that waits has 60 s of wall time
OVERRIDES = (
    'max_env_step=256',
    'env.collector_env_num=2',
    'policy.collect.n_step=64',
    'policy.learn.batch_size=64',
    'policy.learn.executor=eager',
    'policy.eval.eval_freq=128',
    'policy.eval.n_episode=1',
    'policy.model.hidden_sizes=[8]',
    'logger.console=off',
    'logger.freq=128',
    'checkpoint.freq=128',
    'seed=3',
)
CONTENT: tuple[Any, ...] = (
    *VALUES,
    10**400,
    -(10**400),
    1e308,
    '../../outside/secret.txt',
    '/etc/passwd',
    'trap:make',
    '\x1b]0;title\x07',
    '\u202eabc',
    'http://me:hidden@127.0.0.1:9/x',
    '<script>x</script>',
    '$\\frac{',
    '2' * 5_000,
    [[[[1]]]],
    ['a', None],
    {'type': 5},
    {'': 1},
    {'a.b': {'c': []}},
    {'x\x1b[2J': 1},
)
YAML_TEXTS = (
    '',
    'null',
    '[]',
    'x',
    '5',
    'env: {id: CartPole-v1}',
    'env: 5\npolicy: ppo',
    'env: {}\npolicy: {}\n',
    'env: !!python/object/apply:os.system ["touch pwned"]\npolicy: {}',
    'a: &a [1]\nb: &b [*a, *a]\nc: [*b, *b]\nenv: {id: *a}\npolicy: {type: *b}',
    'a: &a {x: *a}',
    f'a: {"[" * 100_000}',
    f'seed: {"1" * 5_000}',
    'seed: 2001-01-01',
    '? {a: 1}\n: 2\nenv: {}\npolicy: {}',
    'env: {1: 2}\npolicy: {null: 3}',
    'key\x00: 1',
    '\ufeffenv: {}',
)
FILES = ('config.yaml', 'metrics.jsonl', 'result.json', 'progress.csv', 'run.lock')
PLACES = (*FILES, 'checkpoints', 'checkpoints/best.safetensors', 'videos', 'videos/step_128.gif', 'tb')
METRICS = ('env_step', 'wall_s', 'eval/return_mean', 'time/share_')
READABLE = ('/proc', '/sys', '/usr', '/lib', '/dev/urandom', '/etc/localtime', '/etc/fonts', '/etc/ssl')


class FolderWatch(Watch):
    """Notes reads, writes and removals outside of the folder, processes and connections. Ignores an open that refuses links."""

    def __init__(self, folder: Path, outside: Path) -> None:
        self.outside, self._waiting = os.path.realpath(outside), ''
        roots = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[3]), *sys.path[1:], *READABLE)
        self.readable = tuple(os.path.realpath(root) for root in roots if root)
        super().__init__(folder)

    def take(self) -> list[str]:
        self._keep_waiting()
        return super().take()

    def see(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in STARTS or event in checkpoint_fuzz.CHANGES:
            super().see(event, args)
        elif event in ('open', 'os.listdir', 'os.scandir') and isinstance(args[0], str | bytes | os.PathLike):
            self.on = False
            try:
                self._see_open(event, os.fsdecode(args[0]), args[2] if event == 'open' else 0)
            finally:
                self.on = True

    def _see_open(self, event: str, path: str, flags: int) -> None:
        """Notes an open outside of the folder. `open` with an opener gives two events; only the second has O_NOFOLLOW."""
        if flags & os.O_NOFOLLOW and self._waiting.endswith(f' {path}'):
            self._waiting = ''
        self._keep_waiting()
        real = self._place(path) if flags & os.O_NOFOLLOW else os.path.realpath(path)
        roots = (self.folder,) if self._is_write(None, flags) else (self.folder, *self.readable)
        if real != os.devnull and not any(Path(real).is_relative_to(root) for root in roots):
            self._waiting = f'{event} {flags:x} {real} by {path}'

    def _keep_waiting(self) -> None:
        if self._waiting:
            self.found.append(self._waiting)
        self._waiting = ''

    @staticmethod
    def _place(path: str) -> str:
        """The real path of a name, without following the name itself if it is a link."""
        return os.path.join(os.path.realpath(os.path.dirname(path) or '.'), os.path.basename(path))

    def _check_path(self, event: str, path: Any) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            place = self._place(os.fsdecode(path))
            if not Path(place).is_relative_to(self.folder):
                self.found.append(f'{event} {place}')


class FolderFuzz:
    """Random changes of a run folder. Args: source: the folder; outside: the target of links."""

    def __init__(self, source: Path, outside: Path) -> None:
        from zoo.config.yaml_io import config_of_yaml

        self._outside = outside
        self._source_config = config_of_yaml(source / 'config.yaml')
        self._source_result = json.loads((source / 'result.json').read_text())
        self._source_rows = [json.loads(line) for line in (source / 'metrics.jsonl').read_text().splitlines()]

    def change(self, i: int, folder: Path) -> str:
        """Makes the i-th change, the same in every process, in a copy of the source; returns the kind of change."""
        rng = random.Random(i)
        kinds = [
            rng.choice(('config', 'config', 'config', 'result', 'rows', 'rows', 'text', 'bytes', 'place', 'place'))
        ]
        kinds += [rng.choice(('config', 'result', 'rows'))] if rng.random() < 0.3 else []
        for kind in reversed(kinds):
            getattr(self, f'_{kind}')(rng, folder)
        return kinds[0]

    def _config(self, rng: random.Random, folder: Path) -> None:
        tree = self._changed(rng, self._source_config)
        (folder / 'config.yaml').write_text(yaml.safe_dump(tree, sort_keys=False))

    def _result(self, rng: random.Random, folder: Path) -> None:
        (folder / 'result.json').write_text(json.dumps(self._changed(rng, self._source_result)))

    def _rows(self, rng: random.Random, folder: Path) -> None:
        rows = self._changed(rng, self._source_rows)
        (folder / 'metrics.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))

    def _text(self, rng: random.Random, folder: Path) -> None:
        name = rng.choice(FILES[:3])
        texts = YAML_TEXTS if name == 'config.yaml' else JSON_TEXTS
        before = (folder / name).read_text() if rng.random() < 0.3 else ''
        (folder / name).write_text(f'{before}{rng.choice(texts)}\n')

    def _bytes(self, rng: random.Random, folder: Path) -> None:
        file = rng.choice([path for path in sorted(folder.rglob('*')) if path.is_file()])
        data = bytearray(file.read_bytes())
        for _ in range(rng.choice((1, 3, 20))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        file.write_bytes(data if rng.random() < 0.7 else data[: rng.randrange(len(data))])

    def _place(self, rng: random.Random, folder: Path) -> None:
        """Replaces a file or folder by a link, a pipe, a socket, a folder or nothing, or removes its permissions."""
        name = rng.choice(PLACES)
        path, kind = (
            folder / name,
            rng.choice(('link', 'link', 'link', 'device', 'pipe', 'socket', 'folder', 'gone', 'shut')),
        )
        if kind == 'shut' and path.exists():
            path.chmod(0)
            return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if kind == 'link':
            path.symlink_to(
                rng.choice((self._outside / name, self._outside / 'secret.txt', self._outside, Path('/etc/passwd')))
            )
        elif kind == 'device':
            path.symlink_to('/dev/zero')
        elif kind == 'pipe':
            os.mkfifo(path)
        elif kind == 'socket':
            os.mknod(path, 0o600 | stat.S_IFSOCK)
        elif kind == 'folder':
            path.mkdir()

    def _changed(self, rng: random.Random, source: Any) -> Any:
        tree = copy.deepcopy(source)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            paths, depth = list(paths_of(tree)), rng.choice((1, 2, 3, 9))
            self._set(rng, tree, rng.choice([path for path in paths if len(path) <= depth]))
        return tree

    @staticmethod
    def _set(rng: random.Random, tree: Any, path: tuple[Any, ...]) -> None:
        *parents, key = path
        for parent in parents:
            tree = tree[parent]
        kind = rng.random()
        if kind < 0.1 and len(tree) > 1:
            del tree[key]
        elif kind < 0.2 and isinstance(tree, dict):
            tree[rng.choice(('x', '', 'type', 'a.b', 'items', '\x1b[2J', 'x' * 300))] = copy.deepcopy(
                rng.choice(CONTENT)
            )
        else:
            tree[key] = copy.deepcopy(rng.choice(CONTENT))


def _peak_gb() -> float:
    """The peak memory of this process; getrusage would include its parent's memory before this program began."""
    status = Path('/proc/self/status').read_text()
    return round(int(status.partition('VmHWM:')[2].split()[0]) / 1e6, 2)


def commands(run: str, other: str) -> dict[str, Callable[[], int]]:
    """The commands that get a run folder (`other`: a second one, for compare); each returns an exit code."""
    from zoo.tools.cli import main

    few = ['policy.eval.n_episode=1', 'policy.learn.executor=eager', 'logger.console=off', 'env.check=false']
    return {
        'runs': lambda: main(['runs', '.']),
        'plot': lambda: main(['plot', run, '-o', 'plot.svg']),
        'report': lambda: main(['report', run, '-o', 'report.html']),
        'compare': lambda: main(['compare', other, run, '--allow-different-envs']),
        'eval': lambda: main(['eval', run, '--episodes', '1']),
        'resume': lambda: main(['train', '--resume', run, 'max_env_step=384', *few]),
    }


def made_source(folder: Path) -> Path:
    """Makes a run of two rollouts with every kind of file that a run folder may have."""
    from zoo.pipeline import serial_pipeline

    run = serial_pipeline('cartpole_ppo', overrides=[*OVERRIDES, f'logger.root={folder}']).run_dir
    rows = [json.loads(line) for line in (run / 'metrics.jsonl').read_text().splitlines()]
    rows = [{name: x for name, x in row.items() if name.startswith(METRICS)} for row in rows]  # few figures are fast
    (run / 'metrics.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
    (run / 'videos').mkdir()
    (run / 'videos' / 'step_128.gif').write_bytes(b'GIF89a' + bytes(40))
    return run


def content(folder: Path) -> str:
    """A hash of the names and bytes of all files of a folder."""
    files = [path for path in sorted(folder.rglob('*')) if path.is_file()]
    return hashlib.sha256(repr([(str(path), path.read_bytes()) for path in files]).encode()).hexdigest()


def emptied(folder: Path) -> None:
    """Removes a folder, even if something in it has no permissions."""
    for path in [folder, *folder.rglob('*')]:
        if not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)


def main(folder: Path, first: int, n: int) -> dict[str, Any]:
    inside, outside = folder / 'inside', folder / 'outside'
    inside.mkdir()
    os.environ['MPLCONFIGDIR'] = str(folder / 'inside' / '.matplotlib')
    os.environ['XDG_STATE_HOME'] = str(
        folder / 'inside' / '.state'
    )  # the runs that this user started, which a resume reads
    source = made_source(folder / 'source')
    shutil.copytree(source, outside)
    (outside / 'secret.txt').write_text('secret\n')
    (outside / 'checkpoints' / 'step_9.safetensors').write_bytes(b'x')  # a resume would remove the oldest
    shutil.copytree(source, inside / 'other')
    os.chdir(inside)
    Path('trap.py').write_text('import os\nopen("sprung", "w")\nmake = os.system\n')
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, checkpoint_fuzz.raise_too_long)
    signal.signal(signal.SIGPROF, checkpoint_fuzz.raise_too_long)
    shutil.copytree(source, 'run')
    for name, command in commands('run', 'other').items():
        ends = Counter()
        assert not (fault := fault_of(command, ends)) and ends['done'], (name, fault, ends)
    emptied(Path('run'))
    fuzz, before = FolderFuzz(source, outside), content(outside)
    n_byte = int(Path('/proc/self/statm').read_text().split()[0]) * os.sysconf('SC_PAGE_SIZE')
    resource.setrlimit(resource.RLIMIT_AS, (n_byte + (2 << 30), n_byte + (2 << 30)))
    watch, ends, kinds, faults, start = FolderWatch(inside, outside), Counter(), Counter(), [], time.monotonic()
    slowest, seconds = (0.0, ''), Counter()
    for i in range(first, first + n):
        shutil.copytree(source, 'run')
        kind = fuzz.change(i, Path('run'))
        kinds[kind] += 1
        for what, command in commands('run', 'other').items():
            watch.on, begin = True, time.process_time()
            signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
            fault = fault_of(command, ends)
            signal.setitimer(signal.ITIMER_PROF, 0)
            watch.on = False
            took = time.process_time() - begin
            seconds[what] += took
            slowest = max(slowest, (round(took, 2), f'{i} {kind} {what}'))
            found = [f'{i} {kind} {what}: {one}' for one in [fault, *watch.take()] if one]
            faults += found
            sys.stderr.write(''.join(f'{one}\n' for one in found))
        for path in inside.iterdir():
            if path.name not in ('other', 'trap.py', '.matplotlib', '.state', 'report.html', 'plot.svg', '__pycache__'):
                emptied(path) if path.is_dir() else path.unlink()
                if path.name not in ('run', 'runs'):
                    faults.append(f'{i} {kind}: {path.name} was made')
    if content(outside) != before:
        faults.append('something outside of the folder was changed')
    return {
        'folders': n,
        'kinds': dict(kinds),
        'ends': dict(ends),
        'faults': faults,
        'peak_gb': _peak_gb(),
        'seconds': {what: round(s, 1) for what, s in seconds.items()},
        'wall_s': round(time.monotonic() - start, 1),
        'slowest': slowest,
    }


if __name__ == '__main__':
    print(json.dumps(main(Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3]))))
