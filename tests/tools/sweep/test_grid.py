"""Grids of runs: what several values are, which combinations they make, and what is refused."""

import pytest

from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.tools.sweep.batch import grid_of


def names(*texts: str, **more: int) -> list[str]:
    return [member.name for member in grid_of(texts, **more)[0]]


def test_range_of_seeds_has_both_ends() -> None:
    members, fixed = grid_of(['seed=0..4', 'max_env_step=100'])
    assert [member.values for member in members] == [{'seed': str(k)} for k in range(5)]
    assert fixed == ['max_env_step=100']


def test_seeds_begin_with_the_given_one_and_replace_a_single_seed() -> None:
    members, fixed = grid_of(['seed=7'], seeds=2, first_seed=7)
    assert [member.overrides for member in members] == [['seed=7'], ['seed=8']] and fixed == []


def test_values_are_combined_with_seeds_changing_fastest() -> None:
    rate = 'policy.learn.learning_rate'
    members, _ = grid_of(['seed=0,1', f'{rate}=1e-3,3e-4'])
    assert [tuple(member.values.values()) for member in members] == [
        ('1e-3', '0'),
        ('1e-3', '1'),
        ('3e-4', '0'),
        ('3e-4', '1'),
    ]
    assert members[0].name == 'seed0_learning_rate=1e-3' and members[3].overrides == [f'{rate}=3e-4', 'seed=1']


@pytest.mark.parametrize(
    'text',
    [
        'policy.model.hidden_sizes=[64,64]',
        'env.kwargs={a: 1, b: 2}',
        'env.kwargs.x="a,b"',
        'exp_name=a,b',
        'policy.learn.learning_rate={start: 1e-3, end: 0}',
        'env.id=a..b',
    ],
)
def test_one_value_with_commas_stays_one(text: str) -> None:
    members, fixed = grid_of([text])
    assert len(members) == 1 and members[0].values == {} and fixed == [text]


def test_lists_are_values_too() -> None:
    assert [m.values for m in grid_of(['policy.model.hidden_sizes=[64,64],[256]'])[0]] == [
        {'policy.model.hidden_sizes': '[64,64]'},
        {'policy.model.hidden_sizes': '[256]'},
    ]


def test_folder_names_hold_no_other_letters() -> None:
    assert names('policy.model.hidden_sizes=[64, 64],[8]') == ['hidden_sizes=-64-64-', 'hidden_sizes=-8-']


@pytest.mark.parametrize(
    'texts, words',
    [
        (['seed=4..1'], r'seed=4..1 counts down, .* write seed=1..4'),
        (['seed=0,,1'], 'empty value; there are no spaces around commas: seed=0,1'),
        (['seed=0,1,0'], 'twice; write seed=0,1'),
        (['seed=0,00,1'], r'seed=0,00,1 has a value twice \(0 and 00 are equal\); write seed=0,1'),
        (['a.rate=1e-3,0.001'], r'\(1e-3 and 0.001 are equal\); write a.rate=1e-3'),
        (['a.n=1,1.0'], r'\(1 and 1.0 are equal\)'),
        (['a.sizes=[64,64],[64, 64]'], r'\[64, 64\] are equal'),
        (['a.b=none,null'], 'none and null are equal'),
        (['seed=1-4'], r'seed=1-4 is no range; write seed=1..4'),
        (['seed=1...4'], 'write seed=1..4'),
        (['seed=0..1', 'seed=2,3'], 'several values twice'),
        (['seed=0..100000'], '100,001 values'),
        (['seed=0..99', 'a.b=' + ','.join(map(str, range(20)))], '2,000 runs'),
    ],
)
def test_lists_without_meaning_are_refused(texts: list[str], words: str) -> None:
    with pytest.raises((ConfigError, UserError), match=words):
        grid_of(texts)


def test_two_ways_of_naming_seeds_are_refused() -> None:
    with pytest.raises(UserError, match='--seeds 3 and seed=0,1 both'):
        grid_of(['seed=0..1'], seeds=3)
    with pytest.raises(UserError, match='--seeds is 0'):
        grid_of([], seeds=0)


def test_values_that_look_alike_as_names_have_folders_of_their_own() -> None:
    found = names('env.kwargs.level=a/b,a-b,A-B,c')
    assert len({name.casefold() for name in found}) == 4 and found[3] == 'level=c'
    assert all(len(name) < 120 for name in names(f'env.kwargs.x={"a" * 300},{"b" * 300}'))


def test_range_of_one_seed_is_that_seed() -> None:
    assert grid_of(['seed=3..3']) == ([({}, '')], ['seed=3'])


@pytest.mark.parametrize('text', ['a.b=true,1', 'a.b="00","0"', 'a.b=x,X', 'a.b=0.1,0.10000000001', 'a.b=[1,2],[2,1]'])
def test_values_that_only_look_alike_are_two(text: str) -> None:
    assert len(grid_of([text])[0]) == 2


def test_last_values_of_a_key_count_as_for_single_overrides() -> None:
    assert grid_of(['a=1..3', 'b=5', 'a=2']) == ([({}, '')], ['b=5', 'a=2'])
    members, fixed = grid_of(['a=7', 'b=5', 'a=1..2'])
    assert [member.values for member in members] == [{'a': '1'}, {'a': '2'}] and fixed == ['b=5']
