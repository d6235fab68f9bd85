"""Parameters by name in the state of a checkpoint: of the model, and in the flat buffers of its optimisers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from zoo.policy.base import Policy
from zoo.run.base_config import JobConfig
from zoo.run.checkpoint import Checkpoint, State, saved_run
from zoo.run.policy_file import build_policy

Tensors = Mapping[str, Tensor]
AVERAGE = 'average'
"""Name of the buffer of an optimiser that is an average of the parameters; other buffers of their size are moments."""
MODEL_SEEDS = 2**31


class StateLayout(NamedTuple):
    """The parameters of a policy.

    values: the parameters by name; those of a module that two others share have two names; first_name: for each name, the
    first one of the same parameter; optimizers: for each optimiser, the names of its parameters in the order of its buffers.
    """

    values: dict[str, Tensor]
    first_name: dict[str, str]
    optimizers: dict[str, list[str]]

    @classmethod
    def of(cls, policy: Policy) -> StateLayout:
        """That of a policy that learns."""
        named = dict(policy.model.named_parameters(remove_duplicate=False))
        first_of = {p: name for name, p in policy.model.named_parameters()}
        optimizers: Mapping[str, Any] = getattr(policy, 'optimizers', {})
        return cls(
            {name: p.detach().clone() for name, p in named.items()},
            {name: first_of[p] for name, p in named.items()},
            {role: list(optimizer.names) for role, optimizer in optimizers.items()},
        )

    def cut(self, role: str, flat: Tensor) -> dict[str, Tensor]:
        """Splits a buffer of an optimiser into the pieces of its parameters, by name."""
        names = self.optimizers[role]
        pieces = flat.split([self.values[name].numel() for name in names])
        return {name: piece.view(self.values[name].shape) for name, piece in zip(names, pieces, strict=True)}

    def size(self, role: str) -> int:
        """Number of entries in a buffer of an optimiser."""
        return sum(self.values[name].numel() for name in self.optimizers[role])


class Rewriting(NamedTuple):
    """Functions that rewrite tensors by name, each from all tensors of its kind and the names wanted to new tensors.

    values: the model's parameters and averages of them; moments: those of the rule of an optimiser; first: the parameters
    with which the run began.
    """

    values: Callable[[Tensors, list[str]], dict[str, Tensor]]
    moments: Callable[[Tensors, list[str]], dict[str, Tensor]]
    first: Callable[[Tensors, list[str]], dict[str, Tensor]]


def policy_of(checkpoint: Checkpoint, cfg: JobConfig, seed: int = 0) -> Policy:
    """Builds a new policy of a config for the env of a checkpoint, with first parameters by a seed."""
    run = saved_run(checkpoint)
    run = run._replace(config={**run.config, 'seed': seed % MODEL_SEEDS})
    return build_policy(run, cfg.policy.model_copy(update={'device': 'cpu'}), fields=('learn',), is_whole=False)


def why_not_rewritten(policy: Policy) -> str:
    """Returns a sentence if the moments in the checkpoints of a policy cannot be told apart by parameter; else ''."""
    optimizers = getattr(policy, 'optimizers', None)
    saved = policy.state_dict().get('learn', {}).get('optimizer', {})
    if optimizers and set(optimizers) == set(saved):
        return ''
    return f'policy {policy.cfg.type!r} does not keep its optimisers as zoo does, so their moments cannot follow other weights'


def rewritten(state: State, old: StateLayout, new: StateLayout, rewriting: Rewriting) -> State:
    """Returns the state of a checkpoint with other parameters, for a policy of the layout `new`; the input is unchanged."""
    policy = state['policy']
    model = dict(policy['model'])
    parameters = {name: model[name] for name in old.values if name in model}
    others = {name: x for name, x in model.items() if name not in old.values}
    learn = dict(policy['learn'])
    learn['optimizer'] = {
        role: _of_optimizer(buffers, role, old, new, rewriting) for role, buffers in learn['optimizer'].items()
    }
    if 'plasticity' in learn:
        first = learn['plasticity']['initial']
        wanted = [name for name in new.values if name in first or name not in old.values]
        learn['plasticity'] = {**learn['plasticity'], 'initial': rewriting.first(first, wanted)}
    values = rewriting.values(parameters, list(new.values))
    return {**state, 'policy': {**policy, 'model': {**values, **others}, 'learn': learn}}


def _of_optimizer(buffers: State, role: str, old: StateLayout, new: StateLayout, rewriting: Rewriting) -> State:
    rewritten_buffers = {}
    for name, buffer in buffers.items():
        is_flat = isinstance(buffer, Tensor) and buffer.shape == (old.size(role),)
        if is_flat:
            if name == AVERAGE:
                rewrite = rewriting.values
            else:
                rewrite = rewriting.moments
            pieces = rewrite(old.cut(role, buffer), new.optimizers[role])
            buffer = torch.cat([pieces[each].flatten() for each in new.optimizers[role]])
        rewritten_buffers[name] = buffer
    return rewritten_buffers
