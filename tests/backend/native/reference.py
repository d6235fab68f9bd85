"""Float64 reference for the native executor: networks, losses, metrics and gradients, by autograd from the formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.backend.native.bindings import (
    Activation,
    CellKind,
    Dist,
    Entry,
    Input,
    Kind,
    Level,
    MemoryLayer,
    Model,
    StepSpec,
    Surrogate,
    Trunk,
    ValueLoss,
    Weights,
)

LEVELS = [Level.V4, Level.V3, Level.BASE]


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
    cells: tuple[tuple[CellKind, int], ...] = ()  # kind and hidden size of each layer of memory
    two_biases: bool = False  # of an LSTM
    critic_cells: bool = True  # whether a critic with a trunk of its own has these layers too


N_GATE = {CellKind.LSTM: 4, CellKind.GRU: 3, CellKind.MINGRU: 2}


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

        def add(name: str, n_in: int, n_out: int) -> Weights:
            for part, shape in (('weight', (n_out, n_in)), ('bias', (n_out,))):
                x = torch.randn(shape, generator=generator) * (1.2 / math.sqrt(n_in) if part == 'weight' else 0.3)
                self.params[f'{name}.{part}'] = nn.Parameter(x)
            return Weights(self.params[f'{name}.weight'], self.params[f'{name}.bias'])

        def layers(name: str, n_in: int, sizes: tuple[int, ...]) -> Any:
            return [add(f'{name}.{i}', a, b) for i, (a, b) in enumerate(zip((n_in, *sizes), sizes, strict=False))]

        def core(name: str, n_in: int) -> list[MemoryLayer]:
            found = []
            for i, (kind, n) in enumerate(case.cells):
                n_out = N_GATE[kind] * n
                x = add(f'{name}.cell{i}.x', n_in, n_out)
                h = None if kind == CellKind.MINGRU else add(f'{name}.cell{i}.h', n, n_out)
                if kind == CellKind.LSTM and h is not None and not case.two_biases:
                    del self.params[f'{name}.cell{i}.h.bias']
                    h = h._replace(bias=None)
                found.append(MemoryLayer(kind, x, h))
                n_in = n
            return found

        actor = Trunk(layers('actor', case.obs, case.hidden))
        actor_core = core('actor', case.hidden[-1])
        n_feature = case.cells[-1][1] if case.cells else case.hidden[-1]
        policy, aux = add('policy', n_feature, case.action), add('aux', n_feature, 1)
        std = add('std', n_feature, case.action) if case.state_std else None
        if case.dist == Dist.GAUSSIAN and not case.state_std:
            # one is beyond the bound, where the clamp stops the gradient; one is on the bound, where it does not
            values = torch.tensor([2.5, 2.0, -0.5, 0.3, 0.0])[torch.arange(case.action) % 5]
            self.params['log_std'] = nn.Parameter(values.clone())
        critic = None
        if case.critic is not None:
            seen = (1, 0) if case.state else (0,)
            critic = Trunk(layers('critic', case.state + case.obs, case.critic), seen)
        critic_core: list[MemoryLayer] = []
        if case.critic is not None and case.critic_cells:
            critic_core = core('critic', case.critic[-1])
        value = add('value', n_feature if critic_core or case.critic is None else case.critic[-1], 1)
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
            actor_core,
            critic_core,
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


def sequences(
    case: Case, n: int, n_step: int, n_burn: int = 0, seed: int = 0, resets: float = 0.2, **how: bool
) -> dict[str, Any]:
    """A batch of n sequences of n_step steps for the case, as zoo.policy.sequences has them; resets: share of the rows."""
    g = torch.Generator().manual_seed(seed + 9)
    length = n_burn + n_step
    batch = rows(case, n * length, seed, **how)
    batch = {name: each_entry(lambda x: x.unflatten(0, (n, length)), x) for name, x in batch.items()}
    for name in batch.keys() - {'obs', 'mask'}:
        batch[name] = batch[name][:, n_burn:].contiguous()
    batch['is_first'] = torch.rand(n, length, generator=g) < resets
    names = ['actor'] if case.critic is None or not case.critic_cells else ['actor', 'critic']
    n_state = sum(size * (2 if kind == CellKind.LSTM else 1) for kind, size in case.cells)
    batch['state'] = {name: torch.randn(n, n_state, generator=g) for name in names}
    if n_burn:
        batch['is_burned'] = torch.rand(n, generator=g) < 0.7
    return batch


def step_of(kind: CellKind, params: dict[str, Tensor], name: str, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Features and the next state of one layer of memory, by the formulas in zoo_native.h."""
    sums = x @ params[f'{name}.x.weight'].t() + params[f'{name}.x.bias']
    if kind == CellKind.MINGRU:
        z, new = sums.chunk(2, -1)
        h = state + z.sigmoid() * (new - state)
        return h, h
    h, *c = state.chunk(2, -1) if kind == CellKind.LSTM else [state]
    of_h = h @ params[f'{name}.h.weight'].t()
    if kind == CellKind.LSTM:
        of_h = of_h + params.get(f'{name}.h.bias', 0.0)
        i, f, g, o = (sums + of_h).chunk(4, -1)
        cell = f.sigmoid() * c[0] + i.sigmoid() * g.tanh()
        h = o.sigmoid() * cell.tanh()
        return h, torch.cat([h, cell], -1)
    of_h = of_h + params[f'{name}.h.bias']
    (r, z, new), (r_h, z_h, new_h) = sums.chunk(3, -1), of_h.chunk(3, -1)
    new = torch.tanh(new + (r + r_h).sigmoid() * new_h)
    z = (z + z_h).sigmoid()
    h = (1 - z) * new + z * h
    return h, h


def remember(
    case: Case, params: dict[str, Tensor], name: str, x: Tensor, state: Tensor, first: Tensor
) -> tuple[Tensor, Tensor]:
    """Features [S, L, H] of inputs [S, L, n] behind all layers of memory, and the state after the last step."""
    states = list(state.split([n * (2 if kind == CellKind.LSTM else 1) for kind, n in case.cells], -1))
    found = []
    for t in range(x.shape[1]):
        y = x[:, t]
        for i, (kind, _) in enumerate(case.cells):
            before = torch.where(first[:, t, None], 0.0, states[i])
            y, states[i] = step_of(kind, params, f'{name}.cell{i}', y, before)
        found.append(y)
    return torch.stack(found, 1), torch.cat(states, -1)


def trunk_of(net: Net, params: dict[str, Tensor], name: str, obs: Tensor) -> Tensor:
    """What an encoder gives for observations that are plain numbers."""
    y = obs.double()
    for i, _ in enumerate(net.case.hidden):
        y = torch.tanh(y @ params[f'{name}.{i}.weight'].t() + params[f'{name}.{i}.bias'])
    return y


def through_memory(case: Case, params: dict[str, Tensor], name: str, x: Tensor, memory: dict[str, Any]) -> Tensor:
    """Features [S * L, H] of the encoder's features [S, B + L, n], where memory has the columns of sequences."""
    state, first = memory['state'][name].double(), memory['is_first']
    n_burn = first.shape[1] - memory['n_step']
    if n_burn:
        with torch.no_grad():
            _, burned = remember(case, params, name, x[:, :n_burn], state, first[:, :n_burn])
        state = torch.where(memory['is_burned'][:, None], burned, state)
    found, _ = remember(case, params, name, x[:, n_burn:], state, first[:, n_burn:])
    return found.flatten(0, 1)


def outputs(
    net: Net,
    params: dict[str, Tensor],
    obs: Any,
    stop: bool,
    mask: Tensor | None = None,
    memory: dict[str, Any] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the flat logit, value and aux_value; of sequences as rows, if `memory` has their columns, and n_step."""
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

    def own(x: Tensor) -> Tensor:
        """The rows of a network without memory, after the burn-in."""
        return x if memory is None else x[:, -memory['n_step'] :].flatten(0, 1)

    feature = trunk('actor', len(case.hidden), x)
    if memory is not None:
        feature = through_memory(case, params, 'actor', feature, memory) if case.cells else own(feature)
    logit = linear('policy', feature)
    if case.dist == Dist.GAUSSIAN:
        log_std = linear('std', feature) if case.state_std else params['log_std'].expand_as(logit)
        low, high = case.log_std
        bounded = log_std.detach().clamp(low, high)
        # the gradient is 1 on the bounds; the gradient of torch's clamp there depends on the version
        log_std = torch.where((log_std < low) | (log_std > high), bounded, log_std)
        logit = torch.cat([logit, log_std.exp()], 1)
    if mask is not None:
        logit = logit.masked_fill(~own(mask), -torch.inf)
    critic = feature
    if case.critic is not None:
        critic = trunk('critic', len(case.critic), torch.cat([*map(torch.Tensor.double, more), x], -1))
        if memory is not None:
            has_cells = case.cells and case.critic_cells
            critic = through_memory(case, params, 'critic', critic, memory) if has_cells else own(critic)
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
    b = {name: x.double() if name not in ('obs', 'state') and x.is_floating_point() else x for name, x in batch.items()}
    memory = None
    if 'is_first' in b:
        memory = {name: b.get(name) for name in ('state', 'is_first', 'is_burned')}
        memory['n_step'] = b['return_'].shape[1]
        names = ('value', 'adv', 'return_', 'logit', 'action', 'weight')
        b |= {name: b[name].flatten(0, 1) for name in names if name in b}
    w = b.get('weight', torch.ones_like(b['return_']))
    logit, value, aux_value = outputs(net, params, b['obs'], case.stop, b.get('mask'), memory)
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
