"""Which key is meant by an unknown one."""

from __future__ import annotations

import pytest

from zoo.buffer import BufferConfig
from zoo.config.problems import _some, unknown_key
from zoo.config.section import ConfigError, fields_of
from zoo.core.registry import BUFFER_REGISTRY
from zoo.run.config import _job_schema, explain_config, resolve_config


class EvenConfig(BufferConfig):
    """A section of a user's buffer."""

    beat: int = 2


KNOWN = [path for path, _ in fields_of(_job_schema({}))]
LEARN = [path.rsplit('.')[-1] for path in KNOWN if path.startswith('policy.learn.')]


@pytest.mark.parametrize(
    'section, key, meant',
    [
        ('policy.learn', 'learning_rat', 'did you mean policy.learn.learning_rate?'),
        ('policy.learn', 'Batch_Size', 'did you mean policy.learn.batch_size?'),
        ('policy.learn', 'gae_lambda', 'it belongs at policy.collect.gae_lambda.'),
        ('policy', 'learning_rate', 'it belongs at policy.learn.learning_rate.'),
        ('', 'learn', 'it belongs at policy.learn.'),
        ('policy.learn', 'lrate', 'did you mean policy.learn.learning_rate, which has the name lr_rate elsewhere?'),
        ('', 'gama', 'did you mean policy.collect.discount_factor, which has the name gamma elsewhere?'),
        ('', 'stop_val', 'did you mean policy.eval.stop_value?'),
        ('policy.learn', 'sgd_minibatch_size', 'in zoo it is `policy.learn.batch_size`.'),
        ('', 'total_timesteps', 'in zoo it is `max_env_step`.'),
        (
            'policy',
            'policy.learn.batch_size',
            "dotted names are for overrides only; write a nested dict: {'policy': {'learn': {'batch_size': ..}}}.",
        ),
    ],
)
def test_unknown_key_names_the_one_meant(section, key, meant):
    siblings = [p.rsplit('.')[-1] for p in KNOWN if p.rpartition('.')[0] == section]
    assert unknown_key(section, key, siblings, KNOWN).endswith(f': {meant}')


# --- keys of another type ---


@pytest.mark.parametrize(
    'source, overrides, sentences',
    [
        (
            'cartpole_ppg_offpolicy',
            ['buffer.type=replay'],
            [
                f"unknown key buffer.{part}: only buffer.type 'multi' has it; set that type, or leave the key out."
                for part in ('policy', 'value')
            ],
        ),
        (
            'cartpole_ppo',
            ['buffer.size=64'],
            [
                "unknown key buffer.size: only buffer.type 'multi' or 'replay' has it; set that type, or leave the key out."
            ],
        ),
        (
            'cartpole_ppg_offpolicy',
            ['buffer.update_per_collect=3'],
            [
                "unknown key buffer.update_per_collect: only buffer.type 'replay' has it; set that type, or leave the key "
                'out.'
            ],
        ),
        (
            'cartpole_ppg',
            ['policy.learn.tau=0.1'],
            ["unknown key policy.learn.tau: only policy.type 'dqn' has it; set that type, or leave the key out."],
        ),
        (
            'cartpole_ppo',
            ['policy.model.arch=dual'],
            [
                "unknown key policy.model.arch: only policy.model.type 'ppg' has it; set that type, or leave the key out."
            ],
        ),
        # no type has these
        (
            'cartpole_ppg_offpolicy',
            ['policy.eval.batch_size=9'],
            ['unknown key policy.eval.batch_size: it belongs at policy.learn.batch_size.'],
        ),
        ('cartpole_ppo', ['env.policy=3'], ['unknown key env.policy: it belongs at policy.']),
    ],
)
def test_key_of_another_type_is_told_with_that_type(source, overrides, sentences):
    with pytest.raises(ConfigError) as error:
        resolve_config(source, overrides)
    assert error.value.problems == sentences


def test_key_of_many_other_types_is_told_with_the_first_of_them_and_close_keys():
    with pytest.raises(ConfigError) as error:
        resolve_config('cartpole_ppg', ['policy.learn.epoch_per_collect=3'])
    (problem,) = error.value.problems
    assert problem.startswith("unknown key policy.learn.epoch_per_collect: only policy.type 'a2c', ")
    assert problem.endswith(
        ' others has it; did you mean policy.learn.actor_epoch_per_collect or policy.learn.critic_epoch_per_collect?'
    )


def test_key_of_a_type_of_ones_own_is_told_too(monkeypatch):
    class Odd:
        """Without a class attribute `config`."""

    BUFFER_REGISTRY.names()
    monkeypatch.setitem(BUFFER_REGISTRY._items, 'odd', Odd)
    monkeypatch.setitem(BUFFER_REGISTRY._items, 'even', type('Even', (), {'config': EvenConfig}))
    with pytest.raises(ConfigError) as error:
        resolve_config('cartpole_ppo', ['buffer.beat=64'])
    assert error.value.problems == [
        "unknown key buffer.beat: only buffer.type 'even' has it; set that type, or leave the key out."
    ]


@pytest.mark.parametrize(
    'override, sentence',
    [
        (
            'policy.learn.surrogate={type: spo, slope: 0.3}',
            "unknown key policy.learn.surrogate.slope: only surrogate 'rollback' has it; set that type, or leave the key out.",
        ),
        (
            'policy.collect.exploration.epsilon=0.1',  # a name of clip_ratio elsewhere
            "unknown key policy.collect.exploration.epsilon: only exploration 'epsilon' or 'epsilon_greedy' has it; set that "
            'type, or leave the key out.',
        ),
        (
            'policy.learn.optimizer.lr=0.1',  # a name of learning_rate elsewhere, and a part has keys of its own
            'unknown key policy.learn.optimizer.lr: the keys of policy.learn.optimizer are betas, eps, type.',
        ),
        (
            'policy.learn.surrogate={type: rollback, slop: 0.3}',
            'unknown key policy.learn.surrogate.slop: did you mean policy.learn.surrogate.slope?',
        ),
        (
            'policy.learn.penalties=[{type: kl, batch_size: 3}]',
            'unknown key policy.learn.penalties.batch_size: the keys of policy.learn.penalties are weight, target, '
            'min_weight, max_weight, type.',
        ),
    ],
)
def test_option_of_another_part_is_told_with_that_part(override, sentence):
    with pytest.raises(ConfigError) as error:
        resolve_config('cartpole_ppo', [override])
    assert error.value.problems == [sentence]


def test_section_that_is_a_class_has_its_options_told_too():
    with pytest.raises(ConfigError) as error:
        resolve_config('cartpole_ppo', ['policy.learn.plasticity={type: l2_init, shrink: 0.5}'])
    assert error.value.problems == [
        "unknown key policy.learn.plasticity.shrink: only plasticity 'shrink_perturb' has it; set that type, or leave the "
        'key out.'
    ]


@pytest.mark.parametrize(
    'names, words', [(['a'], 'a'), (['a', 'b'], 'a or b'), ([*'abc'], 'a, b or c'), ([*'abcd'], 'a, b or 2 others')]
)
def test_types_that_have_a_key_are_listed_up_to_three(names, words):
    assert _some(names) == words


def test_unknown_key_like_no_other_lists_the_section():
    assert unknown_key('policy.learn', 'quux', LEARN, KNOWN) == (
        f'unknown key policy.learn.quux: the keys of policy.learn are {", ".join(LEARN)}.'
    )


def test_name_of_another_library_gets_its_word_wherever_it_stands():
    assert unknown_key('', 'vf_coef', [], KNOWN).startswith(
        'unknown key vf_coef: in zoo it is `policy.learn.value_weight`; twice as much as in stable-baselines3'
    )
    assert unknown_key('policy.learn', 'learner', LEARN, KNOWN).startswith(
        'unknown key policy.learn.learner: in zoo the run is the learner: '
    )
    assert unknown_key('', 'multi_agent', [], KNOWN).startswith(
        'unknown key multi_agent: zoo has no such key: one policy acts for one agent; leave it out'
    )


def test_capitals_are_told_the_place_of_the_key():
    assert unknown_key('', 'BATCH_SIZE', ['seed'], KNOWN).endswith(': it belongs at policy.learn.batch_size.')


# --- values ---


@pytest.mark.parametrize(
    'override, start, end',
    [
        (
            'env=CartPole-v1',
            "env is 'CartPole-v1' (text) but must be a section with the keys id, ",
            '; write env: {id: CartPole-v1}.',
        ),
        ('policy=ppg', "policy is 'ppg' (text) but must be a section with the keys ", '; write policy: {type: ppg}.'),
        ('policy.collect=4', 'policy.collect is 4 (integer) but must be a section with the keys ', 'exploration.'),
    ],
)
def test_value_in_place_of_a_section_is_told_how_to_write_it(override, start, end):
    with pytest.raises(ConfigError) as error:
        resolve_config('cartpole_ppo', [override])
    (problem,) = error.value.problems
    assert problem.startswith(start) and problem.endswith(end)


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
def test_values_of_parts_are_described_as_names(key, wanted):
    (row,) = [row for row in explain_config('cartpole_ppo') if row.key == key]
    assert row.wanted == wanted


@pytest.mark.parametrize(
    'key, value, written',
    [
        ('stop', {'training_iteration': 3}, 'stop: [{type: iterations, n: 3}]'),
        (
            'stop',
            {'time_total_s': 60, 'timesteps_total': 500},
            'stop: [{type: wall_time, s: 60}] and max_env_step: 500',
        ),
        ('stop', 'patience', 'stop: [{type: patience, n: ..}]'),
        ('stop', {'patience': 5}, 'stop: [{type: patience, n: 5}]'),
        ('stop', {'type': 'patience', 'n': 5}, 'stop: [{type: patience, n: 5}]'),
        ('stop', 'my_module:done', 'stop: [my_module:done]'),
        ('logger.sinks', 'csv', 'logger.sinks: [csv]'),
        ('logger.sinks', {'type': 'wandb'}, 'logger.sinks: [{type: wandb}]'),
        ('callbacks', 'my_module:Mine', 'callbacks: [my_module:Mine]'),
        ('policy.model.hidden_sizes', 64, 'policy.model.hidden_sizes: [64]'),
        ('policy.model.hidden_sizes', '64,64', "'policy.model.hidden_sizes=[64,64]'"),
    ],
)
def test_item_in_place_of_a_list_is_told_the_form_of_the_list(key, value, written):
    config = {'env': {'id': 'CartPole-v1'}, 'policy': {'model': {}}, 'logger': {}}
    *parents, last = key.split('.')
    inner = config
    for parent in parents:
        inner = inner[parent]
    inner[last] = value
    with pytest.raises(ConfigError) as error:
        resolve_config(config)
    (problem,) = error.value.problems
    assert problem.endswith(f'; write {written}.')


def test_linear_schedule_in_the_form_of_rl_zoo3_is_told_that_of_zoo():
    with pytest.raises(ConfigError, match=r'; write \{start: 2.5e-4, end: 0\}\.$'):
        resolve_config({'env': {'id': 'CartPole-v1'}, 'policy': {'learn': {'learning_rate': 'lin_2.5e-4'}}})


def test_list_of_what_is_not_known_is_told_the_default():
    with pytest.raises(ConfigError, match=r'leave it out for \[\], the default'):
        resolve_config({'env': {'id': 'CartPole-v1'}, 'stop': {'quux': 3}})


def test_all_problems_stand_in_a_line_each():
    with pytest.raises(ConfigError) as error:
        resolve_config('cartpole_ppo', ['policy.learn.vf_coef=1', 'env.nope=2', 'seed=-1', 'policy.cuda=true'])
    lines = str(error.value).split('\n')
    assert len(lines) == 4 and lines == error.value.problems
    assert sorted(line.split(' ')[0] for line in lines) == ['seed', 'unknown', 'unknown', 'unknown']
