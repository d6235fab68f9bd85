"""Base of policies with a network, which act by its logits and by noise that is the same in every process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from zoo.backend.executor import Acting, acting_by, forward_for_acting
from zoo.core.data import Obs, State, Timestep, Transition, ends_of, keeps_state, to_device
from zoo.core.seeding import reseed, torch_generator
from zoo.policy.base import Policy
from zoo.policy.execution import ModelMode, join_model
from zoo.policy.parameters import NOTHING_OF_ACTOR, make_optimizer
from zoo.rl_utils.distribution import ActionDist, make_dist
from zoo.rl_utils.optimizer import FlatOptimizer


class Noise:
    """Draws the random numbers of actions for groups of envs, for a whole rollout at once.

    A group is identified by the index of its first env among all envs of the run. A second draw for a group within one
    rollout gives other numbers, so that acting by hand, without a collector, never repeats itself.
    Args: seed: of the run; n_step: steps of a rollout; device: where the noise is needed.
    """

    def __init__(self, dist: ActionDist, n_step: int, seed: int, device: torch.device) -> None:
        self._dist = dist
        self._n_step = n_step
        self._seed = seed
        self._device = device
        self._generator = torch_generator(seed, 'collect', device)
        self._collect_iter = 0
        self._n_drawn: dict[int, int] = {}
        self._rows: dict[int, list[Tensor]] = {}

    def begin(self, collect_iter: int) -> None:
        """Begins the rollout with this number."""
        self._collect_iter = collect_iter
        self._n_drawn.clear()
        self._rows.clear()

    def rollout(self, n_env: int, first: int, n_step: int | None = None) -> Tensor:
        """Draws the noise for all steps of a rollout of a group, [T, B, ...]. Args: n_step: T; None: that of the run."""
        n_drawn = self._n_drawn.get(first, 0)
        self._n_drawn[first] = n_drawn + 1
        again = []
        if n_drawn:
            again = [n_drawn]
        reseed(self._generator, self._seed, 'collect', first, self._collect_iter, *again)
        return self._dist.noise((n_step or self._n_step, n_env), self._generator, self._device)

    def row(self, n_env: int, first: int) -> Tensor:
        """Returns the noise for the next step of a group, [B, ...]; draws that of a rollout if none is left or B changes."""
        rows = self._rows.get(first)
        if not rows or rows[-1].shape[0] != n_env:  # len() takes 1 us more
            rows = self._rows[first] = list(self.rollout(n_env, first).unbind(0))[::-1]
        return rows.pop()


class NetworkPolicy(Policy):
    """Policy that acts with its model's `compute_actor`: logits [B, P], which are the parameters of an action distribution.

    The model is in eval mode, except during gradient steps, see `ModelMode`.
    """

    all_frozen: ClassVar[str] = NOTHING_OF_ACTOR
    """Error message if all parameters of an optimiser are frozen."""
    _acts_with_value = False  # whether acting also gives the critic's value

    @classmethod
    def default_model(cls) -> str:
        return 'vac'

    def _build(self) -> None:
        self.dist: ActionDist = getattr(self._model, 'dist', None) or make_dist(self.action_space)
        for dist in (self.dist, *self.dist.parts):
            dist.see_model(self._model)
        self.has_state = keeps_state(self._model)
        self.normalizers = self._normalizers
        join_model(self._model, self.run.ranks)
        self._mode = ModelMode(self._model, self.device)

    def _init_collect(self) -> None:
        self._noise = Noise(self.dist, self.cfg.collect.n_step, self.seed, self.device)

    def _begin_rollout(self, collect_iter: int, env_step: int | None = None) -> None:
        super()._begin_rollout(collect_iter, env_step)
        self._noise.begin(collect_iter)

    def _make_optimizer(self, named: Iterable[tuple[str, nn.Parameter]]) -> FlatOptimizer:
        """The optimiser that the config names, over named parameters. Raises: UserError if none of them is to be trained."""
        return make_optimizer(self.cfg.learn, named, self.all_frozen.format(self.cfg.type), self.run.ranks)

    def _behaviour(self, logit: Tensor) -> Tensor:
        """Converts the logits of the network to those of the behaviour policy, which explores."""
        return logit

    def _stochastic(self, logit: Tensor) -> Tensor:
        """Converts the logits of the network to those from which a non-greedy evaluation draws actions."""
        return logit

    def _forward_collect(self, obs: Obs, state: State = None, first: int | None = None) -> dict[str, Any]:
        """Returns {action, logit}, and value (in the critic's unit) if it is cheap: with one trunk, or a recurrent state.

        Args: first: index of the first of these envs among all of the run; None: `_first_env`.
        """
        output = forward_for_acting(self._model, to_device(obs, self.device), self._acts_with_value, state)
        output['logit'] = self._behaviour(output['logit'])
        noise = self._noise.row(output['logit'].shape[0], self._first_env if first is None else first)
        return {'action': self.dist.sample(output['logit'], noise), **output}

    def _start_acting(self, obs: Obs, first: int = 0) -> Acting:
        if self._acts_by_itself:
            return super()._start_acting(obs, first)
        return acting_by(partial(self._forward_collect, first=first), obs, self._initial_state(), self._model)

    @property
    def _acts_by_itself(self) -> bool:
        """Whether a subclass has replaced `_forward_collect`."""
        return getattr(self._forward_collect, '__func__', None) is not NetworkPolicy._forward_collect

    @property
    def _acts_without_critic(self) -> bool:
        return not (self._acts_with_value or self._acts_by_itself)

    @torch.inference_mode()
    def _forward_eval(self, obs: Obs, state: State = None) -> dict[str, Any]:
        output = forward_for_acting(self._model, to_device(obs, self.device), False, state)
        return {'action': self.dist.mode(output.pop('logit')), **output}

    @torch.inference_mode()
    def _forward_sample(self, obs: Obs, state: State, generator: torch.Generator | None) -> dict[str, Any]:
        output = forward_for_acting(self._model, to_device(obs, self.device), False, state)
        logit = self._stochastic(output.pop('logit'))
        return {'action': self.dist.sample(logit, self.dist.noise((len(logit),), generator, self.device)), **output}

    def _env_action(self) -> Callable[[Tensor], Tensor] | None:
        if self.dist.is_bounded:
            return self.dist.env_action
        return None

    def _process_transition(self, obs: Obs, output: dict[str, Any], timestep: Timestep) -> Transition:
        return {'obs': obs, 'action': output['action'], **ends_of(timestep)}
