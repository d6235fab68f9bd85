"""Model 'ppg': policy, critic and the auxiliary value head of phasic policy gradient (arXiv:2009.04416)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.config.section import Section
from zoo.core.registry import MODEL_REGISTRY
from zoo.core.spaces import Space
from zoo.model.actor_critic import ActorCritic, ActorCriticConfig
from zoo.model.mlp import ValueHead


class PPGConfig(ActorCriticConfig):
    """Section `policy.model` of the model 'ppg'."""

    type: str = Field('ppg', description='registered name of the model')
    arch: Literal['dual', 'detach', 'shared'] = Field(
        'dual',
        description="'dual': the critic is a network of its own; 'detach': a head on the policy's, whose "
        "gradient enters the trunk in the auxiliary phase only; 'shared': in all phases",
    )


@MODEL_REGISTRY.register('ppg')
class PPG(ActorCritic):
    """The critic (`value`) feeds GAE; `aux_value`, on the policy's trunk, is there for its gradient alone.

    Where the gradients go:

      arch     compute_actor, 'logit'      compute_critic, 'value'    compute_aux: 'aux_value', 'value'
      dual     policy trunk, policy head   critic network             policy trunk, aux head; critic network
      detach   trunk, policy head          value head                 trunk, aux head; trunk, value head
      shared   trunk, policy head          trunk, value head          trunk, aux head; trunk, value head

    Source: Cobbe et al. 2021, arXiv:2009.04416, algorithm 1; 'detach' is its single-network variant: the value gradient
    stops at the last shared layer in the policy phase and reaches all parameters in the auxiliary phase.
    """

    config: ClassVar[type[Section]] = PPGConfig

    def __init__(self, cfg: Any, obs_space: Space, action_space: Space) -> None:
        super().__init__(cfg, obs_space, action_space, shared_encoder=cfg.arch != 'dual')
        self.aux_head = ValueHead(self.actor_encoder.n_feature, self.actor_encoder.value_gain)
        self.arch = cfg.arch

    @property
    def joint(self) -> bool:
        """Whether policy and value loss move the same parameters, so that one step has to take both."""
        return self.arch == 'shared'

    def critic_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters that a loss over `compute_critic` moves; none of them the actor's, unless `joint`."""
        trunk = {'dual': 'critic_encoder', 'detach': '', 'shared': 'actor_encoder'}[self.arch]
        return self._parameters_of(trunk, 'value_head')

    def compute_critic(self, obs: Tensor) -> Tensor:
        x = self.input(obs)
        if self.arch != 'detach':
            return self.value_head(self.critic_encoder(x))
        with torch.no_grad():  # rather than detach(): the trunk then keeps nothing for a backward pass
            feature = self.critic_encoder(x)
        return self.value_head(feature)

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Any]:
        x = self.input(obs)
        feature = self.actor_encoder(x)
        critic_feature = self._critic_feature(x, feature)
        if self.arch == 'detach':
            critic_feature = critic_feature.detach()
        return {'logit': self.policy_head(feature), 'value': self.value_head(critic_feature)}

    def compute_aux(self, obs: Tensor) -> dict[str, Any]:
        """obs [..., *O] -> {'logit', 'aux_value', 'value'}, each stage run once; no gradient is stopped."""
        x = self.input(obs)
        feature = self.actor_encoder(x)
        return {
            'logit': self.policy_head(feature),
            'aux_value': self.aux_head(feature),
            'value': self.value_head(self._critic_feature(x, feature)),
        }

    def _critic_feature(self, x: Tensor, feature: Tensor) -> Tensor:
        return self.critic_encoder(x) if self.arch == 'dual' else feature

    def _parameters_of(self, *parts: str) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in self.named_parameters() if name.split('.')[0] in parts)
