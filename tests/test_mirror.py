"""Tests mirror the code: every module has a test file of its name in the same folder of tests/, and every test file a module."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
ZOO = REPO / 'zoo'
TESTS = REPO / 'tests'
OTHER_ROOTS = ('benchmarks', 'old_house')
"""Folders of tests/ that test no module of zoo/: scripts of benchmarks/, files that older versions wrote."""
WHOLE = {
    'test_docs.py': 'docs/',
    'test_examples.py': 'examples/',
    'test_forked.py': 'tests/forked.py',
    'test_mirror.py': 'tests/',
    'test_package.py': 'setup.py',
    'test_published.py': 'examples/',
    'policy/test_contract.py': 'zoo/policy/',
}
"""Test files of what is no module: {file: what it tests}."""


@functools.cache
def modules() -> dict[str, Path]:
    """{'policy/ppo': its file} of all modules but `__init__.py`, which list names, and `__main__.py`, which calls the command."""
    files = [path for path in ZOO.rglob('*.py') if path.name not in ('__init__.py', '__main__.py')]
    return {str(path.relative_to(ZOO).with_suffix('')): path for path in files}


def zoo_test_files() -> list[Path]:
    """Test files of zoo/, relative to tests/."""
    paths = (path.relative_to(TESTS) for path in TESTS.rglob('test_*.py'))
    return sorted(path for path in paths if path.parts[0] not in OTHER_ROOTS and str(path) not in WHOLE)


def module_of(test: Path) -> str | None:
    """The module that a test file is named after: itself, itself and a topic, or a folder of its name; None: there is none."""
    words = test.stem.removeprefix('test_').split('_')
    for n in range(len(words), 0, -1):
        name = str(test.parent / '_'.join(words[:n]))
        if name in modules():
            return name
    if str(test.parent) in modules():
        return str(test.parent)
    return None


def test_every_module_has_a_test_file_of_its_name() -> None:
    tested = {module_of(test) for test in zoo_test_files()}
    assert sorted(modules().keys() - tested) == []


def test_every_test_file_is_named_after_a_module() -> None:
    assert [str(test) for test in zoo_test_files() if module_of(test) is None] == []
    assert [name for name, what in WHOLE.items() if not (TESTS / name).exists() or not (REPO / what).exists()] == []


def test_no_test_imports_from_a_test_file() -> None:
    names = {path.stem for path in TESTS.rglob('test_*.py')}
    imports = [
        f'{path.relative_to(TESTS)}:{node.lineno}'
        for path in TESTS.rglob('*.py')
        for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
        if isinstance(node, ast.ImportFrom) and (node.module or '').rpartition('.')[2] in names
    ]
    assert imports == []
