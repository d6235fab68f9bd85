"""Section `policy.model`: errors that name the wrong key, and completion of an encoder's section."""

from __future__ import annotations

from typing import Any

import pytest

from zoo.config.section import ConfigError, validate
from zoo.model import PPGConfig, VACConfig

ENCODERS = 'attention, auto, cnn, entities, flat, impala, mlp, multi, nature, simba'
# fields, and parts of the error message
OF_BOTH: list[tuple[dict[str, Any], list[str]]] = [
    (dict(hidden_sizes=[]), ['policy.model.hidden_sizes']),
    (dict(hidden_sizes=[64, 0]), ['policy.model.hidden_sizes']),
    (dict(hidden_size=[64]), ['policy.model.hidden_sizes']),
    (dict(obs_norm=1), ['policy.model.obs_norm']),
    (dict(encoder=dict(type='cnn', channels=[0])), ['policy.model.encoder.channels', 'integers >= 1']),
    (dict(encoder=dict(type='cnn', chanels=[8])), ['policy.model.encoder.chanels', 'policy.model.encoder.channels']),
    (dict(encoder=dict(type='cnn', channels=[8])), ['policy.model.encoder', 'channels has 1', 'kernels has 3']),
    (dict(encoder=dict(type='simba', n_block=0)), ['policy.model.encoder.n_block', '>= 1']),
    (
        dict(encoder=dict(hidden_sizes=[8])),
        ['policy.model.encoder has no type but', 'attention, cnn, entities, flat, impala, mlp'],
    ),
    (dict(encoder=dict(type='cnnn')), ["unknown encoder 'cnnn'", "'cnn'"]),
    (dict(encoder='resnet'), ["unknown encoder 'resnet'", ENCODERS]),
    (dict(encoder=3), ['policy.model.encoder is 3', 'a name or {type: name, its options}']),
    (
        dict(encoder=dict(type='multi', encoders=dict(image=3))),
        ['policy.model.encoder.encoders.image is 3 but must be the name of an encoder, or {type: its name'],
    ),
    (
        dict(encoder=dict(type='multi', encoders=dict(image=dict(type='impala', pool=True)))),
        ['policy.model.encoder.encoders.image.pool'],
    ),
    (dict(encoder=dict(type='multi', join='mlpp')), ["unknown encoder 'mlpp'"]),
    (dict(activation='sigmoid'), ['policy.model.activation', "'gelu', 'silu'"]),
    (dict(distribution='gausian'), ["unknown distribution 'gausian'", "'gaussian'"]),
    (dict(log_std_init=3.0), ['policy.model', 'log_std_init is 3 but', 'log_std_max, 2']),
    (dict(log_std_init=-11.0), ['policy.model', 'log_std_init is -11 but', 'log_std_min, -10']),
    (dict(log_std_min=-1.0, log_std_init=-2.0), ['log_std_init is -2 but', 'log_std_min, -1']),
    (dict(log_std_min=1.0, log_std_max=0.0), ['must lie between']),
    (dict(actor_head=[0]), ['policy.model.actor_head', 'integers >= 1']),
    (dict(actor_obs=[]), ['policy.model.actor_obs', 'a list of one or more texts or null;']),
    (dict(sde_sample_freq=0), ['policy.model.sde_sample_freq', '>= 1']),
    (dict(recurrent=dict(cell='rnn')), ['policy.model.recurrent.cell', "unknown cell 'rnn'", 'lstm, mingru, trxl']),
    (dict(recurrent=dict(hidden_size=0)), ['policy.model.recurrent.hidden_size', '>= 1']),
    (dict(recurrent=dict(n_layers=2)), ['policy.model.recurrent.n_layers', 'n_layer']),
    (dict(recurrent=dict(critic=1)), ['policy.model.recurrent.critic', 'true or false']),
]
OF_ONE: list[tuple[Any, dict[str, Any], list[str]]] = [
    (
        VACConfig,
        dict(shared_encoder='yes'),
        ['policy.model.shared_encoder', 'true or false', "'off', 'both', 'detach'"],
    ),
    (PPGConfig, dict(arch='duel'), ['policy.model.arch', "'duel'", "'dual'", "'detach'", "'shared'"]),
    (PPGConfig, dict(shared_encoder=True), ['policy.model.shared_encoder']),
]


@pytest.mark.parametrize(
    ('config', 'fields', 'words'),
    [*OF_ONE, *((config, *row) for row in OF_BOTH for config in (VACConfig, PPGConfig))],
    ids=lambda x: x.__name__ if isinstance(x, type) else str(x) if isinstance(x, dict) else '',
)
def test_config_names_the_key_that_is_wrong(config: Any, fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        validate(config, fields, 'policy.model')
    assert all(word in str(error.value) for word in words), str(error.value)


def test_a_section_of_an_encoder_is_completed_once() -> None:
    spec = validate(VACConfig, dict(encoder=dict(type='simba', hidden_size=32))).encoder
    assert spec == {'type': 'simba', 'hidden_size': 32, 'n_block': 1}
    assert validate(VACConfig, dict(encoder=spec)).encoder == spec
    assert validate(VACConfig, dict(encoder=dict(type='auto'))).encoder == 'auto'
