"""Model 'ppg': policy, critic and the auxiliary value head of phasic policy gradient (arXiv:2009.04416)."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from zoo.config.section import Section
from zoo.core.data import Obs, State
from zoo.core.registry import MODEL_REGISTRY
from zoo.core.spaces import Space
from zoo.model.actor_critic import ActorCritic
from zoo.model.memory import RecurrentActorCritic, wants_memory
from zoo.model.mlp import ValueHead
from zoo.model.networks import ActorCriticConfig, Arch


class PPGConfig(ActorCriticConfig):
    """Section `policy.model` of the model 'ppg'."""

    type: str = Field('ppg', description='registered name of the model')
    arch: Arch = Field(
        'dual',
        description="'dual': the critic is a network of its own; 'detach': a head on the policy's, whose "
        "gradient never enters the trunk (that of the auxiliary head does); 'shared': in all phases",
    )


@MODEL_REGISTRY.register('ppg')
class PPG(ActorCritic):
    """The critic (`value`) feeds GAE; `aux_value`, on the policy's trunk, is there for its gradient alone.

    Where the gradients go:

      arch     compute_actor, 'logit'      compute_critic, 'value'    compute_aux: 'aux_value', 'value'
      dual     policy trunk, policy head   critic network             policy trunk, aux head; critic network
      detach   trunk, policy head          value head                 trunk, aux head; value head
      shared   trunk, policy head          trunk, value head          trunk, aux head; trunk, value head

    A trunk is an encoder, and its memory in a `RecurrentPPG`, which the constructor gives with `recurrent` set. The
    auxiliary head has no hidden layers, so that what it learns is in the trunk.
    Source: Cobbe et al. 2021, arXiv:2009.04416, algorithm 1; 'detach' is its single-network variant: no value gradient
    enters the shared layers in the policy phase, one does in the auxiliary phase. As in the authors' code that one is
    the auxiliary head's, and the value head's stops in both phases: with both, the returns would weigh twice as much
    against the cloning loss as with two networks.
    """

    config: ClassVar[type[Section]] = PPGConfig

    def __new__(cls, cfg: Any = None, *spaces: Space) -> Any:
        return RecurrentPPG(cfg, *spaces) if wants_memory(cls, PPG, cfg) else super().__new__(cls)

    def __init__(self, cfg: Any, obs_space: Space, action_space: Space) -> None:
        super().__init__(cfg, obs_space, action_space, cfg.arch)
        self.aux_head = ValueHead(self.actor_encoder.n_feature, self.actor_encoder.value_gain)

    def compute_aux(self, obs: Obs) -> dict[str, Any]:
        """obs [..., *O] -> {'logit', 'aux_value', 'value'}, each stage run once."""
        x = self._seen(obs)
        feature = self.actor_encoder(x)
        critic_feature = self.critic_encoder(x) if self.arch == 'dual' else feature
        if self.arch == 'detach':
            critic_feature = critic_feature.detach()
        return {
            'logit': self._logit(feature, obs),
            'aux_value': self.aux_head(feature),
            **self._value(critic_feature),
        }


class RecurrentPPG(RecurrentActorCritic):
    """`PPG` with a memory."""

    config: ClassVar[type[Section]] = PPGConfig

    def __init__(self, cfg: Any, obs_space: Space, action_space: Space) -> None:
        super().__init__(cfg, obs_space, action_space, cfg.arch)
        self.aux_head = ValueHead(self.actor_core.n_feature, self.actor_core.value_gain)

    def compute_aux(self, obs: Obs, state: State, first: Tensor | None = None) -> dict[str, Any]:
        """-> {'logit', 'aux_value', 'value', 'state'}, each stage run once."""
        feature, critic_feature, state = self._features(obs, state, first)
        if self.arch == 'detach':
            critic_feature = critic_feature.detach()
        return {
            'logit': self._logit(feature, obs),
            'aux_value': self.aux_head(feature),
            **self._value(critic_feature),
            'state': state,
        }
