"""Messages for config keys of other libraries: the key of zoo, what replaces it in zoo, or why zoo has no such key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.tools.importers.foreign_keys import ROWS
from zoo.config.names import NoZooKey, ZooKey, data_file, in_context, look_up, names
from zoo.config.section import ConfigError, fields_of
from zoo.run.config import job_schema, resolve_config

TYPES = ('ppo', 'ppg', 'ppo_offpolicy', 'ppg_offpolicy', 'dqn')
PATHS = {path for name in TYPES for path, _ in fields_of(job_schema({'policy': {'type': name}}))}


def named_paths(text: str) -> Iterator[str]:
    """The zoo keys that a sentence of the table quotes, as `policy.type` or `policy.type=ppg`."""
    for quoted in re.findall('`([^`]*)`', text):
        if re.fullmatch(r'[a-z_]+(\.[a-z_]+)*(=.*)?', quoted):
            yield quoted.partition('=')[0]


def message(path: str, policy_type: str = 'ppo') -> str:
    """The error message for a config with this key; '' if it is a zoo key whose value is wrong."""
    config: dict[str, Any] = {'env': {'id': 'CartPole-v1'}, 'policy': {'type': policy_type}}
    node, (*parents, last) = config, path.split('.')
    for parent in parents:
        node = node.setdefault(parent, {})
    node[last] = None
    with pytest.raises(ConfigError) as error:
        resolve_config(config)
    (problem,) = [each for each in error.value.problems if each.startswith('unknown key ')] or ['']
    return problem


@pytest.mark.parametrize('library', sorted({row[0] for row in ROWS}))
def test_key_of_another_library_gets_its_right_word(library: str) -> None:
    for path, wanted in (row[1:] for row in ROWS if row[0] == library):
        assert_right_word(path, wanted)


def assert_right_word(path: str, wanted: str) -> None:
    policy_type, _, path = path.rpartition(': ')
    kind, _, word = wanted.rpartition(': ')
    policy_type = policy_type or ('ppg' if kind == 'ppg' else 'ppo')
    if word == 'key':
        assert path in {p for p, _ in fields_of(job_schema({'policy': {'type': policy_type}}))}
        return
    said = message(path, policy_type)
    assert ': the keys of ' not in said
    if not said.startswith(
        f'unknown key {path}:'
    ):  # the message is about its section; a converter asks for the key itself
        entry = look_up(path)
        assert entry is not None
        said = f'unknown key {path}: {entry.sentence()}'
    if kind in ('by', 'none'):
        assert word in said and ('zoo has no such key' in said) == (kind == 'none')
    else:
        assert word in PATHS and word in said
        ends = (f'in zoo it is `{word}`', 'it belongs at ', f'did you mean {word}?')
        assert said.partition(': ')[2].startswith(ends)


def test_every_path_that_a_sentence_names_is_a_key() -> None:
    named = {path for entry in set(names().values()) for path in named_paths(entry.sentence())}
    assert len(named) > 60 and named <= PATHS
    assert len({(library, path) for library, path, _ in ROWS}) > 154


@pytest.mark.parametrize(
    'entry', sorted({entry for entry in names().values() if isinstance(entry, ZooKey) and entry.forms}), ids=str
)
def test_forms_that_a_sentence_gives_are_taken(entry: ZooKey) -> None:
    for form in entry.forms:
        value = (
            form.replace('{start: ..,', '{start: 1e-3,').replace('low: ..', 'low: -10').replace('high: ..', 'high: 10')
        )
        value = value.replace('hidden_size: ..', 'hidden_size: 16').replace('{type: cnn, ..}', '{type: cnn}')
        space = 'Pendulum-v1' if entry.path == 'policy.model.distribution' else 'CartPole-v1'
        config = {'env': {'id': space}, 'policy': {'type': 'ppo'}}
        assert resolve_config(config, [f'{entry.path}={value}']) is not None


@pytest.mark.parametrize(
    ('path', 'words'),
    [
        ('vf_coef', 'in zoo it is `policy.learn.value_weight`; twice as much as in stable-baselines3 and Tianshou, '),
        ('vf_loss_coeff', 'in zoo it is `policy.learn.value_weight`; twice as much as in RLlib, '),
        ('vf_coeff', 'in zoo it is `policy.learn.value_weight`; as much as in rl8, with '),
        (
            'lr_schedule',
            'in zoo it is `policy.learn.learning_rate`, written {start: .., end: 0} or {start: .., kl_target',
        ),
        ('lr_schedule', '{points: [[0, 1e-3], [100000, 1e-4]]}'),
        ('unroll_len', 'in zoo a rollout is not cut into chunks: '),
        ('policy.eval.patience', 'in zoo it is `stop`, written [{type: patience, n: 5}]'),
        ('max_wall_time', 'in zoo it is `stop`, written [{type: wall_time, s: 3600}]'),
        ('logger.csv', 'in zoo it is `logger.sinks`, written [csv]'),
        ('evaluation_config', 'in zoo evaluations are greedy by `policy.eval.deterministic=true`'),
        ('epsilon', 'in zoo it is `policy.learn.clip_ratio`; exploration by epsilon-greedy is `policy.collect.eps`'),
        ('learning_starts', 'zoo has no such key: it belongs to value-based types; leave it out; for those of '),
        ('learning_starts', '`policy.type=dqn` see zoo config cartpole_dqn'),
        ('num_learners', 'in zoo it is `cluster.learner_num`; under Ray; without it `torchrun '),
        (
            'use_attention',
            'there is no attention; a memory is `policy.model.recurrent` with the cells lstm, gru and mingru',
        ),
        ('input', '`zoo pretrain --demos FILE` imitates demonstrations first'),
        ('save_model', '`zoo export` writes a policy for other programs'),
        ('population', '`zoo sweep` tries values of keys, `zoo compare` compares runs'),
        ('pop_size', '`zoo sweep` tries values of keys, `zoo compare` compares runs'),
        ('in_evaluation', '`policy.eval.env`'),
        ('env.max_num_envs', '`env.collector_env_num`'),
    ],
)
def test_sentence_has_the_factor_the_form_and_what_zoo_has_today(path: str, words: str) -> None:
    entry = look_up(path)
    assert entry is not None and words in entry.sentence() and entry.sentence().endswith('.')
    assert not words.startswith(('in zoo', 'zoo has')) or entry.sentence().startswith(words)


def test_look_up_takes_the_longest_end_of_a_path_in_any_case_and_the_entry_of_an_unknown_section() -> None:
    found = look_up('policy.eval.evaluator.eval_freq')
    assert found == look_up('evaluator.eval_freq') != look_up('eval.evaluator') and isinstance(found, ZooKey)
    assert look_up('policy.learn.learner.quux') == look_up('learn.learner')
    assert look_up('policy.learn.learner.quux', inside=False) is None
    assert look_up('CLIP_COEF') == look_up('clip_coef')
    assert look_up('quux') is None and look_up('policy.learn.quux') is None
    assert in_context('env.type') == look_up('env.type') and in_context('num_envs') is None


def test_table_has_all_three_kinds_each_name_once_in_lower_case_and_no_key_of_ours() -> None:
    assert {type(entry) for entry in names().values()} == {ZooKey, NoZooKey}
    others = {entry.sentence() for entry in names().values() if isinstance(entry, NoZooKey)}
    assert {words.partition(' ')[0] for words in others} == {'in', 'zoo'}
    table = data_file('zoo.config', 'names.yaml').values()
    words = [word for kind in table for x in kind for word in x['names'].split()]
    assert len(words) == len(set(words)) and all(word == word.lower() for word in words)
    last = {path.rsplit('.')[-1] for path in PATHS}
    of_other_types = {'update_per_collect', 'tau'}  # zoo keys of buffers and dqn with another meaning elsewhere
    assert {name for name in names() if '.' not in name} & last <= of_other_types
    assert not set(names()) & PATHS
