"""Which key is meant by an unknown one."""
from __future__ import annotations

import pytest

from zoo.config import fields_of
from zoo.config_errors import OLD_NAMES, unknown_key
from zoo.job import _job_schema

KNOWN = [path for path, _ in fields_of(_job_schema({}))]
LEARN = [path.rsplit('.')[-1] for path in KNOWN if path.startswith('policy.learn.')]


@pytest.mark.parametrize('section, key, meant', [
    ('policy.learn', 'learning_rat', 'did you mean policy.learn.learning_rate?'),
    ('policy.learn', 'Batch_Size', 'did you mean policy.learn.batch_size?'),
    ('policy.learn', 'gae_lambda', 'it belongs at policy.collect.gae_lambda.'),
    ('policy', 'learning_rate', 'it belongs at policy.learn.learning_rate.'),
    ('', 'learn', 'it belongs at policy.learn.'),
    ('', 'stop_val', 'did you mean policy.eval.stop_value?'),
    ('policy.learn', 'sgd_minibatch_size', '`sgd_minibatch_size`: here `policy.learn.batch_size`.'),
    ('', 'total_timesteps', '`total_timesteps`: here `max_env_step`.'),
    ('policy', 'policy.learn.batch_size', "dotted names are for overrides only; here nest it: "
                                          "{'policy': {'learn': {'batch_size': ..}}}."),
])
def test_unknown_key_names_the_one_meant(section, key, meant):
    siblings = [p.rsplit('.')[-1] for p in KNOWN if p.rpartition('.')[0] == section]
    assert unknown_key(section, key, siblings, KNOWN).endswith(f': {meant}')


def test_unknown_key_like_no_other_lists_the_section():
    assert unknown_key('policy.learn', 'quux', LEARN, KNOWN) == (
        f"unknown key policy.learn.quux: the keys of policy.learn are {', '.join(LEARN)}.")


@pytest.mark.parametrize('name, here', [
    ('sgd_minibatch_size', 'policy.learn.batch_size'), ('num_sgd_iter', 'policy.learn.epoch_per_collect'),
    ('n_epochs', 'policy.learn.epoch_per_collect'), ('update_epochs', 'policy.learn.epoch_per_collect'),
    ('repeat_per_collect', 'policy.learn.epoch_per_collect'), ('lr', 'policy.learn.learning_rate'),
    ('gamma', 'policy.collect.discount_factor'), ('lambda', 'policy.collect.gae_lambda'),
    ('clip_range', 'policy.learn.clip_ratio'), ('clip_param', 'policy.learn.clip_ratio'),
    ('ent_coef', 'policy.learn.entropy_weight'), ('vf_coef', 'policy.learn.value_weight'),
    ('vf_loss_coeff', 'policy.learn.value_weight'), ('max_grad_norm', 'policy.learn.grad_clip'),
    ('n_steps', 'policy.collect.n_step'), ('num_steps', 'policy.collect.n_step'),
    ('rollout_fragment_length', 'policy.collect.n_step'), ('train_batch_size', 'policy.collect.n_sample'),
    ('num_envs', 'env.collector_env_num'), ('total_timesteps', 'max_env_step'), ('max_epoch', 'max_env_step'),
])
def test_old_names_of_other_libraries_lead_here(name, here):
    assert OLD_NAMES[name] == here


def test_old_names_lead_to_keys_that_exist():
    assert {here.split(' ')[0] for here in OLD_NAMES.values()} <= set(KNOWN)


def test_old_names_are_no_names_of_ours():
    assert not set(OLD_NAMES) & {path.rsplit('.')[-1] for path in KNOWN}
