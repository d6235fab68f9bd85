"""Measures the shape of the code itself: rooms and their imports, the traced reading path, lines of code.

    python benchmarks/structure.py [rooms | path | lines]        # all three without a name

A room is a folder of zoo/ (with its subfolders), or a file directly in zoo/. An import may go within a room or to a
room of a lower layer; annotations count (`if TYPE_CHECKING:` too).
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
LAYERS: tuple[tuple[str, ...], ...] = (
    ('core',),
    ('config', 'rl_utils'),
    ('model', 'buffer'),
    ('backend',),
    ('policy', 'env'),
    ('worker',),
    ('cluster',),
    ('run',),
    ('pipeline',),
    ('cli', '__init__', '__main__'),
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
        room = path.relative_to(root).parts[0].removesuffix('.py')
        for module in imported_modules(path):
            target = room_of(module)
            is_room = (root / target).is_dir() or (root / f'{target}.py').exists()
            if target and is_room and target != room:
                found.setdefault((room, target), []).append(f'{path.relative_to(REPO)} imports {module}')
    return found


def rooms() -> list[str]:
    """The rooms that exist."""
    root = REPO / 'zoo'
    names = {path.relative_to(root).parts[0].removesuffix('.py') for path in root.rglob('*.py')}
    return sorted(names)


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
    reports = {'rooms': report_rooms}
    parser.add_argument('what', nargs='?', choices=list(reports), help='default: all')
    what = parser.parse_args().what
    for name in [what] if what else reports:
        reports[name]()


if __name__ == '__main__':
    main()
