"""Float64 reference for the native executor: networks, losses, metrics and gradients, by autograd from the formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.backend.native.bindings import (
    Activation,
    Dist,
    Entry,
    Input,
    Kind,
    Model,
    StepSpec,
    Surrogate,
    Trunk,
    ValueLoss,
)


class Case(NamedTuple):
    """The architecture of a network: sizes, input, activation and distribution."""

    obs: int = 4
    hidden: tuple[int, ...] = (16, 16)
    critic: tuple[int, ...] | None = (16, 16)  # None: the critic uses the actor's trunk
    action: int = 3  # number of options or dimensions; with several choices, the options of all together
    dist: Dist = Dist.CATEGORICAL
    state_std: bool = False
    input: Input = Input.FLOAT
    activation: Activation = Activation.TANH
    stop: bool = False
    nvec: tuple[int, ...] | None = None  # number of options of each choice; None: one choice
    log_std: tuple[float, float] = (-10.0, 2.0)  # lower and upper bound
    state: int = 0  # width of a second entry, whose numbers only the critic sees, before the first; 0: there is none


class Linear(NamedTuple):
    """A linear layer in the form that the library reads."""

    weight: Tensor  # [n_out, n_in] f32
    bias: Tensor  # [n_out] f32


class FlatState:
    """Adam's buffers; the parameters become views of them."""

    def __init__(self, params: list[nn.Parameter], rates: tuple[float, ...] = (1e-2, 0.9, 0.999, 1e-5)) -> None:
        size = sum(p.numel() for p in params)
        self.param, self.grad, self.exp_avg, self.exp_avg_sq = (torch.zeros(size) for _ in range(4))
        self.step_count, self.rates, first = torch.zeros(()), rates, 0
        for p in params:
            last = first + p.numel()
            self.param[first:last] = p.data.flatten()
            p.data, p.grad = self.param[first:last].view(p.shape), self.grad[first:last].view(p.shape)
            first = last


class Net:
    """The parameters of a case by name, as float32 views of one or two buffers, and the `Model` that the library takes."""

    def __init__(self, case: Case, n_buffer: int = 1, seed: int = 0) -> None:
        self.case, generator = case, torch.Generator().manual_seed(seed)
        self.params: dict[str, nn.Parameter] = {}

        def add(name: str, n_in: int, n_out: int) -> Linear:
            for part, shape in (('weight', (n_out, n_in)), ('bias', (n_out,))):
                x = torch.randn(shape, generator=generator) * (1.2 / math.sqrt(n_in) if part == 'weight' else 0.3)
                self.params[f'{name}.{part}'] = nn.Parameter(x)
            return Linear(self.params[f'{name}.weight'], self.params[f'{name}.bias'])

        def layers(name: str, n_in: int, sizes: tuple[int, ...]) -> Any:
            return [add(f'{name}.{i}', a, b) for i, (a, b) in enumerate(zip((n_in, *sizes), sizes, strict=False))]

        actor = Trunk(layers('actor', case.obs, case.hidden))
        policy, aux = add('policy', case.hidden[-1], case.action), add('aux', case.hidden[-1], 1)
        std = add('std', case.hidden[-1], case.action) if case.state_std else None
        if case.dist == Dist.GAUSSIAN and not case.state_std:
            # one is beyond the bound, where the clamp stops the gradient; one is on the bound, where it does not
            values = torch.tensor([2.5, 2.0, -0.5, 0.3, 0.0])[torch.arange(case.action) % 5]
            self.params['log_std'] = nn.Parameter(values.clone())
        critic = None
        if case.critic is not None:
            seen = (1, 0) if case.state else (0,)
            critic = Trunk(layers('critic', case.state + case.obs, case.critic), seen)
        value = add('value', (case.critic or case.hidden)[-1], 1)
        names = list(self.params)
        of_critic = [name for name in names if name.split('.')[0] in ('critic', 'value')]
        groups = [names] if n_buffer == 1 else [[n for n in names if n not in of_critic], of_critic]
        self.groups = groups
        self.states = [FlatState([self.params[name] for name in group]) for group in groups]
        self.shift, self.scale = torch.randn(case.obs, generator=generator), torch.rand(case.obs, generator=generator)
        normalized = case.input == Input.NORMALIZED
        statistics = (self.shift, self.scale) if normalized else (None, None)
        entries = [Entry(case.input, case.obs, *statistics, 1.5)]
        if case.state:
            entries.append(Entry(Input.FLOAT, case.state))
        self.model = Model(
            entries,
            case.activation,
            actor,
            critic,
            case.dist,
            policy,
            case.nvec,
            value,
            aux,
            self.params.get('log_std'),
            std,
            case.stop,
            *case.log_std,
        )


def masks(case: Case, n: int, seed: int = 0) -> Tensor:
    """Random masks [n, A] that allow at least one option of each choice."""
    g = torch.Generator().manual_seed(seed)
    parts = []
    for size in case.nvec or (case.action,):
        kept = torch.randint(size, (n, 1), generator=g)
        parts.append((torch.rand(n, size, generator=g) < 0.6).scatter_(1, kept, True))
    return torch.cat(parts, 1)


def rows(
    case: Case, n: int, seed: int = 0, weighted: bool = False, impossible: bool = False, mask: bool = False
) -> dict[str, Any]:
    """A batch [n] for the case, whose obs are a list if there are two entries; impossible: the logits of an option are -inf although no mask forbids it."""
    g = torch.Generator().manual_seed(seed + 1)
    index = case.input == Input.INDEX
    obs = torch.randint(0, case.obs, (n,), generator=g) if index else torch.randn(n, case.obs, generator=g)
    if case.input == Input.BOOL:
        obs = obs > 0
    batch: dict[str, Any] = {'obs': obs, **{name: torch.randn(n, generator=g) for name in ('value', 'adv', 'return_')}}
    if case.dist == Dist.GAUSSIAN:
        mu, sigma = torch.randn(n, case.action, generator=g), torch.rand(n, case.action, generator=g) + 0.5
        batch['logit'] = torch.cat([mu, sigma], 1)
        batch['action'] = mu + sigma * torch.randn(n, case.action, generator=g)
    else:
        batch['logit'] = torch.randn(n, case.action, generator=g)
        if mask:
            batch['mask'] = masks(case, n, seed)
            batch['logit'].masked_fill_(~batch['mask'], -torch.inf)
        parts = batch['logit'].split(case.nvec or case.action, 1)
        action = torch.cat([x.softmax(1).multinomial(1, generator=g) for x in parts], 1)
        batch['action'] = action[:, 0] if case.nvec is None else action
    if impossible:
        batch['logit'][::2, 0] = -torch.inf
        batch['action'][::2] = case.action - 1
    if weighted:
        batch['weight'] = (torch.rand(n, generator=g) > 0.3) * 1.4
    if case.state:
        batch['obs'] = [obs, torch.randn(n, case.state, generator=g)]
    return batch


def each_entry(change: Callable[[Tensor], Tensor], obs: Any) -> Any:
    """The same change of all entries of a batch."""
    if isinstance(obs, list):
        return [change(x) for x in obs]
    return change(obs)


def outputs(
    net: Net, params: dict[str, Tensor], obs: Any, stop: bool, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the flat logit, value and aux_value."""
    case, act = net.case, torch.tanh if net.case.activation == Activation.TANH else torch.relu
    obs, *more = obs if isinstance(obs, list) else [obs]
    x = nn.functional.one_hot(obs, case.obs).double() if case.input == Input.INDEX else obs.double()
    if case.input == Input.NORMALIZED:
        x = ((x - net.shift.double()) * net.scale.double()).clamp(-1.5, 1.5)

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ params[f'{name}.weight'].t() + params[f'{name}.bias']

    def trunk(name: str, n_layer: int, y: Tensor) -> Tensor:
        for i in range(n_layer):
            y = act(linear(f'{name}.{i}', y))
        return y

    feature = trunk('actor', len(case.hidden), x)
    logit = linear('policy', feature)
    if case.dist == Dist.GAUSSIAN:
        log_std = linear('std', feature) if case.state_std else params['log_std'].expand_as(logit)
        low, high = case.log_std
        bounded = log_std.detach().clamp(low, high)
        # the gradient is 1 on the bounds; the gradient of torch's clamp there depends on the version
        log_std = torch.where((log_std < low) | (log_std > high), bounded, log_std)
        logit = torch.cat([logit, log_std.exp()], 1)
    if mask is not None:
        logit = logit.masked_fill(~mask, -torch.inf)
    critic = feature
    if case.critic is not None:
        critic = trunk('critic', len(case.critic), torch.cat([*map(torch.Tensor.double, more), x], 1))
    return logit, linear('value', critic.detach() if stop else critic)[:, 0], linear('aux', feature)[:, 0]


def distribution(case: Case, new: Tensor, old: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns log p_new - log p_old of the actions, the entropy of new, and KL(old || new)."""
    if case.dist == Dist.GAUSSIAN:
        p, q = (torch.distributions.Normal(*x.chunk(2, -1)) for x in (old, new))
        kl = torch.distributions.kl_divergence(p, q).sum(-1)
        return (q.log_prob(action) - p.log_prob(action)).sum(-1), q.entropy().sum(-1), kl
    if case.nvec is not None:
        parts = zip(new.split(case.nvec, -1), old.split(case.nvec, -1), action.unbind(-1), strict=True)
        found = [distribution(case._replace(nvec=None), *part) for part in parts]
        log_ratio, entropy, kl = (torch.stack(each).sum(0) for each in zip(*found, strict=True))
        return log_ratio, entropy, kl
    logp, logp_old, each = new.log_softmax(-1), old.log_softmax(-1), action.unsqueeze(-1)
    entropy = -(logp.exp() * logp.clamp(min=-1e4)).sum(-1)
    gone = logp_old == -torch.inf
    kl = (logp_old.exp() * (logp_old.masked_fill(gone, 0) - logp.masked_fill(gone, 0))).sum(-1)
    return (logp.gather(-1, each) - logp_old.gather(-1, each)).squeeze(-1), entropy, kl


def gain(step: StepSpec, ratio: Tensor, adv: Tensor) -> Tensor:
    """Surrogate of the policy for each row."""
    if step.surrogate == Surrogate.UNCLIPPED:
        return ratio * adv
    if step.surrogate == Surrogate.SPO:
        return ratio * adv - adv.abs() * (ratio - 1).square() / (2 * step.clip_low)
    return torch.min(ratio * adv, ratio.clamp(1 - step.clip_low, 1 + step.clip_high) * adv)


def value_error(step: StepSpec, value: Tensor, value_old: Tensor, return_: Tensor) -> Tensor:
    """Error of the critic for each row."""
    error, c = return_ - value, step.value_range
    if step.value_loss == ValueLoss.HUBER:
        return nn.functional.huber_loss(value, return_, reduction='none', delta=c)
    if step.value_loss == ValueLoss.CLIPPED_ERROR:
        return 0.5 * error.square().clamp(max=c)
    if step.value_loss == ValueLoss.CLIPPED_VALUE:
        clipped = return_ - value_old - (value - value_old).clamp(-c, c)
        return 0.5 * torch.max(error.square(), clipped.square())
    return 0.5 * error.square()


def loss(net: Net, step: StepSpec, params: dict[str, Tensor], batch: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
    """Returns the loss that a step minimises, and its metrics."""
    case = net.case
    b = {name: x.double() if name != 'obs' and x.is_floating_point() else x for name, x in batch.items()}
    w = b.get('weight', torch.ones_like(b['return_']))
    logit, value, aux_value = outputs(net, params, b['obs'], case.stop, b.get('mask'))
    total, metrics = torch.zeros((), dtype=torch.float64), {}
    log_ratio, entropy, kl = distribution(case, logit, b['logit'], b['action'])
    if step.kind in (Kind.PPO, Kind.POLICY):
        adv = b['adv']
        if step.normalize_adv:
            valid = adv[w > 0]
            adv = (adv - valid.mean()) / (valid.std(correction=0) + 1e-8)
        log_ratio = torch.where(w != 0, log_ratio, 0.0)
        ratio, low, high = log_ratio.exp(), 1 - step.clip_low, 1 + step.clip_high
        surrogate = gain(step, ratio, adv)
        if step.dual_clip is not None:
            surrogate = torch.where(adv < 0, torch.max(surrogate, step.dual_clip * adv), surrogate)
        metrics |= {
            'POLICY_LOSS': -(surrogate * w).mean(),
            'ENTROPY': (entropy * w).mean(),
            'APPROX_KL': -(log_ratio * w).sum() / w.sum(),
            'CLIPFRAC': (((ratio < low) | (ratio > high)) * w).sum() / w.sum(),
        }
        if step.measure_kl:
            metrics['KL'] = ((ratio - 1 - log_ratio) * w).sum() / w.sum()
        total = metrics['POLICY_LOSS']
        if step.entropy_weight:
            total = total - step.entropy_weight * metrics['ENTROPY']
        if step.kl_penalty is not None:
            metrics['PENALTY_KL'] = (kl * w).mean()
        if step.kl_penalty:
            total = total + step.kl_penalty * metrics['PENALTY_KL']
    if step.kind in (Kind.PPO, Kind.VALUE):
        metrics['VALUE_LOSS'] = (value_error(step, value, b['value'], b['return_']) * w).mean()
        total = total + step.value_weight * metrics['VALUE_LOSS']
    if step.kind == Kind.AUX:
        metrics |= {
            'AUXILIARY_LOSS': 0.5 * ((aux_value - b['return_']).square() * w).mean(),
            'BEHAVIORAL_CLONING_LOSS': (kl * w).mean(),
            'AUX_VALUE_LOSS': 0.5 * ((value - b['return_']).square() * w).mean(),
        }
        total = (
            metrics['AUXILIARY_LOSS']
            + step.bc_weight * metrics['BEHAVIORAL_CLONING_LOSS']
            + step.value_weight * metrics['AUX_VALUE_LOSS']
        )
    return total, {name: float(x.detach()) for name, x in metrics.items()}


def gradients(
    net: Net, step: StepSpec, params: dict[str, Tensor], batch: dict[str, Any]
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Returns the gradient of each parameter, 0 if the loss does not depend on it; and the metrics."""
    leaves = {name: p.detach().double().requires_grad_() for name, p in params.items()}
    total, metrics = loss(net, step, leaves, batch)
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(leaves.items(), found, strict=True)
    }, metrics
