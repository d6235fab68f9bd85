"""Structure of the code in numbers: rooms and their imports, the traced reading path, sizes, density, loads, names, variants.

    python benchmarks/structure.py [rooms [--files] | path | size | density [--files] | loads | names [--files] | variants]

All reports without a name.

A room is a folder of zoo/ (with its subfolders), or a file directly in zoo/; `__main__.py`, which only calls the command,
belongs to tools. A file may import from its own room and from rooms of lower layers. `if TYPE_CHECKING:` imports count too.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, NamedTuple

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))  # traces the zoo of this checkout, even if another one is installed
LAYERS: tuple[tuple[str, ...], ...] = (
    ('core', 'client'),
    ('config', 'rl_utils'),
    ('model', 'buffer'),
    ('backend',),
    ('policy', 'env'),
    ('worker',),
    ('agents',),
    ('cluster',),
    ('run',),
    ('pipeline',),
    ('tools',),
    ('__init__',),
)
"""The rooms in layers, the lowest first: a room imports from other rooms only if they are in lower layers."""


def imported_modules(path: Path) -> Iterator[str]:
    """Dotted names of the modules that a file imports, also within functions and for type checkers."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f'{path}:{node.lineno}: relative import; the code imports by full name')
            yield node.module or ''
            if node.module == 'zoo':
                yield from (f'zoo.{alias.name}' for alias in node.names)


def room_of(module: str) -> str:
    """The room of a module: 'zoo.policy.ppo' -> 'policy'; '' for zoo itself and for modules outside of zoo."""
    parts = module.split('.')
    return parts[1] if parts[0] == 'zoo' and len(parts) > 1 else ''


@cache
def room_imports() -> dict[tuple[str, str], list[str]]:
    """Imports between rooms: {(importing room, imported room): ['file imports module', ...]}."""
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
    """The rooms of zoo/, sorted."""
    return sorted({room_of_file(path) for path in (REPO / 'zoo').rglob('*.py')})


def upward_imports() -> list[str]:
    """Forbidden imports: from a room to another room of the same or a higher layer."""
    level = {room: i for i, layer in enumerate(LAYERS) for room in layer}
    return [line for (room, target), lines in room_imports().items() if level[target] >= level[room] for line in lines]


def circles() -> list[list[str]]:
    """Groups of rooms that import each other in a circle."""
    arrows: dict[str, set[str]] = {room: set() for room in rooms()}
    for room, target in room_imports():
        arrows[room].add(target)
    return groups_in_circles(arrows)


def groups_in_circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes of a directed graph that reach each other, each sorted. arrows: {node: its successors}."""

    def reached(start: str) -> set[str]:
        seen, queue = set(), [start]
        while queue:
            for target in arrows[queue.pop()] - seen:
                seen.add(target)
                queue.append(target)
        return seen

    every = {node: reached(node) for node in arrows}
    inside = {node: frozenset(other for other in every[node] if node in every[other]) for node in arrows}
    return sorted(sorted(group) for group in set(inside.values()) if group)


@cache
def modules() -> dict[str, Path]:
    """{dotted name: file} of zoo and all its modules; a folder's name is that of its `__init__.py`."""
    paths = sorted((REPO / 'zoo').rglob('*.py'))
    names = ('.'.join(path.relative_to(REPO).with_suffix('').parts).removesuffix('.__init__') for path in paths)
    return dict(zip(names, paths, strict=True))


@cache
def file_imports() -> dict[str, set[str]]:
    """{module: the modules of zoo that it imports}, also within functions and for type checkers; packages are modules."""
    found: dict[str, set[str]] = {}
    for name, path in modules().items():
        targets = found[name] = set()
        for node in nodes_of(path):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                each = {f'{node.module}.{alias.name}' for alias in node.names}
                targets |= each & set(modules()) or {node.module or ''}
        found[name] = (targets & set(modules())) - {name}
    return found


def file_circles() -> list[list[str]]:
    """Groups of modules within one room that import each other in a circle."""
    arrows = {
        name: {target for target in targets if room_of(target) == room_of(name)}
        for name, targets in file_imports().items()
        if room_of(name)
    }
    return groups_in_circles(arrows)


def slices() -> list[tuple[str, str]]:
    """(module, its importer) of modules under 100 lines that only one module imports, which is in the same room."""
    importers: dict[str, list[str]] = {}
    for name, targets in file_imports().items():
        for target in targets:
            importers.setdefault(target, []).append(name)
    return sorted(
        (name, importers[name][0])
        for name, path in modules().items()
        if path.name != '__init__.py'
        and len(importers.get(name, ())) == 1
        and room_of(importers[name][0]) == room_of(name)
        and not importers[name][0].endswith(FOUND_BY_REGISTRATION)
        and n_line(str(path)) < 100
    )


FOUND_BY_REGISTRATION = (
    'zoo.policy',
    'zoo.rl_utils',
    'zoo.env',
    'zoo.model',
    'zoo.buffer',
    'zoo.run.log',
    'zoo.tools.cli',
    'zoo.agents.games',
)
"""Modules that import components so that they are registered; a component that only they import is no slice."""


LEFT_OUT = {
    'zoo/run/log/logger.py': 'logging: times and rows of the log',
    'zoo/worker/infos.py': 'logging: numbers of episodes',
    'zoo/policy/metrics.py': 'logging: how well the critic fits',
    'zoo/config/section.py': 'config access',
    'zoo/config/schedule.py': 'config access: values of schedules',
    'zoo/run/resources.py': 'thread settings',
    'zoo/core/timer.py': 'logging: seconds of each part of a run',
}
"""Files that the reading path omits, with the reason."""


class Traced(NamedTuple):
    """The traced code of one file. functions: {name: its lines, inner functions included}; executed: line numbers."""

    functions: dict[str, int]
    executed: set[int]


PATHS: dict[str, dict[str, Any]] = {
    'ppo': {},
    'ppg': {'learn': {'aux_freq': 1, 'aux_batch_size': 16, 'aux_train_epoch': 1}},
    'dqn': {},
    'lstm': {'type': 'ppo', 'model': {'recurrent': {'cell': 'lstm'}}, 'learn': {'sequence': {'len': 8}}},
}
"""Traced runs: differences of the section `policy` from the defaults."""


def traced_path(run: str = 'ppo') -> dict[str, Traced]:
    """Files of zoo/ with code that runs from the first env.step to the first change of the parameters, in reading order.

    One eager iteration of a small CartPole run is traced: the functions on the stack when the env first steps, and all
    functions entered from then on until `FlatAdam.step` first returns (for 'ppg': until it returns in the auxiliary phase).
    Files in LEFT_OUT are not counted. Args: run: a key of PATHS.
    """
    import tempfile

    from zoo.config.section import plain
    from zoo.rl_utils.optimizer import FlatAdam
    from zoo.run.config import resolve_config
    from zoo.run.job import SerialJob

    adam_step = inspect.unwrap(FlatAdam.step).__code__
    found: dict[str, Traced] = {}
    window = {'open': False, 'closed': False}

    def note(frame: FrameType) -> None:
        code = frame.f_code
        if code.co_filename.startswith(f'{REPO}/zoo/'):
            traced = found.setdefault(str(Path(code.co_filename).relative_to(REPO)), Traced({}, set()))
            traced.executed.add(frame.f_lineno)
            name = getattr(code, 'co_qualname', code.co_name)  # Python 3.10 has no qualified names
            if '<' not in name and name not in traced.functions:
                traced.functions[name] = len(inspect.getsourcelines(code)[0])

    def watch(frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if event == 'call' and not window['open'] and code.co_name == 'step' and 'gymnasium' in code.co_filename:
            window['open'] = True
            stack = [frame]
            while (below := stack[-1].f_back) is not None:
                stack.append(below)
            for each in reversed(stack):
                note(each)
                each.f_trace = watch
        elif event in ('call', 'line') and window['open'] and not window['closed']:
            if event == 'line':
                note(frame)
        elif event == 'return' and code is adam_step and window['open']:
            window['closed'] |= run != 'ppg' or 'aux_step' in found['zoo/policy/ppg.py'].functions
        return watch

    changes = PATHS[run]
    with tempfile.TemporaryDirectory() as folder:
        policy = {'type': run, **changes, 'collect': {'n_step': 8}, 'eval': {'n_episode': 1}}
        policy['learn'] = {'batch_size': 16, **changes.get('learn', {})}
        if run != 'dqn':
            policy['learn']['executor'] = 'eager'
        config = {
            'env': {'id': 'CartPole-v1', 'collector_env_num': 2, 'evaluator_env_num': 1},
            'policy': policy,
            'logger': {'root': folder, 'console': 'off', 'tensorboard': False},
        }
        if run == 'dqn':
            config['buffer'] = {'type': 'replay', 'n_sample': 16}
        with SerialJob(resolve_config(plain(config))) as job:
            before = sys.gettrace()
            sys.settrace(watch)
            try:
                job.iteration()
            finally:
                sys.settrace(before)
                below = sys._getframe()
                while below is not None:  # these frames continue; a remaining trace function would look like a debugger
                    below.f_trace, below = None if below.f_trace is watch else below.f_trace, below.f_back
    return {name: traced for name, traced in found.items() if name not in LEFT_OUT and traced.functions}


def option_keys() -> set[str]:
    """The keys of the config that choose an update option, from the conditions in zoo/policy/options/__init__.py."""
    tree = ast.parse((REPO / 'zoo/policy/options/__init__.py').read_text())
    sections = ('learn', 'collect', 'objective')
    found = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and getattr(node.value, 'attr', '') in sections
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and getattr(node.func, 'attr', '') == 'get'
            and isinstance(node.args[0], ast.Constant)
        ):
            found.add(node.args[0].value)
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], 'id', '') == 'PLAIN':
            found |= set(ast.literal_eval(node.value))
    return found - {'get', 'options', 'common', 'n_value'}  # which are no keys, or those of a user


MECHANICS = {'accumulate', 'grad_clip_value', 'precision'}
"""Keys of `zoo.rl_utils.optimizer.Mechanics`, the one class of settings of the one optimiser."""


def slot_names() -> set[str]:
    """Names of the slots of an update, which options fill; a slot may have the name of the key that chooses its option."""
    tree = ast.parse((REPO / 'zoo/policy/slots.py').read_text())
    fields = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    return {ast.unparse(field.target) for field in fields if ast.unparse(field.annotation).startswith('Slot[')}


def options_named(names: Iterable[str]) -> list[str]:
    """'file:line key' of each use of an option's key in the code of some files: as a name, or in a string that is no docstring.

    Keys that are names of slots too do not count, nor those of the optimiser's mechanics in the optimiser itself.
    """
    keys = option_keys() - slot_names()
    found = []
    for name in names:
        tree = ast.parse((REPO / name).read_text())
        other = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
        for node in ast.walk(tree):  # functions and arguments of torch and numpy, as torch.std(correction=0)
            if isinstance(node, ast.Call) and ast.unparse(node.func).split('.')[0] in ('torch', 'np'):
                other |= {id(each) for each in (node.func, *node.keywords)}
        for node in ast.walk(tree):
            used = {getattr(node, field, None) for field in ('id', 'attr', 'arg', 'name')} & keys
            if id(node) in other:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                used = {key for key in keys if node.value == key or f'.{key}' in node.value}
            if name == 'zoo/rl_utils/optimizer.py':
                used -= MECHANICS
            found += [f'{name}:{getattr(node, "lineno", 0)} {key}' for key in sorted(used)]
    return sorted(found)


def n_line(name: str) -> int:
    """Lines of a file of the repository."""
    return (REPO / name).read_text(encoding='utf-8').count('\n')


def report_path() -> None:
    paths = {run: traced_path(run) for run in PATHS}
    for run, path in paths.items():
        n_run, n_executed = (
            sum(sum(x.functions.values()) for x in path.values()),
            sum(len(x.executed) for x in path.values()),
        )
        print(
            f'reading path of {run}: {len(path)} files, {sum(map(n_line, path))} lines, {n_run} of them in functions that '
            f'run, {n_executed} executed'
        )
        if run == 'ppo':
            for name, x in path.items():
                print(
                    f'  {n_line(name):>4} {sum(x.functions.values()):>4} {len(x.executed):>4} {name}: {", ".join(x.functions)}'
                )
            named = options_named(path)
            print(f'  keys of update options named in them: {len(named)}{"".join(f", {each}" for each in named)}')
        more = [name for name in path if name not in paths['ppo']]
        if more:
            print(f'  adds {len(more)} files, {sum(map(n_line, more))} lines: {", ".join(more)}')
    print(f'left out: {"; ".join(f"{name} ({why})" for name, why in LEFT_OUT.items())}')


class Size(NamedTuple):
    """Size of some files; statements are `ast.stmt` nodes, so that longer lines do not reduce their number."""

    n_line: int
    n_file: int
    n_statement: int


def size_of(paths: Iterable[Path]) -> Size:
    """The total size of some files."""
    paths = list(paths)
    n_statement = sum(isinstance(node, ast.stmt) for path in paths for node in nodes_of(path))
    return Size(sum(n_line(str(path)) for path in paths), len(paths), n_statement)


def is_tool(path: Path) -> bool:
    """Whether a file belongs to the room tools."""
    return room_of_file(path) == 'tools'


def sizes() -> dict[str, Size]:
    """The sizes of the library, which is zoo/ without the room tools, and of the room tools."""
    paths = list(modules().values())
    return {
        'library': size_of(path for path in paths if not is_tool(path)),
        'zoo/tools': size_of(path for path in paths if is_tool(path)),
    }


def report_size() -> None:
    for name, size in sizes().items():
        print(f'{name}: {size.n_line:,} lines, {size.n_file} files, {size.n_statement:,} statements')
    for room in rooms():
        size = size_of(path for path in modules().values() if room_of_file(path) == room)
        print(f'  {size.n_line:>6} {size.n_file:>4} {size.n_statement:>6} {room}')


class Density(NamedTuple):
    """How much of some code is folded into expressions: numbers of the expressions, and of names that say little.

    conditional: `a if c else b`. packed: `a, b = x, y`; unpacking the result of a function is none. walrus: `:=`. nested:
    conditional expressions with another one as a direct operand. changing: comprehensions and generators that call a method
    which changes its object. vague: variables and parameters with a name of VAGUE_NAMES.
    """

    n_line: int
    conditional: int
    packed: int
    walrus: int
    nested: int
    changing: int
    vague: int

    def per_thousand(self, field: str) -> float:
        """A number per 1,000 lines."""
        return 1000 * getattr(self, field) / max(self.n_line, 1)


VAGUE_NAMES = ('found', 'each', 'given', 'own', 'kept', 'got', 'said', 'words', 'meant')
"""Names that say where a value came from, not what it is."""
CHANGING_METHODS = (
    'add append appendleft clear close discard extend insert kill mkdir pop popleft push put remove reverse send setdefault sort '
    'terminate unlink update write'
).split()
"""Methods that usually change their object, and return nothing that a comprehension could want."""


def is_conditional(node: ast.AST) -> bool:
    """Whether a node is a conditional expression."""
    return isinstance(node, ast.IfExp)


def is_packed(node: ast.AST) -> bool:
    """Whether a node assigns several values of one line to several names."""
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)


def is_nested(node: ast.AST) -> bool:
    """Whether a node is a conditional expression with another one as a direct operand."""
    return isinstance(node, ast.IfExp) and any(map(is_conditional, (node.test, node.body, node.orelse)))


def is_changing(node: ast.AST) -> bool:
    """Whether a node is a comprehension or a generator that calls one of CHANGING_METHODS."""
    if not isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return False
    calls = [x for x in ast.walk(node) if isinstance(x, ast.Call) and isinstance(x.func, ast.Attribute)]
    return any(call.func.attr in CHANGING_METHODS for call in calls)  # type: ignore[attr-defined]


def is_vague(node: ast.AST) -> bool:
    """Whether a node is a variable that gets a value, or a parameter, with one of VAGUE_NAMES."""
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Store) and node.id in VAGUE_NAMES
    return isinstance(node, ast.arg) and node.arg in VAGUE_NAMES


def density_of(paths: Iterable[Path]) -> Density:
    """The density of some files."""
    paths = list(paths)
    nodes = [node for path in paths for node in nodes_of(path)]
    return Density(
        n_line=sum(n_line(str(path)) for path in paths),
        conditional=sum(map(is_conditional, nodes)),
        packed=sum(map(is_packed, nodes)),
        walrus=sum(isinstance(node, ast.NamedExpr) for node in nodes),
        nested=sum(map(is_nested, nodes)),
        changing=sum(map(is_changing, nodes)),
        vague=sum(map(is_vague, nodes)),
    )


def densities() -> dict[str, Density]:
    """The density of each room, and of 'zoo', all together."""
    paths = list(modules().values())
    by_room = {room: density_of(path for path in paths if room_of_file(path) == room) for room in rooms()}
    return {'zoo': density_of(paths), **by_room}


def density_line(name: str, density: Density) -> str:
    """A row of the report."""
    rates = ' '.join(f'{density.per_thousand(field):>6.1f}' for field in ('conditional', 'packed', 'walrus', 'vague'))
    return f'  {density.n_line:>6} {rates} {density.nested:>6} {density.changing:>8} {name}'


def report_density(files: bool = False) -> None:
    print(
        'per 1,000 lines: conditional expressions, packed assignments, walruses, names that say little; in all: nested'
    )
    print('conditional expressions, comprehensions and generators that change something')
    print('   lines   cond   pack walrus  vague nested changing')
    for name, density in densities().items():
        print(density_line(name, density))
    if files:
        by_file = {str(path.relative_to(REPO)): density_of([path]) for path in modules().values()}
        for name, density in sorted(by_file.items(), key=lambda item: -item[1].per_thousand('conditional')):
            print(density_line(name, density))


LOADED = """
import os, sys, tempfile
os.chdir(tempfile.mkdtemp())
from zoo.__main__ import main
sys.argv = ['zoo', 'train', 'cartpole_ppo', 'max_env_step=8192', 'logger.console=off']
main()
print('MODULES', *sorted(name for name in sys.modules if name.partition('.')[0] == 'zoo'))
"""


def loaded_modules() -> list[str]:
    """The modules of zoo that a short `zoo train cartpole_ppo` loads in a new process."""
    environment = {**os.environ, 'PYTHONPATH': str(REPO), 'OMP_NUM_THREADS': '1'}
    done = subprocess.run([sys.executable, '-c', LOADED], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.rpartition('MODULES ')[2].split()


def report_loads() -> None:
    names = loaded_modules()
    lines = sum(n_line(str(modules()[name])) for name in names)
    tools = [name for name in names if room_of(name) == 'tools']
    print(f'zoo train cartpole_ppo loads {len(names)} modules of zoo with {lines:,} lines')
    print(f'  of zoo/tools: {len(tools)}: {", ".join(tools)}')


def repeated_classes() -> dict[str, list[str]]:
    """{name: modules} of class names that are defined more than once in zoo/."""
    found: dict[str, list[str]] = {}
    for name, path in modules().items():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(name)
    return {name: where for name, where in found.items() if len(where) > 1}


def places(is_wanted: Callable[[ast.AST], bool]) -> list[str]:
    """Places (module:line) of the nodes in zoo/ of which a predicate holds, such as `is_nested`."""
    return [
        f'{name}:{getattr(node, "lineno", 0)}'
        for name, path in modules().items()
        for node in nodes_of(path)
        if is_wanted(node)
    ]


def questions() -> list[str]:
    """Modules and classes whose name begins with What, How, Which, When or Where."""
    names = [name.rpartition('.')[2] for name in modules()]
    names += [node.name for path in modules().values() for node in nodes_of(path) if isinstance(node, ast.ClassDef)]
    return [name for name in names if re.match(r'_?(what|how|which|when|where)(_|[A-Z]|$)', name, re.IGNORECASE)]


def riddles() -> list[str]:
    """Modules whose docstring begins with What, How, Which, When or Where."""
    texts = {name: ast.get_docstring(nodes_of(path)[0]) for name, path in modules().items()}
    return [name for name, text in texts.items() if re.match(r'(What|How|Which|When|Where)\b', text or '')]


def n_written(words: str, skip: Sequence[str] = ()) -> int:
    """Number of matches of a regular expression in zoo/, such as `: Any`. skip: prefixes of omitted files, as 'core/ranks.py'."""
    left_out = tuple(f'{REPO}/zoo/{name}' for name in skip)
    files = [path for path in modules().values() if not str(path).startswith(left_out)]
    return sum(len(re.findall(rf'{words}\b', path.read_text(encoding='utf-8'))) for path in files)


def methods_of_ppo() -> set[str]:
    """Names of the methods and properties of a PPO object, base classes included, special methods (__name) excluded."""
    from zoo.policy.ppo import PPOPolicy

    kinds = FunctionType, property, classmethod, staticmethod, cached_property
    classes = [each for each in PPOPolicy.__mro__ if each.__module__.startswith('zoo.')]
    found = {name for each in classes for name, x in vars(each).items() if isinstance(x, kinds)}
    return {name for name in found if not name.startswith('__')}


def private_names() -> list[str]:
    """Places in tests/ that use a private name of zoo/, except methods of Policy, which subclasses may override."""
    from zoo.policy.base import Policy

    nodes = [x for path in modules().values() for x in nodes_of(path)]
    stored = [x for x in nodes if isinstance(getattr(x, 'ctx', None), ast.Store)]
    defined = [x.name for x in nodes if isinstance(x, ast.FunctionDef | ast.ClassDef)]
    names = {*defined, *(getattr(x, 'attr', getattr(x, 'id', '')) for x in stored)} - {*vars(Policy), *dir(Size)}
    return [
        f'{path.relative_to(REPO)}:{node.lineno}: {name}'
        for path in sorted((REPO / 'tests').rglob('*.py'))
        for node in nodes_of(path)
        for name in used_names(node)
        if name in names and re.fullmatch('_[^_].*[^_]', name)
    ]


def used_names(node: ast.AST) -> list[str]:
    """Names that a node imports, or uses of an object other than self or cls: attributes, texts given to get/setattr."""
    if isinstance(node, ast.Attribute):
        return [] if getattr(node.value, 'id', '') in ('self', 'cls') else [node.attr]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(('setattr', 'getattr')):
        return [str(x.value).rpartition('.')[2] for x in node.args if isinstance(x, ast.Constant)]
    return [alias.name for alias in node.names] if isinstance(node, ast.ImportFrom) else []


def report_names(files: bool = False) -> None:
    print(f'methods of a PPO object: {len(methods_of_ppo())}')
    print(f'class names that exist twice: {len(repeated_classes())}')
    for name, where in repeated_classes().items():
        print(f'  {name}: {", ".join(where)}')
    print(f'modules and classes named as questions: {len(questions())} {" ".join(questions())}')
    print(f'modules that begin with a question: {len(riddles())} {" ".join(riddles())}')
    n_cfg, n_any = n_written(r'\bcfg: Any\b'), n_written(r': Any\b')
    print(f"'cfg: Any': {n_cfg}, ': Any': {n_any}")
    print(f'private names of zoo in tests/: {len(private_names())}')
    for place in private_names() if files else ():
        print(f'  {place}')
    print(f'modules with one importer, of the same room, under 100 lines: {len(slices())}')
    for name, importer in slices():
        print(f'  {name} <- {importer}')


VARIANTS = {
    'spo': (('spo',), r"'spo'"),
    'dna': (('distill', 'distill_step'), r"'dna'|distill|value_lambda|moves_critic"),
    'ppo_ewma, ppg_ewma': (
        ('ewma', 'averaged', 'reset_average', 'average_decay', '_average_decay'),
        r'ewma|_average|average[d_]',
    ),
    'ppg_reloaded': (('_newest',), r'reloaded|is_ring|oldest|aux_window|aux_filled|_ring\b'),
    'hl_gauss': (
        ('_Histogram', 'HLGauss', 'predict_distribution', 'WideValueHead', 'widened', 'n_output_of'),
        r'hl_gauss|value_logit|predict_distribution|n_output|\bn_value\b|is_outside|return_outside|_decode\b',
    ),
    'rnd': (('intrinsic.py',), r"'rnd'"),
}
"""Code of each variant: names of its own files, functions and classes; a regular expression for its other lines."""
FAMILIES = {
    'a2c': (('a2c.py', 'a2c'), r"'a2c'"),
    'pg': (('pg.py',), r"'pg'"),
    'dqn': (('dqn.py',), '$^'),
    'trpo, npg': (('trpo.py',), '$^'),
    'losses of dqn': (('q_target', 'q_error'), '$^'),
}
"""The same as VARIANTS, for other families of policies."""
VARIANT_ROOMS = ('policy', 'rl_utils', 'model')


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a file's syntax tree, the module itself first."""
    return list(ast.walk(ast.parse(path.read_text(encoding='utf-8'))))


@cache
def code_lines(path: Path) -> dict[int, str]:
    """{number: text} of the lines of a file that are not blank, comment, docstring or import."""
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
    """Number of a variant's code lines: own files, functions, classes and registrations, and other lines that match `words`."""
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
    """Whether a statement calls `with_updates` with a name that matches `words`."""
    call = node.value
    is_call = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == 'with_updates'
    return is_call and re.search(words, ast.unparse(call.args[0])) is not None


def lines_per_variant() -> float:
    """Mean number of code lines per variant of VARIANTS; a key with two names counts as two variants."""
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
    return 'tools' if name == '__main__' else name


def report_rooms(files: bool = False) -> None:
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
    if files:
        print(f'circles among the files of a room: {len(file_circles())}')
        for circle in file_circles():
            print(f'  {", ".join(circle)}')
        print('imports among the files of each room (from one module to another, folders not counted):')
        for room in rooms():
            print(f'  {n_inner_import(room):>4} {room}')


def n_inner_import(room: str) -> int:
    """Number of imports among the modules of a room, without `__init__.py` files, which only list the room's names."""
    inner = {name for name, path in modules().items() if room_of(name) == room and path.name != '__init__.py'}
    return sum(len(file_imports()[name] & inner) for name in inner)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    reports = {
        'rooms': report_rooms,
        'path': report_path,
        'size': report_size,
        'density': report_density,
        'loads': report_loads,
        'names': report_names,
        'variants': report_variants,
    }
    parser.add_argument('what', nargs='?', choices=list(reports), help='default: all')
    parser.add_argument(
        '--files', action='store_true', help='rooms: imports and circles; density: of each file; names: their places'
    )
    args = parser.parse_args()
    for name in [args.what] if args.what else reports:
        reports[name](args.files) if name in ('rooms', 'density', 'names') else reports[name]()


if __name__ == '__main__':
    main()
