"""Model 'vac': an actor and a critic over vectors, as two networks or on one trunk."""
from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor, nn

from zoo.config import Section
from zoo.model.encoder import MLP, Activation, make_input
from zoo.model.head import ValueHead, make_policy_head
from zoo.registry import MODEL_REGISTRY
from zoo.rl_utils.distribution import Logit
from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.spaces import Space


class VACConfig(Section):
    """Section `policy.model` of the model 'vac'."""

    type: str = Field('vac', description='registered name of the model')
    hidden_sizes: list[Annotated[int, Field(ge=1)]] = Field(
        [64, 64], min_length=1, description='widths of the hidden layers')
    activation: Activation = Field('tanh', description='after each hidden layer')
    shared_encoder: bool = Field(False, description='actor and critic share the hidden layers')
    obs_norm: bool = Field(
        False, description='normalise observations by their running mean and standard deviation, clipped to +-10')
    state_dependent_std: bool = Field(
        False, description='Gaussian: the log-std is a function of the observation, not a free parameter')
    log_std_init: float = Field(
        0.0, ge=-10, le=2, description='Gaussian: log standard deviation at the start, in action units')


@MODEL_REGISTRY.register('vac')
class VAC(nn.Module):
    """Actor and critic over vector (or one-hot) observations.

    Args: cfg: the fields of VACConfig; obs_space, action_space: sizes come from them.
    """

    config: ClassVar[type[Section]] = VACConfig

    def __init__(self, cfg: Any, obs_space: Space, action_space: Space) -> None:
        super().__init__()
        self.input, n_in = make_input(obs_space, cfg.obs_norm)
        n_feature = cfg.hidden_sizes[-1]
        self.actor_encoder = MLP(n_in, cfg.hidden_sizes, cfg.activation)
        self.critic_encoder = self.actor_encoder if cfg.shared_encoder else MLP(n_in, cfg.hidden_sizes, cfg.activation)
        self.policy_head = make_policy_head(n_feature, action_space, cfg.state_dependent_std, cfg.log_std_init)
        self.value_head = ValueHead(n_feature)

    def compute_actor(self, obs: Tensor) -> Logit:
        """obs [..., *O] -> logit [..., A], or {'mu', 'sigma'} of [..., D]."""
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
