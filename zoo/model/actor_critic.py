"""Models 'vac' and 'ppg': actor and critic as two networks or on one trunk; 'ppg' with an auxiliary value head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.config.section import Section
from zoo.core.data import Obs
from zoo.core.registry import MODEL_REGISTRY
from zoo.core.spaces import ACTION_MASK, WINDOW_MASK, Space, window_len
from zoo.model.config import ActorCriticConfig, Arch, PPGModelConfig, VACConfig
from zoo.model.encoder import Inherited, build_encoder, check_entries, takes_dicts_alone
from zoo.model.inputs import check_mask, has_windows, make_input, update_input, views_of, without_empty
from zoo.model.layers import Layers, ValueHead
from zoo.rl_utils.distribution import make_dist

ARCHS: dict[bool | str, Arch] = {False: 'dual', 'off': 'dual', True: 'shared', 'both': 'shared', 'detach': 'detach'}


class Networks(nn.Module):
    """The networks of an actor and a critic: one input stage, and an encoder and a head for each; the encoders may be one.

    Args: cfg: the fields of ActorCriticConfig; obs_space, action_space: the sizes of layers come from them.
    Attributes: dist: the distribution of the actions. is_masked: whether observations hold an action mask, which is
      applied to logits. leaf: name of the single entry of a Dict that the networks see, or None.
      actor_leaves: names of the entries that acting needs; None if it needs all.
    """

    def __init__(self, cfg: ActorCriticConfig, obs_space: Space, action_space: Space) -> None:
        super().__init__()
        arch: Arch = getattr(cfg, 'arch', None) or ARCHS[getattr(cfg, 'shared_encoder', False)]
        window = None
        if cfg.obs_norm:
            window = window_len(obs_space)
        keep_dict = takes_dicts_alone(cfg.encoder)
        is_shared = arch != 'dual'
        views = views_of(obs_space, cfg.actor_obs, cfg.critic_obs, keep_dict, is_shared, window is not None)
        self.arch = arch
        self.leaf = views.leaf
        self.actor_leaves = views.acting
        check_entries(cfg.encoder, views.input)
        self.input = make_input(views.input, cfg.obs_norm, cfg.normalize_images, window, cfg.obs_clip)
        inherited = Inherited.of(cfg)
        self.actor_encoder = build_encoder(cfg.encoder, views.actor, inherited)
        if arch == 'dual':
            self.critic_encoder = build_encoder(cfg.encoder, views.critic, inherited)
        else:
            self.critic_encoder = self.actor_encoder
        actor, critic = self._below_heads(cfg)
        actor_hidden = _hidden(cfg, cfg.actor_head, actor.n_feature)
        if actor_hidden is None:
            n_feature = actor.n_feature
        else:
            n_feature = actor_hidden.n_feature
        options = {**dict(cfg), 'n_feature': n_feature}
        self.dist = make_dist(action_space, cfg.distribution, options)
        head = self.dist.make_head(n_feature, options)
        if actor_hidden is None:
            self.policy_head = head
        else:
            self.policy_head = nn.Sequential(actor_hidden, head)
        self.is_masked = check_mask(obs_space, self.dist)
        critic_hidden = _hidden(cfg, cfg.critic_head, critic.n_feature)
        if critic_hidden is None:
            last = critic
        else:
            last = critic_hidden
        value_head = ValueHead(last.n_feature, last.value_gain)
        self.value_head: nn.Module
        if critic_hidden is None:
            self.value_head = value_head
        else:
            self.value_head = nn.Sequential(critic_hidden, value_head)
        self._decode: Callable[[Tensor], Tensor] | None = None

    def _below_heads(self, cfg: ActorCriticConfig) -> tuple[Any, Any]:
        """The modules whose outputs the policy head and the value head take; they have n_feature and value_gain."""
        return self.actor_encoder, self.critic_encoder

    def predict_distribution(self, n_output: int, decode: Callable[[Tensor], Tensor]) -> None:
        """Makes the critic predict a distribution of returns: n_output logits, which `decode` turns into the value."""
        from zoo.rl_utils.value_losses import widened

        self.value_head = widened(self.value_head, n_output)
        self._decode = decode

    @property
    def sees_window(self) -> bool:
        """Whether `leaf` is a window that is normalised, whose empty places become 0."""
        return self.leaf is not None and has_windows(self.input)

    @property
    def one_trunk(self) -> bool:
        """Whether logit and value come from the same features, so that acting can cheaply compute the value too."""
        return self.critic_encoder is self.actor_encoder

    @property
    def joint(self) -> bool:
        """Whether policy and value loss train the same parameters, so that one gradient step must use both losses."""
        return self.arch == 'shared'

    def critic_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and parameters that a loss over `compute_critic` trains; none of them is the actor's, unless `joint`."""
        trunk = {'dual': ('critic_encoder', 'critic_core'), 'detach': (), 'shared': ('actor_encoder', 'actor_core')}
        parts = (*trunk[self.arch], 'value_head')
        return ((name, p) for name, p in self.named_parameters() if name.split('.')[0] in parts)

    def update_normalizer(self, obs: Obs, weight: Tensor | None = None) -> None:
        """Adds obs [N, *O] to the observation statistics, if the model keeps any."""
        if isinstance(self.input, nn.Identity):
            return
        marks = None
        if self.sees_window:
            marks = obs[WINDOW_MASK]
        if self.leaf is not None:
            obs = obs[self.leaf]
        update_input(self.input, obs, weight, marks)

    def encoder_input(self, obs: Obs) -> Any:
        """The input of the encoders, from observations."""
        if self.leaf is None:
            return self.input(obs)
        x = self.input(obs[self.leaf])
        if self.sees_window:
            return without_empty(x, obs[WINDOW_MASK])
        return x

    def _value_outputs(self, feature: Tensor) -> dict[str, Tensor]:
        """{'value' [...]}, and 'value_logit' [..., K] of a critic that predicts a distribution."""
        output = self.value_head(feature)
        if self._decode is None:
            return {'value': output}
        return {'value': self._decode(output), 'value_logit': output}

    def _logit(self, feature: Tensor, obs: Obs) -> Tensor:
        logit = self.policy_head(feature)
        if self.is_masked:
            return self.dist.masked(logit, obs[ACTION_MASK])
        return logit

    def _outputs(
        self, obs: Obs, feature: Tensor, critic_feature: Tensor, aux_head: nn.Module | None = None
    ) -> dict[str, Any]:
        """{'logit', 'value'}, and 'aux_value' with an aux_head, from features; arch 'detach' stops the value's gradient."""
        if self.arch == 'detach':
            critic_feature = critic_feature.detach()
        output = {'logit': self._logit(feature, obs)}
        if aux_head is not None:
            output['aux_value'] = aux_head(feature)
        return {**output, **self._value_outputs(critic_feature)}


class ActorCritic(Networks):
    """Actor and critic without memory; if the config asks for a memory, the constructor returns a model with one."""

    def __new__(cls, cfg: ActorCriticConfig | None = None, *spaces: Space) -> Any:
        if getattr(cfg, 'recurrent', None) is None or not issubclass(cls, VAC | PPG):
            return super().__new__(cls)
        recurrent = import_module('zoo.model.recurrent')  # which imports this module
        return recurrent.with_memory(cls, cfg, *spaces)

    def compute_actor(self, obs: Obs) -> Tensor:
        """obs [..., *O] -> logit [..., P], the parameters of the action distribution."""
        return self._logit(self.actor_encoder(self.encoder_input(obs)), obs)

    def compute_critic(self, obs: Obs) -> Tensor:
        """obs [..., *O] -> value [...]."""
        return self.compute_critic_output(obs)['value']

    def compute_critic_output(self, obs: Obs) -> dict[str, Any]:
        """obs [..., *O] -> {'value'}, and 'value_logit' where the critic predicts a distribution of returns."""
        x = self.encoder_input(obs)
        if self.arch != 'detach':
            return self._value_outputs(self.critic_encoder(x))
        with torch.no_grad():  # not detach(): without gradient the trunk keeps nothing for a backward pass
            feature = self.critic_encoder(x)
        return self._value_outputs(feature)

    def compute_actor_critic(self, obs: Obs) -> dict[str, Any]:
        """obs [..., *O] -> {'logit', 'value'} (and 'value_logit'), each stage run once."""
        return self._outputs(obs, *self._features(obs))

    def _features(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """The features that the policy head and the value head take; no gradient is stopped."""
        x = self.encoder_input(obs)
        feature = self.actor_encoder(x)
        if self.arch != 'dual':
            return feature, feature
        return feature, self.critic_encoder(x)


@MODEL_REGISTRY.register('vac')
class VAC(ActorCritic):
    """Actor and critic of PPO: two networks, or two heads on one trunk, which both losses train or the actor's alone.

    If `recurrent` is set, the constructor returns a `RecurrentVAC`.
    """

    config: ClassVar[type[Section]] = VACConfig


@MODEL_REGISTRY.register('ppg')
class PPG(ActorCritic):
    """Actor and critic of PPG: `value` is for GAE; `aux_value`, a head on the policy's trunk, only serves to train the trunk.

    Networks that the gradient of each output reaches:

      arch     compute_actor, 'logit'      compute_critic, 'value'    compute_aux: 'aux_value', 'value'
      dual     policy trunk, policy head   critic network             policy trunk, aux head; critic network
      detach   trunk, policy head          value head                 trunk, aux head; value head
      shared   trunk, policy head          trunk, value head          trunk, aux head; trunk, value head

    A trunk is an encoder; in a `RecurrentPPG`, which the constructor returns if `recurrent` is set, also its memory. The
    auxiliary head has no hidden layers, so that the trunk must learn what this head needs.
    Source: Cobbe et al. 2021, arXiv:2009.04416, algorithm 1; 'detach' is its single-network variant: a value gradient
    enters the shared layers in the auxiliary phase, but none in the policy phase. As in the authors' code it is that of the
    auxiliary head; that of the value head stops in both phases. With both gradients, the returns would weigh twice as much
    against the cloning loss as with two networks.
    """

    config: ClassVar[type[Section]] = PPGModelConfig

    def __init__(self, cfg: PPGModelConfig, obs_space: Space, action_space: Space) -> None:
        super().__init__(cfg, obs_space, action_space)
        self.aux_head = ValueHead(self.actor_encoder.n_feature, self.actor_encoder.value_gain)

    def compute_aux(self, obs: Obs) -> dict[str, Any]:
        """obs [..., *O] -> {'logit', 'aux_value', 'value'}, each stage run once."""
        return self._outputs(obs, *self._features(obs), self.aux_head)


def _hidden(cfg: ActorCriticConfig, widths: Sequence[int], n_feature: int) -> Layers | None:
    """Hidden layers between an encoder and a head; None if the config gives no widths."""
    if widths:
        return Layers(n_feature, widths, cfg.activation, cfg.layer_norm)
    return None
