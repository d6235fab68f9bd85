"""Models 'vac' and 'ppg' with a memory between encoders and heads."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from zoo.config.section import Section
from zoo.core.data import Obs, State
from zoo.core.errors import UserError
from zoo.core.spaces import Space
from zoo.model.actor_critic import ARCHS, Networks
from zoo.model.config import ActorCriticConfig, PPGModelConfig, VACConfig
from zoo.model.layers import ValueHead
from zoo.model.recurrent import Core


class RecurrentActorCritic(Networks):
    """Actor and critic with a `Core` each, or with one for both on a shared encoder.

    The methods take the state too, and return the next one. first None: one step, obs [B, *O]. first [L, B] bool:
    sequences, obs [L, B, *O], time first; the state is set to zero before each row where it is true, and the state
    returned is that after the last row. What a method does not compute passes through in the state unchanged.
    """

    def _below_heads(self, cfg: ActorCriticConfig) -> tuple[Any, Any]:
        memory = cfg.recurrent
        assert memory is not None, 'the class is chosen by it'
        if not memory.critic and self.arch != 'dual':
            raise UserError(
                'policy.model.recurrent.critic is false but actor and critic share their encoder, and so its memory; '
                "set it to true, or give each an encoder: shared_encoder 'off', of ppg arch 'dual'"
            )
        size = memory.cell, memory.hidden_size, memory.n_layer
        self.actor_core = Core(self.actor_encoder.n_feature, *size)
        if self.arch != 'dual':
            self.critic_core: Core | None = self.actor_core
        else:
            self.critic_core = Core(self.critic_encoder.n_feature, *size) if memory.critic else None
        return self.actor_core, self.critic_core or self.critic_encoder

    def initial_state(self, n_env: int) -> dict[str, Tensor]:
        """The state of n_env envs at the start of an episode: zeros [n_env, ..] for each core."""
        state = {'actor': self.actor_core.initial_state(n_env)}
        if self.arch == 'dual' and self.critic_core is not None:
            state['critic'] = self.critic_core.initial_state(n_env)
        return state

    def compute_actor(self, obs: Obs, state: State, first: Tensor | None = None) -> Any:
        """-> (logit [..., P], state)."""
        feature, state = self._actor_feature(self._seen(obs), state, first)
        return self._logit(feature, obs), state

    def compute_critic(self, obs: Obs, state: State, first: Tensor | None = None) -> Any:
        """-> (value [...], state)."""
        output = self.compute_critic_output(obs, state, first)
        return output['value'], output['state']

    def compute_critic_output(self, obs: Obs, state: State, first: Tensor | None = None) -> dict[str, Any]:
        """-> {'value', 'state'}, and 'value_logit' where the critic predicts a distribution of returns."""
        x = self._seen(obs)
        if self.arch == 'dual':
            feature, state = self._critic_feature(x, state, first)
        else:
            with torch.set_grad_enabled(self.arch == 'shared' and torch.is_grad_enabled()):
                feature, state = self._actor_feature(x, state, first)
        return {**self._value(feature), 'state': state}

    def compute_actor_critic(self, obs: Obs, state: State, first: Tensor | None = None) -> dict[str, Any]:
        """-> {'logit', 'value', 'state'}, each stage run once."""
        feature, critic_feature, state = self._features(obs, state, first)
        return {**self._outputs(obs, feature, critic_feature), 'state': state}

    def _features(self, obs: Obs, state: State, first: Tensor | None) -> tuple[Tensor, Tensor, State]:
        """What the policy head and the value head take, and the state; no gradient is stopped."""
        x = self._seen(obs)
        feature, state = self._actor_feature(x, state, first)
        if self.arch != 'dual':
            return feature, feature, state
        critic_feature, state = self._critic_feature(x, state, first)
        return feature, critic_feature, state

    def _actor_feature(self, x: Tensor | dict[str, Tensor], state: State, first: Tensor | None) -> tuple[Tensor, State]:
        feature, new = self.actor_core(self.actor_encoder(x), state['actor'], first)
        return feature, {**state, 'actor': new}

    def _critic_feature(
        self, x: Tensor | dict[str, Tensor], state: State, first: Tensor | None
    ) -> tuple[Tensor, State]:
        """Of a critic with an encoder of its own."""
        feature = self.critic_encoder(x)
        if self.critic_core is None:
            return feature, state
        feature, new = self.critic_core(feature, state['critic'], first)
        return feature, {**state, 'critic': new}


class RecurrentVAC(RecurrentActorCritic):
    """`VAC` with a memory."""

    config: ClassVar[type[Section]] = VACConfig

    def __init__(self, cfg: VACConfig, obs_space: Space, action_space: Space) -> None:
        super().__init__(cfg, obs_space, action_space, ARCHS[cfg.shared_encoder])


class RecurrentPPG(RecurrentActorCritic):
    """`PPG` with a memory."""

    config: ClassVar[type[Section]] = PPGModelConfig

    def __init__(self, cfg: PPGModelConfig, obs_space: Space, action_space: Space) -> None:
        super().__init__(cfg, obs_space, action_space, cfg.arch)
        self.aux_head = ValueHead(self.actor_core.n_feature, self.actor_core.value_gain)

    def compute_aux(self, obs: Obs, state: State, first: Tensor | None = None) -> dict[str, Any]:
        """-> {'logit', 'aux_value', 'value', 'state'}, each stage run once."""
        feature, critic_feature, state = self._features(obs, state, first)
        return {**self._outputs(obs, feature, critic_feature, self.aux_head), 'state': state}
