"""Actors: policies of agents that only act, such as random choices, functions and saved runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoo.agents.self_play import AHEAD, RANDOM
from zoo.config.section import ConfigError
from zoo.config.user_code import load_code, names_code
from zoo.core.action_map import action_width
from zoo.core.data import Obs, State, first_leaf, map_tensors
from zoo.core.errors import shown
from zoo.core.seeding import reseed
from zoo.core.spaces import ACTION_MASK, Box, Discrete, MultiBinary, MultiDiscrete, Space, leaf_spaces, n_values
from zoo.policy.modes import CollectMode, EvalMode

FUNCTION = 'function'
SAVED = 'saved'
PAST = 'past'
KINDS = (RANDOM, AHEAD, FUNCTION, SAVED, PAST)
"""Types of policies of the section agents that have nothing to learn."""
KEYS = {
    RANDOM: ('type',),
    AHEAD: ('type',),
    FUNCTION: ('type', 'act'),
    SAVED: ('type', 'path', 'policy', 'deterministic'),
    PAST: ('type',),
}
"""The keys of each type."""


class Actor(NamedTuple):
    """A policy that only acts. draws: whether its actions are drawn, also in evaluations."""

    mode: EvalMode
    draws: bool


def kind_of(differs: Any) -> str | None:
    """The type of an actor in the section agents; None for a policy with a network of its own."""
    kind = differs
    if isinstance(differs, Mapping):
        kind = differs.get('type')
    if kind in KINDS:
        return str(kind)
    return None


def check_actor(name: str, differs: Any) -> None:
    """Raises: ConfigError for keys that an actor does not have, or lacks."""
    kind = kind_of(differs)
    assert kind is not None, 'it is an actor'
    options: Mapping[str, Any] = {'type': kind}
    if isinstance(differs, Mapping):
        options = differs
    for key in options:
        if key not in KEYS[kind]:
            raise ConfigError(
                f'agents.policies.{name} has the key {key!r} but a policy of type {kind!r} has {", ".join(KEYS[kind])}; leave it out.'
            )
    for key, example in (('act', 'my_bots.py:greedy'), ('path', 'a run folder')):
        if key in KEYS[kind] and options.get(key) in (None, ''):
            raise ConfigError(f'agents.policies.{name} is of type {kind!r} but lacks {key!r}; give it, e.g. {example}.')


def random_mode(action_space: Space, action_mode: str) -> EvalMode:
    """Draws each allowed choice with the same probability, and numbers of a Box uniformly between their bounds."""
    sample = partial(_random_actions, action_space, action_mode)

    def forward(obs: Obs, state: State = None) -> dict[str, Any]:
        return {'action': sample(obs, None)}

    return EvalMode(forward, sample=lambda obs, state, generator: {'action': sample(obs, generator)})


def _random_actions(space: Space, action_mode: str, obs: Obs, generator: torch.Generator | None) -> Tensor:
    n = len(first_leaf(obs))
    mask = None
    if isinstance(obs, Mapping) and ACTION_MASK in obs:
        mask = obs[ACTION_MASK].flatten(1).float().cpu()
    columns: list[Tensor] = []
    start = 0  # of the leaf's bits in the mask
    for _, leaf in leaf_spaces(space):
        if isinstance(leaf, Box):
            columns.append(_random_numbers(leaf, action_mode, n, generator))
        elif isinstance(leaf, MultiBinary):
            width = int(np.prod(leaf.shape))
            drawn = torch.randint(0, 2, (n, width), generator=generator)
            if mask is not None:
                drawn = drawn * mask[:, start : start + width].long()
            columns.append(drawn)
            start += width
        else:
            for n_value in n_values(leaf):
                weight = torch.ones(n, n_value)
                if mask is not None:
                    weight = mask[:, start : start + n_value]
                columns.append(torch.multinomial(weight, 1, generator=generator))
                start += n_value
    if len(columns) == 1 and not isinstance(space, Box) and getattr(space, 'shape', None) == ():
        return columns[0].squeeze(1)
    if len({column.dtype for column in columns}) > 1:
        columns = [column.float() for column in columns]
    return torch.cat(columns, 1)


def _random_numbers(leaf: Box, action_mode: str, n: int, generator: torch.Generator | None) -> Tensor:
    low = torch.from_numpy(leaf.low.astype(np.float32)).flatten()
    high = torch.from_numpy(leaf.high.astype(np.float32)).flatten()
    if action_mode == 'rescale':
        finite = low.isfinite() & high.isfinite()
        low = torch.where(finite, -1.0, low)
        high = torch.where(finite, 1.0, high)
    low = torch.where(low.isfinite(), low, torch.full_like(low, -1.0))
    high = torch.where(high.isfinite(), high, torch.full_like(high, 1.0))
    return low + torch.rand(n, len(low), generator=generator) * (high - low)


def function_mode(act: Callable[..., Any], name: str, action_space: Space, action_mode: str) -> EvalMode:
    """Calls a function of (observations [R, *O], mask [R, n] or None), arrays, which returns an action of the env for each row.

    Args: name: of the function in messages; action_space, action_mode: of the env.
    """
    units = PolicyUnits(action_space, action_mode)

    def forward(obs: Obs, state: State = None) -> dict[str, Any]:
        arrays = map_tensors(lambda x: x.numpy(force=True), obs)
        mask = None
        if isinstance(arrays, dict) and ACTION_MASK in arrays:
            mask = arrays[ACTION_MASK]
        n = len(first_leaf(obs))
        returned = np.asarray(act(arrays, mask))
        if returned.dtype.kind not in 'biuf':
            raise ConfigError(
                f'{name} returned {shown(returned)} but must return an array of numbers, an action for each row.'
            )
        action = torch.as_tensor(returned)
        if action.shape[:1] != (n,) or action.numel() != n * units.width:
            raise ConfigError(
                f'{name} returned an array of shape {tuple(action.shape)} but must return an action for each of the {n} rows, of '
                f'{units.width} {"number" if units.width == 1 else "numbers"}.'
            )
        return {'action': units.of_env(action)}

    return EvalMode(forward, sample=lambda obs, state, generator: forward(obs))


class PolicyUnits:
    """The units of a policy's actions: choices count from 0, and with action_mode rescale numbers are in -1..1.

    Attributes: width: the numbers of an action.
    """

    def __init__(self, space: Space, action_mode: str) -> None:
        starts: list[np.ndarray] = []  # what is subtracted from each number of an action
        scales: list[np.ndarray] = []
        for _, leaf in leaf_spaces(space):
            width = action_width(leaf)
            start = np.zeros(width)
            scale = np.ones(width)
            if isinstance(leaf, Discrete | MultiDiscrete):
                start += np.ravel(leaf.start)
            elif isinstance(leaf, Box) and action_mode == 'rescale':
                low = leaf.low.astype(float).ravel()
                high = leaf.high.astype(float).ravel()
                is_finite = np.isfinite(low) & np.isfinite(high)
                start[is_finite] = (low + high)[is_finite] / 2
                scale[is_finite] = 2 / (high - low)[is_finite]
            starts.append(start)
            scales.append(scale)
        self.width = sum(map(len, starts))
        self._start = torch.from_numpy(np.concatenate(starts))
        self._scale = torch.from_numpy(np.concatenate(scales))
        self._is_same = not self._start.any() and bool((self._scale == 1).all())

    def of_env(self, action: Tensor) -> Tensor:
        """Converts actions of the env, [R, ...], to those of a policy."""
        if self._is_same:
            return action
        converted = (action.reshape(len(action), self.width).double() - self._start) * self._scale
        if not action.is_floating_point() and bool((self._scale == 1).all()):
            return converted.to(action.dtype).view_as(action)
        return converted.float().view_as(action)


def refuse_no_code(name: str, path: str) -> None:
    """Raises: ConfigError for a text that is no name of code; a checkpoint loads nothing else without consent."""
    if not names_code(name):
        raise ConfigError(f"{path} is {shown(name)} but must be 'module:function' or 'path/file.py:function'.")


def load_function(name: str, act: Any) -> Callable[..., Any]:
    """The function of an actor. Raises: ConfigError if there is none."""
    function = act
    if isinstance(act, str):
        refuse_no_code(act, f'agents.policies.{name}.act')
        function = load_code(act, f'agents.policies.{name}.act')
    if not callable(function):
        raise ConfigError(
            f'agents.policies.{name}.act is {shown(act)} but must be a function, or its name module:function.'
        )
    return function


class ActorActing:
    """An actor acting through rollouts, an `Acting`: only for the rows that are wanted; the others get zeros.

    Its random numbers depend on the seed, its name, its rows and the number of the rollout.
    Args: name: of the policy; seed: of the run; obs: the block, [T + 1, R, *O]; first: index of the first row; width: the
      columns of an action.
    Attributes: wanted: [R] bool, the rows to act for in the next step; None: all.
    """

    def __init__(self, actor: Actor, name: str, seed: int, obs: Obs, first: int, width: int) -> None:
        self._mode = actor.mode
        self._draws = actor.draws and actor.mode.sample is not None
        self._seed = seed
        self._name = name
        self._first = first
        self._obs = obs
        self._n_row = int(first_leaf(obs).shape[1])
        self._width = width
        self._generator = torch.Generator()
        self.output: dict[str, Any] = {}
        self.state: State = None
        if actor.mode.initial_state is not None:
            self.state = actor.mode.initial_state(self._n_row)
        self.wanted: Tensor | None = None

    def begin(self) -> None:
        """Nothing to prepare; `seed` is called before."""

    def seed(self, collect_iter: int) -> None:
        """Called before the rollout of this number."""
        reseed(self._generator, self._seed, 'actor', self._name, self._first, collect_iter)

    def step(self, t: int) -> Tensor:
        action = torch.zeros(self._n_row, self._width)
        rows = torch.arange(self._n_row)
        if self.wanted is not None:
            rows = self.wanted.nonzero().flatten()
        if not len(rows):
            return action
        state = self.state
        if state is not None:
            state = map_tensors(lambda x: x[rows], state)
        output = self._act(map_tensors(lambda x: x[t][rows], self._obs), state)
        if state is not None:
            self.state = map_tensors(
                lambda x, new: x.index_copy(0, rows.to(x.device), new), self.state, output['state']
            )
        drawn = output['action'].cpu()
        if self._mode.env_action is not None:
            drawn = self._mode.env_action(drawn)
        action[rows] = drawn.reshape(len(rows), self._width).to(action.dtype)
        return action

    def _act(self, obs: Obs, state: State) -> dict[str, Any]:
        if self._draws:
            assert self._mode.sample is not None
            return self._mode.sample(obs, state, self._generator)
        return self._mode.forward(obs, state)


def as_collect_mode(actor: Actor, name: str, seed: int, n_step: int, width: int) -> CollectMode:
    """A collect mode that acts by an actor, and keeps no data. Args: as of `ActorActing`; n_step: steps of a rollout."""
    actings: list[ActorActing] = []

    def begin(collect_iter: int, env_step: int | None = None) -> None:
        for acting in actings:
            acting.seed(collect_iter)

    def start(obs: Obs, first: int = 0) -> ActorActing:
        actings.append(ActorActing(actor, name, seed, obs, first, width))
        return actings[-1]

    return CollectMode(
        forward=actor.mode.forward,
        start=start,
        process_transition=_nothing,
        get_train_sample=_nothing,
        reset=_nothing,
        begin=begin,
        forget=_nothing,
        n_step=n_step,
    )


def _nothing(*_: Any) -> Any:
    """The data of an actor: none, as it learns nothing."""
    return {}
