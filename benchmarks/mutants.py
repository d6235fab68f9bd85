"""Mutation tests: the share of small errors in the code that the tests notice. A mutant is the code with one such error.

    python benchmarks/mutants.py map                 # which tests call which function: one traced run of `make test`
    python benchmarks/mutants.py run [--n 600]       # mutants drawn by seed; results/mutants.json; continues after a stop
    python benchmarks/mutants.py report              # share of mutants killed in each room, and the survivors
    python benchmarks/mutants.py errors              # the deliberate errors of errors.yaml, and the tests that name them
    options: [--seed 0] [--jobs 2] [--limit-s 60] [--only policy/samples rl_utils]
    another room: MUTANTS_SUBJECTS='env worker' python benchmarks/mutants.py map --tests tests/env, then run --results FILE

A mutant swaps a comparison or an operator, `and` and `or`, negates a condition, adds 1 to a number, negates a bool, or leaves
a statement out; every possible place has the same chance. Docstrings, messages, annotations and imports are not mutated. The
tests that call the mutant's function are run (outside of functions: tests that call any function of the module), the shortest
first, at most --limit-s seconds of them. The mutant is killed if one of them fails or hangs; otherwise it survives.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing.connection
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.abc import SourceLoader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import yaml

Change = Callable[[str], ast.Module]
REPO = Path(__file__).resolve().parents[1]
MAP, RESULTS = REPO / 'build' / 'mutants_map.json', REPO / 'benchmarks' / 'results' / 'mutants.json'
SUBJECTS = tuple(
    os.environ.get(
        'MUTANTS_SUBJECTS',
        'rl_utils policy/samples.py policy/ppo.py policy/passes.py worker/collector.py buffer run/checkpoint config',
    ).split()
)
ERRORS = REPO / 'benchmarks' / 'errors.yaml'
LEFT_OUT = ('kernels', '__init__.py')
_FORKS, _LOCK = multiprocessing.get_context('forkserver'), threading.Lock()
UNKNOWN_TEST = 4  # pytest's exit code, also if a module that all tests load cannot be imported

SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def subjects() -> list[Path]:
    """The files that are mutated."""
    files = [
        file
        for name in SUBJECTS
        for file in ([REPO / 'zoo' / name] if '.py' in name else (REPO / 'zoo' / name).rglob('*.py'))
    ]
    return sorted(file for file in files if not any(part in LEFT_OUT for part in file.parts))


# -- mutants ---------------------------------------------------------------------------------------------------------------


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yields each node that can be changed, with the kind of the change."""
    skipped = {id(node) for each in ast.walk(tree) for node in _unread(each)}
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if id(node) in skipped:
            continue
        todo += ast.iter_child_nodes(node)
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPS:
            yield node, 'comparison'
        elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in SWAPS:
            yield node, 'operator'
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            yield node, 'constant'
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield node, 'condition'
        if isinstance(node, ast.Assign | ast.AugAssign | ast.Raise) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ):
            yield node, 'left out'


def _unread(node: ast.AST) -> list[ast.AST]:
    """Parts of a node that are not mutated: annotations, code for type checkers, imports and f-strings."""
    found: list[Any] = [getattr(node, 'annotation', None), getattr(node, 'returns', None)]
    if isinstance(node, ast.If) and ast.unparse(node.test) == 'TYPE_CHECKING':
        found.append(node)
    if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom):
        found.append(node)
    return [each for each in found if each is not None]


def mutate(node: Any, kind: str) -> None:
    """Changes a node of a tree in place."""
    if kind == 'comparison':
        node.ops = [SWAPS[type(node.ops[0])]()]
    elif kind == 'operator':
        node.op = SWAPS[type(node.op)]()
    elif kind == 'constant':
        node.value = (not node.value) if isinstance(node.value, bool) else node.value + 1
    elif kind == 'condition':
        node.test = ast.UnaryOp(ast.Not(), node.test)
    else:
        where = {key: getattr(node, key) for key in ('lineno', 'col_offset', 'end_lineno', 'end_col_offset')}
        node.__class__ = ast.Pass
        vars(node).clear()
        vars(node).update(where)


def draw(n: int, seed: int, only: Sequence[str]) -> list[dict[str, Any]]:
    """n mutants in random order: file, number of the place, kind, line, function and text of the code."""
    found: list[dict[str, Any]] = []
    for file in subjects():
        name = str(file.relative_to(REPO / 'zoo'))
        if only and not any(word in name for word in only):
            continue
        tree = ast.parse(file.read_text())
        spans = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for i, (node, kind) in enumerate(places(tree)):
            line: int = getattr(node, 'lineno')  # noqa: B009 - ast.AST has none
            around = [each for each in spans if each.lineno < line <= (each.end_lineno or 0)]
            function = max(around, key=lambda each: each.lineno).name if around else ''
            text = ast.unparse(node).splitlines()[0]
            found.append(
                {'file': name, 'place': i, 'kind': kind, 'line': line, 'function': function, 'text': text[:90]}
            )
    random.Random(seed).shuffle(found)
    return found[:n]


def mutated(text: str, place: int) -> ast.Module:
    """The syntax tree of a file's text with a change at one of its `places`."""
    tree = ast.parse(text)
    mutate(*list(places(tree))[place])
    return ast.fix_missing_locations(tree)


def replaced(text: str, before: str, after: str) -> ast.Module:
    """The syntax tree of a file's text with `before` replaced by `after`. Raises: SystemExit unless `before` occurs once."""
    if text.count(before) != 1:
        raise SystemExit(f'{ERRORS} names {before!r}, which is {text.count(before)} times in its file')
    return ast.parse(text.replace(before, after))


class _Mutated(SourceFileLoader):
    """Import loader of one module that changes its code."""

    def __init__(self, name: str, path: str, change: Change) -> None:
        super().__init__(name, path)
        self._change = change

    def get_code(self, fullname: str) -> Any:
        return compile(self._change(Path(self.path).read_text()), self.path, 'exec')


class _Finder:
    """Import finder of the mutated module; it comes before the usual finders."""

    def __init__(self, module: str, change: Change) -> None:
        self._module, self._change = module, change

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._module:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None and isinstance(spec.loader, SourceLoader) and spec.origin is not None
        spec.loader = _Mutated(name, spec.origin, self._change)
        return spec


# -- commands --------------------------------------------------------------------------------------------------------------


def make_map(n_job: int, tests: Sequence[str]) -> None:
    """Runs the tests of `make test` with a trace of calls; writes which test called which function, and its seconds."""
    MAP.parent.mkdir(exist_ok=True)
    for old in MAP.parent.glob('mutants_map.*.part'):
        old.unlink()
    options = f'-q -p mutants_trace -n {n_job} --dist worksteal'.split()
    words = ['-m', 'pytest', *options, '-m', 'not long', *tests]
    subprocess.run([sys.executable, *words], cwd=REPO, env=_env(MUTANTS_MAP=str(MAP)), check=False)
    calls, seconds = defaultdict(list), {}
    for part in MAP.parent.glob('mutants_map.*.part'):
        for test, (took, called) in json.loads(part.read_text()).items():
            seconds[test] = took
            for function in called:
                calls[function].append(test)
        part.unlink()
    MAP.write_text(json.dumps({'calls': calls, 'seconds': seconds}))
    print(f'{len(seconds)} tests, {len(calls)} functions: {MAP}')


def _env(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(REPO), str(REPO / 'benchmarks')])
    return {**os.environ, 'OMP_NUM_THREADS': '1', 'PYTHONPATH': path, **more}


def tests_of(mutant: dict[str, Any], found: dict[str, Any], limit_s: float) -> list[str]:
    """The tests that call the mutant's function, the shortest first, as many as fit into limit_s seconds."""
    prefix = mutant['file'] + ':'
    if mutant['function']:
        tests = set(found['calls'].get(prefix + mutant['function'], ()))
    else:
        tests = {test for name, each in found['calls'].items() if name.startswith(prefix) for test in each}
    chosen, total = [], 0.0
    for test in sorted(tests, key=lambda each: (found['seconds'][each], each)):
        total += found['seconds'][test]
        if total > limit_s:
            break
        chosen.append(test)
    return chosen


def verdict(mutant: dict[str, Any], tests: Sequence[str], limit_s: float) -> str:
    """Tests a mutant: 'killed', 'survived', or 'no test'.

    Raises: SystemExit if pytest does not know a test even with the unmodified code.
    """
    if not tests:
        return 'no test'
    module = 'zoo.' + mutant['file'].removesuffix('.py').replace('/', '.')
    code = _exit_code(module, mutant['place'], tests, limit_s)
    if code == UNKNOWN_TEST and _exit_code(None, 0, tests, limit_s) == UNKNOWN_TEST:
        raise SystemExit(
            f'{MAP} names a test that is not there any more; make it again: python benchmarks/mutants.py map'
        )
    return 'survived' if code == 0 else 'killed'


def _exit_code(module: str | None, place: int, tests: Sequence[str], limit_s: float) -> int | None:
    """Exit code of pytest in a process of its own, forked from one that has the libraries loaded; None if it hung."""
    process: Any = _FORKS.Process(target=_test_one, args=(module, place, tests))
    with _LOCK:  # of two threads that ask for the same end of a process, one would get a wrong code
        process.start()
    hangs = not multiprocessing.connection.wait([process.sentinel], 3 * limit_s + 60)
    if hangs:
        os.killpg(process.pid, signal.SIGKILL)
    with _LOCK:
        process.join()
    return None if hangs else int(process.exitcode)


def _test_one(module: str | None, place: int, tests: Sequence[str]) -> None:
    """Runs tests and exits with pytest's code; `module` is mutated unless it is None."""
    os.setsid()  # a hanging test is killed with its children
    os.chdir(REPO)
    multiprocessing.set_start_method(None, force=True)  # the tests' own processes start as everywhere else
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    if module is not None:
        sys.meta_path.insert(0, _Finder(module, partial(mutated, place=place)))  # type: ignore[arg-type]
    import pytest

    sys.exit(int(pytest.main(['-x', '-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', *tests])))


def run(n: int, seed: int, n_job: int, limit_s: float, only: Sequence[str], results: Path) -> None:
    """Tests mutants that are not in the results yet, and writes the results after each."""
    if not MAP.exists():
        raise SystemExit(f'{MAP} is not there; make it first: python benchmarks/mutants.py map')
    os.environ.update(_env())
    _FORKS.set_forkserver_preload(['torch', 'gymnasium', 'pydantic', 'easydict', 'yaml', 'tensorboardX', 'pytest'])
    found, done = json.loads(MAP.read_text()), _verdicts(results)
    known = {_key(each) for each in done}
    todo = [each for each in draw(n, seed, only) if _key(each) not in known]

    def one(mutant: dict[str, Any]) -> dict[str, Any]:
        return {**mutant, 'verdict': verdict(mutant, tests_of(mutant, found, limit_s), limit_s)}

    with ThreadPoolExecutor(n_job) as pool:
        for tested in pool.map(one, todo):
            done.append(tested)
            lines = ',\n '.join(json.dumps(each) for each in sorted(done, key=_key))
            results.write_text(f'[\n {lines}\n]\n')
            print(f'{len(done)} {tested["file"]}:{tested["line"]} {tested["verdict"]}', flush=True)


def run_errors(n_job: int, only: Sequence[str]) -> None:
    """Runs the tests of each deliberate error; prints how many notice it, and a failing test whose name says what broke.

    Raises: SystemExit at the end, with code 1 if for some error no failing test's name matches the error's `named`.
    """
    errors = [
        each for each in yaml.safe_load(ERRORS.read_text()) if not only or any(word in each['what'] for word in only)
    ]

    def one(error: dict[str, str]) -> list[str]:
        words = [sys.executable, __file__, 'error', '--only', error['what']]
        done = subprocess.run(words, cwd=REPO, env=_env(), capture_output=True, text=True, check=False)
        found = re.findall(r'^(?:FAILED|ERROR) \S+::(\S+)', done.stdout, re.MULTILINE)
        return sorted(found, key=lambda test: not re.search(error['named'], test))

    n_missed = 0
    with ThreadPoolExecutor(n_job) as pool:
        for error, found in zip(errors, pool.map(one, errors), strict=True):
            is_named = any(re.search(error['named'], test) for test in found[:1])
            n_missed += not is_named
            print(
                f'{error["what"]}: {len(found)} tests notice it, {found[0] if is_named else "none by name"}', flush=True
            )
    print(f'{len(errors) - n_missed} of {len(errors)} noticed')
    sys.exit(n_missed > 0)


def test_error(what: str) -> int:
    """Runs the tests of one deliberate error in this process, with the error in the code."""
    error = next(each for each in yaml.safe_load(ERRORS.read_text()) if each['what'] == what)
    module = 'zoo.' + error['file'].removesuffix('.py').replace('/', '.')
    change = partial(replaced, before=error['before'], after=error['after'])
    sys.meta_path.insert(0, _Finder(module, change))  # type: ignore[arg-type]
    import pytest

    words = ['-q', '--maxfail=30', '-p', 'no:cacheprovider', '-p', 'no:xdist', '-m', 'not long']
    return int(pytest.main([*words, *error['tests'].split()]))


def _verdicts(results: Path) -> list[dict[str, Any]]:
    return json.loads(results.read_text()) if results.exists() else []


def _key(mutant: dict[str, Any]) -> tuple[str, int, str]:
    return mutant['file'], mutant['line'], f'{mutant["kind"]} {mutant["place"]}'


def report(results: Path) -> None:
    """Prints the share of mutants killed in each room, then the survivors."""
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for each in _verdicts(results):
        name = next(name for name in SUBJECTS if each['file'].startswith(name))
        for key in (name, 'all'):
            rooms[key][each['verdict']] += 1
    for name, count in rooms.items():
        print(f'{name:<26} {count["killed"]:>4} of {count.total():>4} killed, {count["killed"] / count.total():.3f}')
    for each in _verdicts(results):
        if each['verdict'] != 'killed':
            print(f'{each["verdict"]}: zoo/{each["file"]}:{each["line"]} {each["kind"]}: {each["text"]}')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('command', choices=('map', 'run', 'report', 'errors', 'error'))
    parser.add_argument('--n', type=int, default=600, help='mutants')
    parser.add_argument('--seed', type=int, default=0, help='of their draw')
    parser.add_argument('--jobs', type=int, default=2, help='processes at once, each of one thread')
    parser.add_argument('--limit-s', type=float, default=60.0, help='seconds of tests for a mutant')
    parser.add_argument(
        '--only', nargs='+', default=[], metavar='WORD', help='files whose names have one of these words'
    )
    parser.add_argument('--tests', nargs='+', default=[], help='that are traced; all')
    parser.add_argument('--results', type=Path, default=RESULTS, metavar='FILE', help='file of the verdicts')
    args = parser.parse_args()
    if args.command == 'error':
        sys.exit(test_error(*args.only))
    if args.command == 'errors':
        run_errors(args.jobs, args.only)
    if args.command == 'map':
        make_map(args.jobs, args.tests)
    elif args.command == 'run':
        run(args.n, args.seed, args.jobs, args.limit_s, args.only, args.results)
    report(args.results) if args.command != 'map' else None


if __name__ == '__main__':
    main()
