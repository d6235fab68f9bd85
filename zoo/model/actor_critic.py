"""Model 'vac': an actor and a critic, as two networks or on one trunk; and what it shares with model 'ppg'."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from zoo.config.section import Section
from zoo.core.data import Obs
from zoo.core.registry import MODEL_REGISTRY
from zoo.core.spaces import Space
from zoo.model.memory import RecurrentActorCritic, wants_memory
from zoo.model.networks import ActorCriticConfig, Arch, Networks

_ARCHS: dict[bool | str, Arch] = {
    False: 'dual',
    'off': 'dual',
    True: 'shared',
    'both': 'shared',
    'detach': 'detach',
}


class VACConfig(ActorCriticConfig):
    """Section `policy.model` of the model 'vac'."""

    shared_encoder: bool | Literal['off', 'both', 'detach'] = Field(
        False,
        description="actor and critic share the encoder (usual for images), and the memory; true or 'both': both "
        "losses train it; 'detach': that of the actor alone",
    )


class ActorCritic(Networks):
    """Actor and critic without memory."""

    def compute_actor(self, obs: Obs) -> Tensor:
        """obs [..., *O] -> logit [..., P], the parameters of the action distribution."""
        return self._logit(self.actor_encoder(self._seen(obs)), obs)

    def compute_critic(self, obs: Obs) -> Tensor:
        """obs [..., *O] -> value [...]."""
        return self.compute_critic_output(obs)['value']

    def compute_critic_output(self, obs: Obs) -> dict[str, Any]:
        """obs [..., *O] -> {'value'}, and 'value_logit' where the critic predicts a distribution of returns."""
        x = self._seen(obs)
        if self.arch != 'detach':
            return self._value(self.critic_encoder(x))
        with torch.no_grad():  # rather than detach(): the trunk then keeps nothing for a backward pass
            feature = self.critic_encoder(x)
        return self._value(feature)

    def compute_actor_critic(self, obs: Obs) -> dict[str, Any]:
        """obs [..., *O] -> {'logit', 'value'} (and 'value_logit'), each stage run once."""
        x = self._seen(obs)
        feature = self.actor_encoder(x)
        critic_feature = self.critic_encoder(x) if self.arch == 'dual' else feature
        if self.arch == 'detach':
            critic_feature = critic_feature.detach()
        return {'logit': self._logit(feature, obs), **self._value(critic_feature)}


@MODEL_REGISTRY.register('vac')
class VAC(ActorCritic):
    """Actor and critic as PPO has them: two networks, or two heads on one trunk that both losses or the actor's train.

    With `recurrent` set the constructor gives a `RecurrentVAC`.
    """

    config: ClassVar[type[Section]] = VACConfig

    def __new__(cls, cfg: Any = None, *spaces: Space) -> Any:
        return RecurrentVAC(cfg, *spaces) if wants_memory(cls, VAC, cfg) else super().__new__(cls)

    def __init__(self, cfg: Any, obs_space: Space, action_space: Space) -> None:
        super().__init__(cfg, obs_space, action_space, _ARCHS[cfg.shared_encoder])


class RecurrentVAC(RecurrentActorCritic):
    """`VAC` with a memory."""

    config: ClassVar[type[Section]] = VACConfig

    def __init__(self, cfg: Any, obs_space: Space, action_space: Space) -> None:
        super().__init__(cfg, obs_space, action_space, _ARCHS[cfg.shared_encoder])
