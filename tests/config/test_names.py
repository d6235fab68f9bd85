"""Config keys of other libraries."""

from __future__ import annotations

from zoo.config.names import NoZooKey, ZooKey, in_context, look_up, names


def test_longest_known_end_of_a_path_counts_and_case_is_ignored() -> None:
    contexts = [name for name in names() if '.' in name]
    assert contexts
    for name in contexts:
        assert look_up(f'outer.{name.upper()}') is names()[name]
        assert in_context(name) is names()[name]


def test_unknown_name_has_no_entry() -> None:
    assert look_up('no_library_has_this_name') is None
    assert in_context('no_library_has_this_name') is None


def test_key_in_a_known_section_gets_the_entry_of_the_section_unless_it_is_asked_alone() -> None:
    section = next(name for name in names() if '.' not in name)
    assert look_up(f'{section}.no_library_has_this_name') is names()[section]
    assert look_up(f'{section}.no_library_has_this_name', inside=False) is None


def test_sentence_names_key_forms_and_note() -> None:
    assert (
        ZooKey('a.b', ('[..]', '{x: ..}'), 'in steps').sentence()
        == 'in zoo it is `a.b`, written [..] or {x: ..}; in steps.'
    )
    assert ZooKey('a.b').sentence() == 'in zoo it is `a.b`.'
    assert NoZooKey('in zoo that is automatic').sentence() == 'in zoo that is automatic.'
