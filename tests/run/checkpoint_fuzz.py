"""Fuzz test of checkpoints: changes files at random and gives each to `load_policy`, `zoo eval` and `zoo train --resume`.

Run it as a program, in a separate process: python -m tests.run.checkpoint_fuzz FOLDER FIRST N
FOLDER becomes the current folder; all files are written there, with a module `trap` that a checkpoint may name.
Prints one JSON object: how the commands ended, and everything that they should not have done.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import logging
import math
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SOURCES = ('ppo_categorical', 'ppg_gaussian', 'ppo_offpolicy_gaussian')
LIMIT_S, LIMIT_BYTES = 60, 2 << 30
STARTS = tuple(
    """
    subprocess.Popen os.system os.exec os.posix_spawn os.spawn os.fork os.forkpty pty.spawn os.kill os.killpg
    socket.connect socket.bind socket.getaddrinfo socket.sendto ctypes.dlopen pickle.find_class
    """.split()
)
CHANGES = tuple(
    """
    os.mkdir os.rename os.remove os.rmdir os.link os.symlink os.truncate os.chmod os.chown os.utime
    """.split()
)
TWO_PATHS = ('os.rename', 'os.link', 'os.symlink')
TRAPS = ('trap', 'this', 'antigravity', 'turtle', 'webbrowser', 'ftplib')
PLANTS: dict[str, dict[str, Any]] = {
    'os:system': {'command': 'touch pwned'},
    'subprocess:run': {'args': ['touch', 'pwned']},
    'trap:make': {'command': 'touch pwned'},
    'trap:os.system': {'command': 'touch pwned'},
    'zoo.config.source:import_module_or_file': {'name': 'trap'},
}
NAMES = (
    *PLANTS, 'trap:Trap-v0', 'trap.inner:make', ' trap:make', 'trap:', ':make', 'trap', 'this:d',
    'antigravity:webbrowser.open', 'turtle:Turtle', 'webbrowser:open', 'ftplib:FTP',
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -5, 1, 3, 1.5, 10**6, 10**9, 2**31, 2**63, 10**30, 1e300, float('nan'), float('inf'), '',
    'many', 'x' * 10_000, 'a\nb\x1b[31m', [], [1, 2], [[]], {}, {'x': 1}, {'start': 1, 'end': 0, 'over': 0},
    [200_000] * 3,
)  # fmt: skip
SPACES: tuple[Any, ...] = (
    {'kind': 'box', 'shape': [10**9], 'dtype': 'float32', 'low': ['0'], 'high': ['1']},
    {'kind': 'box', 'shape': [2**24], 'dtype': 'float32', 'low': ['0'], 'high': ['1']},
    {'kind': 'box', 'shape': [2**20], 'dtype': 'float32', 'low': ['0'], 'high': ['1']},
    {'kind': 'box', 'shape': [0], 'dtype': 'float32', 'low': [], 'high': []},
    {'kind': 'box', 'shape': [84, 84, 4], 'dtype': 'uint8', 'low': ['0'], 'high': ['255']},
    {'kind': 'box', 'shape': [], 'dtype': 'float64', 'low': ['-inf'], 'high': ['inf']},
    {'kind': 'discrete', 'n': 2**31, 'start': 0},
    {'kind': 'discrete', 'n': 3, 'start': -1},
    {'kind': 'multi_discrete', 'nvec': [2**31], 'start': [0], 'shape': [1]},
    {'kind': 'multi_binary', 'shape': [10**6]},
    {'kind': 'dict', 'spaces': [['a', {'kind': 'discrete', 'n': 2, 'start': 0}]], 'is_tuple': False},
    {'kind': 'dict', 'spaces': [], 'is_tuple': True},
)
TEXTS = ('', '{', '[]', 'null', '1' * 5_000, '{"a":' * 500 + '1' + '}' * 500, '[' * 100_000, '{"config": NaN}')


class TooLong(BaseException):
    """Raised if a command does not end in time."""


class Watch:
    """Records the events that no checkpoint may cause: those of STARTS, and changes of files outside the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.found, self.on = os.path.realpath(folder), [], False
        sys.addaudithook(self.see)

    def see(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        self.on = False  # events of this method do not count
        try:
            if event in STARTS and args[:1] != (None,):  # dlopen of None is the program itself
                self.found.append(f'{event} {args!r:.200}')
            elif event == 'open' and self._is_write(args[1], args[2]):
                self._check_path(event, args[0])
            elif event in CHANGES:
                for path in args[: 2 if event in TWO_PATHS else 1]:
                    self._check_path(event, path)
        finally:
            self.on = True

    def take(self) -> list[str]:
        """Returns the events since the last call, and the imported modules that must not be imported.

        The modules are looked up in sys.modules, since importlib.import_module raises no audit event.
        """
        found, self.found = self.found, []
        return found + [f'import {name}' for name in TRAPS if sys.modules.pop(name, None) is not None]

    @staticmethod
    def _is_write(mode: Any, flags: Any) -> bool:
        by_flags = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        return bool(by_flags) or (isinstance(mode, str) and bool(set(mode) & set('wax+')))

    def _check_path(self, event: str, path: Any) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            real = os.path.realpath(os.fsdecode(path))
            if not Path(real).is_relative_to(self.folder) and real != os.devnull:
                self.found.append(f'{event} {real}')


def paths_of(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of every item of nested dicts and lists."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from paths_of(item, (*path, key))


class Fuzz:
    """Random changes of checkpoint files."""

    def __init__(self, sources: list[bytes], split: Callable[..., Any], join: Callable[..., bytes]) -> None:
        self._sources, self._split, self._join = sources, split, join

    def file(self, i: int) -> tuple[str, bytes]:
        """Returns (kind of change, bytes) of the i-th changed file, which is the same in every process."""
        rng = random.Random(i)
        data = rng.choice(self._sources)
        kinds = 'bytes cut value value missing extra name number tensor entry space text'.split()
        kind = rng.choice(kinds)
        if kind in ('bytes', 'cut'):
            return kind, getattr(self, f'_{kind}')(rng, data)
        header, tensors = self._split(data)
        if kind in ('tensor', 'entry', 'text'):
            return kind, self._join(header, getattr(self, f'_{kind}')(rng, header, tensors))
        metadata = header['__metadata__']
        tree = {name: json.loads(metadata[name]) for name in ('meta', 'state')}
        getattr(self, f'_{kind}')(rng, tree)
        metadata |= {name: json.dumps(value) for name, value in tree.items()}
        return kind, self._join(header, tensors)

    def _bytes(self, rng: random.Random, data: bytes) -> bytes:
        from tests.run.crafted import mended

        changed, end = bytearray(data), int.from_bytes(data[:8], 'little') + 8 if rng.random() < 0.8 else len(data)
        for _ in range(rng.choice((1, 1, 3, 20))):
            changed[rng.randrange(end)] = rng.randrange(256)
        return mended(bytes(changed))

    def _cut(self, rng: random.Random, data: bytes) -> bytes:
        from tests.run.crafted import mended

        return mended(data[: rng.randrange(len(data))] + rng.randbytes(rng.choice((0, 0, 8, 1_000))))

    def _value(self, rng: random.Random, tree: Any) -> None:
        for _ in range(rng.choice((1, 1, 2))):
            *parents, key = rng.choice(self._some_paths(rng, tree))
            _at(tree, parents)[key] = copy.deepcopy(rng.choice(VALUES))

    def _missing(self, rng: random.Random, tree: Any) -> None:
        *parents, key = rng.choice(self._some_paths(rng, tree))
        del _at(tree, parents)[key]

    def _extra(self, rng: random.Random, tree: Any) -> None:
        path = rng.choice([p for p in self._some_paths(rng, tree) if isinstance(_at(tree, p), dict)] or [('meta',)])
        _at(tree, path)[rng.choice(('x', '', 'type', 'id', 'a.b', 'items', '__class__', 'x' * 300))] = rng.choice(
            VALUES
        )

    def _name(self, rng: random.Random, tree: Any) -> None:
        config = tree['meta']['config']
        texts = [p for p in paths_of(config) if isinstance(_at(config, p), str)]
        path = ('env', 'id') if rng.random() < 0.5 else rng.choice(texts)
        _at(config, path[:-1])[path[-1]] = rng.choice(NAMES)
        config['env']['kwargs'] = PLANTS.get(config['env']['id'], {}) or rng.choice(({}, {'make': rng.choice(NAMES)}))

    def _number(self, rng: random.Random, tree: Any) -> None:
        paths = [p for p in paths_of(tree) if type(_at(tree, p)) in (int, float)]
        for _ in range(rng.choice((1, 2))):
            *parents, key = rng.choice(paths)
            _at(tree, parents)[key] = rng.choice((0, -1, 2, 7, 1e-300, 4_096, 10**6, 10**7, 10**9, 10**12, 2**62, 0.5))

    def _space(self, rng: random.Random, tree: Any) -> None:
        for name in rng.choice((['obs_space'], ['action_space'], ['obs_space', 'action_space'])):
            tree['meta'][name] = copy.deepcopy(rng.choice(SPACES))

    def _tensor(self, rng: random.Random, header: Any, tensors: bytes) -> bytes:
        names = [name for name in header if name != '__metadata__']
        a, b = rng.sample(names, 2)
        kind = rng.choice(('swap', 'move', 'fill', 'drop', 'reshape', 'retype'))
        if kind == 'swap':
            header[a], header[b] = header[b], header[a]
        elif kind == 'move':
            header[rng.choice((f'{a}/x', 'x', 'policy/x', b[:-1]))] = header.pop(a)
        elif kind == 'drop':
            del header[a]
        elif kind == 'reshape':
            n = math.prod(header[a]['shape'])
            header[a]['shape'] = rng.choice(
                ([n], [1, n], [n, 1], header[a]['shape'][::-1], [n // 2, 2], [2, n // 2], [])
            )
        elif kind == 'retype':
            header[a]['dtype'] = {'F32': 'I32', 'F64': 'I64', 'I64': 'F64', 'I32': 'F32', 'U8': 'BOOL'}[
                header[a]['dtype']
            ]
        else:
            start, stop = header[a]['data_offsets']
            fill = rng.choice((b'\xff', b'\x00', b'\x7f'))  # NaN, zero, a large number
            tensors = tensors[:start] + fill * (stop - start) + tensors[stop:]
        return tensors

    def _entry(self, rng: random.Random, header: Any, tensors: bytes) -> bytes:
        entry = header[rng.choice(list(header))]
        entry[rng.choice(list(entry))] = rng.choice(
            (
                *VALUES,
                'F32',
                'BOOL',
                [2**40, 2**40],
                [0, 2**62],
                [-1],
                [1] * 100,
                [0, 8],
                [10**6, 10**6 + 4],
                '1',
                '2',
                '9' * 5_000,
            )
        )
        return tensors

    def _text(self, rng: random.Random, header: Any, tensors: bytes) -> bytes:
        header['__metadata__'][rng.choice(('meta', 'state'))] = rng.choice(TEXTS)
        return tensors

    @staticmethod
    def _some_paths(rng: random.Random, tree: Any) -> list[tuple[Any, ...]]:
        """Returns all paths up to a random depth: shallow paths are then chosen as often as the more numerous deep ones."""
        paths, depth = list(paths_of(tree)), rng.choice((1, 2, 3, 9))
        return [path for path in paths if len(path) <= depth]


def _at(node: Any, path: Any) -> Any:
    for key in path:
        node = node[key]
    return node


def commands(path: str) -> dict[str, Callable[[], int]]:
    """Returns the commands that are tried on a file, by name; each returns an exit code."""
    from zoo import load_policy
    from zoo.core.errors import UserError
    from zoo.tools.cli import main

    def load() -> int:
        try:
            load_policy(path)
        except UserError as error:
            sys.stderr.write(f'zoo: error: {str(error).splitlines()[0]}\n')
            return 2
        return 0

    few = ['max_env_step=200', 'policy.eval.n_episode=1', 'policy.learn.executor=eager', 'logger.console=off']
    return {
        'load_policy': load,
        'eval': lambda: main(['eval', path, '--episodes', '1']),
        'resume': lambda: main(['train', '--resume', path, *few]),
    }


def fault_of(command: Callable[[], int], ends: Counter[str]) -> str:
    """Runs a command and returns the fault in how it ended, '' if there is none."""
    said = io.StringIO()
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = command()
    except (Exception, SystemExit, TooLong) as error:
        ends['broken'] += 1
        return f'{type(error).__name__}: {str(error)[:300]}'
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    ends[{0: 'done', 1: 'failed', 2: 'refused'}.get(code, 'broken')] += 1
    if not said.getvalue().replace('\n', '').isprintable():
        return f'said what controls a terminal: {said.getvalue()!r}'
    lines = said.getvalue().splitlines()
    first = next((line for line in reversed(lines) if not line.startswith('  ')), '')  # of several, the heading
    is_said = first.startswith('zoo: error: ') and all(len(line) < 3_000 for line in lines)
    if code not in (0, 1, 2) or (code and not is_said):
        return f'exit code {code}, said {lines[-1:]}'
    return ''


def main(folder: Path, first: int, n: int) -> dict[str, Any]:
    os.chdir(folder)
    for name in TRAPS[:1]:
        Path(f'{name}.py').write_text('import os\nopen("sprung", "w")\nmake = os.system\n')
    from tests.run.crafted import OLD, components_of, crafted, joined

    for name in SOURCES:  # writes them in the newest format and imports every module that is needed later
        crafted(folder / name, lambda state, meta: None, name)
        for command in commands(name).values():
            assert not (fault := fault_of(command, Counter())), fault
    sources = [(OLD / f'{name}.safetensors').read_bytes() for name in SOURCES]
    fuzz = Fuzz([(folder / name).read_bytes() for name in SOURCES] + sources, components_of, joined)
    logging.disable(logging.CRITICAL)
    signal.signal(signal.SIGALRM, raise_too_long)
    n_byte = int(Path('/proc/self/statm').read_text().split()[0]) * os.sysconf('SC_PAGE_SIZE')
    resource.setrlimit(resource.RLIMIT_AS, (n_byte + LIMIT_BYTES, n_byte + LIMIT_BYTES))
    watch, ends, kinds, faults, start = Watch(folder), Counter(), Counter(), [], time.monotonic()
    slowest = (0.0, '')
    for i in range(first, first + n):
        kind, data = fuzz.file(i)
        Path('c').write_bytes(data)
        kinds[kind] += 1
        for what, command in commands('c').items():
            watch.on, begin = True, time.monotonic()
            fault = fault_of(command, ends)
            watch.on = False
            slowest = max(slowest, (round(time.monotonic() - begin, 2), f'{i} {kind} {what}'))
            faults += [f'{i} {kind} {what}: {found}' for found in [fault, *watch.take()] if found]
    return {
        'files': n,
        'kinds': dict(kinds),
        'ends': dict(ends),
        'faults': faults,
        'made': sorted(path.name for path in folder.iterdir()),
        'peak_gb': round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
        'seconds': round(time.monotonic() - start, 1),
        'slowest': slowest,
    }


def raise_too_long(signum: int, frame: Any) -> None:
    raise TooLong


if __name__ == '__main__':
    print(json.dumps(main(Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3]))))
