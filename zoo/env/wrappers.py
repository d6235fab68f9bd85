"""Wrappers that a config adds to every env: actions in bins, masks, the action and reward before, a window.

They are applied in this order, so that a window also holds the actions and rewards before its observations. Each one
adds entries to the observation, which becomes a Dict: what was none is its entry 'obs'. The mask is never in a window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import gymnasium
import numpy as np

from zoo.core.spaces import ACTION_MASK, Box, Dict, Discrete, Leaf, MultiBinary, MultiDiscrete, Space
from zoo.env.adapter import env_spaces, gymnasium_space
from zoo.env.bins import BinsEnv
from zoo.env.config import EnvConfig
from zoo.env.diagnosis import RAW_ERRORS, as_flag, check_obs
from zoo.env.errors import BrokenContractError, UnsupportedEnvError
from zoo.env.masks import WHAT, MaskSource, flat_mask, mask_size, no_mask_error

OBS, PREV_ACTION, PREV_REWARD, WINDOW_MASK = 'obs', 'prev_action', 'prev_reward', 'window_mask'
MASK_DO = f'put {ACTION_MASK!r} into the info of every reset and step, zeros and ones for all actions'


def wrap_env(env: gymnasium.Env, cfg: EnvConfig, source: MaskSource, name: str) -> gymnasium.Env:
    """The env with the wrappers of a config. source: where its action masks come from, never 'auto'."""
    if cfg.action_bins is not None:
        env = BinsEnv(env, cfg.action_bins, name)
    if source == 'info' or source == 'method':
        env = MaskEnv(env, source, name)
    if cfg.prev_action or cfg.prev_reward:
        env = PrevEnv(env, cfg.prev_action, cfg.prev_reward, name)
    if cfg.window is not None:
        env = WindowEnv(env, cfg.window, name, keep=() if source == 'off' else (ACTION_MASK,))
    return env


def wrapper_fields(cfg: EnvConfig) -> list[str]:
    """The config fields that need a wrapper around each single env."""
    fields = {'action_mask': cfg.action_mask in ('info', 'method'), 'window': cfg.window is not None}
    fields |= {'action_bins': cfg.action_bins is not None}
    fields |= {'prev_action': cfg.prev_action, 'prev_reward': cfg.prev_reward, 'wrappers': bool(cfg.wrappers)}
    return [f'env.{name}' for name, is_set in fields.items() if is_set]


class _Entries:
    """Adds entries to observations: to those of a Dict, or beside the entry 'obs' that the observation becomes."""

    def __init__(self, space: gymnasium.Space, added: Mapping[str, gymnasium.Space], name: str) -> None:
        self._is_dict = isinstance(space, gymnasium.spaces.Dict)
        parts = dict(space.spaces) if isinstance(space, gymnasium.spaces.Dict) else {OBS: space}
        if clash := [key for key in added if key in parts]:
            raise UnsupportedEnvError(
                f'env {name!r}: the observations have an entry {clash[0]!r} already, which the config adds too; '
                'rename theirs, or leave it out of the config.'
            )
        self.space = gymnasium.spaces.Dict({**parts, **added})

    def add(self, obs: Any, added: Mapping[str, Any]) -> dict[str, Any]:
        if not self._is_dict:
            return {OBS: obs, **added}
        if not isinstance(obs, Mapping):
            raise BrokenContractError(
                f'the observation is a {type(obs).__name__}', 'a dict as in observation_space', 'correct one of the two'
            )
        return {**obs, **added}


class MaskEnv(gymnasium.Wrapper):
    """Adds the entry 'action_mask', from info['action_mask'] or the env's method action_masks().

    Where an episode ends, nobody acts: there the mask may be missing, and becomes all true.
    """

    def __init__(self, env: gymnasium.Env, source: Literal['info', 'method'], name: str) -> None:
        super().__init__(env)
        _, self._space = env_spaces(env, name)
        self._n = mask_size(self._space)
        if self._n == 0:
            raise no_mask_error(name, self._space)
        self.source: Literal['info', 'method'] = source
        self._method = mask_method(env) if source == 'method' else None
        if source == 'method' and self._method is None:
            raise UnsupportedEnvError(
                f"env {name!r}: env.action_mask is 'method' but the env has no method action_masks; "
                'give it one that returns zeros and ones for all actions, or use auto.'
            )
        self._entries = _Entries(env.observation_space, {ACTION_MASK: gymnasium.spaces.MultiBinary(self._n)}, name)
        self.observation_space = self._entries.space

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return self._entries.add(obs, {ACTION_MASK: self._mask(info, 'reset')}), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        mask = self._mask(info, 'step', terminated, truncated)
        return self._entries.add(obs, {ACTION_MASK: mask}), reward, terminated, truncated, info

    def _mask(self, info: Any, call: str, terminated: Any = False, truncated: Any = False) -> np.ndarray:
        if self._method is not None:
            return flat_mask(self._space, self._method()).astype(np.int8)
        if ACTION_MASK in info:
            return flat_mask(self._space, info[ACTION_MASK]).astype(np.int8)
        if as_flag('terminated', terminated) or as_flag('truncated', truncated):
            return np.ones(self._n, np.int8)
        raise BrokenContractError(f'the info of {call} has no {ACTION_MASK!r}', f'{WHAT} of {self._n} bits', MASK_DO)


def mask_method(env: gymnasium.Env) -> Callable[[], Any] | None:
    """The method action_masks (as sb3-contrib calls it) of an env or of one of its wrappers."""
    layer: Any = env
    while True:
        method = getattr(layer, 'action_masks', None)
        if callable(method):
            return method
        if not isinstance(layer, gymnasium.Wrapper):
            return None
        layer = layer.env


class PrevEnv(gymnasium.Wrapper):
    """Adds the entries 'prev_action' and 'prev_reward': the last action as the env took it, and what it earned.

    Where an episode begins, the action is the first of its space (0 of a Box), and the reward is 0.
    """

    def __init__(self, env: gymnasium.Env, action: bool, reward: bool, name: str) -> None:
        super().__init__(env)
        _, self._space = env_spaces(env, name)
        self._action, self._reward = action, reward
        added: dict[str, gymnasium.Space] = {PREV_ACTION: gymnasium_space(self._space)} if action else {}
        if reward:
            added[PREV_REWARD] = gymnasium.spaces.Box(-np.inf, np.inf, (), np.float32)
        self._entries = _Entries(env.observation_space, added, name)
        self.observation_space = self._entries.space

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        return self._entries.add(obs, self._added(_first_action(self._space), 0.0)), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        sent = _own_copy(self._space, action)
        obs, reward, terminated, truncated, info = self.env.step(action)
        added = self._added(sent, reward)
        return self._entries.add(obs, added), reward, terminated, truncated, info

    def _added(self, action: Any, reward: Any) -> dict[str, Any]:
        added = {PREV_ACTION: action} if self._action else {}
        return {**added, PREV_REWARD: np.asarray(reward, np.float32)} if self._reward else added


def _first_action(space: Space) -> Any:
    if isinstance(space, Dict):
        parts = {key: _first_action(part) for key, part in space.spaces.items()}
        return tuple(parts.values()) if space.is_tuple else parts
    return _zeros(space)


def _own_copy(space: Space, action: Any) -> Any:
    if isinstance(space, Dict):
        pairs = zip(space.spaces.items(), action if space.is_tuple else (action[k] for k in space.spaces), strict=True)
        parts = {key: _own_copy(part, x) for (key, part), x in pairs}
        return tuple(parts.values()) if space.is_tuple else parts
    return np.array(action, dtype=_dtype(space))


def _zeros(space: Leaf) -> np.ndarray:
    """What stands for nothing: zeros, or what is closest to them in the space."""
    if isinstance(space, Box):
        return np.clip(0.0, space.low, space.high).astype(_dtype(space))
    start = np.reshape(getattr(space, 'start', 0), space.shape if isinstance(space, MultiDiscrete) else ())
    return np.broadcast_to(start, space.shape).astype(_dtype(space))


def _dtype(space: Leaf) -> Any:
    if isinstance(space, Box):
        return np.dtype(space.dtype)
    return np.int8 if isinstance(space, MultiBinary) else np.int64


class WindowEnv(gymnasium.Wrapper):
    """Shows the last n observations, oldest first, every leaf [n, *O]; adds 'window_mask' [n], true where one is real.

    Before the start of an episode there are zeros. Entries named in `keep` stay as they are.
    """

    def __init__(self, env: gymnasium.Env, n: int, name: str, keep: tuple[str, ...] = ()) -> None:
        super().__init__(env)
        space, _ = env_spaces(env, name)
        parts = dict(space.spaces) if isinstance(space, Dict) and not space.is_tuple else {OBS: space}
        self._is_dict = isinstance(space, Dict) and not space.is_tuple
        self._n = n
        self._keep = [key for key in parts if key in keep and self._is_dict]
        self._parts = {key: part for key, part in parts.items() if key not in self._keep}
        if WINDOW_MASK in parts:
            raise UnsupportedEnvError(
                f'env {name!r}: the observations have an entry {WINDOW_MASK!r} already, which env.window adds too; '
                'rename theirs.'
            )
        shown = {key: gymnasium_space(_windowed(part, n)) for key, part in self._parts.items()}
        kept = {key: gymnasium_space(parts[key]) for key in self._keep}
        self.observation_space = gymnasium.spaces.Dict({**shown, **kept, WINDOW_MASK: gymnasium.spaces.MultiBinary(n)})
        self._before = {key: _padding(part, n) for key, part in self._parts.items()}
        self._seen: dict[str, Any] = self._before
        self._n_seen = 0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(**kwargs)
        self._seen, self._n_seen = self._before, 0
        return self._shown(obs), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._shown(obs), reward, terminated, truncated, info

    def _shown(self, obs: Any) -> dict[str, Any]:
        entries = obs if self._is_dict else {OBS: obs}
        self._n_seen = min(self._n_seen + 1, self._n)
        try:
            self._seen = {key: _pushed(part, self._seen[key], entries[key]) for key, part in self._parts.items()}
        except RAW_ERRORS:
            check_obs(obs, self.env.observation_space)
            raise
        mask = np.zeros(self._n, np.int8)
        mask[self._n - self._n_seen :] = 1
        return {**self._seen, **{key: entries[key] for key in self._keep}, WINDOW_MASK: mask}


def _windowed(space: Space, n: int) -> Space:
    """The space of n observations."""
    if isinstance(space, Dict):
        return Dict({key: _windowed(part, n) for key, part in space.spaces.items()}, space.is_tuple)
    if isinstance(space, Discrete):
        return MultiDiscrete((space.n,) * n, (space.start,) * n, (n,))
    if isinstance(space, MultiDiscrete):
        return MultiDiscrete(space.nvec * n, space.start * n, (n, *space.shape))
    if isinstance(space, MultiBinary):
        return MultiBinary((n, *space.shape))
    low, high = np.minimum(space.low, 0.0), np.maximum(space.high, 0.0)  # the zeros before an episode are in it too
    return Box(np.stack([low] * n), np.stack([high] * n), space.dtype)


def _padding(space: Space, n: int) -> Any:
    """The window before an episode begins."""
    if isinstance(space, Dict):
        parts = {key: _padding(part, n) for key, part in space.spaces.items()}
        return tuple(parts.values()) if space.is_tuple else parts
    zero = np.zeros(space.shape, _dtype(space)) if isinstance(space, Box) else _zeros(space)
    return np.stack([zero] * n)


def _pushed(space: Space, seen: Any, obs: Any) -> Any:
    """A new window whose last entry is this observation."""
    if not isinstance(space, Dict):
        return np.concatenate((seen[1:], np.asarray(obs)[None]), dtype=seen.dtype, casting='same_kind')
    if space.is_tuple:
        return tuple(_pushed(part, *pair) for part, *pair in zip(space.spaces.values(), seen, obs, strict=True))
    return {key: _pushed(part, seen[key], obs[key]) for key, part in space.spaces.items()}
