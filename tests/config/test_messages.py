"""Which key is meant by an unknown one."""

from __future__ import annotations

import pytest

from zoo.buffer import BufferConfig
from zoo.config.messages import OLD_NAMES, _some, unknown_key
from zoo.config.section import ConfigError, fields_of
from zoo.core.registry import BUFFER_REGISTRY
from zoo.run.config import _job_schema, resolve_config


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


@pytest.mark.parametrize(
    'name, here',
    [
        ('sgd_minibatch_size', 'policy.learn.batch_size'),
        ('num_sgd_iter', 'policy.learn.epoch_per_collect'),
        ('n_epochs', 'policy.learn.epoch_per_collect'),
        ('update_epochs', 'policy.learn.epoch_per_collect'),
        ('repeat_per_collect', 'policy.learn.epoch_per_collect'),
        ('lr', 'policy.learn.learning_rate'),
        ('gamma', 'policy.collect.discount_factor'),
        ('lambda', 'policy.collect.gae_lambda'),
        ('clip_range', 'policy.learn.clip_ratio'),
        ('clip_param', 'policy.learn.clip_ratio'),
        ('ent_coef', 'policy.learn.entropy_weight'),
        ('vf_coef', 'policy.learn.value_weight'),
        ('vf_loss_coeff', 'policy.learn.value_weight'),
        ('max_grad_norm', 'policy.learn.grad_clip'),
        ('n_steps', 'policy.collect.n_step'),
        ('num_steps', 'policy.collect.n_step'),
        ('rollout_fragment_length', 'policy.collect.n_step'),
        ('train_batch_size', 'policy.collect.n_sample'),
        ('num_envs', 'env.collector_env_num'),
        ('total_timesteps', 'max_env_step'),
        ('max_epoch', 'max_env_step'),
        ('kl_target', 'policy.learn.penalties as [{type: kl, weight: .2, target: .01}]'),
        ('kl_coeff', 'policy.learn.penalties as [{type: kl, weight: .2, target: .01}]'),
        ('vf_clip_param', 'policy.learn.value_loss as {type: error_clip, range: 10}'),
        ('clip_range_vf', 'policy.learn.value_loss as {type: clip, range: .2}'),
        ('desired_kl', 'policy.learn.learning_rate as {start: .., kl_target: .008}'),
        ('kl_threshold', 'policy.learn.learning_rate as {start: .., kl_target: .008}'),
        ('use_critic', 'policy.learn.baseline'),
        ('use_gae', 'policy.collect.estimator'),
        ('optimizer_cls', 'policy.learn.optimizer'),
        ('betas', 'policy.learn.optimizer as {type: adam, betas: [.9, .999]}'),
        ('weight_decay', 'policy.learn.optimizer as {type: adamw, weight_decay: .01}'),
        ('accumulate_grads', 'policy.learn.accumulate'),
        ('gradient_accumulation', 'policy.learn.accumulate'),
        ('enable_amp', 'policy.learn.precision'),
        ('shuffle_minibatches', 'policy.learn.draw as in_order'),
        ('shuffle_sequences', 'policy.learn.draw as in_order'),
        ('vf_loss_type', 'policy.learn.value_loss as {type: huber, delta: 1}'),
        ('exploration_config', 'policy.collect.exploration'),
        ('execution_plan', 'pipeline'),
    ],
)
def test_old_names_of_other_libraries_lead_here(name, here):
    assert OLD_NAMES[name] == here


def test_old_names_lead_to_keys_that_exist():
    assert {here.split(' ')[0] for here in OLD_NAMES.values()} <= set(KNOWN)


@pytest.mark.parametrize('here', sorted({here for here in OLD_NAMES.values() if ' as ' in here}))
def test_spellings_that_old_names_lead_to_are_taken(here):
    for way in here.split(' or '):
        path, _, value = (way if ' as ' in way else f'{here.split(" ")[0]} as {way}').partition(' as ')
        value = (
            value.replace('{start: ..,', '{start: 1e-3,').replace('low: ..', 'low: -10').replace('high: ..', 'high: 10')
        )
        assert resolve_config('cartpole_ppo', [f'{path}={value}']) is not None


def test_old_names_are_no_names_of_ours():
    assert not set(OLD_NAMES) & {path.rsplit('.')[-1] for path in KNOWN}
