"""Measures the shape of the code itself: rooms and their imports, the traced reading path, lines of code, of variants.

    python benchmarks/structure.py [rooms | path | lines | variants]        # all without a name

A room is a folder of zoo/ (with its subfolders), or a file directly in zoo/; `__main__.py`, which only calls the command,
belongs to cli. An import may go within a room or to a room of a lower layer; annotations count (`if TYPE_CHECKING:` too).
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))  # the zoo that is traced is the one beside this file, whichever is installed
LAYERS: tuple[tuple[str, ...], ...] = (
    ('core',),
    ('config', 'rl_utils'),
    ('model', 'buffer'),
    ('backend',),
    ('policy', 'env'),
    ('worker',),
    ('cluster',),
    ('run',),
    ('pipeline', 'results'),
    ('sweep',),
    ('cli', '__init__'),
)
"""The rooms from the ground up: a room imports from lower layers only, never from its own layer or a higher one."""


def imported_modules(path: Path) -> Iterator[str]:
    """Dotted names of the modules that a file imports, in functions and for type checkers too."""
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f'{path}:{node.lineno}: relative import; the code imports by full name')
            yield node.module or ''
            if node.module == 'zoo':
                yield from (f'zoo.{alias.name}' for alias in node.names)


def room_of(module: str) -> str:
    """'zoo.policy.ppo' -> 'policy'; '' for a module that is not of zoo, or zoo itself."""
    parts = module.split('.')
    return parts[1] if parts[0] == 'zoo' and len(parts) > 1 else ''


def room_imports() -> dict[tuple[str, str], list[str]]:
    """{(importing room, imported room): the imports, as 'file imports module'}, between different rooms of zoo/."""
    root, found = REPO / 'zoo', {}
    for path in sorted(root.rglob('*.py')):
        room = room_of_file(path)
        for module in imported_modules(path):
            target = room_of(module)
            is_room = (root / target).is_dir() or (root / f'{target}.py').exists()
            if target and is_room and target != room:
                found.setdefault((room, target), []).append(f'{path.relative_to(REPO)} imports {module}')
    return found


def rooms() -> list[str]:
    """The rooms that exist."""
    return sorted({room_of_file(path) for path in (REPO / 'zoo').rglob('*.py')})


def upward_imports() -> list[str]:
    """Imports from a room to another one of its own layer or of a higher one; none of them may exist."""
    level = {room: i for i, layer in enumerate(LAYERS) for room in layer}
    return [line for (room, target), lines in room_imports().items() if level[target] >= level[room] for line in lines]


def circles() -> list[list[str]]:
    """Groups of rooms that import each other in a circle."""
    arrows: dict[str, set[str]] = {room: set() for room in rooms()}
    for room, target in room_imports():
        arrows[room].add(target)

    def reached(start: str) -> set[str]:
        seen, queue = set(), [start]
        while queue:
            for target in arrows[queue.pop()] - seen:
                seen.add(target)
                queue.append(target)
        return seen

    inside = {room: frozenset(other for other in reached(room) if room in reached(other)) for room in arrows}
    return [sorted(group) for group in set(inside.values()) if group]


LEFT_OUT = {
    'zoo/run/logger.py': 'logging',
    'zoo/run/report.py': 'logging: times and rows of the log',
    'zoo/worker/episodes.py': 'logging: returns of episodes',
    'zoo/policy/metrics.py': 'logging: how well the critic fits',
    'zoo/config/section.py': 'config access',
    'zoo/config/schedule.py': 'config access: values of schedules',
    'zoo/run/threads.py': 'thread settings',
}
"""Files that the reading path leaves out, with the reason."""


def traced_path(policy: str = 'ppo') -> list[str]:
    """Files of zoo/ with code that runs between the first env.step and the change of the parameters, in reading order."""
    return list(traced_functions(policy))


def traced_functions(policy: str = 'ppo') -> dict[str, dict[str, int]]:
    """{file of `traced_path`: {function that runs: its lines}}, in reading order; what a function holds is part of it.

    One eager iteration of a small CartPole run is traced: the functions on the stack when the env steps, and all that
    are entered from then until the first `FlatAdam.step` returns (for 'ppg': until that of the auxiliary phase does).
    Functions of modules in LEFT_OUT are not counted.
    """
    import tempfile

    from zoo.rl_utils.optimizer import FlatAdam
    from zoo.run.config import resolve_config
    from zoo.run.job import SerialJob

    adam_step = inspect.unwrap(FlatAdam.step).__code__
    found: dict[str, dict[str, int]] = {}
    window = {'open': False, 'closed': False}
    is_ppg = policy == 'ppg'

    def note(frame: FrameType | None) -> None:
        name = frame.f_code.co_filename if frame is not None else ''
        if name.startswith(f'{REPO}/zoo/'):
            code = frame.f_code
            functions = found.setdefault(str(Path(name).relative_to(REPO)), {})
            name = getattr(code, 'co_qualname', code.co_name)  # Python 3.10 has no qualified names
            if '<' not in name:
                functions[name] = len(inspect.getsourcelines(code)[0])

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == 'call' and not window['closed']:
            if not window['open'] and code.co_name == 'step' and 'gymnasium' in code.co_filename:
                window['open'] = True
                stack = []
                while frame is not None:
                    stack.append(frame)
                    frame = frame.f_back
                for each in reversed(stack):
                    note(each)
            elif window['open']:
                note(frame)
        elif event == 'return' and code is adam_step:
            window['closed'] = not is_ppg or any(name.endswith('rl_utils/ppg.py') for name in found)

    learn = {'batch_size': 16, 'executor': 'eager'}
    if is_ppg:
        learn |= {'aux_freq': 1, 'aux_batch_size': 16, 'aux_train_epoch': 1}
    with tempfile.TemporaryDirectory() as folder:
        config = {
            'env': {'id': 'CartPole-v1', 'collector_env_num': 2, 'evaluator_env_num': 1},
            'policy': {'type': policy, 'learn': learn, 'collect': {'n_step': 8}, 'eval': {'n_episode': 1}},
            'logger': {'root': folder, 'console': 'off', 'tensorboard': False},
        }
        with SerialJob(resolve_config(config)) as job:
            sys.setprofile(watch)
            try:
                job.iteration()
            finally:
                sys.setprofile(None)
    return {name: functions for name, functions in found.items() if name not in LEFT_OUT}


def n_line(name: str) -> int:
    """Lines of a file of the repository."""
    return (REPO / name).read_text(encoding='utf-8').count('\n')


def report_path() -> None:
    paths = {policy: traced_functions(policy) for policy in ('ppo', 'ppg')}
    ppo = paths['ppo']
    n_run = sum(sum(functions.values()) for functions in ppo.values())
    print(
        f'reading path of ppo: {len(ppo)} files, {sum(map(n_line, ppo))} lines, {n_run} of them in functions that run'
    )
    for name, functions in ppo.items():
        print(f'  {n_line(name):>4} {sum(functions.values()):>4} {name}: {", ".join(functions)}')
    more = [name for name in paths['ppg'] if name not in ppo]
    print(f'ppg adds {len(more)} files, {sum(map(n_line, more))} lines: {", ".join(more)}')
    print(f'left out: {"; ".join(f"{name} ({why})" for name, why in LEFT_OUT.items())}')


def report_lines() -> None:
    counts: dict[str, int] = {}
    for path in sorted((REPO / 'zoo').rglob('*.py')):
        name = str(path.relative_to(REPO))
        place = 'kernels' if '/kernels/' in name else 'native' if '/native/' in name else room_of_file(path)
        counts[place] = counts.get(place, 0) + n_line(name)
    rest = sum(n for place, n in counts.items() if place not in ('kernels', 'native'))
    print(f'lines of zoo/ without kernels/ and native/: {rest}')
    for place, n in sorted(counts.items(), key=lambda item: -item[1]):
        print(f'  {n:>5} {place}')


VARIANTS = {
    'spo': (('spo',), r"'spo'"),
    'dna': (('distill', 'distill_step'), r"'dna'|distill|value_lambda|moves_critic"),
    'ppo_ewma, ppg_ewma': (
        ('ewma', 'averaged', 'reset_average', 'average_decay', '_average_decay'),
        r'ewma|_average|average[d_]',
    ),
    'ppg_reloaded': (('_overwrite', '_newest'), r'reloaded|is_ring|oldest|aux_window|aux_filled|_ring\b'),
    'hl_gauss': (
        ('_Histogram', 'HLGauss', 'predict_distribution', 'WideValueHead', '_distribution_error', 'n_output_of'),
        r'hl_gauss|value_logit|predict_distribution|n_output|\bn_value\b|is_outside|return_outside|_decode\b',
    ),
    'rnd': (('intrinsic.py',), r"'rnd'"),
}
"""For each variant what it alone brings: files, functions and classes by name, and what its other lines have in common."""
FAMILIES = {
    'a2c': (('a2c.py', 'a2c'), r"'a2c'"),
    'pg': (('pg.py',), r"'pg'"),
    'dqn': (('dqn.py',), '$^'),
    'transitions, step, losses and slow network of dqn': (('q_learning.py', 'check_n_return'), '$^'),
}
"""The same for other families of policies."""
VARIANT_ROOMS = ('policy', 'rl_utils', 'model')


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(path.read_text(encoding='utf-8'))))


@cache
def code_lines(path: Path) -> dict[int, str]:
    """{number: text} of the lines of a file that are neither blank, comment, docstring nor import."""
    text, left_out = path.read_text(encoding='utf-8'), set()
    for node in nodes_of(path):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, node.end_lineno + 1))
    lines = enumerate(text.split('\n'), 1)
    return {i: line for i, line in lines if line.strip() and line.strip()[0] != '#' and i not in left_out}


def variant_lines(names: tuple[str, ...], words: str) -> int:
    """Code lines of functions, classes and registrations that are a variant's own, and of other lines that have its words."""
    files = [x for room in VARIANT_ROOMS for x in (REPO / 'zoo' / room).rglob('*.py') if '/kernels/' not in str(x)]
    n = 0
    for path in files:
        own: set[int] = set(range(1, n_line(str(path)) + 1)) if path.name in names else set()
        for node in nodes_of(path):
            is_own = isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names
            if is_own or isinstance(node, ast.Expr | ast.Assign) and is_registration(node, words):
                own |= set(range(node.lineno, node.end_lineno + 1))
        n += sum(i in own or re.search(words, line) is not None for i, line in code_lines(path).items())
    return n


def is_registration(node: ast.Expr | ast.Assign, words: str) -> bool:
    """Whether it is a call of `with_updates` for a name that has the words."""
    call = node.value
    is_call = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == 'with_updates'
    return is_call and re.search(words, ast.unparse(call.args[0])) is not None


def lines_per_variant() -> float:
    """The mean over VARIANTS."""
    n_variant = sum(name.count(',') + 1 for name in VARIANTS)
    return sum(variant_lines(*found) for found in VARIANTS.values()) / n_variant


def report_variants() -> None:
    print(f'lines of code of a variant in zoo/{{{",".join(VARIANT_ROOMS)}}}: {lines_per_variant():.0f} on average')
    print('(without docstrings, comments, imports, and hooks that all parts of a kind share)')
    for title, group in (('', VARIANTS), ('other families:', FAMILIES)):
        print(title, end='\n' if title else '')
        for name, found in group.items():
            print(f'  {variant_lines(*found):>5} {name}')


def room_of_file(path: Path) -> str:
    """The room that a file of zoo/ lies in."""
    name = path.relative_to(REPO / 'zoo').parts[0].removesuffix('.py')
    return 'cli' if name == '__main__' else name


def report_rooms() -> None:
    arrows = room_imports()
    print(f'{len(rooms())} rooms, {len(arrows)} arrows between them, {sum(map(len, arrows.values()))} imports')
    print(f'upward imports: {len(upward_imports())}, circles: {len(circles())}')
    for line in upward_imports():
        print(f'  upward: {line}')
    for layer in reversed(LAYERS):
        for room in layer:
            targets = sorted(target for source, target in arrows if source == room)
            if room in rooms():
                print(f'  {room:<10} -> {", ".join(targets)}')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reports = {'rooms': report_rooms, 'path': report_path, 'lines': report_lines, 'variants': report_variants}
    parser.add_argument('what', nargs='?', choices=list(reports), help='default: all')
    what = parser.parse_args().what
    for name in [what] if what else reports:
        reports[name]()


if __name__ == '__main__':
    main()
