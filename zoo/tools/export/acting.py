"""Policy as one torch module: raw observations (and a recurrent state) in, greedy actions of the env out."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from zoo.backend.executor import forward_for_acting
from zoo.core.data import Obs, Tree, leaves, map_tensors
from zoo.core.errors import UserError
from zoo.core.spaces import (
    Box,
    Discrete,
    Leaf,
    MultiDiscrete,
    leaf_names,
    leaf_spaces,
    leaves_by_path,
    nested_leaves,
    obs_dtype,
)
from zoo.model.cnn import in_float32
from zoo.policy.base import Policy

BATCH = 'batch'
"""Name of the leading dimension of every input and output; any number."""


class Port(NamedTuple):
    """An input or output of an exported policy.

    dtype: numpy's name of it. shape: with 'batch' for the dimension that may have any size.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    @property
    def words(self) -> str:
        """Its dtype and shape: 'float32 [batch, 4]'."""
        return f'{self.dtype} [{", ".join(map(str, self.shape))}]'


def port_of_tensor(name: str, x: Tensor) -> Port:
    """Returns the port of a tensor x [1, ...]."""
    return Port(name, str(x[:0].detach().numpy().dtype), (BATCH, *x.shape[1:]))


def env_dtype(leaf: Leaf) -> np.dtype[Any]:
    """Returns the dtype of an input for raw observations of a leaf: indices are int64, whatever their type in the env."""
    if isinstance(leaf, Box):
        return np.dtype(leaf.dtype)
    return np.dtype(np.int64 if isinstance(leaf, Discrete | MultiDiscrete) else np.int8)


def raw_to_model(leaf: Leaf, x: Tensor) -> Tensor:
    """Converts raw observations [B, ...] of a leaf to zoo's form, by tensor operations; see `leaf_to_array`."""
    if isinstance(leaf, Discrete | MultiDiscrete):
        if np.any(leaf.start):
            return x - torch.as_tensor(leaf.start).reshape(leaf.shape)
        return x
    dtype = obs_dtype(leaf)
    if dtype == torch.bool:
        return x != 0
    return x.to(dtype)


def lowest_obs(leaf: Leaf, n: int) -> Tensor:
    """Returns simple raw observations [n, ...] of a leaf: its lowest index, zeros, or all true."""
    dtype = env_dtype(leaf)
    x = np.full((n, *leaf.shape), int(dtype == np.int8), dtype)
    if isinstance(leaf, Discrete | MultiDiscrete):
        x[:] = np.reshape(leaf.start, leaf.shape)
    return torch.from_numpy(x)


class ActingModule(nn.Module):
    """Module that maps raw observations of the env and the state to actions of the env, the value and the next state.

    Inputs and outputs are tensors in the order of `inputs` and `outputs`. Entries of a Dict that acting does not read are
    not inputs. Parts of the state that no step changes are not inputs either.
    Args: policy: from `for_export`. with_value: the critic's value [B], in return units, is an output too.
    Attributes: state_names: for each state input, the output with its next value. initial: for each state input, its value
      at the start of an episode, [1, ...].
    Raises: UserError if there is no value, or the policy cannot act.
    """

    def __init__(self, policy: Policy, with_value: bool = False) -> None:
        super().__init__()
        self._policy = policy
        self.with_value = with_value
        self.model = policy._model
        self.normalizers = policy._normalizers
        unread: Sequence[str] = ()
        if not with_value:
            unread = policy._optional_obs()
        names = leaf_names(policy.obs_space)
        paths = leaves_by_path(policy.obs_space)
        self.leaves = {names[path]: leaf for path, leaf in paths.items() if not path or path[0] not in unread}
        self.inputs: list[Port] = []
        self.outputs: list[Port] = []
        for path, leaf in self.leaves.items():
            name = path or 'obs'
            if path[:1].isdigit():
                name = f'obs_{path}'  # 'obs_0' for the first part of a Tuple
            self.inputs.append(Port(self._free(name), str(env_dtype(leaf)), (BATCH, *leaf.shape)))
        initial_state = policy._initial_state()
        self._start: Tree = None
        if initial_state is not None:
            self._start = initial_state(1)
        self.initial: dict[str, Tensor] = {}
        self._carried: list[str] = []
        if self._start is not None:
            self._carried = self._find_carried()
        for path, row in leaves(self._start):
            if path in self._carried:
                name = self._free('.'.join(filter(None, ('state', path))))
                self.inputs.append(port_of_tensor(name, row))
                self.initial[name] = row
        self._name_outputs(n=3)
        following = self.outputs[len(self.outputs) - len(self.initial) :]
        self.state_names = {name: port.name for name, port in zip(self.initial, following, strict=True)}

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Returns the outputs for the inputs, [B, ...] each."""
        obs, state = self.read(tensors)
        action, value, state = self._step(obs, state)
        following = dict(leaves(state))
        outputs = self.env_actions(action)
        if value is not None:
            outputs.append(value)
        outputs += [following[path] for path in self._carried]
        return tuple(outputs)

    def read(self, tensors: Sequence[Tensor]) -> tuple[Obs, Tree]:
        """Returns the inputs of the policy: observations in zoo's form, and the state before the step."""
        n_leaf = len(self.leaves)
        raw = zip(self.leaves.items(), tensors[:n_leaf], strict=True)
        obs = nested_leaves(self._policy.obs_space, {path: raw_to_model(leaf, x) for (path, leaf), x in raw})
        if self._start is None:
            return obs, None
        n = tensors[0].shape[0]
        given_states = iter(tensors[n_leaf:])
        states = []
        for path, x in leaves(self._start):
            if path in self._carried:
                states.append(next(given_states))
            else:  # it never changes, and keeps its value of the start of an episode
                states.append(x.expand(n, *x.shape[1:]))
        in_order = iter(states)
        return obs, map_tensors(lambda _: next(in_order), self._start)

    def env_actions(self, action: Tensor) -> list[Tensor]:
        """Converts actions of the policy to actions of the env, one tensor for each leaf of its space."""
        change = self._policy._env_action()
        if change is not None:
            action = change(action)
        return self._policy._action_map.tensors(action)

    def example(self, n: int) -> tuple[Tensor, ...]:
        """Returns valid inputs for n envs: the lowest index, zeros, every action allowed."""
        obs = [lowest_obs(leaf, n) for leaf in self.leaves.values()]
        states = [row.repeat_interleave(n, 0) for row in self.initial.values()]
        return (*obs, *states)

    def _free(self, name: str) -> str:
        """Returns the name, with as many '_' at its end as make it differ from all other names."""
        taken = {port.name for port in (*self.inputs, *self.outputs)}
        while name in taken:
            name += '_'
        return name

    @torch.no_grad()
    def _find_carried(self) -> list[str]:
        """Returns the paths of the parts of the state that a step changes."""
        obs, before = self.read(self.example(1))
        after = dict(leaves(self._step(obs, before)[2]))
        return [path for path, x in leaves(before) if after[path] is not x]

    @torch.no_grad()
    def _name_outputs(self, n: int) -> None:
        outputs = self(*self.example(n))
        if any(x.dim() == 0 or len(x) != n for x in outputs):
            shapes = ', '.join(str(list(x.shape)) for x in outputs)
            raise UserError(
                f'policy {self._policy.cfg.type!r} gave {shapes} for {n} observations; its outputs must have one row each'
            )
        names = ['.'.join(filter(None, ('action', path))) for path, _ in leaf_spaces(self._policy.action_space)]
        if self.with_value:
            names.append('value')
        names += [f'next_{name}' for name in self.initial]
        for name, x in zip(names, outputs, strict=True):
            self.outputs.append(port_of_tensor(self._free(name), x[:1]))

    def _step(self, obs: Obs, state: Tree) -> tuple[Tensor, Tensor | None, Tree]:
        """Returns the policy's action, the value if it is an output, and the next state."""
        output = self._policy._forward_eval(obs, state)
        if not self.with_value:
            return output['action'], None, output.get('state')
        value, next_state = self._value(obs, state)
        return output['action'], value, next_state

    def _value(self, obs: Obs, state: Tree) -> tuple[Tensor, Tree]:
        """Returns the value and the next state. Raises: UserError if the policy has no critic."""
        policy: Any = self._policy
        value = None
        if state is None:
            _, _, value = policy._judge(obs, True)
        elif getattr(policy, 'has_critic', False):
            output = forward_for_acting(policy._model, obs, True, state)
            value = policy.samples.units.restore(output['value'])
            state = output['state']
        if value is None:
            raise UserError(f'policy {policy.cfg.type!r} trains no critic, so it knows no values; leave the value out')
        return value, state


def for_export(policy: Policy, is_float32: bool = True) -> Policy:
    """Returns a copy of a policy that acts the same, with separate tensors on the CPU, in float32 if is_float32."""
    policy.eval_mode  # noqa: B018  (raises where the policy cannot evaluate)
    twin: Any = copy.copy(policy)
    twin._model = _on_cpu(policy._model)
    twin._normalizers = _on_cpu(policy._normalizers)
    twin.device = torch.device('cpu')
    if is_float32:
        in_float32(twin._model)
    if 'value' in twin._normalizers and hasattr(twin, 'samples'):  # restores the unit of values
        twin.samples = copy.copy(twin.samples)
        twin.samples.units = twin._normalizers['value']
    return twin


def _on_cpu(module: nn.Module) -> nn.Module:
    module = copy.deepcopy(module).cpu().eval()
    for x in (*module.parameters(), *module.buffers()):
        x.data = x.data.clone()  # parameters may be views of one block, and the whole block would be written for each
    return module
