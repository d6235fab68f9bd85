"""Model 'vac': an actor and a critic, as two networks or on one trunk; and what it shares with model 'ppg'."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from zoo.config.section import Section
from zoo.core.registry import MODEL_REGISTRY
from zoo.core.spaces import Space
from zoo.model.cnn import Precision
from zoo.model.encoder import EncoderName, make_encoder, make_input
from zoo.model.mlp import Activation, ValueHead
from zoo.rl_utils.distribution import make_dist
from zoo.rl_utils.normalizer import RunningMeanStd


class ActorCriticConfig(Section):
    """What the sections `policy.model` of 'vac' and 'ppg' have in common."""

    type: str = Field('vac', description='registered name of the model')
    encoder: EncoderName = Field(
        'auto',
        description="network before the heads; 'auto': 'mlp' for vectors, for images 'nature' from 80x80 on, "
        "else 'impala'",
    )
    hidden_sizes: list[Annotated[int, Field(ge=1)]] = Field(
        [64, 64], min_length=1, description='mlp: widths of the hidden layers'
    )
    activation: Activation = Field('tanh', description='mlp: after each hidden layer')
    precision: Precision = Field(
        'auto',
        description='images: compute in float32, or in bfloat16 with float32 parameters; auto: bfloat16 where '
        'the processor or GPU has it',
    )
    obs_norm: bool = Field(
        False, description='normalise observations by their running mean and standard deviation, clipped to +-10'
    )
    state_dependent_std: bool = Field(
        False, description='Gaussian: the log-std is a function of the observation, not a free parameter'
    )
    log_std_init: float = Field(
        0.0, ge=-10, le=2, description='Gaussian: log standard deviation at the start, in action units'
    )


class VACConfig(ActorCriticConfig):
    """Section `policy.model` of the model 'vac'."""

    shared_encoder: bool = Field(False, description='actor and critic share the encoder (usual for images)')


class ActorCritic(nn.Module):
    """Actor and critic over vectors, indices or images.

    Args: cfg: the fields of ActorCriticConfig; obs_space, action_space: sizes come from them;
      shared_encoder: actor and critic are heads on one trunk.
    """

    def __init__(self, cfg: Any, obs_space: Space, action_space: Space, shared_encoder: bool) -> None:
        super().__init__()
        self.input = make_input(obs_space, cfg.obs_norm)
        network = obs_space, cfg.encoder, cfg.hidden_sizes, cfg.activation, cfg.precision
        self.actor_encoder, n_feature = make_encoder(*network)
        self.critic_encoder = self.actor_encoder if shared_encoder else make_encoder(*network)[0]
        self.policy_head = make_dist(action_space).make_head(n_feature, dict(cfg))
        self.value_head = ValueHead(n_feature, self.critic_encoder.value_gain)

    @property
    def one_trunk(self) -> bool:
        """Whether logit and value come from the same features, so that acting may as well find the value."""
        return self.critic_encoder is self.actor_encoder

    def compute_actor(self, obs: Tensor) -> Tensor:
        """obs [..., *O] -> logit [..., P], the parameters of the action distribution."""
        return self.policy_head(self.actor_encoder(self.input(obs)))

    def compute_critic(self, obs: Tensor) -> Tensor:
        """obs [..., *O] -> value [...]."""
        return self.value_head(self.critic_encoder(self.input(obs)))

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Any]:
        """obs [..., *O] -> {'logit', 'value'}, each stage run once."""
        x = self.input(obs)
        feature = self.actor_encoder(x)
        critic_feature = feature if self.critic_encoder is self.actor_encoder else self.critic_encoder(x)
        return {'logit': self.policy_head(feature), 'value': self.value_head(critic_feature)}

    def update_normalizer(self, obs: Tensor, weight: Tensor | None = None) -> None:
        """Takes obs [N, *O] into the observation statistics, where the model keeps any."""
        if isinstance(self.input, RunningMeanStd):
            self.input.update(obs, weight)


@MODEL_REGISTRY.register('vac')
class VAC(ActorCritic):
    """Actor and critic as PPO has them: two networks, or two heads on one trunk that both losses train."""

    config: ClassVar[type[Section]] = VACConfig

    def __init__(self, cfg: Any, obs_space: Space, action_space: Space) -> None:
        super().__init__(cfg, obs_space, action_space, cfg.shared_encoder)
