"""How Q-values are learned: transitions over one step or several, a gradient step, and the slow target network."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from zoo.core.data import Metrics, Rollout, keeps_state, map_tensors
from zoo.core.errors import UserError
from zoo.core.spaces import Discrete, Space
from zoo.policy.hooks import gradient_ready
from zoo.rl_utils.estimators import n_step
from zoo.rl_utils.gae import gae_data
from zoo.rl_utils.q_learning import q_error, q_target


@torch.no_grad()
def n_step_transition(rollout: Rollout, gamma: float, n: int) -> dict[str, Any]:
    """Columns [T, B] of transitions over m = n steps, fewer where the episode or the rollout ends before.

    reward = r_t + .. + gamma^(m-1) r_{t+m-1},   discount = gamma^m, or 0 where the last of these steps is `done`,
    next_obs = the true successor of that step, also where a time limit ended the episode
    """
    reward, done, end = (rollout.data[name] for name in ('reward', 'done', 'traj_flag'))
    zero, one = torch.zeros_like(reward), torch.ones_like(reward)

    def total(next_value: Tensor, reward: Tensor, done: Tensor, gamma: float) -> Tensor:
        return n_step(gae_data(zero, next_value, reward, done, end), gamma, 1.0, n=n)[1]

    row, env = torch.meshgrid(*(torch.arange(k, device=reward.device) for k in reward.shape), indexing='ij')
    last = row + total(zero, one, done, 1.0).long() - 1  # m - 1 rows below
    return {
        'reward': total(zero, reward, done, gamma),
        'discount': total(one, zero, done, gamma),
        'next_obs': map_tensors(lambda x: x[last, env], rollout.next_obs()),
    }


def q_step(model: Any, target_model: Any, optimizer: Any, part: Mapping[str, Any], cfg: Any) -> tuple[Metrics, Tensor]:
    """One gradient step on `q_error`.

    Args:
      model, target_model: their `compute_actor` gives Q-values [n, A].
      part: obs, action, reward, discount, next_obs as of `n_step_transition`, [n, ...], and weight where rows differ in it.
      cfg: the section `policy.learn` of 'dqn'.
    Returns: detached 0-dim metrics loss, q, td_error, grad_norm; |Q - target| [n], 0 where the weight is.
    """
    with torch.no_grad():
        value = target_model.compute_actor(part['next_obs'])
        choice = model.compute_actor(part['next_obs']) if cfg.double else value
    target, weight = q_target(part['reward'], part['discount'], value, choice), part.get('weight')
    loss, q = q_error(model.compute_actor(part['obs']), part['action'], target, weight, cfg.huber_delta)
    optimizer.zero_grad()
    loss.backward()
    gradient_ready([optimizer], loss)
    norm, error = optimizer.step(cfg.grad_clip), (q.detach() - target).abs()
    return {'loss': loss.detach(), 'q': q.detach().mean(), 'td_error': error.mean(), 'grad_norm': norm}, error


def n_choice_of(model: Any, action_space: Space) -> int:
    """How many actions the logits of a model are the Q-values of. Raises: UserError where they cannot be that."""
    if not isinstance(action_space, Discrete):
        kind = type(action_space).__name__
        raise UserError(
            f"policy 'dqn' is for Discrete actions, and those of the env are of a {kind}; use policy.type=ppo"
        )
    if keeps_state(model):
        raise UserError(
            f"policy 'dqn' is for a model without a memory, got {type(model).__name__}; use policy.type=ppo, or leave "
            'policy.model.recurrent out'
        )
    return action_space.n


def check_n_return(collect: Any) -> None:
    """Raises: UserError for returns over more steps than a rollout has. collect: the resolved section `policy.collect`."""
    if collect.n_step is not None and collect.n_return > collect.n_step:
        raise UserError(
            f'policy.collect.n_return is {collect.n_return} but a rollout has {collect.n_step} steps, after which no reward is '
            f'known; use n_return {collect.n_step} or less, or policy.collect.n_step={collect.n_return} or more'
        )


class TargetNetwork:
    """A copy of a network that follows it slowly.

    Args: freq: gradient steps between its moves; tau: share of the way to the network of each move, 1: all of it.
    Attributes: model: the copy; n_step: gradient steps so far.
    """

    def __init__(self, model: nn.Module, freq: int, tau: float) -> None:
        self.model: Any = copy.deepcopy(model).requires_grad_(False)
        self._source, self._freq, self._tau, self.n_step = model, freq, tau, 0

    def begin(self) -> None:
        """Makes the copy equal to the network."""
        self.model.load_state_dict(self._source.state_dict())

    def follow(self) -> None:
        """Called after each gradient step."""
        self.n_step += 1
        if self.n_step % self._freq == 0:
            for slow, fast in zip(self.model.state_dict().values(), self._source.state_dict().values(), strict=True):
                slow.copy_(slow.lerp(fast, self._tau) if slow.is_floating_point() else fast)

    def state_dict(self) -> dict[str, Any]:
        """Its parameters and buffers, and how many steps there were."""
        return {'model': dict(self.model.state_dict()), 'n_step': self.n_step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copies a `state_dict` in."""
        self.model.load_state_dict(state['model'])
        self.n_step = state['n_step']
