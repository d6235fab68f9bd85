"""Error messages for refused configs: the key that an unknown key probably means, and the correct form of a value."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tables import are_said, is_said, refused, rows_of
from zoo.buffer import BufferConfig
from zoo.config.problems import unknown_key
from zoo.config.section import fields_of
from zoo.core.registry import BUFFER_REGISTRY
from zoo.run.config import explain_config, job_schema


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
    - env is 'CartPole-v1' (text) but must be a section with the keys id, *; write env: {id: CartPole-v1}.
cartpole_ppo policy=ppg
    - policy is 'ppg' (text) but must be a section with the keys *; write policy: {type: ppg}.
cartpole_ppo policy.collect=4
    - policy.collect is 4 (integer) but must be a section with the keys *exploration.
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
{policy: {model: {hidden_sizes: '64,64'}}}
    - *; write 'policy.model.hidden_sizes=[64,64]'.
{policy: {learn: {learning_rate: lin_2.5e-4}}}
    - *; write {start: 2.5e-4, end: 0}.
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
