"""Envs that test one ability each: actions of every kind with a known best reward, in one step or many; masks; memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import batch_space

import zoo.core.spaces as plain
from zoo.core.action_map import Action
from zoo.core.errors import closest
from zoo.core.registry import ENV_REGISTRY
from zoo.core.spaces import ACTION_MASK, mask_size
from zoo.env.adapter import convert_space
from zoo.env.errors import EnvError, EnvKwargsError
from zoo.env.families.envpool import EXTRA, N_KIND, make_pool
from zoo.env.families.family import EnvRequest, env_family
from zoo.env.masks import choice_slices

IMAGE = 40  # pixels; a Nature CNN needs 36
WIDTH = 7  # of MiniGrid's view, in cells
SEEN = 3  # width of NarrowView, in cells
N_CELL = sum(N_KIND)  # numbers for each cell
N_ACTION = 3  # turn left, turn right, go forward: the first of MiniGrid's
Scale = tuple[np.ndarray, np.ndarray] | None  # of a Box: middle and half width of each dimension
ACTION_SPACES: dict[str, Callable[[], gymnasium.Space]] = {
    'discrete': lambda: Discrete(4),
    'discrete_start': lambda: Discrete(3, start=5),
    'box': lambda: Box(-1.0, 1.0, (2,), np.float32),
    'box_0d': lambda: Box(-1.0, 1.0, (), np.float32),
    'box_2d': lambda: Box(np.array([[-1.0, 0.0], [-2.0, -1.0]]), np.array([[1.0, 2.0], [2.0, 3.0]]), dtype=np.float64),
    'box_unbounded': lambda: Box(-np.inf, np.inf, (2,), np.float32),
    'box_int': lambda: Box(-3, 3, (2,), np.int64),
    'multi_discrete': lambda: MultiDiscrete([3, 2]),
    'multi_discrete_2d': lambda: MultiDiscrete(np.array([[2, 3], [3, 2]]), start=np.array([[0, 1], [0, 0]])),
    'multi_binary': lambda: MultiBinary(3),
    'dict': lambda: Dict({'kind': Discrete(3), 'amount': Box(-1.0, 1.0, (2,), np.float32)}),
    'tuple': lambda: Tuple((Discrete(2, start=1), MultiDiscrete([2, 3]), MultiBinary(2))),
}
OBS_SPACES: dict[str, Callable[[], gymnasium.Space]] = {
    'box': lambda: Box(-1.0, 1.0, (3,), np.float32),
    'box_0d': lambda: Box(-1.0, 1.0, (), np.float32),
    'box_2d': lambda: Box(-np.inf, np.inf, (2, 3), np.float64),
    'box_4d': lambda: Box(0.0, 1.0, (2, 2, 3, 2), np.float32),
    'box_int': lambda: Box(-5, 5, (4,), np.int32),
    'image_uint8': lambda: Box(0, 255, (IMAGE, IMAGE, 3), np.uint8),
    'image_float': lambda: Box(0.0, 1.0, (3, IMAGE, IMAGE), np.float32),
    'discrete': lambda: Discrete(5),
    'discrete_start': lambda: Discrete(4, start=-2),
    'multi_discrete': lambda: MultiDiscrete([3, 4]),
    'multi_discrete_2d': lambda: MultiDiscrete(np.array([[2, 3], [4, 2]])),
    'multi_binary': lambda: MultiBinary(4),
    'dict': lambda: Dict({'image': Box(0, 255, (IMAGE, IMAGE, 3), np.uint8), 'vector': Box(-1.0, 1.0, (3,))}),
    'tuple': lambda: Tuple((Box(-1.0, 1.0, (2,), np.float32), Discrete(3), MultiBinary((2, 2)))),
    'nested_mask': lambda: Dict(  # any_space adds a mask where the actions can have one
        {'own': Dict({'place': Box(-1.0, 1.0, (2,)), 'kind': Discrete(3)}), 'bits': MultiBinary(3)}
    ),
}


def make_space(spaces: dict[str, Callable[[], gymnasium.Space]], name: str, key: str) -> gymnasium.Space:
    """A space by its name. key: the argument that gave it, for the error."""
    if name not in spaces:
        close = closest(name, tuple(spaces))
        hint = ''
        if close:
            hint = f'did you mean {close[0]!r}? '
        raise EnvKwargsError(f'env.kwargs.{key} is {name!r}: {hint}it is one of {", ".join(spaces)}.')
    return spaces[name]()


class Target:
    """Scores actions by their distance to a target: 1 at it, -1 farthest from it; the mean over the leaves of the space.

    Attributes: size: numbers in a target. choices: the bits of each choice in an action mask. n_mask: bits of a mask.
    """

    def __init__(self, space: gymnasium.Space) -> None:
        self._space = convert_space(space, 'action', 'probe')
        self.choices = choice_slices(self._space)
        self.n_mask = mask_size(self._space)
        self._leaves = [leaf for _, leaf in plain.leaf_spaces(self._space)]
        self._scales = [_middle_and_half(leaf) for leaf in self._leaves]
        self._places = _slices(map(_size, self._leaves))
        self._bits = _slices(map(mask_size, self._leaves))
        self.size = self._places[-1].stop

    def draw(self, rng: np.random.Generator, mask: np.ndarray | None = None) -> np.ndarray:
        """A random target [size]: for each choice a one-hot vector, for each bit -1 or 1, for each number a value in -0.8 .. 0.8.

        Args: mask: [n_mask] bool, what may be chosen; None: everything.
        """
        parts = []
        for leaf, scale, bits in zip(self._leaves, self._scales, self._bits, strict=True):
            n = bits.stop - bits.start
            legal = np.ones(n, bool)
            if mask is not None:
                legal = mask[bits]
            for choice in choice_slices(leaf):
                taken = int(rng.choice(np.flatnonzero(legal[choice])))
                parts.append(np.eye(1, choice.stop - choice.start, taken)[0])
            if isinstance(leaf, plain.MultiBinary):
                parts.append(rng.integers(2, size=n) * legal * 2.0 - 1.0)
            elif isinstance(leaf, plain.Box) and scale is not None:
                middle, half = scale
                number = rng.uniform(-0.8, 0.8, _size(leaf))
                if leaf.dtype[0] != 'f':  # an integer
                    number = (np.round(number * half + middle) - middle) / half
                parts.append(number)
        return np.concatenate(parts).astype(np.float32)

    def score(self, action: Action, target: np.ndarray) -> float:
        """The score of an action in the env's own form."""
        leaves = zip(self._leaves, self._scales, self._places, _parts(self._space, action), strict=True)
        scores = [_score(leaf, scale, np.asarray(part), target[at]) for leaf, scale, at, part in leaves]
        return float(np.mean(scores))

    def draw_mask(self, rng: np.random.Generator) -> np.ndarray:
        """[n_mask] bool, each entry true with chance 1/2; at least one entry of each choice is true."""
        mask = rng.random(self.n_mask) < 0.5
        for choice in self.choices:
            if not mask[choice].any():
                mask[int(rng.integers(choice.start, choice.stop))] = True
        return mask

    def check_legal(self, action: Action, mask: np.ndarray) -> None:
        """Raises: EnvError if the mask [n_mask] forbids the action."""
        for leaf, bits, part in zip(self._leaves, self._bits, _parts(self._space, action), strict=True):
            if bits.stop > bits.start and not mask[bits][_taken(leaf, part)].all():
                raise EnvError(f'the action {action!r} is illegal under the mask {mask.astype(int)}')


def _slices(sizes: Iterable[int]) -> list[slice]:
    stops = list(accumulate(sizes))
    return list(map(slice, [0, *stops], stops))


def _size(leaf: plain.Leaf) -> int:
    return mask_size(leaf) or int(np.prod(leaf.shape))


def _taken(leaf: plain.Leaf, action: Any) -> np.ndarray:
    """Indices of the values that an action chooses, or of the bits that it sets, among all values or bits of a leaf."""
    if isinstance(leaf, plain.MultiBinary):
        return np.flatnonzero(action)
    index = np.ravel(action) - np.ravel(getattr(leaf, 'start', 0))
    return np.cumsum((0, *plain.n_values(leaf)[:-1])) + index


def _parts(space: plain.Space, action: Any) -> list[Any]:
    if not isinstance(space, plain.Dict):
        return [action]
    entries = action
    if not space.is_tuple:
        entries = [action[name] for name in space.spaces]
    parts: list[Any] = []
    for part, entry in zip(space.spaces.values(), entries, strict=True):
        parts += _parts(part, entry)
    return parts


def _middle_and_half(leaf: plain.Leaf) -> Scale:
    """Middle and half width of each dimension of a Box, 0 and 1 where it is not bounded on both sides; None for others."""
    if not isinstance(leaf, plain.Box):
        return None
    bounded = np.isfinite(leaf.low) & np.isfinite(leaf.high)
    low = np.where(bounded, leaf.low, -1.0).ravel()
    high = np.where(bounded, leaf.high, 1.0).ravel()
    return (low + high) / 2, (high - low) / 2


def _score(leaf: plain.Leaf, scale: Scale, action: np.ndarray, target: np.ndarray) -> float:
    if scale is not None:
        middle, half = scale
        distance = np.abs((np.ravel(action) - middle) / half - target)
        return float(np.maximum(1.0 - distance, -1.0).mean())
    if isinstance(leaf, plain.MultiBinary):
        return float((np.where(np.ravel(action), 1.0, -1.0) * target).mean())
    return float((target[_taken(leaf, action)] * 2.0 - 1.0).mean())


@ENV_REGISTRY.register('any_space')
class AnySpace(gymnasium.Env):
    """For tests: random observations; the reward is that of `one_step` for a target that is never shown and never changes.

    The observations 'nested_mask' have a random action mask if the actions can be masked; an illegal action raises.

    Args: obs: a name of OBS_SPACES;  action: one of ACTION_SPACES;  n_step: steps of an episode.
    """

    def __init__(self, obs: str = 'box', action: str = 'discrete', n_step: int = 8) -> None:
        self.observation_space = make_space(OBS_SPACES, obs, 'obs')
        self.action_space = make_space(ACTION_SPACES, action, 'action')
        self._target = Target(self.action_space)
        self._has_mask = obs == 'nested_mask' and self._target.n_mask > 0
        if isinstance(self.observation_space, gymnasium.spaces.Dict) and self._has_mask:
            parts = {**self.observation_space.spaces, ACTION_MASK: MultiBinary(self._target.n_mask)}
            self.observation_space = Dict(parts)
        self._best = self._target.draw(np.random.default_rng(0))
        self._n_step = n_step
        self._t = 0
        self._mask: np.ndarray | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._t = 0
        return self._shown(), {}

    def step(self, action: Action) -> tuple[Any, float, bool, bool, dict]:
        taken = action
        if isinstance(action, np.generic):
            taken = np.asarray(action)
        if not self.action_space.contains(taken):
            raise EnvError(f'the action {action!r} is not in {self.action_space}')
        if self._mask is not None:
            self._target.check_legal(action, self._mask)
        self._t += 1
        return self._shown(), self._target.score(action, self._best), self._t == self._n_step, False, {}

    def _shown(self) -> Any:
        obs = self.observation_space.sample()
        if self._has_mask:
            self._mask = self._target.draw_mask(self.np_random)
            obs[ACTION_MASK] = self._mask.astype(np.int8)
        return obs


@ENV_REGISTRY.register('one_step')
class OneStep(gymnasium.Env):
    """For tests: one step per episode shows a target; the reward is 1 at it and falls to -1 with the distance.

    Choices and bits score 1 if right and -1 if wrong. Numbers score 1 - |number - target|, at least -1, where their bounds
    are scaled to -1 and 1. The reward is the mean over the leaves.

    Args: action: a name of ACTION_SPACES.
      masked: each episode allows a random set of actions that contains the target; an illegal action raises.
    """

    def __init__(self, action: str = 'discrete', masked: bool = False) -> None:
        self.action_space = make_space(ACTION_SPACES, action, 'action')
        self._target = Target(self.action_space)
        self._has_mask = masked and self._target.n_mask > 0
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (self._target.size,), np.float32)
        self._obs = np.zeros(self._target.size, np.float32)
        self._mask: np.ndarray | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if self._has_mask:
            self._mask = self._target.draw_mask(self.np_random)
        else:
            self._mask = None
        self._obs = self._target.draw(self.np_random, self._mask)
        return self._obs, self._info()

    def step(self, action: Action) -> tuple[np.ndarray, float, bool, bool, dict]:
        if self._mask is not None:
            self._target.check_legal(action, self._mask)
        return self._obs, self._target.score(action, self._obs), True, False, self._info()

    def _info(self) -> dict[str, Any]:
        if self._mask is None:
            return {}
        return {ACTION_MASK: self._mask}


MASKED_SPACES = {'discrete': lambda: Discrete(8), 'multi_discrete': lambda: MultiDiscrete([3, 5])}


@ENV_REGISTRY.register('random_masks')
class RandomMasks(gymnasium.Env):
    """For tests: about half of the actions are legal, drawn at every step; the reward is 1 for the lowest legal one, else 0.

    The observation has no information: a policy that prefers low actions and uses the mask earns `n_step`. The reward of a
    MultiDiscrete action is the share of its right entries. An illegal action is counted in `n_illegal` and raises.

    Args: action: 'discrete' (8 actions) or 'multi_discrete' (3 and 5).
      source: where the mask is: 'info', 'obs' (observations are a Dict) or 'method'.
    """

    def __init__(
        self,
        action: Literal['discrete', 'multi_discrete'] = 'discrete',
        source: Literal['info', 'obs', 'method'] = 'info',
        n_step: int = 10,
    ) -> None:
        for key, value, known in (
            ('action', action, tuple(MASKED_SPACES)),
            ('source', source, ('info', 'obs', 'method')),
        ):
            if value not in known:
                raise EnvKwargsError(f'env.kwargs.{key} is {value!r}, wanted {" or ".join(map(repr, known))}.')
        self.action_space = MASKED_SPACES[action]()
        self._target = Target(self.action_space)
        self._source = source
        self._n_step = n_step
        self._t = 0
        nothing = Box(0.0, 1.0, (1,), np.float32)
        mask = MultiBinary(self._target.n_mask)
        if source == 'obs':
            self.observation_space = Dict({'obs': nothing, ACTION_MASK: mask})
        else:
            self.observation_space = nothing
        self._blank = np.ones(1, np.float32)
        self.mask = np.ones(self._target.n_mask, bool)
        self.n_illegal = 0
        if source == 'method':
            self.action_masks = lambda: self.mask

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._t = 0
        return self._shown()

    def step(self, action: Action) -> tuple[Any, float, bool, bool, dict]:
        self.n_illegal += 1
        self._target.check_legal(action, self.mask)
        self.n_illegal -= 1
        lowest = [int(self.mask[choice].argmax()) for choice in self._target.choices]
        reward = float(np.mean(np.asarray(action).ravel() == lowest))
        self._t += 1
        obs, info = self._shown()
        return obs, reward, self._t == self._n_step, False, info

    def _shown(self) -> tuple[Any, dict]:
        self.mask = self._target.draw_mask(self.np_random)
        if self._source == 'obs':
            return {'obs': self._blank, ACTION_MASK: self.mask.astype(np.int8)}, {}
        if self._source == 'info':
            return self._blank, {ACTION_MASK: self.mask}
        return self._blank, {}


@ENV_REGISTRY.register('remember_cue')
class RememberCue(gymnasium.Env):
    """The first observation shows a cue; `delay` steps later the action must be that cue: reward 1, else 0.

    The observation has one number for each cue, and a last one that is 1 when the action counts, after which the
    episode ends. Without memory the best return is 1 / n_cue.
    """

    metadata = {'render_modes': ['rgb_array'], 'render_fps': 5}  # noqa: RUF012

    def __init__(self, n_cue: int = 2, delay: int = 20, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.observation_space = Box(0.0, 1.0, (n_cue + 1,), np.float32)
        self.action_space = Discrete(n_cue)
        self._delay = delay
        self._cues = [row for row in np.eye(n_cue, n_cue + 1, dtype=np.float32)]
        self._blank = np.zeros(n_cue + 1, np.float32)
        self._question = np.eye(1, n_cue + 1, n_cue, dtype=np.float32)[0]
        self._cue = self._t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._cue = int(self.np_random.integers(len(self._cues)))
        self._t = 0
        return self._cues[self._cue], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._t += 1
        if self._t < self._delay:
            return self._blank, 0.0, False, False, {}
        if self._t == self._delay:
            return self._question, 0.0, False, False, {}
        return self._blank, float(action == self._cue), True, False, {}

    def render(self) -> np.ndarray:  # type: ignore[override]
        """The observation: [1, n_cue + 1, 3] bytes, a pixel for each number, white where it is 1; the last one is red."""
        shown = self._blank
        if self._t == self._delay:
            shown = self._question
        if self._t == 0:
            shown = self._cues[self._cue]
        picture = np.repeat((255 * shown).astype(np.uint8)[None, :, None], 3, axis=2)
        picture[:, -1, 1:] = 0
        return picture


@ENV_REGISTRY.register('cartpole_no_velocity')
def cartpole_no_velocity(render_mode: str | None = None) -> gymnasium.Env:
    """CartPole-v1, 500 steps at most, that shows position and angle but not their speeds."""
    env = gymnasium.make('CartPole-v1', render_mode=render_mode, disable_env_checker=True)
    full: Any = env.observation_space
    space = Box(full.low[::2], full.high[::2], dtype=np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda obs: obs[::2].copy(), space)


class NarrowView(gymnasium.vector.VectorObservationWrapper):
    """MiniGrid with a view of 3x3 cells in place of 7x7, without the direction, and with three actions."""

    def __init__(self, env: gymnasium.vector.VectorEnv) -> None:
        super().__init__(env)
        self.single_observation_space = Box(0.0, 1.0, (SEEN * SEEN * N_CELL,), np.float32)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)
        self.single_action_space = Discrete(N_ACTION)
        self.action_space = batch_space(self.single_action_space, env.num_envs)

    def observations(self, observations: np.ndarray) -> np.ndarray:
        """The cells around the agent, which stands in the middle of the last row: [B, 984] -> [B, 180]."""
        side = (WIDTH - SEEN) // 2
        cells = observations[:, : WIDTH * WIDTH * N_CELL].reshape(-1, WIDTH, WIDTH, N_CELL)  # [B, W, H, 20]
        return cells[:, side : side + SEEN, -SEEN:].reshape(len(observations), -1)


@ENV_REGISTRY.register('minigrid_memory_s7')
@env_family(summary='MiniGrid MemoryS7 with a view of 3x3 cells: without memory half of the episodes succeed.')
def make_minigrid_memory_s7(request: EnvRequest, /, **options: Any) -> gymnasium.vector.VectorEnv:
    """`request.n_env` games: see a key or a ball, walk away, and go to the one of two others that is the same.

    Observations are one-hot vectors of 3x3 cells, 20 numbers each: its object (11), colour (6) and state (3). The reward
    of success is 1 - 0.9 * n_step / 245. In MiniGrid's own view of 7x7 cells all three objects are seen at once from
    where the agent has to choose. `options` are those of the family 'envpool' for this game.

    Source: the narrow view and the three actions as in github.com/MarcoMeter/recurrent-ppo-truncated-bptt.
    """
    return NarrowView(make_pool(request, 'MiniGrid-MemoryS7-v0', EXTRA, options))
