"""The whole config of a run: its layers, the errors for bad input, and the origin of each value."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from easydict import EasyDict
from pydantic import Field

import zoo.env
from tests.policy_envs import flat
from tests.tables import refused
from zoo.buffer import BufferConfig
from zoo.config.section import Config, ConfigError, Section, frozen, with_defaults
from zoo.config.source import bundled_configs
from zoo.config.yaml_io import save_yaml, storable
from zoo.core.registry import BUFFER_REGISTRY, MODEL_REGISTRY, POLICY_REGISTRY
from zoo.env import EnvConfig
from zoo.policy import PPOConfig, PPOLearnConfig, PPOPolicy
from zoo.policy.config import ActorCriticPolicyConfig, migrate_old_keys
from zoo.run.config import ConfigRow, explain_config, job_schema, resolve_config, resolve_policy

CARTPOLE = {'env': {'id': 'CartPole-v1'}}


def make_cartpole() -> Any:
    """A user's env function."""
    return zoo.env.make_env({'id': 'CartPole-v1'})


def with_value(key: str, value: Any) -> dict[str, Any]:
    """A config for CartPole with one value."""
    first, *inner = key.split('.')
    for name in reversed(inner):
        value = {name: value}
    return {**CARTPOLE, first: CARTPOLE['env'] | value if first == 'env' and inner else value}


def with_learn(**fields: Any) -> dict[str, Any]:
    return {**CARTPOLE, 'policy': {'learn': fields}}


@pytest.fixture
def nothing_is_made(monkeypatch):
    """Fails the test if an env or a network is constructed."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError('an env or a network was made')

    monkeypatch.setattr('gymnasium.make', fail)
    monkeypatch.setattr('gymnasium.make_vec', fail)
    monkeypatch.setattr(torch.nn.Module, '__init__', fail)


def test_resolve_outline_of_the_readme_keeps_every_value(nothing_is_made):
    policy = dict(
        type='ppo',
        device='auto',
        model=dict(type='vac', hidden_sizes=[64, 64], activation='tanh'),
        learn=dict(batch_size=256, epoch_per_collect=4, learning_rate=2.5e-4),
        collect=dict(n_step=128, discount_factor=0.99, gae_lambda=0.95),
        eval=dict(eval_freq=20_000, n_episode=10, stop_value=None),
    )
    env = dict(id='CartPole-v1', collector_env_num=8, evaluator_env_num=4)
    outline = dict(exp_name='cartpole_ppo', seed=0, max_env_step=100_000, env=env, policy=policy)
    config = resolve_config({**outline, 'checkpoint': {}, 'logger': {}})
    assert type(config) is Config and isinstance(config, EasyDict)
    assert (config.buffer.type, config.policy.collect.n_sample) == ('rollout', 1024)
    given = flat(outline)
    assert {path: x for path, x in flat(config).items() if path in given} == given


def test_resolve_defaults_are_those_of_the_registered_classes():
    config = resolve_config(CARTPOLE)
    assert config.policy.type == 'ppo' and config.policy.model.type == PPOPolicy.default_model() == 'vac'
    assert config.policy.learn.batch_size == PPOLearnConfig.model_fields['batch_size'].default
    assert config.policy.model.hidden_sizes == MODEL_REGISTRY.get('vac').config.model_fields['hidden_sizes'].default


@pytest.mark.slow(first=True)
@pytest.mark.parametrize('name', sorted(bundled_configs()))
def test_resolve_bundled_config_is_idempotent_and_survives_yaml(name, tmp_path):
    config = resolve_config(name)
    assert resolve_config(config) == config == resolve_config(config.to_dict())
    save_yaml(config, tmp_path / 'config.yaml')
    assert resolve_config(tmp_path / 'config.yaml') == config


@pytest.mark.parametrize(
    'learn',
    [
        {'learning_rate': {'start': 1e-3, 'end': 0}},
        {'learning_rate': {'points': [[0, 1e-3], [500, 0.0]]}},
        {'learning_rate': {'points': ((0, 1e-3), (500, 0.0))}},
        {'clip_ratio': 1},
        {'dual_clip': 3},
        {'target_kl': 0.01},
    ],
)
def test_resolve_is_idempotent_for_every_form_of_a_value(learn):
    config = resolve_config(with_learn(**learn))
    assert resolve_config(config.to_dict()) == config
    assert storable(config) == config.to_dict()


def test_resolve_leaves_its_source_alone():
    source = with_learn(learning_rate={'start': 1e-3, 'end': 0.0})
    before = copy.deepcopy(source)
    resolve_config(source, ['policy.learn.learning_rate.end=1e-4', 'policy.collect.n_step=32'], seed=3)
    assert source == before


def test_resolve_layers_default_user_override_argument():
    source = {**CARTPOLE, 'seed': 1, 'max_env_step': 5000, 'exp_name': 'user'}
    config = resolve_config(source, ['seed=2', 'max_env_step=1e4'], seed=3)
    assert (config.exp_name, config.max_env_step, config.seed) == ('user', 10_000, 3)
    assert resolve_config(source, seed=None).seed == 1
    assert resolve_config(source, seed=np.int64(7)).seed == 7
    assert resolve_config(source, seed=2**128 - 1).seed == 2**128 - 1  # the largest entropy of a numpy SeedSequence


@pytest.mark.parametrize(
    ('overrides', 'rate', 'epochs'),
    [
        (['learning_rate.end=1e-4'], {'start': 1e-3, 'end': 1e-4, 'over': 100_000}, 4),
        (['learning_rate.end=1e-4', '{epoch_per_collect: 2}'], {'start': 1e-3, 'end': 1e-4, 'over': 100_000}, 2),
        (['learning_rate=3e-4'], 3e-4, 4),
        (['learning_rate={points: [[0, 1e-3]]}'], {'points': [[0, 1e-3]], 'kind': 'linear'}, 4),
        (['{learning_rate: {points: [[0, 1e-3]]}}'], {'points': [[0, 1e-3]], 'kind': 'linear'}, 4),
    ],
)
def test_resolve_override_goes_into_the_section_that_is_there_and_replaces_a_schedule(overrides, rate, epochs):
    source = with_learn(batch_size=128, epoch_per_collect=4, learning_rate={'start': 1e-3, 'end': 0.0})
    words = [f'policy.learn{"=" if each.startswith("{") else "."}{each}' for each in overrides]
    config = resolve_config(source, [*words, 'env.kwargs.render_mode=none'])
    learn = config.policy.learn
    assert (learn.learning_rate, learn.batch_size, learn.epoch_per_collect) == (rate, 128, epochs)
    assert config.env.kwargs == {'render_mode': None}


def test_resolve_override_of_a_whole_section_may_change_its_type(monkeypatch):
    class OtherConfig(BufferConfig):
        size: int = Field(9, description='rows')

    class Other:
        config = OtherConfig

    monkeypatch.setitem(BUFFER_REGISTRY.entries, 'other', Other)
    assert resolve_config(CARTPOLE, ['buffer={type: other, size: 3}']).buffer == {'type': 'other', 'size': 3}
    assert resolve_config(CARTPOLE, ['buffer.type=other', 'buffer.size=1e2']).buffer == {'type': 'other', 'size': 100}
    assert resolve_config(CARTPOLE, buffer={'type': 'other'}).buffer == {'type': 'other', 'size': 9}


def test_resolved_sections_are_taken_by_the_classes_that_declare_them():
    config = resolve_config('cartpole_ppo', ['env.kwargs={sutton_barto_reward: true}']).read_only()
    assert EnvConfig.model_validate(dict(config.env)).kwargs == {'sutton_barto_reward': True}
    assert PPOConfig.model_validate(dict(config.policy)).learn.batch_size == config.policy.learn.batch_size


def test_resolve_env_function_is_kept_and_saved_by_name(tmp_path):
    config = resolve_config({'env': {'id': make_cartpole}})
    assert config.env.id is make_cartpole
    assert storable(config)['env']['id'] == f'{__name__}:make_cartpole'


def test_resolve_own_policy_adds_its_fields_to_the_section(monkeypatch):
    class MyLearnConfig(PPOLearnConfig):
        temperature: float = Field(1.0, gt=0, description='of my loss')

    class MyConfig(PPOConfig):
        learn: MyLearnConfig = MyLearnConfig()  # type: ignore[call-arg]

    class MyPolicy(PPOPolicy):
        config = MyConfig

    monkeypatch.setitem(POLICY_REGISTRY.entries, 'mine', MyPolicy)
    source = {**CARTPOLE, 'policy': {'type': 'mine', 'learn': {'batch_size': 64}}}
    config = resolve_config(source, ['policy.learn.temperature=2'])
    assert config.policy.type == 'mine' and config.policy.learn.temperature == 2.0
    assert refused({**CARTPOLE, 'policy': {'type': 'mine', 'learn': {'temperatur': 1}}}) == [
        'unknown key policy.learn.temperatur: did you mean policy.learn.temperature?'
    ]
    assert refused(with_learn(temperature=1.0))[0].startswith('unknown key policy.learn.temperature: ')  # not of ppo
    assert resolve_config(CARTPOLE, ['policy.type=mine']).policy.learn.temperature == 1.0


def test_resolve_registered_class_without_config_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(MODEL_REGISTRY.entries, 'bare', torch.nn.Linear)
    monkeypatch.setitem(MODEL_REGISTRY.places, 'bare', 'my_model:7')
    assert refused({**CARTPOLE, 'policy': {'model': {'type': 'bare'}}}) == [
        "model 'bare' of my_model:7 has no class attribute `config`; "
        'give it the Section class that declares its fields.'
    ]


# Errors for bad input, raised before any env or network is made

SCHEDULE = 'a number > 0 or {start, end, over} or {points, kind}'
NUMBER = f'{SCHEDULE} or {{start, kl_target, min, max, factor}}; leave it out for'
FOLDER = (
    'it must name a folder, not a path: 1 to 100 characters without / \\ : and no leading dot; '
    'use e.g. cartpole_ppo, and logger.root for its place.'
)


OLD_KEYS = [
    # policy.learn and policy.collect of the source, overrides, value_loss and exploration
    ('value_clip: true', '', 'clip', 'sample'),
    ('value_clip: true, value_loss: mse', '', 'clip', 'sample'),
    ('value_clip: false, value_loss: clip', '', 'clip', 'sample'),  # as resolved configs of earlier versions have it
    ('value_clip: true', 'policy.learn.value_clip=false', 'mse', 'sample'),
    ('value_loss: clip', 'policy.learn.value_clip=off', 'mse', 'sample'),
    ('value_loss: huber', 'policy.learn.value_clip=false', 'huber', 'sample'),
    ('', 'policy.learn.value_clip=on', 'clip', 'sample'),
    ('temperature: 3', '', 'mse', {'type': 'temperature', 'temperature': 3.0}),
    ('exploration: {type: temperature, temperature: 3.0}', 'policy.collect.temperature=1', 'mse', 'sample'),
    ('temperature: 3', 'policy.collect.temperature=.5', 'mse', {'type': 'temperature', 'temperature': 0.5}),
    ('temperature: 1.0, exploration: epsilon', '', 'mse', 'epsilon'),
    ('', 'policy.learn.value_loss=clip policy.learn.value_clip=false', 'clip', 'sample'),  # both in one command
    ('value_loss: {type: clip, range: .2}', 'policy.learn.value_clip=false', {'type': 'clip', 'range': 0.2}, 'sample'),
]


@pytest.mark.parametrize(('source', 'override', 'value_loss', 'exploration'), OLD_KEYS)
def test_old_key_sets_the_component_that_it_stands_for(
    source: str, override: str, value_loss: Any, exploration: Any
) -> None:
    values = yaml.safe_load(f'{{{source}}}')
    collect = {key: values.pop(key) for key in ('temperature', 'exploration') if key in values}
    given = {'env': {'id': 'CartPole-v1'}, 'policy': {'learn': values, 'collect': collect}}
    config = resolve_config(given, override.split())
    assert (config.policy.learn.value_loss, config.policy.collect.exploration) == (value_loss, exploration)
    assert not {'value_clip', 'temperature'} & {*config.policy.learn, *config.policy.collect}
    assert resolve_config(config) == config
    section = frozen(job_schema(given), given)  # stored configs are not resolved again
    assert override or (section.policy.learn.value_loss, section.policy.collect.exploration) == (
        value_loss,
        exploration,
    )


def test_row_of_a_component_names_the_origin_of_its_old_key() -> None:
    rows = {row.key: row for row in explain_config('cartpole_ppo', ['policy.learn.value_clip=true'])}
    assert rows['policy.learn.value_loss'][1::3] == ('clip', 'command line')


def test_old_key_may_be_a_default_of_a_users_policy() -> None:
    section = with_defaults(ActorCriticPolicyConfig, {'learn': {'value_clip': True}, 'collect': {'temperature': 2.0}})
    assert (
        with_defaults(ActorCriticPolicyConfig, {'learn': {'value_clip': True}, 'collect': {'temperature': 2.0}})
        is section
    )
    assert pickle.loads(pickle.dumps(section().learn)) == section().learn
    stored = {
        'learn': {'value_clip': True, 'value_loss': 'mse'},
        'collect': {'temperature': 2.0, 'exploration': 'sample'},
    }
    off = {'learn': {'value_clip': False}, 'collect': {'temperature': 1}}
    warm = {'type': 'temperature', 'temperature': 2.0}
    for given, want in (({}, ('clip', warm)), (stored, ('clip', warm)), (off, ('mse', 'sample'))):
        made = frozen(section, {'type': 'mine', **given})
        assert (made.learn.value_loss, made.collect.exploration) == want


def test_field_of_a_user_named_like_an_old_key_means_the_same_where_the_old_key_is_and_else_nothing() -> None:
    class Mine(PPOLearnConfig):
        value_clip: bool = Field(True, description='as in an earlier version')

    class Other(Section):
        temperature: float = Field(0.0, description='of something else')

    assert (Mine().value_clip, Mine().value_loss) == (True, 'clip')
    assert Mine(**{'value_clip': False}).value_loss == 'mse' and Other.migrate_old_keys({'temperature': 0.0}) == {
        'temperature': 0.0
    }
    stored = {'type': 'dqn', 'learn': {'value_clip': 3}, 'collect': {'temperature': 0.0}}
    migrate_old_keys(stored)
    assert stored == {'type': 'dqn', 'learn': {'value_clip': 3}, 'collect': {'temperature': 0.0}}
    for kind in (['ppo'], 'unknown', None):  # of a stranger's file, or of a module that is not imported
        migrate_old_keys({'type': kind, 'learn': 3})
    for policy in ({'learn': {'value_clip': True}}, None, ['ppo']):
        migrate_old_keys(policy)


def test_wrong_old_key_hides_no_other_problem() -> None:
    problems = refused(with_learn(value_clip='maybe', batch_size=-1, value_loss='huber', bogus=3))
    assert len(problems) == 3 and sum('policy.learn.value_clip is ' in problem for problem in problems) == 1


INTEGER = 'an integer >= 1'


@pytest.mark.parametrize(
    ('key', 'value', 'shown', 'wanted'),
    [
        # wrong types
        ('seed', '1', "'1' (string)", 'an integer >= 0'),
        ('policy.learn.value_clip', 'on', "'on' (string)", 'true or false'),
        ('policy.collect.temperature', -1, '-1 (integer)', 'a number > 0; leave it out for 1.0, the default'),
        ('policy.learn.learning_rate', '1e-3', "'1e-3' (string)", NUMBER),
        ('policy', 'ppo', "'ppo' (string)", 'a dict with the keys type, device, '),
        ('policy.type', 3, '3 (integer)', 'text'),
        ('policy.model', 'vac', "'vac' (string)", 'a dict with the keys '),
        ('env', None, 'null', 'a dict with the keys id, game, '),
        ('env.id', 3, '3 (integer)', 'text or a function'),
        # out of range
        ('policy.learn.learning_rate', 0, '0 (integer)', f'{NUMBER} 0.00025, the default.'),
        ('policy.learn.learning_rate', -1e-3, '-0.001 (number)', NUMBER),
        ('policy.learn.learning_rate', float('nan'), 'nan (number)', NUMBER),
        ('policy.learn.learning_rate', float('inf'), 'inf (number)', NUMBER),
        ('policy.learn.clip_ratio', 0, '0 (integer)', f'{SCHEDULE}; leave it out for'),
        ('policy.learn.epoch_per_collect', 0, '0 (integer)', INTEGER),
        ('policy.learn.batch_size', 0, '0 (integer)', INTEGER),
        ('policy.learn.adv_norm', 'on', "'on' (string)", "one of 'off', 'batch', 'minibatch'"),
        ('policy.collect.discount_factor', 1.5, '1.5 (number)', 'a number >= 0 and'),
        ('policy.collect.gae_lambda', -0.1, '-0.1 (number)', 'a number >= 0 and <= 1'),
        ('env.collector_env_num', 0, '0 (integer)', INTEGER),
        ('env.collector_env_num', 2.5, '2.5 (number)', INTEGER),
        ('env.collector_env_num', True, 'True (boolean)', INTEGER),
        ('env.evaluator_env_num', 0, '0 (integer)', INTEGER),
        ('seed', -1, '-1 (integer)', 'an integer >= 0'),
        ('max_env_step', 0, '0 (integer)', INTEGER),
        ('max_env_step', 1e5, '100000.0 (number)', f'{INTEGER}; write 100000.'),
        ('policy.device', 'gpu', "'gpu' (string)", "'auto' (cuda where"),
        ('policy.eval.n_episode', 0, '0 (integer)', 'an integer'),
    ],
)
def test_resolve_bad_value_says_got_wanted(key, value, shown, wanted, nothing_is_made):
    assert refused(with_value(key, value))[0].startswith(f'{key} is {shown} but must be {wanted}')


@pytest.mark.parametrize(
    'source, sentence',
    [
        ({}, 'env.id is missing: give text or a function '),
        (
            with_learn(learning_rate={'start': -1, 'end': 0}),
            'policy.learn.learning_rate.start is -1 (integer) but must',
        ),
        # unknown keys and names
        (with_value('env.n_episode', 5), 'unknown key env.n_episode: it belongs at policy.eval.n_episode.'),
        (with_value('buffer.size', 3), 'unknown key buffer.size: '),
        (with_value('checkpoint.keep_lst', 3), 'unknown key checkpoint.keep_lst: did you mean checkpoint.keep_last'),
        (with_value('max_env_steps_', 1), 'unknown key max_env_steps_: did you mean max_env_step?'),
        (
            with_value('policy.model.hidden_sise', [8]),
            'unknown key policy.model.hidden_sise: did you mean policy.model.hidden_sizes?',
        ),
        (with_value('gamma', 0.9), 'unknown key gamma: in zoo it is `policy.collect.discount_factor`.'),
        (with_value('policy.type', 'ppoo'), "unknown policy 'ppoo': did you mean 'ppo'"),
        (with_value('policy.type', 'x' * 4_000), f"unknown policy '{'x' * 96}...: registered: "),
        (with_value('policy.model.type', 'vca'), "unknown model 'vca': did you mean 'vac'"),
        (with_value('buffer.type', 'rolout'), "unknown buffer 'rolout': did you mean 'rollout'"),
        ({'env': {'id': 'CartPol-v1'}}, "unknown env 'CartPol-v1': did you mean 'CartPole-v1'"),
        ('cartpole_pp', "unknown config 'cartpole_pp': did you mean 'cartpole_ppg' or 'cartpole_ppo'"),
        # reserved keys
        (with_value('items', 1), 'items is a reserved key: it would hide the method `items` of the config; rename it'),
        (with_value('env.kwargs', {'update': 1}), 'env.kwargs.update is a reserved key'),
        (with_learn(pop=1), 'policy.learn.pop is a reserved key'),
        # folder names
        *(
            (with_value('exp_name', name), f'exp_name is {name!r}: {FOLDER}')
            for name in ('a/b', '../a', 'a\\b', '', 'a\n', 'a' * 101)
        ),
        (with_value('logger.root', 'a\0b'), r"logger.root is 'a\x00b': no folder has a NUL in its name; leave it out."),
        (
            with_value('logger.root', 3),
            'logger.root is 3 (integer) but must be text of length at least 1; leave it out',
        ),
        # what no checkpoint can hold
        (with_value('seed', 10**9_999), 'the config should have no integer of 2**128 or more, as seed is'),
        (with_value('max_env_step', 2**63), 'the config should have no integer of 2**63 or more, as max_env_step is'),
        (with_value('env.window', 2**63), 'the config should have no integer of 2**63 or more, as env.window is'),
        (
            with_learn(x='x' * 5_000),
            'the config should have no text of more than 4096 characters, as policy.learn.x has',
        ),
        (with_value('env.kwargs', {'a': {1, 2}}), 'env.kwargs.a is {1, 2} (set), which no checkpoint can hold'),
        (
            with_value('env.kwargs', {'a': 'x' * 9_999, 'b': b''}),
            "env.kwargs.b is b'' (bytes), which no checkpoint can hold",
        ),
        ({**CARTPOLE, 'x' * 9_999: 1}, 'the config should have no key of more than 100 characters'),
        ({**CARTPOLE, 'a\nb': 1}, 'unknown key a\\nb: '),
    ],
)
def test_resolve_bad_input_says_got_wanted_do(source, sentence, nothing_is_made):
    assert refused(source)[0].startswith(sentence)


def test_resolve_reports_every_problem_of_every_section():
    source = {
        'env': {'collector_env_num': 0},
        'exp_name': 'a/b',
        'policy': {'learn': {'lr': 1}, 'collect': {'gamma': 1}},
    }
    assert [problem.split(':')[0].split(' but')[0] for problem in refused(source)] == [
        "exp_name is 'a/b'",
        'env.id is missing',
        'env.collector_env_num is 0 (integer)',
        'unknown key policy.learn.lr',
        'unknown key policy.collect.gamma',
    ]


@pytest.mark.parametrize(
    'overrides, sentence',
    [
        (['seed'], "override 'seed' is not key=value"),
        (['seed=x'], "seed is 'x' (string) but must be an integer >= 0"),
        (['sed=3'], 'unknown key sed: did you mean seed?'),
        (['policy.learn.learning_rate=0'], 'policy.learn.learning_rate is 0 (integer) but must be a number > 0'),
        (['policy.learn.lr=3'], 'unknown key policy.learn.lr: in zoo it is `policy.learn.learning_rate`.'),
        (['policy.type=ppoo'], "unknown policy 'ppoo': did you mean 'ppo'"),
        (['policy.learn=3'], 'policy.learn is 3 (integer) but must be a dict with the keys batch_size, '),
        (['env.kwargs.items=3'], 'env.kwargs.items is a reserved key'),
        (['env.id=null'], 'env.id is null but must be text or a function'),
        (['env.collector_env_num=2.5'], 'env.collector_env_num is 2.5 (number) but must be an integer >= 1'),
    ],
)
def test_resolve_bad_override_says_got_wanted_do(overrides, sentence, nothing_is_made):
    assert refused('cartpole_ppo', overrides)[0].startswith(sentence)


def test_resolve_argument_that_is_no_key_is_an_unknown_key():
    assert refused(CARTPOLE, seeed=1) == ['unknown key seeed: did you mean seed?']


# explain_config, resolve_policy


def test_explain_says_where_each_value_came_from():
    rows = {
        row.key: row
        for row in explain_config(
            'cartpole_ppo', ['seed=3', 'policy.collect.n_sample=512', 'policy.learn.clip_ratio.end=0.1']
        )
    }
    meaning = 'seed of all random streams of the run; 3 or more seeds to compare results'
    assert rows['seed'] == ConfigRow('seed', 3, 'an integer >= 0', meaning, 'command line')
    origins = {key: row.origin for key, row in rows.items()}
    assert origins['policy.collect.n_sample'] == origins['policy.learn.clip_ratio'] == 'command line'
    assert origins['policy.collect.n_step'] == 'derived' and rows['policy.collect.n_step'].value == 64
    assert origins['env.id'] == origins['policy.learn.learning_rate'] == 'cartpole_ppo'
    assert origins['env.evaluator_env_num'] == origins['policy.model.activation'] == 'default'


def test_explain_has_a_row_with_a_meaning_for_every_value():
    rows = explain_config(CARTPOLE)
    assert [row.key for row in rows if not (row.description and row.wanted)] == []

    def leaves(data: dict[str, Any], path: str = '') -> list[str]:
        return [
            leaf
            for key, value in data.items()
            for leaf in (leaves(value, f'{path}{key}.') if isinstance(value, dict) and value else [f'{path}{key}'])
        ]

    assert [row.key for row in rows] == leaves(resolve_config(CARTPOLE))


def test_resolve_policy_fills_in_the_section_alone():
    policy = resolve_policy({'type': 'ppo', 'learn': {'batch_size': 32}, 'collect': {'n_step': 16}})
    assert (policy.learn.batch_size, policy.collect.n_step, policy.model.type) == (32, 16, 'vac')
    assert resolve_policy(policy) == policy
    resolved = resolve_config(CARTPOLE)
    assert resolve_policy(resolved.policy) == resolved.policy


@pytest.mark.parametrize(
    'policy, sentence',
    [
        ({'learn': {'lr': 1}}, 'unknown key policy.learn.lr: in zoo it is'),
        ({'keys': 1}, 'policy.keys is a reserved key'),
        (
            {'collect': {'n_sample': 64}},
            'policy.collect.n_sample is 64 but without a run the number of envs is unknown',
        ),
    ],
)
def test_resolve_policy_bad_input_says_got_wanted_do(policy, sentence):
    with pytest.raises(ConfigError) as error:
        resolve_policy(policy)
    assert error.value.problems[0].startswith(sentence)


@pytest.mark.parametrize('changes', [{'n_step': 10**15 + 37}, {'n_step': 8, 'batch_size': 10**12}])
def test_resolve_of_huge_numbers_ends_at_once(changes):
    n_step, batch_size = changes['n_step'], changes.get('batch_size', 7)
    assert refused({**CARTPOLE, 'policy': {'collect': {'n_step': n_step}, 'learn': {'batch_size': batch_size}}})


def test_advice_about_an_override_names_the_value_that_the_config_has() -> None:
    found = refused('cartpole_ppo', ['policy.learn.epoch_per_collect=-1', 'policy.learn.adam_eps=-1'])
    for advice in ('leave it out for 10, as cartpole_ppo has it.', 'leave it out for 1e-05, the default.'):
        assert str(found).count(advice) == 1
