"""Sections `policy.model` of the models 'vac' and 'ppg'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from zoo.config.components import class_of
from zoo.config.section import ConfigError, Section, is_class, validate
from zoo.core.errors import unknown_name
from zoo.core.registry import CELL_REGISTRY, DISTRIBUTION_REGISTRY
from zoo.model.encoder import EncoderSpec
from zoo.model.images import Precision
from zoo.model.inputs import OBS_CLIP
from zoo.model.layers import Activation, Width

Arch = Literal['dual', 'detach', 'shared']
"""'dual': the critic is a separate network; 'detach': a head on the actor's network, which its gradient does not enter;
'shared': a head on the actor's network, which its gradient enters."""
OF_DISTRIBUTION = (
    'log_std_init',
    'log_std_max',
    'log_std_min',
    'noise_color',
    'sde_sample_freq',
    'state_dependent_std',
)
"""Fields that some action distributions read and others do not."""


RECURRENT = 'policy.model.recurrent'


class RecurrentConfig(Section):
    """Section `policy.model.recurrent`, without the fields that a cell adds in a section class of its own, below this one."""

    cell: str = Field(
        'lstm', description='kind of memory, a registered name; mingru and trxl run over a sequence in parallel'
    )
    hidden_size: int = Field(
        64, ge=1, le=1_000_000, description='numbers that a layer remembers, and its features; 64 to 512'
    )
    n_layer: int = Field(1, ge=1, le=1_000, description='layers on top of each other; 1 or 2')
    critic: bool = Field(True, description='the critic has a memory too; false: it sees the present alone')

    @classmethod
    def chosen_by(cls, data: Mapping[str, Any]) -> type[Section]:
        """The section class of the cell that these values name."""
        name = data.get('cell', cls.model_fields['cell'].default)
        if not isinstance(name, str) or name not in CELL_REGISTRY:
            return cls
        section = getattr(CELL_REGISTRY.get(name), 'config', None)
        if not is_class(section, RecurrentConfig):
            raise ConfigError(
                f'cell {name!r} of {CELL_REGISTRY.where(name)} has the config {section!r} but needs a class below '
                'RecurrentConfig; let the cell extend zoo.model.MemoryCell, whose config that is.'
            )
        return section

    @field_validator('cell')
    @classmethod
    def _is_registered(cls, name: str) -> str:
        if name not in CELL_REGISTRY:
            raise ConfigError(f'{RECURRENT}.cell: {unknown_name("cell", name, CELL_REGISTRY.names())}')
        return name


def _with_cell(given: Any) -> Any:
    """The section of a memory with the fields of its cell; anything that is no dict is left to the check of its type."""
    if type(given) is not dict:
        return given
    return validate(RecurrentConfig.chosen_by(given), given, RECURRENT)


class ActorCriticConfig(Section):
    """Fields that the sections `policy.model` of 'vac' and 'ppg' have in common."""

    type: str = Field('vac', description='registered name of the model')
    encoder: EncoderSpec = Field(
        'auto',
        description='network before the heads, by name or as {type: name, its fields}: '
        "mlp, simba, flat, cnn, nature, impala, multi, attention; 'auto': 'mlp' for vectors, for images 'nature' from 80x80 on, "
        "else 'impala', 'mlp' below 8x8, for a Dict 'multi'",
    )
    hidden_sizes: list[Width] = Field([64, 64], min_length=1, description='mlp: widths of the hidden layers')
    activation: Activation = Field('tanh', description='mlp and heads: after each hidden layer')
    layer_norm: bool = Field(False, description='mlp and heads: layer normalisation before each activation')
    precision: Precision = Field(
        'auto',
        description='images: compute in float32, or in bfloat16 with float32 parameters; auto: bfloat16 where '
        'the processor or GPU has it',
    )
    actor_head: list[Width] = Field([], description='widths of hidden layers between the encoder and the policy')
    critic_head: list[Width] = Field([], description='widths of hidden layers between the encoder and the value')
    recurrent: Annotated[RecurrentConfig | None, BeforeValidator(_with_cell)] = Field(
        None,
        description='memory between encoder and heads, {cell, hidden_size, n_layer, critic, fields of the cell}; null: none',
    )
    actor_obs: list[str] | None = Field(
        None, min_length=1, description='entries of the observation that the actor sees; null: all'
    )
    critic_obs: list[str] | None = Field(
        None, min_length=1, description='entries of the observation that the critic sees; null: all'
    )
    obs_norm: bool = Field(
        False,
        description='normalise observations that are no images by their running mean and standard deviation, clipped '
        'to +-obs_clip',
    )
    obs_clip: float = Field(
        OBS_CLIP, gt=0, le=1e6, description='bound of observations that obs_norm has normalised, in standard deviations'
    )
    normalize_images: bool = Field(
        True, description='images of bytes are divided by the upper bound of their space, as a rule 255'
    )
    distribution: class_of(  # type: ignore[valid-type]
        DISTRIBUTION_REGISTRY, 'policy.model.distribution', 'zoo.rl_utils.ActionDist', 'of_space'
    ) = Field(
        'auto',
        description="distribution of the actions, a registered name or 'module:Class'; 'auto': the usual one of the action space",
    )
    state_dependent_std: bool = Field(
        False, description='Gaussian: the log-std is a function of the observation, not a free parameter'
    )
    log_std_init: float = Field(0.0, description='Gaussian: log standard deviation at the start, in action units')
    log_std_min: float = Field(-10.0, ge=-20, le=10, description='Gaussian: floor of the log standard deviation')
    log_std_max: float = Field(2.0, ge=-20, le=10, description='Gaussian: ceiling of the log standard deviation')
    noise_color: float = Field(
        0.0,
        ge=0,
        le=2,
        description='Gaussian: noise of a rollout has power 1 / f^b at frequency f; 0: none depends on another, .5 to 1: '
        'an env is pushed the same way for longer',
    )
    sde_sample_freq: Annotated[int, Field(ge=1)] | None = Field(
        None, description='gsde: env steps that an exploration matrix is kept; null: a whole rollout'
    )

    @model_validator(mode='after')
    def _log_std_lies_between(self) -> ActorCriticConfig:
        low = self.log_std_min
        start = self.log_std_init
        high = self.log_std_max
        if not low <= start <= high:
            raise ValueError(
                f'log_std_init is {start:g} but must lie between log_std_min, {low:g}, and log_std_max, {high:g}; '
                'change one of them'
            )
        return self


class VACConfig(ActorCriticConfig):
    """Section `policy.model` of the model 'vac'."""

    shared_encoder: bool | Literal['off', 'both', 'detach'] = Field(
        False,
        description="actor and critic share the encoder (usual for images), and the memory; true or 'both': both "
        "losses train it; 'detach': that of the actor alone",
    )


class PPGModelConfig(ActorCriticConfig):
    """Section `policy.model` of the model 'ppg'."""

    type: str = Field('ppg', description='registered name of the model')
    arch: Arch = Field(
        'dual',
        description="'dual': the critic is a network of its own; 'detach': a head on the policy's, whose "
        "gradient never enters the trunk (that of the auxiliary head does); 'shared': in all phases",
    )
