"""Cases of benchmarks/kernels.py: inputs, the bytes an op must move, and the plain code it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import Categorical as TorchCategorical, Normal

from zoo.rl_utils import (
    ActionDist,
    Categorical,
    Gaussian,
    MultiCategorical,
    gae,
    gae_data,
    ppg_data,
    ppg_joint_error,
    ppo_policy_data,
    ppo_policy_error,
    ppo_value_data,
    ppo_value_error,
)

BF16 = torch.bfloat16
GAMMA, LAMBDA, CLIP = 0.99, 0.95, 0.2  # the defaults of the ops


class Case(NamedTuple):
    """An op at one size: rows N and columns A or D; gae: rows T and columns B; values have one column.

    nvec: the numbers of options of K choices; their P = sum(nvec) logits are the columns. masked: in the old and the new
    logits, half of the options that the action does not take are -inf.
    """

    op: str
    rows: int
    columns: int = 1
    gaussian: bool = False
    dtype: torch.dtype = torch.float32  # of the logits; everything else is float32
    nvec: tuple[int, ...] = ()
    masked: bool = False

    @property
    def label(self) -> str:
        traits = {'Gaussian': self.gaussian, 'multi-categorical': bool(self.nvec), 'masked': self.masked}
        given = ', '.join(name for name, holds in traits.items() if holds)
        return f'{self.op} ({given})' if given else self.op

    @property
    def size(self) -> str:
        if self.op == 'gae':
            return f'T={self.rows}, B={self.columns}'
        if self.nvec:
            return f'N={self.rows}, K={len(self.nvec)}, P={self.columns}'
        choices = '' if self.op == 'ppo_value_error' else f', {"D" if self.gaussian else "A"}={self.columns}'
        return f'N={self.rows}{choices}'


CPU_CASES = (
    Case('gae', 128, 8),
    Case('gae', 2048, 64),
    Case('ppo_policy_error', 256, 2),
    Case('ppo_policy_error', 4096, 18),
    Case('ppo_policy_error', 256, 6, True),
    Case('ppo_value_error', 256),
    Case('ppo_value_error', 4096),
    Case('ppg_joint_error', 256, 2),
    Case('ppg_joint_error', 4096, 18),
    Case('ppg_joint_error', 256, 6, True),
)
_HEADS = tuple(
    (rows, columns, gaussian, dtype)
    for gaussian in (False, True)
    for rows in (2**15, 2**20)
    for columns in (2, 18)
    for dtype in (torch.float32, BF16)
)
_WIDE = tuple((4096, 4096, False, dtype) for dtype in (torch.float32, BF16))
_NVECS = ((3,) * 6, (6, 4, 4, 4, 4, 7, 49), (2,) * 300)  # choices of equal size; those of a MicroRTS unit; many choices
_CHOICES = tuple(
    (rows, sum(nvec), False, dtype, nvec, masked)
    for rows in (2**15, 2**20)
    for nvec, dtype, masked in (
        *((nvec, torch.float32, False) for nvec in _NVECS if rows == 2**15 or sum(nvec) < 100),
        (_NVECS[0], BF16, False),
        (_NVECS[1], torch.float32, True),
    )
)
_MASKED = tuple((rows, 18, False, torch.float32, (), True) for rows in (2**15, 2**20))
CUDA_CASES = (
    *(Case('gae', *size) for size in ((128, 8192), (2048, 64), (128, 65536), (8192, 1))),
    *(Case('ppo_policy_error', *head) for head in _HEADS + _WIDE + _MASKED + _CHOICES),
    Case('ppo_value_error', 2**15),
    Case('ppo_value_error', 2**20),
    *(Case('ppg_joint_error', *head) for head in _HEADS + _WIDE + _MASKED + _CHOICES),
)

# The factor that a caller gives to each loss; gae has none.
FACTORS = {'gae': (), 'ppo_policy_error': (1.0, -0.01), 'ppo_value_error': (1.0,), 'ppg_joint_error': (1.0, 1.0)}


def dist_of(case: Case) -> ActionDist | None:
    """The distribution of a case's logits, flat parameters [N, P]; None if the op has no logits."""
    if case.op not in ('ppo_policy_error', 'ppg_joint_error'):
        return None
    if case.nvec:
        return MultiCategorical(case.nvec)
    return Gaussian(case.columns) if case.gaussian else Categorical(case.columns)


def call_of(case: Case) -> Callable[[Any], tuple[Tensor, ...]]:
    """The op as a function of the data of `make`; it returns the losses or, for gae, the advantages."""
    dist = dist_of(case)
    calls: dict[str, Callable[[Any], tuple[Tensor, ...]]] = {
        'gae': lambda data: (gae(data),),
        'ppo_policy_error': lambda data: ppo_policy_error(data, dist=dist)[0][:2],
        'ppo_value_error': lambda data: (ppo_value_error(data),),
        'ppg_joint_error': lambda data: tuple(ppg_joint_error(data, dist=dist)),
    }
    return calls[case.op]


class Traffic(NamedTuple):
    """Bytes that the forward and the backward launch move, and the minimum for both together.

    least: every input is read once and every result is written once.
    """

    forward: int
    backward: int
    least: int


def traffic(case: Case) -> Traffic:
    """Bytes moved for the data of `make`: weights and values in float32, int64 actions, bool flags."""
    n, size = case.rows, case.rows * case.columns * case.dtype.itemsize  # rows; bytes of one part of a head
    n_part = 2 if case.gaussian else 1
    if case.op == 'gae':
        return gae_traffic(n * case.columns)
    if case.op == 'ppo_value_error':
        # forward: value_new, value_old, return_, weight read, gradient written: 5 * 4 = 20 a row;
        # backward: gradient read, scaled, written: 8
        return Traffic(20 * n, 8 * n, 20 * n)
    if case.op == 'ppg_joint_error':
        # forward: new and old head read, gradient written: 3 heads, and the 20 of the values;
        # backward: gradient of the head and of the value read, scaled, written: 2 heads + 8
        forward = 3 * n_part * size + 20 * n
        return Traffic(forward, 2 * n_part * size + 8 * n, forward)
    # action: one or several indices of 8 bytes a row, or D float32; adv and weight: 8
    row = (4 * case.columns if case.gaussian else 8 * max(len(case.nvec), 1)) + 8
    # forward: new and old head and these read, slope (4) written; backward: new head, action, weight (4), slope (4)
    # read, gradient written; least: no slope, and all but the gradient is read once
    return Traffic(2 * n_part * size + (row + 4) * n, 2 * n_part * size + row * n, 3 * n_part * size + row * n)


def gae_traffic(n_cell: int, n_flag: int = 2) -> Traffic:
    """Bytes moved by gae, per cell: value, next_value, reward read, adv written, 4 * 4 = 16; done and traj_flag 1 each."""
    return Traffic((16 + n_flag) * n_cell, 0, (16 + n_flag) * n_cell)


def make(case: Case, generator: torch.Generator) -> Any:
    """Random inputs on the generator's device; ratios and value changes lie on both sides of the clip range."""
    n, c = case.rows, case.columns

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=generator.device)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=generator.device)

    if case.op == 'gae':
        ends = uniform(2, n, c) < 0.02
        return gae_data(normal(n, c), normal(n, c), normal(n, c), ends[0], ends.any(0))
    weight, value_old = 2 * uniform(n), normal(n)
    values = ((value_old + 0.3 * normal(n)).requires_grad_(), value_old, value_old + normal(n), weight)
    if case.op == 'ppo_value_error':
        return ppo_value_data(*values)
    mu_old = normal(n, c)
    if case.gaussian:
        sigma_old = 0.5 + uniform(n, c)
        action = mu_old + sigma_old * normal(n, c)
        new = torch.cat((mu_old + 0.1 * normal(n, c), sigma_old + 0.1 * uniform(n, c)), -1)
        old = torch.cat((mu_old, sigma_old), -1)
    else:
        nvec = case.nvec or (c,)
        action = torch.stack([torch.randint(k, (n,), generator=generator, device=generator.device) for k in nvec], -1)
        new, old = mu_old + 0.3 * normal(n, c), mu_old
        if case.masked:
            begin = torch.tensor((0, *accumulate(nvec[:-1])), device=generator.device)
            forbidden = (uniform(n, c) < 0.5).scatter(-1, action + begin, False)
            new, old = new.masked_fill(forbidden, -torch.inf), old.masked_fill(forbidden, -torch.inf)
        action = action if case.nvec else action[:, 0].contiguous()
    new, old = new.to(case.dtype).requires_grad_(), old.to(case.dtype)
    if case.op == 'ppg_joint_error':
        return ppg_data(new, old, None, *values)
    return ppo_policy_data(new, old, action, normal(n), weight)


def tensors_of(data: Any) -> list[Tensor]:
    """All tensors of an op's data, in the order of the fields."""
    return [x for x in data if x is not None]


def leaves_of(data: Any) -> list[Tensor]:
    """The tensors of an op's data that require a gradient."""
    return [x for x in tensors_of(data) if x.requires_grad]


def with_new_leaves(data: Any) -> Any:
    """The same data in the same memory; the tensors that require a gradient are new leaves, without a graph."""
    return _each(data, lambda x: x.detach().requires_grad_(x.requires_grad))


def in_float64(data: Any) -> Any:
    """A copy of an op's data in float64; bools and indices keep their dtype."""
    return _each(data, lambda x: x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x)


def gae_loop(data: gae_data) -> tuple[Tensor]:
    """gae as it is usually written: whole-tensor operations where possible, then a loop over rows."""
    value, next_value, reward, done, traj_flag = data
    delta = reward + GAMMA * next_value * (1 - done.float()) - value
    decay = GAMMA * LAMBDA * (1 - traj_flag.float())
    adv, last = torch.empty_like(value), torch.zeros_like(value[0])
    for t in reversed(range(len(value))):
        last = delta[t] + decay[t] * last
        adv[t] = last
    return (adv,)


def plain_policy_error(data: ppo_policy_data, validate_args: bool | None = None) -> tuple[Tensor, ...]:
    """The clipped surrogate as it is usually written: policy_loss, entropy_loss, approx_kl, clipfrac; no weight."""
    if not data.action.is_floating_point():
        dist: Any = TorchCategorical(logits=data.logit_new, validate_args=validate_args)
        dist_old: Any = TorchCategorical(logits=data.logit_old, validate_args=validate_args)
        logp, logp_old, entropy = dist.log_prob(data.action), dist_old.log_prob(data.action), dist.entropy()
    else:
        dist, dist_old = (
            Normal(*logit.chunk(2, -1), validate_args=validate_args) for logit in (data.logit_new, data.logit_old)
        )
        logp, logp_old = dist.log_prob(data.action).sum(-1), dist_old.log_prob(data.action).sum(-1)
        entropy = dist.entropy().sum(-1)
    ratio = torch.exp(logp - logp_old)
    surrogate = torch.min(ratio * data.adv, torch.clamp(ratio, 1 - CLIP, 1 + CLIP) * data.adv)
    with torch.no_grad():
        approx_kl = (logp_old - logp).mean()
        clipfrac = ((ratio - 1).abs() > CLIP).float().mean()
    return -surrogate.mean(), entropy.mean(), approx_kl, clipfrac


def _each(data: Any, one: Callable[[Tensor], Any]) -> Any:
    """A tuple of the same type in which each tensor x is replaced by one(x)."""
    return type(data)(*(None if x is None else one(x) for x in data))
