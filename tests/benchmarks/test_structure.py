"""The structure of the code, measured by benchmarks/structure.py: imports between rooms, the reading path, names.

No number of lines, files or statements is a goal; `structure.py` reports them.
"""

from __future__ import annotations

import ast
import operator
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import structure
from zoo.policy.slots import UpdateSlots


@pytest.fixture(scope='module', autouse=True)
def trees() -> Iterator[None]:
    """Frees the syntax trees of all files afterwards: half a million objects, which forks of later tests would scan."""
    yield
    structure.nodes_of.cache_clear()


def test_every_room_has_a_layer_and_there_are_at_most_17() -> None:
    layered = [room for layer in structure.LAYERS for room in layer]
    assert set(structure.rooms()) <= set(layered)
    assert len(structure.rooms()) <= 17


@pytest.mark.slow
def test_rooms_import_downward_only_and_they_and_their_files_in_no_circle() -> None:
    assert structure.upward_imports() == structure.circles() == structure.file_circles() == []


@pytest.mark.slow
def test_library_imports_no_tool() -> None:
    users = {name for name, targets in structure.file_imports().items() if any(map(is_tool, targets))}
    # zoo has the table of lazy names; zoo.__main__ is the command itself
    assert {name for name in users if not is_tool(name)} == {'zoo', 'zoo.__main__'}


def is_tool(name: str) -> bool:
    return name.split('.')[:2] == ['zoo', 'tools']


@pytest.mark.long
def test_training_loads_what_it_uses() -> None:
    names = structure.loaded_modules()
    command = {'zoo.tools', 'zoo.tools.cli', *(f'zoo.tools.cli.{name}' for name in ('command', 'parser', 'train'))}
    assert {name for name in names if is_tool(name)} <= command | {'zoo.tools.cli.choice', 'zoo.tools.cli.output'}
    assert len(names) > 50


@pytest.mark.slow
def test_no_module_is_a_slice_of_its_one_importer() -> None:
    assert structure.slices() == []


@pytest.mark.slow
def test_names_say_what_things_are() -> None:
    assert structure.repeated_classes() == {}
    assert structure.questions() == []
    assert structure.riddles() == []


@pytest.mark.slow
def test_configs_are_typed_and_few_values_are_any() -> None:
    assert structure.n_written(r'\bcfg: Any\b') == 0
    n_line = sum(structure.n_line(str(path)) for path in structure.modules().values())
    assert 1000 * structure.n_written(r': Any\b') / n_line < 7


@pytest.mark.slow
def test_code_is_unfolded() -> None:
    assert structure.places(structure.is_nested) == structure.places(structure.is_changing) == []
    whole, *rooms = structure.densities().values()
    assert _is_at_most(whole, 8, 3, 1)
    assert [room for room in rooms if not _is_at_most(room, 12, 5, 2)] == []


def _is_at_most(density: structure.Density, *limits: float) -> bool:
    rates = [density.per_thousand(field) for field in ('conditional', 'packed', 'walrus')]
    return all(map(operator.le, rates, limits))


def test_density_counts_each_kind_of_folded_code(tmp_path: Path) -> None:
    file = tmp_path / 'folded.py'
    file.write_text(
        'a = 1 if b else 2 if c else 3\n'  # two conditional expressions, one of them nested
        'd, e = 1, 2\n'  # packed
        'f, g = h()\n'  # the result of a function: not packed
        'if found := h():\n    pass\n'  # a walrus, and a name that says little
        'i = [x.append(1) for x in h()]\n'  # changes something
        'j = [x.copy() for x in h()]\n'
        'def k(own, each=0): return own\n'  # two more such names
    )
    density = structure.density_of([file])
    assert density == structure.Density(8, conditional=2, packed=1, walrus=1, nested=1, changing=1, vague=3)
    assert density.per_thousand('conditional') == 250  # 2 of 8 lines


def test_keys_of_options_are_found_in_code_but_not_in_docstrings(tmp_path: Path) -> None:
    file = tmp_path / 'step.py'
    file.write_text(
        '"""proximal"""\nstd = torch.std(x, correction=0)\nif cfg.precision == "fp16":\n    f("policy.learn.intrinsic")\n'
    )
    assert {'proximal', 'correction', 'precision', 'intrinsic', 'penalties', 'accumulate'} <= structure.option_keys()
    assert {'proximal', 'draw', 'baseline', 'stop_after', 'memory'} <= structure.slot_names()
    assert structure.slot_names().isdisjoint(
        {'correction', 'precision', 'intrinsic', 'inputs'}
    )  # inputs is a list, no slot
    found = [each.rpartition('/')[2] for each in structure.options_named([str(file)])]
    assert found == ['step.py:3 precision', 'step.py:4 intrinsic']


@pytest.mark.slow
def test_every_variant_and_family_of_policies_has_code() -> None:
    groups = structure.VARIANTS | structure.FAMILIES
    assert [name for name, found in groups.items() if not structure.variant_lines(*found)] == []


@pytest.mark.slow
@pytest.mark.parametrize('run', ['ppo', 'ppg', 'dqn', 'lstm'])
def test_the_path_from_env_step_to_new_parameters_is_as_documented_and_names_no_option(run: str) -> None:
    before = sys._getframe().f_trace
    path = structure.traced_path(run)
    if run == 'ppo':  # as CONTRIBUTING.md lists it
        page = (structure.REPO / 'CONTRIBUTING.md').read_text()
        listed = re.findall(r'`(zoo/[^`]*)`', page[page.index('<!-- path -->') : page.index('<!-- /path -->')])
        assert listed == list(path)
    assert sys._getframe().f_trace is before  # else the watch for hung env calls takes it for a debugger's
    assert len(path) > 10
    assert sum(len(traced.executed) for traced in path.values()) > 100
    if (
        run == 'ppo'
    ):  # slots have the names of the keys that fill them; no code asks whether one is filled by a certain option
        named = [use for use in structure.options_named(path) if use.split()[-1] not in UpdateSlots.__annotations__]
        assert named == []


@pytest.mark.slow
def test_ranks_say_their_number_themselves() -> None:
    found = structure.n_written(r'\branks\.size\b', skip=('core/ranks.py', 'cluster/', 'run/build.py'))
    assert found == 0


@pytest.mark.long
def test_tests_use_few_private_names_of_zoo() -> None:
    assert len(structure.private_names()) <= 14


@pytest.mark.parametrize(
    'use', ['engine._take(x)', "patch.setattr(engine, '_take', x)", 'from zoo.cluster import _take']
)
def test_private_name_is_found(use: str) -> None:
    assert '_take' in [name for node in ast.walk(ast.parse(use)) for name in structure.used_names(node)]


def test_a_ppo_object_has_few_methods() -> None:
    assert 50 < len(structure.methods_of_ppo()) <= 80
