"""benchmarks/mutants.py: each mutant has one small error, and a test that fails kills it."""

from __future__ import annotations

import ast
from pathlib import Path

import mutants
import pytest
import yaml

TEXT = '''def f(x: int = 2) -> int:
    """A text."""
    if x < 3 and x:
        x += 1
    return x
'''
MUTANTS = {  # kind -> the changed lines that it may produce
    'constant': ['def f(x: int=3) -> int:', '    if x < 4 and x:', '        x += 2'],
    'condition': ['    if not (x < 3 and x):'],
    'operator': ['    if x < 3 or x:', '        x -= 1'],
    'comparison': ['    if x <= 3 and x:'],
    'left out': ['        pass'],
}


def changed(place: int) -> tuple[str, str]:
    tree = ast.parse(TEXT)
    node, kind = list(mutants.places(tree))[place]
    mutants.mutate(node, kind)
    now, was = ast.unparse(tree).splitlines(), ast.unparse(ast.parse(TEXT)).splitlines()
    return kind, next(new for new, old in zip(now, was, strict=True) if new != old)


def test_mutants_of_a_function_are_these() -> None:
    n = len(list(mutants.places(ast.parse(TEXT))))
    found = sorted(map(changed, range(n)))
    assert found == sorted((kind, line) for kind, lines in MUTANTS.items() for line in lines)


def test_deliberate_errors_are_of_code_that_is_there_once() -> None:
    errors = yaml.safe_load(mutants.ERRORS.read_text())
    counts = {each['what']: (mutants.REPO / 'zoo' / each['file']).read_text().count(each['before']) for each in errors}
    assert counts and set(counts.values()) == {1}, counts


def test_draw_is_the_same_for_a_seed_and_longer_ones_begin_with_it() -> None:
    files = ['rl_utils/gae.py', 'rl_utils/ppg.py']
    assert mutants.draw(5, 1, files) == mutants.draw(9, 1, files)[:5] != mutants.draw(5, 2, files)


def test_tests_of_a_mutant_are_those_that_call_its_function_the_shortest_first() -> None:
    found = {
        'calls': {'a.py:f': ['slow', 'quick'], 'a.py:g': ['other']},
        'seconds': {'slow': 5, 'quick': 1, 'other': 2},
    }
    assert mutants.tests_of({'file': 'a.py', 'function': 'f'}, found, 60) == ['quick', 'slow']
    assert mutants.tests_of({'file': 'a.py', 'function': ''}, found, 4) == ['quick', 'other']


@pytest.mark.soak
def test_verdict_of_gae_without_its_discount_is_killed_and_without_a_test_of_it_survived() -> None:
    drawn = mutants.draw(10_000, 0, ['rl_utils/gae.py'])
    mutant = next(each for each in drawn if each['kind'] == 'operator' and each['text'].startswith('gamma * lambda_'))
    tests = Path(__file__).parents[1] / 'rl_utils' / 'test_gae.py'
    assert mutants.verdict(mutant, [str(tests)], 60) == 'killed'
    assert mutants.verdict(mutant, [f'{tests}::test_normalize_advantage_by_hand'], 60) == 'survived'
    assert mutants.verdict(mutant, [], 60) == 'no test'
    with pytest.raises(SystemExit, match='names a test that is not there any more'):
        mutants.verdict(mutant, [f'{tests}::test_that_is_gone'], 60)


@pytest.mark.long
def test_verdict_is_that_of_the_tests_and_without_a_mutant_they_pass_as_elsewhere() -> None:
    by_hand = 'tests/rl_utils/test_gae.py::test_gae_by_hand'
    processes = 'tests/env/test_workers.py::test_worker_whose_env_stops_the_program_is_a_sentence'
    assert mutants._exit_code(None, 0, [by_hand, processes], 30) == 0
    found = [mutant for mutant in mutants.draw(100, 0, ['rl_utils/gae.py']) if mutant['function'] == 'advantage_of']
    assert 'killed' in {mutants.verdict(mutant, [by_hand], 30) for mutant in found[:5]}
    assert mutants.verdict(found[0], [], 30) == 'no test'
    with pytest.raises(SystemExit, match='names a test that is not there any more'):
        mutants.verdict(found[0], [f'{by_hand}_more'], 30)
