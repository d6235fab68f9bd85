"""Error messages for refused configs: the key that an unknown key probably means, and the correct form of a value."""

from __future__ import annotations

import re
from typing import Any

import pytest

from zoo.buffer import BufferConfig
from zoo.config.problems import unknown_key
from zoo.config.section import ConfigError, fields_of
from zoo.core.registry import BUFFER_REGISTRY
from zoo.run.config import explain_config, job_schema, resolve_config


class EvenConfig(BufferConfig):
    """The section of a user's buffer."""

    beat: int = 2


KNOWN = [path for path, _ in fields_of(job_schema({}))]
LEARN = [path.rsplit('.')[-1] for path in KNOWN if path.rpartition('.')[0] == 'policy.learn']
ENV: dict[str, Any] = {'env': {'id': 'CartPole-v1'}}


def is_said(wanted: str, said: str) -> bool:
    """Whether a sentence equals the wanted one, in which each * matches any text."""
    return re.fullmatch('.*'.join(map(re.escape, wanted.split('*'))), said) is not None


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
        ('', 'multi_agent', 'zoo has no such key: one policy acts for one agent; leave it out*'),
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


SET = 'set that type, or leave the key out.'
PPO, PPG, OFFPOLICY = 'cartpole_ppo', 'cartpole_ppg', 'cartpole_ppg_offpolicy'


@pytest.mark.parametrize(
    'source, override, wanted',
    [
        # keys that belong to another type
        (OFFPOLICY, 'buffer.type=replay', f"unknown key buffer.policy: only buffer.type 'multi' has it; {SET}"),
        (OFFPOLICY, 'buffer.type=replay', f"unknown key buffer.value: only buffer.type 'multi' has it; {SET}"),
        (PPO, 'buffer.size=64', f"unknown key buffer.size: only buffer.type 'multi' or 'replay' has it; {SET}"),
        (
            OFFPOLICY,
            'buffer.update_per_collect=3',
            f"unknown key buffer.update_per_collect: only buffer.type 'replay' has it; {SET}",
        ),
        (PPG, 'policy.learn.tau=0.1', f"unknown key policy.learn.tau: only policy.type 'dqn' has it; {SET}"),
        (PPO, 'policy.model.arch=dual', f"unknown key policy.model.arch: only policy.model.type 'ppg' has it; {SET}"),
        (
            PPG,
            'policy.learn.epoch_per_collect=3',
            "unknown key policy.learn.epoch_per_collect: only policy.type 'a2c', * or * others has it; "
            'did you mean policy.learn.actor_epoch_per_collect or policy.learn.critic_epoch_per_collect?',
        ),
        (
            OFFPOLICY,
            'policy.eval.batch_size=9',
            'unknown key policy.eval.batch_size: it belongs at policy.learn.batch_size.',
        ),
        (PPO, 'env.policy=3', 'unknown key env.policy: it belongs at policy.'),
        # options that belong to another component
        (
            PPO,
            'policy.learn.surrogate={type: spo, slope: 0.3}',
            f"unknown key policy.learn.surrogate.slope: only surrogate 'rollback' has it; {SET}",
        ),
        (
            PPO,
            'policy.collect.exploration.epsilon=0.1',  # other libraries use this name for clip_ratio
            f"unknown key policy.collect.exploration.epsilon: only exploration 'epsilon' or 'epsilon_greedy' has it; {SET}",
        ),
        (
            PPO,
            'policy.learn.optimizer.lr=0.1',  # also a name of learning_rate elsewhere; components have their own keys
            'unknown key policy.learn.optimizer.lr: the keys of policy.learn.optimizer are betas, eps, type.',
        ),
        (
            PPO,
            'policy.learn.optimizer={type: sgd, betas: [0.5, 0.5]}',
            f"unknown key policy.learn.optimizer.betas: only optimizer 'adam', 'adamw' or 'muon' has it; {SET}",
        ),
        (
            PPO,
            'policy.learn.surrogate={type: rollback, slop: 0.3}',
            'unknown key policy.learn.surrogate.slop: did you mean policy.learn.surrogate.slope?',
        ),
        (
            PPO,
            'policy.learn.penalties=[{type: kl, batch_size: 3}]',
            'unknown key policy.learn.penalties.batch_size: the keys of policy.learn.penalties are weight, target, '
            'min_weight, max_weight, type.',
        ),
        (
            PPO,
            'policy.learn.plasticity={type: l2_init, shrink: 0.5}',  # the component is a class
            f"unknown key policy.learn.plasticity.shrink: only plasticity 'shrink_perturb' has it; {SET}",
        ),
        # a value in place of a section
        (
            PPO,
            'env=CartPole-v1',
            "env is 'CartPole-v1' (text) but must be a section with the keys id, *; write env: {id: CartPole-v1}.",
        ),
        (
            PPO,
            'policy=ppg',
            "policy is 'ppg' (text) but must be a section with the keys *; write policy: {type: ppg}.",
        ),
        (
            PPO,
            'policy.collect=4',
            'policy.collect is 4 (integer) but must be a section with the keys *exploration.',
        ),
        # a value in place of a list, or of a schedule
        (ENV | {'stop': {'training_iteration': 3}}, '', '*; write stop: [{type: iterations, n: 3}].'),
        (
            ENV | {'stop': {'time_total_s': 60, 'timesteps_total': 500}},
            '',
            '*; write stop: [{type: wall_time, s: 60}] and max_env_step: 500.',
        ),
        (ENV | {'stop': 'patience'}, '', '*; write stop: [{type: patience, n: ..}].'),
        (ENV | {'stop': {'patience': 5}}, '', '*; write stop: [{type: patience, n: 5}].'),
        (ENV | {'stop': {'type': 'patience', 'n': 5}}, '', '*; write stop: [{type: patience, n: 5}].'),
        (ENV | {'stop': 'my_module:done'}, '', '*; write stop: [my_module:done].'),
        (ENV | {'stop': {'quux': 3}}, '', '*leave it out for [], the default*'),
        (ENV | {'logger': {'sinks': 'csv'}}, '', '*; write logger.sinks: [csv].'),
        (ENV | {'logger': {'sinks': {'type': 'wandb'}}}, '', '*; write logger.sinks: [{type: wandb}].'),
        (ENV | {'callbacks': 'my_module:Mine'}, '', '*; write callbacks: [my_module:Mine].'),
        (ENV | {'policy': {'model': {'hidden_sizes': 64}}}, '', '*; write policy.model.hidden_sizes: [64].'),
        (
            ENV | {'policy': {'model': {'hidden_sizes': '64,64'}}},
            '',
            "*; write 'policy.model.hidden_sizes=[64,64]'.",
        ),
        (
            ENV | {'policy': {'learn': {'learning_rate': 'lin_2.5e-4'}}},  # the form of rl-zoo3
            '',
            '*; write {start: 2.5e-4, end: 0}.',
        ),
    ],
)
def test_refused_config_is_told_the_key_or_the_form(source: Any, override: str, wanted: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_config(source, [override] if override else [])
    assert [is_said(wanted, problem) for problem in error.value.problems].count(True) == 1
    assert len(error.value.problems) == (2 if override == 'buffer.type=replay' else 1)


def test_key_of_a_type_of_ones_own_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd:
        """A buffer without the class attribute `config`."""

    monkeypatch.setitem(BUFFER_REGISTRY.entries, 'odd', Odd)
    monkeypatch.setitem(BUFFER_REGISTRY.entries, 'even', type('Even', (), {'config': EvenConfig}))
    with pytest.raises(ConfigError) as error:
        resolve_config(PPO, ['buffer.beat=64'])
    assert error.value.problems == [f"unknown key buffer.beat: only buffer.type 'even' has it; {SET}"]


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
    (row,) = [row for row in explain_config(PPO) if row.key == key]
    assert row.wanted == wanted


def test_all_problems_stand_in_a_line_each() -> None:
    with pytest.raises(ConfigError) as error:
        resolve_config(PPO, ['policy.learn.vf_coef=1', 'env.nope=2', 'seed=-1', 'policy.cuda=true'])
    lines = str(error.value).split('\n')
    assert len(lines) == 4 and lines == error.value.problems
    assert sorted(line.split(' ')[0] for line in lines) == ['seed', 'unknown', 'unknown', 'unknown']
