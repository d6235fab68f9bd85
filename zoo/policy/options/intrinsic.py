"""Intrinsic rewards, which a policy gives itself for states that are new to it.

A component of INTRINSIC_REGISTRY is a class, constructed as `cls(section, obs_space, device, seed)`, with its own networks
and random streams. `advantage(rollout)` [T, B] is added to the advantages of a rollout; `update()` learns from that rollout
and returns metrics under the fixed `names`; `state_dict()` and `load_state_dict(state)` are for checkpoints.
It reads whole rollouts, so the policy may have a recurrent state and its samples may be cut into sequences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import torch
from pydantic import AfterValidator, Field
from torch import Tensor, nn

from zoo.config.components import make_component
from zoo.config.section import Section
from zoo.core.data import Columns, Metrics, Obs, Rollout, map_tensors, send, split_rows
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks, rank_count_text, weight_scale
from zoo.core.registry import INTRINSIC_REGISTRY
from zoo.core.seeding import reseed, stream, torch_generator
from zoo.core.spaces import Space
from zoo.model.encoder import Inherited, build_encoder, checked_spec
from zoo.model.layers import Layers, ValueHead, Width
from zoo.model.normalized_input import NormalizedInput
from zoo.policy.options import Estimated, Owner, UpdateOption
from zoo.rl_utils.gae import gae_data, gae_estimate
from zoo.rl_utils.init import orthogonal
from zoo.rl_utils.normalizer import RunningMeanStd, discounted_sum
from zoo.rl_utils.optimizer import FlatAdam
from zoo.rl_utils.ppo import weighted_mean

if TYPE_CHECKING:
    from zoo.policy.slots import UpdateSlots

OBS_CLIP = 5.0  # of normalised observations, as published
NONFINITE_LIMIT = 10  # gradient steps in a row that may be skipped
ENCODER = 'policy.learn.intrinsic.encoder'
Share = Annotated[float, Field(ge=0, le=1)]
EncoderSpec = Annotated[str | dict[str, Any], AfterValidator(lambda spec: checked_spec(spec, ENCODER))]


class IntrinsicReward(UpdateOption):
    """Adds the advantages of an intrinsic reward, and trains it after each update."""

    key = 'policy.learn.intrinsic'

    def fill(self, update: UpdateSlots, policy: Owner) -> None:
        given = policy.cfg.learn.intrinsic
        self.component = make_component(INTRINSIC_REGISTRY, given, policy.obs_space, policy.device, policy.seed)
        self.names = tuple(self.component.names)
        set_ranks(self.component, policy.run.ranks)

    def add_columns(self, rollout: Rollout, estimated: Estimated) -> dict[str, Any]:
        return {'intrinsic_adv': self.component.advantage(rollout)}

    def advantage(self, columns: Mapping[str, Any]) -> Tensor:
        return columns['adv'] + columns['intrinsic_adv']

    def after_update(self, batch: Columns) -> Metrics:
        return self.component.update()

    def forget(self, envs: slice) -> None:
        if hasattr(self.component, 'forget'):  # a user's own component need not have it
            self.component.forget(envs)

    def state_dict(self) -> dict[str, Any]:
        state = self.component.state_dict()
        if state:
            return {'intrinsic': state}
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if 'intrinsic' in state:
            self.component.load_state_dict(state['intrinsic'])


def set_ranks(component: object, ranks: Ranks) -> None:
    """Lets an intrinsic reward learn from the samples of all ranks. Raises: UserError if it cannot."""
    if hasattr(component, 'set_ranks'):
        component.set_ranks(ranks)
    elif number := rank_count_text(ranks):
        raise UserError(
            f'policy.learn.intrinsic is a {type(component).__name__}, which has no set_ranks() and so cannot learn on '
            f'{number}; write one, see zoo.policy.options.intrinsic, or use one process'
        )


class RNDConfig(Section):
    """Options of intrinsic reward 'rnd'."""

    weight: float = Field(
        0.1, ge=0, description='factor of the intrinsic advantages (published: 0.5); more explores more, and longer'
    )
    discount_factor: Share = Field(0.99, description='gamma of the intrinsic returns, per env step')
    gae_lambda: Share = Field(0.95, description='lambda of the intrinsic advantages and returns')
    reward_clip: float = Field(
        5.0, gt=0, description='bound of the intrinsic reward, in standard deviations of the intrinsic returns'
    )
    learning_rate: float = Field(
        1e-3, gt=0, description="Adam's step size of predictor and intrinsic critic (published, for images: 1e-4)"
    )
    batch_size: int = Field(512, ge=1, description='rows of a gradient step')
    epoch_per_collect: int = Field(4, ge=1, description='passes over each rollout')
    predictor_share: float = Field(
        0.25,
        gt=0,
        le=1,
        description='share of the rows of each pass that the predictor learns from; less keeps it curious',
    )
    feature_size: Width = Field(64, description='numbers that the predictor predicts (published: 512)')
    encoder: EncoderSpec = Field(
        'auto', description='network of target, predictor and intrinsic critic, each its own; as policy.model.encoder'
    )
    hidden_sizes: list[Width] = Field(
        [64],
        min_length=1,
        description='widths of an encoder for vectors, and of the layers that the predictor has more',
    )


class Waiting(NamedTuple):
    """The rows [N] of a rollout that `update` has not learned from yet."""

    obs: Obs
    next_obs: Obs
    return_: Tensor
    weight: Tensor  # 1 for a transition, 0 for a row that only resets an env


@INTRINSIC_REGISTRY.register('rnd')
class RND:
    """Random network distillation: the reward is the error in predicting the output of a fixed random network.

    error_t = mean_i (predictor_i(s_{t+1}) - target_i(s_{t+1}))^2, of the true successor, observations normalised, clipped to +-5
    reward_t = error_t / sigma, sigma the running deviation of sum_k gamma^k error_{t-k}, clipped to reward_clip
    The intrinsic returns continue across the ends of episodes, and have their own critic.
    Source: Burda et al. 2018, arXiv:1810.12894. Departs: the observation statistics begin with the first rollout, not with
      random steps before it; the intrinsic critic is a separate network and sees the normalised observations.
    """

    config: ClassVar[type[Section]] = RNDConfig
    names: ClassVar[tuple[str, ...]] = ('intrinsic_reward', 'intrinsic_loss', 'intrinsic_value_loss')

    def __init__(self, cfg: RNDConfig, obs_space: Space, device: torch.device, seed: int) -> None:
        self._cfg = cfg
        with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
            torch.manual_seed(int(stream(seed, 'intrinsic networks').generate_state(1)[0]))
            self.networks = RNDNetworks(cfg, obs_space).to(device)
        self._optimizer = FlatAdam(self.networks.named_parameters(), cfg.learning_rate)
        self._seed = seed
        self._generator = torch_generator(seed, 'intrinsic')
        self._n_update = 0
        self._ranks: Ranks = ALONE
        self._carry = torch.zeros(0, device=device)  # [B], gamma times the discounted sum of errors so far
        self._waiting: Waiting | None = None
        self._found = torch.zeros(len(self.names), device=device)

    def set_ranks(self, ranks: Ranks) -> None:
        """Learns together with other ranks from now on: gradients and statistics include the samples of all ranks."""
        self._ranks = self._optimizer.ranks = ranks
        self.networks.set_ranks(ranks)
        self.networks.returns.ranks = ranks

    def forget(self, envs: slice) -> None:
        """Resets the sums of errors of these envs, whose episodes were lost."""
        self._carry[envs] = 0

    @torch.no_grad()
    def advantage(self, rollout: Rollout) -> Tensor:
        """Returns the advantages [T, B] of the intrinsic rewards, times `weight`; keeps the rollout for `update`.

        Rows that only reset an env have the reward 0. The next rollout replaces one that `update` has not learned from.
        """
        cfg = self._cfg
        networks = self.networks
        weight = (~rollout.data.get('is_reset', torch.zeros_like(rollout.data['done']))).to(torch.float32)
        obs, next_obs = (map_tensors(lambda x: x.flatten(0, 1), x) for x in (rollout.data['obs'], rollout.next_obs()))
        pieces = list(split_rows(next_obs, cfg.batch_size))
        for rows, valid in zip(pieces, weight.flatten().split(cfg.batch_size), strict=True):
            networks.update_statistics(rows, valid)
        error = torch.cat([networks.errors(rows) for rows in pieces]).view_as(weight) * weight
        value = torch.cat([networks.value(rows) for rows in split_rows(obs, cfg.batch_size)]).view_as(weight)
        reward = self._scaled(error, weight)
        after = networks.value(rollout.last_obs).unsqueeze(0)
        next_value = torch.cat((value[1:], after))  # of the next row, which may be of another episode
        adv, return_ = gae_estimate(gae_data(value, next_value, reward), cfg.discount_factor, cfg.gae_lambda)
        self._found[0] = self._mean(reward.flatten(), weight.flatten())
        self._waiting = Waiting(obs, next_obs, return_.flatten(), weight.flatten())
        return cfg.weight * adv

    @torch.enable_grad()
    def update(self) -> Metrics:
        """Trains predictor and critic on the last rollout, once: further calls before the next rollout change nothing."""
        rows = self._waiting
        cfg = self._cfg
        if rows is not None:
            generator = reseed(self._generator, self._seed, 'intrinsic', self._ranks.rank, self._n_update)
            self._n_update += 1
            for _ in range(cfg.epoch_per_collect):
                order = send(torch.randperm(len(rows.weight), generator=generator), rows.weight.device)
                losses = [self._step(rows, index) for index in order.split(cfg.batch_size)]
            self._found[1:] = torch.stack(losses).mean(0)
            self._optimizer.count_skipped(limit=NONFINITE_LIMIT)
        self._waiting = None
        return dict(zip(self.names, self._found.clone(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        """Networks with their statistics, optimiser, a counter, and the sums of errors, which continue across episodes."""
        return {
            'networks': dict(self.networks.state_dict()),
            'optimizer': self._optimizer.state_dict(),
            'n_update': self._n_update,
            'carry': self._carry.tolist(),  # a list, since its length is that of the envs
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.networks.load_state_dict(state['networks'])
        self._optimizer.load_state_dict(state['optimizer'])
        self._n_update = state.get('n_update', 0)  # older states have no counter
        self._carry = self._carry.new_tensor(state.get('carry', []))  # older states have none: the sums begin at 0
        self._waiting = None

    def _scaled(self, error: Tensor, weight: Tensor) -> Tensor:
        """Divides errors [T, B] by the running deviation of their discounted sums, which continue across ends of episodes."""
        if self._carry.shape == error.shape[1:]:
            carry = self._carry
        else:
            carry = torch.zeros_like(error[0])
        total = discounted_sum(error, torch.zeros_like(error), carry, self._cfg.discount_factor)
        self._carry = self._cfg.discount_factor * total[-1]
        self.networks.returns.update(total.flatten(), weight.flatten())
        return self.networks.returns.rescale(error)

    def _step(self, rows: Waiting, index: Tensor) -> Tensor:
        """Takes a gradient step on some of the rows; returns the mean losses [2] of predictor and critic."""
        shown = index[: math.ceil(self._cfg.predictor_share * len(index))]  # the rows are in random order
        next_obs = map_tensors(lambda x: x[shown], rows.next_obs)
        predictor_loss = self._mean(self.networks.errors(next_obs), rows.weight[shown])
        value_error = self.networks.value(map_tensors(lambda x: x[index], rows.obs)) - rows.return_[index]
        value_loss = self._mean(0.5 * value_error.square(), rows.weight[index])
        self._optimizer.zero_grad()
        (predictor_loss + value_loss).backward()
        self._optimizer.step()
        return torch.stack((predictor_loss, value_loss)).detach()

    def _mean(self, x: Tensor, weight: Tensor) -> Tensor:
        """The weighted mean of x [n], scaled so that the mean of this number over the ranks is that of all their rows."""
        mean = weighted_mean(x, weight)
        if self._ranks is ALONE:
            return mean
        return mean * (weight.mean() * weight_scale(weight, self._ranks))


class RNDNetworks(NormalizedInput):
    """Fixed random target network, predictor, critic of intrinsic returns, and statistics of observations and returns."""

    def __init__(self, cfg: RNDConfig, obs_space: Space) -> None:
        super().__init__(obs_space, OBS_CLIP)
        self.returns = RunningMeanStd(clip=cfg.reward_clip)
        given = Inherited(hidden_sizes=cfg.hidden_sizes, activation='relu')
        target, predictor, critic = (build_encoder(cfg.encoder, obs_space, given, ENCODER) for _ in range(3))
        behind = Layers(predictor.n_feature, cfg.hidden_sizes, 'relu')
        last, other = (orthogonal(nn.Linear(x.n_feature, cfg.feature_size), math.sqrt(2)) for x in (target, behind))
        self.target = nn.Sequential(target, last).requires_grad_(False)
        self.predictor = nn.Sequential(predictor, behind, other)
        self.critic = nn.Sequential(critic, ValueHead(critic.n_feature, critic.value_gain))

    def errors(self, obs: Obs) -> Tensor:
        """[N]: mean squared error of the prediction for each observation [N, *O]."""
        seen = self.encoder_inputs(obs)
        return (self.predictor(seen) - self.target(seen)).square().mean(-1)

    def value(self, obs: Obs) -> Tensor:
        """Values [N] of the critic of intrinsic returns."""
        return self.critic(self.encoder_inputs(obs))
