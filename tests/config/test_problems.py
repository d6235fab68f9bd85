"""Messages for refused configs: the key that is meant, also by a key of another library, and the form of a value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.config.config_fuzz import all_kinds, fields_in
from tests.fuzz import run_fuzz
from tests.tables import are_said, is_said, refused, rows_of
from tests.tools.importers.foreign_keys import ROWS
from zoo.buffer import BufferConfig
from zoo.config.names import NoZooKey, ZooKey, data_file, in_context, look_up, names
from zoo.config.problems import unknown_key
from zoo.config.section import ConfigError, fields_of
from zoo.core.registry import BUFFER_REGISTRY
from zoo.run.config import explain_config, job_schema, resolve_config


class EvenConfig(BufferConfig):
    """The section of a user's buffer."""

    beat: int = 2


KNOWN = [path for path, _ in fields_of(job_schema({}))]
LEARN = [path.rsplit('.')[-1] for path in KNOWN if path.rpartition('.')[0] == 'policy.learn']


@pytest.mark.parametrize(
    'section, key, wanted',
    [
        ('policy.learn', 'learning_rat', 'did you mean policy.learn.learning_rate?'),
        ('policy.learn', 'Batch_Size', 'did you mean policy.learn.batch_size?'),
        ('policy.learn', 'gae_lambda', 'it belongs at policy.collect.gae_lambda.'),
        ('policy', 'learning_rate', 'it belongs at policy.learn.learning_rate.'),
        ('', 'learn', 'it belongs at policy.learn.'),
        ('', 'BATCH_SIZE', 'it belongs at policy.learn.batch_size.'),
        ('policy.learn', 'lrate', 'did you mean policy.learn.learning_rate, which has the name lr_rate elsewhere?'),
        ('', 'gama', 'did you mean policy.collect.discount_factor, which has the name gamma elsewhere?'),
        ('', 'stop_val', 'did you mean policy.eval.stop_value?'),
        ('policy.learn', 'sgd_minibatch_size', 'in zoo it is `policy.learn.batch_size`.'),
        ('', 'total_timesteps', 'in zoo it is `max_env_step`.'),
        ('', 'vf_coef', 'in zoo it is `policy.learn.value_weight`; twice as much as in stable-baselines3*'),
        ('policy.learn', 'learner', 'in zoo the run is the learner: *'),
        ('', 'multi_agent', 'zoo has no such key: an env of several agents names its agents*'),
        ('policy.learn', 'quux', f'the keys of policy.learn are {", ".join(LEARN)}.'),
        (
            'policy',
            'policy.learn.batch_size',
            "dotted names are for overrides only; write a nested dict: {'policy': {'learn': {'batch_size': ..}}}.",
        ),
    ],
)
def test_unknown_key_names_the_one_meant(section: str, key: str, wanted: str) -> None:
    siblings = [p.rsplit('.')[-1] for p in KNOWN if p.rpartition('.')[0] == section]
    path = f'{section}.{key}'.lstrip('.')
    shown = repr(path) if '.' in key else path
    assert is_said(f'unknown key {shown}: {wanted}', unknown_key(section, key, siblings, KNOWN))


# the name of a config and an override, or sections of a config
REFUSED = """
# keys that belong to another type
cartpole_ppg_offpolicy buffer.type=replay
    - unknown key buffer.policy: only buffer.type 'multi' has it; set that type, or leave the key out.
    - unknown key buffer.value: only buffer.type 'multi' has it; set that type, or leave the key out.
cartpole_ppo buffer.size=64
    - unknown key buffer.size: only buffer.type 'multi' or 'replay' has it; set that type, or leave the key out.
cartpole_ppg_offpolicy buffer.update_per_collect=3
    - unknown key buffer.update_per_collect: only buffer.type 'replay' has it; set that type, or leave the key out.
cartpole_ppg policy.learn.tau=0.1
    - unknown key policy.learn.tau: only policy.type 'dqn' has it; set that type, or leave the key out.
cartpole_ppo policy.model.arch=dual
    - unknown key policy.model.arch: only policy.model.type 'ppg' has it; set that type, or leave the key out.
cartpole_ppg policy.learn.epoch_per_collect=3
    - unknown key policy.learn.epoch_per_collect: only policy.type 'a2c', * or * others has it; did you mean
      policy.learn.actor_epoch_per_collect or policy.learn.critic_epoch_per_collect?
cartpole_ppg_offpolicy policy.eval.batch_size=9
    - unknown key policy.eval.batch_size: it belongs at policy.learn.batch_size.
cartpole_ppo env.policy=3
    - unknown key env.policy: it belongs at policy.
# options that belong to another component; those of components have no names of other libraries
cartpole_ppo policy.learn.surrogate={type: spo, slope: 0.3}
    - unknown key policy.learn.surrogate.slope: only surrogate 'rollback' has it; set that type, or leave the key out.
cartpole_ppo policy.collect.exploration.epsilon=0.1
    - unknown key policy.collect.exploration.epsilon: only exploration 'epsilon' or 'epsilon_greedy' has it; set that
      type, or leave the key out.
cartpole_ppo policy.learn.optimizer.lr=0.1
    - unknown key policy.learn.optimizer.lr: the keys of policy.learn.optimizer are betas, eps, type.
cartpole_ppo policy.learn.optimizer={type: sgd, betas: [0.5, 0.5]}
    - unknown key policy.learn.optimizer.betas: only optimizer 'adam', 'adamw' or 'muon' has it; set that type, or leave
      the key out.
cartpole_ppo policy.learn.surrogate={type: rollback, slop: 0.3}
    - unknown key policy.learn.surrogate.slop: did you mean policy.learn.surrogate.slope?
cartpole_ppo policy.learn.penalties=[{type: kl, batch_size: 3}]
    - unknown key policy.learn.penalties.batch_size: the keys of policy.learn.penalties are weight, target, min_weight,
      max_weight, type.
# a component that is a class
cartpole_ppo policy.learn.plasticity={type: l2_init, shrink: 0.5}
    - unknown key policy.learn.plasticity.shrink: only plasticity 'shrink_perturb' has it; set that type, or leave the
      key out.
# a value in place of a section
cartpole_ppo env=CartPole-v1
    - env is 'CartPole-v1' (string) but must be a dict with the keys id, *; write env: {id: CartPole-v1}.
cartpole_ppo policy=ppg
    - policy is 'ppg' (string) but must be a dict with the keys *; write policy: {type: ppg}.
cartpole_ppo policy.collect=4
    - policy.collect is 4 (integer) but must be a dict with the keys *exploration.
# a value in place of a list, or of a schedule; the last one has the form of rl-zoo3
{stop: {training_iteration: 3}}
    - *; write stop: [{type: iterations, n: 3}].
{stop: {time_total_s: 60, timesteps_total: 500}}
    - *; write stop: [{type: wall_time, s: 60}] and max_env_step: 500.
{stop: patience}
    - *; write stop: [{type: patience, n: ..}].
{stop: {patience: 5}}
    - *; write stop: [{type: patience, n: 5}].
{stop: {type: patience, n: 5}}
    - *; write stop: [{type: patience, n: 5}].
{stop: 'my_module:done'}
    - *; write stop: [my_module:done].
{stop: {quux: 3}}
    - *leave it out for [], the default*
{logger: {sinks: csv}}
    - *; write logger.sinks: [csv].
{logger: {sinks: {type: wandb}}}
    - *; write logger.sinks: [{type: wandb}].
{callbacks: 'my_module:Mine'}
    - *; write callbacks: [my_module:Mine].
{policy: {model: {hidden_sizes: 64}}}
    - *; write policy.model.hidden_sizes: [64].
{policy: {model: {hidden_sizes: {width: 64}}}}
    - policy.model.hidden_sizes is * (dict) but must be a list of one or more integers *; leave it out for [64, 64], *
{policy: {model: {hidden_sizes: null}}}
    - policy.model.hidden_sizes is null but must be a list of one or more integers *; leave it out for [64, 64], *
{policy: {model: {hidden_sizes: '64,64'}}}
    - *; write 'policy.model.hidden_sizes=[64,64]'.
{policy: {learn: {learning_rate: lin_2.5e-4}}}
    - *; write {start: 2.5e-4, end: 0}.
# a whole number in place of an integer; from 2^53 on it may have been another integer that was rounded
{max_env_step: 9007199254740991.0}
    - max_env_step is 9007199254740991.0 (number) but must be an integer >= 1; write 9007199254740991.
{max_env_step: 9007199254740992.0}
    - max_env_step is 9007199254740992.0 (number) but must be an integer >= 1; leave it out for 100000, the default.
"""


@pytest.mark.parametrize(('given', 'sentences'), rows_of(REFUSED))
def test_refused_config_is_told_the_key_or_the_form(given: Any, sentences: list[str]) -> None:
    if isinstance(given, dict):
        found = refused({'env': {'id': 'CartPole-v1'}, **given})
    else:
        name, _, override = given.partition(' ')
        found = refused(name, [override])
    assert are_said(sentences, found), found


def test_key_of_a_type_of_ones_own_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        """A buffer without the class attribute `config`."""

    monkeypatch.setitem(BUFFER_REGISTRY.entries, 'odd', Odd)
    monkeypatch.setitem(BUFFER_REGISTRY.entries, 'even', type('Even', (), {'config': EvenConfig}))
    assert refused('cartpole_ppo', ['buffer.beat=64']) == [
        "unknown key buffer.beat: only buffer.type 'even' has it; set that type, or leave the key out."
    ]


@pytest.mark.parametrize(
    'key, wanted',
    [
        ('policy.learn.surrogate', 'a name or {type: name, its options}'),
        ('policy.learn.intrinsic', 'a name or {type: name, its options} or null'),
        ('policy.learn.penalties', 'a list of names or {type: name, its options}'),
        ('policy.model.encoder', 'a name or {type: name, its options}'),
        ('env.kwargs', 'a section of your own keys'),
        ('exp_name', 'text'),
    ],
)
def test_values_of_components_are_described_as_names(key: str, wanted: str) -> None:
    (row,) = [row for row in explain_config('cartpole_ppo') if row.key == key]
    assert row.wanted == wanted


def test_all_problems_stand_in_a_line_each() -> None:
    lines = refused('cartpole_ppo', ['policy.learn.vf_coef=1', 'env.nope=2', 'seed=-1', 'policy.cuda=true'])
    assert sorted(line.split(' ')[0] for line in lines) == ['seed', 'unknown', 'unknown', 'unknown']


# --- configs changed at random ---


@pytest.mark.slow
def test_every_key_of_the_schema_is_changed() -> None:
    paths = {path for kinds in all_kinds() for path in fields_in(*kinds)}
    some = {'seed', 'env.window', 'policy.learn.aux_freq', 'policy.model.shared_encoder', 'buffer.value.max_use'}
    assert some <= paths and len(paths) > 100


@pytest.mark.soak
def test_no_config_ends_in_anything_but_a_sentence_or_a_run(tmp_path: Path) -> None:
    ends = run_fuzz('tests.config.config_fuzz', tmp_path, n=200, timeout=600)['ends']
    assert ends['trained'] > 20 and ends['refused'] > 20


# --- keys of other libraries ---


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
        ('policy.model.memory', 'in zoo it is `policy.model.recurrent`, written {cell: lstm, hidden_size: ..}'),
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
            'attention to the past is the cell trxl of `policy.model.recurrent`',
        ),
        ('input', '`zoo pretrain --demos FILE` imitates demonstrations first'),
        ('save_model', '`zoo export` writes a policy for other programs'),
        ('population', '`zoo evolve CONFIG --pop 8 --how evolution` trains a population of runs'),
        ('pop_size', '`zoo evolve CONFIG --pop 8 --how evolution` trains a population of runs'),
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
    of_other_types = {'update_per_collect', 'tau', 'policies'}  # zoo keys of sections with another meaning elsewhere
    assert {name for name in names() if '.' not in name} & last <= of_other_types
    assert not set(names()) & PATHS
