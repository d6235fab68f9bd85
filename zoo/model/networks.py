"""The parts of an actor and a critic over any observations, with or without memory, and the fields that choose them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from zoo.config.messages import shown
from zoo.config.section import ConfigError, Section
from zoo.core.data import Obs
from zoo.core.errors import UserError
from zoo.core.registry import DISTRIBUTION_REGISTRY, unknown_name
from zoo.core.spaces import ACTION_MASK, Space
from zoo.model.convolve import Precision
from zoo.model.encoder import EncoderSpec, Inherited, build_encoder, check_entries, takes_dicts_alone
from zoo.model.heads import check_mask, policy_head, value_head
from zoo.model.inputs import make_input, update_input
from zoo.model.mlp import Activation, WideValueHead, Width
from zoo.model.recurrent import RecurrentConfig
from zoo.model.views import Views, views_of

Arch = Literal['dual', 'detach', 'shared']
"""'dual': the critic is a network of its own; 'detach': a head on the actor's, at which its gradient stops; 'shared':
a head on it, whose gradient goes on."""


class ActorCriticConfig(Section):
    """What the sections `policy.model` of 'vac' and 'ppg' have in common."""

    type: str = Field('vac', description='registered name of the model')
    encoder: EncoderSpec = Field(
        'auto',
        description='network before the heads, by name or as {type: name, its fields}: '
        "mlp, simba, flat, cnn, nature, impala, multi; 'auto': 'mlp' for vectors, for images 'nature' from 80x80 on, "
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
    recurrent: RecurrentConfig | None = Field(
        None, description='memory between encoder and heads, {cell, hidden_size, n_layer, critic}; null: none'
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
        'to +-10',
    )
    normalize_images: bool = Field(True, description='images of bytes are divided by 255')
    distribution: str = Field(
        'auto', description="distribution of the actions, a registered name; 'auto': the usual one of the action space"
    )
    state_dependent_std: bool = Field(
        False, description='Gaussian: the log-std is a function of the observation, not a free parameter'
    )
    log_std_init: float = Field(0.0, description='Gaussian: log standard deviation at the start, in action units')
    log_std_min: float = Field(-10.0, ge=-20, le=10, description='Gaussian: floor of the log standard deviation')
    log_std_max: float = Field(2.0, ge=-20, le=10, description='Gaussian: ceiling of the log standard deviation')
    sde_sample_freq: Annotated[int, Field(ge=1)] | None = Field(
        None, description='gsde: env steps that an exploration matrix is kept; null: a whole rollout'
    )

    @field_validator('distribution')
    @classmethod
    def _is_registered(cls, name: str) -> str:
        if name != 'auto' and name not in DISTRIBUTION_REGISTRY:
            raise ConfigError(unknown_name('distribution', name, ['auto', *DISTRIBUTION_REGISTRY.names()]))
        return name

    @model_validator(mode='after')
    def _log_std_lies_between(self) -> ActorCriticConfig:
        low, start, high = self.log_std_min, self.log_std_init, self.log_std_max
        if not low <= start <= high:
            raise ValueError(
                f'log_std_init is {start:g} but must lie between log_std_min, {low:g}, and log_std_max, {high:g}; '
                'change one of them'
            )
        return self


class Networks(nn.Module):
    """The parts of an actor and a critic: an input stage, an encoder and a head for each; the encoders may be one.

    Args: cfg: the fields of ActorCriticConfig; obs_space, action_space: sizes come from them.
    Attributes: dist: the distribution of the actions. is_masked: whether observations hold an action mask, which
      logits have applied. leaf: name of the one entry of a Dict that the networks see, where it is one.
      actor_leaves: names of the entries that acting needs; None if it needs all.
    """

    def __init__(self, cfg: Any, obs_space: Space, action_space: Space, arch: Arch) -> None:
        super().__init__()
        views = views_of(obs_space, cfg.actor_obs, cfg.critic_obs, takes_dicts_alone(cfg.encoder))
        self.arch, self.leaf, self.actor_leaves = arch, views.leaf, views.acting
        self._check(cfg, views)
        self.input = make_input(views.input, cfg.obs_norm, cfg.normalize_images)
        given = Inherited(cfg.hidden_sizes, cfg.activation, cfg.precision, cfg.layer_norm)
        self.actor_encoder: Any = build_encoder(cfg.encoder, views.actor, given)
        self.critic_encoder: Any = (
            build_encoder(cfg.encoder, views.critic, given) if arch == 'dual' else self.actor_encoder
        )
        actor, critic = self._below_heads(cfg)
        self.policy_head, self.dist = policy_head(cfg, actor.n_feature, action_space)
        self.is_masked = check_mask(obs_space, self.dist)
        self.value_head = value_head(cfg, critic.n_feature, critic.value_gain)
        self._decode: Callable[[Tensor], Tensor] | None = None

    def _check(self, cfg: Any, views: Views) -> None:
        check_entries(cfg.encoder, views.input)
        if views.actor is not views.critic and self.arch != 'dual':
            raise UserError(
                f'policy.model.actor_obs is {shown(cfg.actor_obs)} and critic_obs {shown(cfg.critic_obs)} but actor and critic share '
                "their encoder; give both the same entries, or each an encoder: shared_encoder 'off', of ppg arch 'dual'"
            )

    def _below_heads(self, cfg: Any) -> tuple[Any, Any]:
        """The modules whose outputs the policy head and the value head take; they have n_feature and value_gain."""
        return self.actor_encoder, self.critic_encoder

    def predict_distribution(self, n_output: int, decode: Callable[[Tensor], Tensor]) -> None:
        """Makes the critic predict a distribution of returns: n_output logits, which `decode` turns into the value."""
        head: Any = self.value_head
        if isinstance(head, nn.Sequential):
            last: Any = head[-1]
            head[-1] = WideValueHead(last.layer.in_features, n_output)
        else:
            self.value_head = WideValueHead(head.layer.in_features, n_output)
        self._decode = decode

    @property
    def one_trunk(self) -> bool:
        """Whether logit and value come from the same features, so that acting may as well find the value."""
        return self.critic_encoder is self.actor_encoder

    @property
    def joint(self) -> bool:
        """Whether policy and value loss move the same parameters, so that one step has to take both."""
        return self.arch == 'shared'

    def critic_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters that a loss over `compute_critic` moves; none of them the actor's, unless `joint`."""
        trunk = {'dual': ('critic_encoder', 'critic_core'), 'detach': (), 'shared': ('actor_encoder', 'actor_core')}
        parts = (*trunk[self.arch], 'value_head')
        return ((name, p) for name, p in self.named_parameters() if name.split('.')[0] in parts)

    def update_normalizer(self, obs: Obs, weight: Tensor | None = None) -> None:
        """Takes obs [N, *O] into the observation statistics, where the model keeps any."""
        update_input(self.input, obs if self.leaf is None else obs[self.leaf], weight)

    def _seen(self, obs: Obs) -> Any:
        """What the encoders take."""
        return self.input(obs if self.leaf is None else obs[self.leaf])

    def _value(self, feature: Tensor) -> dict[str, Tensor]:
        """{'value' [...]}, and 'value_logit' [..., K] of a critic that predicts a distribution."""
        output = self.value_head(feature)
        return {'value': output} if self._decode is None else {'value': self._decode(output), 'value_logit': output}

    def _logit(self, feature: Tensor, obs: Obs) -> Tensor:
        logit = self.policy_head(feature)
        return self.dist.masked(logit, obs[ACTION_MASK]) if self.is_masked else logit
