"""Which key is meant by an unknown one."""

from __future__ import annotations

import pytest

from zoo.buffer import BufferConfig
from zoo.config.messages import OLD_NAMES, unknown_key
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
            ['policy.learn.epoch_per_collect=3'],
            [
                "unknown key policy.learn.epoch_per_collect: only policy.type 'ppo' or 'ppo_offpolicy' has it; did you mean "
                'policy.learn.actor_epoch_per_collect or policy.learn.critic_epoch_per_collect?'
            ],
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
            ['buffer.policy.size=9'],
            ['unknown key buffer.policy.size: it belongs at buffer.size.'],
        ),
        ('cartpole_ppo', ['env.policy=3'], ['unknown key env.policy: it belongs at policy.']),
    ],
)
def test_key_of_another_type_is_told_with_that_type(source, overrides, sentences):
    with pytest.raises(ConfigError) as error:
        resolve_config(source, overrides)
    assert error.value.problems == sentences


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
    ],
)
def test_old_names_of_other_libraries_lead_here(name, here):
    assert OLD_NAMES[name] == here


def test_old_names_lead_to_keys_that_exist():
    assert {here.split(' ')[0] for here in OLD_NAMES.values()} <= set(KNOWN)


def test_old_names_are_no_names_of_ours():
    assert not set(OLD_NAMES) & {path.rsplit('.')[-1] for path in KNOWN}
