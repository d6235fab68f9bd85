"""The schema of a checkpoint: all that it says about its run, checked before anything is built from it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import AfterValidator, AllowInfNan, BaseModel, ConfigDict, Field, ValidationError, model_validator

from zoo.config.section import plain
from zoo.core import VERSION
from zoo.core.errors import join_path
from zoo.core.spaces import Box, Dict, Discrete, Leaf, MultiBinary, MultiDiscrete, Space, leaf_spaces
from zoo.policy.base import Policy
from zoo.policy.modes import MODES, Mode
from zoo.run.checkpoint.file import (
    MAX_HEADER,
    Checkpoint,
    CheckpointError,
    State,
    Strict,
    first_problem,
    malformed,
    shown,
)

MAX_OBS = 1 << 25
MAX_ACTION = 1 << 20
"""Most numbers in one observation and in one action: an RGB image of 3840 x 2160 has 25 M, whose bounds take 0.4 GB."""
MAX_ENTRIES = 1_000
MAX_KEY = 100
MAX_TEXT = 4_096
"""Limits for keys and list items in a config, for characters of a key and of a value; in env.kwargs only keys are counted.

A bundled config has some 100 keys. For an unknown key of 100 characters, finding the one that was meant takes 8 ms.
"""
BY_HAND = 'none'  # the run of a checkpoint whose policy was made and saved by hand
Count = Annotated[int, Field(ge=0, lt=2**53)]
Return = Annotated[float, AllowInfNan(True)]  # an env may give rewards without bound
Shape = Annotated[list[Annotated[int, Field(ge=0, le=MAX_OBS)]], Field(max_length=32)]
LearnerName = Annotated[str, Field(pattern='^([a-zA-Z][a-zA-Z0-9_-]{0,63})?$')]  # they are parts of files' names
Integer = Annotated[int, Field(ge=-(2**62), le=2**62)]


class SavedRun(NamedTuple):
    """The run that wrote a checkpoint.

    config: the resolved one; by_hand: there was no run, so that max_env_step and all sections but `policy` are defaults,
    and env.id is '' unless it was given; fields: modes that the policy had; given_model: class of the network that was given
    in place of a registered one; learners: names of its learners; the state here is that of the first one.
    """

    path: Path
    config: dict[str, Any]
    obs_space: Space
    action_space: Space
    env_step: int
    best_return: float | None
    executor: str | None
    by_hand: bool
    fields: tuple[Mode, ...]
    given_model: str | None
    state: SavedState
    learners: tuple[str, ...] = ('',)


class Counter(Strict):
    """The counters of a run."""

    env_step: Count
    collect_iter: Count
    episode: Count
    eval_step: Count
    best_return: Return | None
    last_return: Return | None
    wall_s: Annotated[float, Field(ge=0)]
    reset: Count | None = None  # this and what follows are not in older checkpoints
    sample: Count | None = None
    agent_step: Count | None = None  # of envs of several agents


class OwnNumber(Strict):
    """A lifetime of `job.log`, see `zoo.worker.own_numbers.Fold`."""

    n: Count
    total: float
    least: float
    greatest: float
    last: float


class SavedState(Strict):
    """The state of a run, by the component that loads it; it is not checked yet whether it fits there."""

    policy: State
    memory: State = {}
    buffer: State = {}
    counter: Counter
    stop: Annotated[dict[str, State], Field(max_length=MAX_ENTRIES)] = {}
    league: State = {}  # of self-play
    levels: State = {}  # scores of env.levels
    own_numbers: Annotated[dict[str, OwnNumber], Field(max_length=MAX_ENTRIES)] = {}  # lifetimes of `job.log`


def saved_run(checkpoint: Checkpoint) -> SavedRun:
    """Reads the run that wrote a checkpoint. Raises: CheckpointError if it was not written by a run of zoo."""
    try:
        meta = _Meta.model_validate(checkpoint.meta)
        state = SavedState.model_validate(checkpoint.state)
    except ValidationError as error:
        raise malformed(checkpoint.path, first_problem(error)) from error
    if meta.env_step != state.counter.env_step:
        raise malformed(checkpoint.path, f'env_step is {meta.env_step} in meta and {state.counter.env_step} in state')
    return SavedRun(
        checkpoint.path,
        checkpoint.meta['config'],
        meta.obs_space.space(),
        meta.action_space.space(),
        meta.env_step,
        meta.best_return,
        meta.version.get('executor'),
        meta.version.get('run') == BY_HAND,
        tuple(meta.fields),
        meta.model,
        state,
        tuple(meta.learners),
    )


def saved_meta(
    policy: Policy, config: dict[str, Any], env_step: int, train_iter: int, best_return: float | None, **more: object
) -> dict[str, Any]:
    """The description of a checkpoint: config, counters, spaces, versions. Args: more: other fields of `_Meta`."""
    return {
        'config': config,
        'env_step': env_step,
        'train_iter': train_iter,
        'best_return': best_return,
        'obs_space': policy.obs_space.to_json(),
        'action_space': policy.action_space.to_json(),
        'version': {'zoo': VERSION, 'torch': torch.__version__, 'executor': policy.executor_name},
        **more,
        **({} if policy.given_model is None else {'model': policy.given_model[:MAX_KEY]}),
    }


def causes_of_misfits(run: SavedRun, policy: dict[str, Any]) -> dict[str, str]:
    """The causes that `fit_state` names for state that differs, by the beginning of its name.

    Args: policy: the current section `policy`, which may differ from that of the run.
    """
    was, now = (x if isinstance(x, dict) else {} for x in (run.config['policy'].get('learn'), policy.get('learn')))
    keys = [('model/', 'value_loss'), ('learn/optimizer/', 'optimizer'), ('learn/optimizer/', 'freeze')]
    keys += [
        ('learn/intrinsic/', 'intrinsic'),
        ('learn/plasticity/', 'plasticity'),
        ('learn/constraint/', 'constraint'),
        ('learn/aux_', 'aux_window'),
    ]
    first = {'value_loss': 'mse', 'optimizer': 'adam', 'freeze': []}  # for runs from before these keys existed
    found = {'model/': ''}  # if the model differs, the moments of the optimiser do too
    for prefix, key in keys:
        old = was.get(key, first.get(key))
        new = now.get(key, first.get(key))
        if plain(old) != plain(new):
            found[prefix] = (
                f'policy.learn.{key} was {shown(repr(plain(old)), 60)} and is {shown(repr(plain(new)), 60)} now, which has '
                'other state; resume with the one that it was, or begin a new run, e.g. with init_from'
            )
    return found


def check_saved_modes(run: SavedRun, modes: Sequence[Mode]) -> None:
    """Raises: CheckpointError if the policy was saved without the state that one of the modes needs."""
    missing = [mode for mode in modes if mode != 'eval' and mode not in run.fields]
    if missing:
        names = ' and '.join(missing)
        left = [mode for mode in MODES if mode == 'eval' or mode in run.fields]
        raise CheckpointError(
            run.path,
            f'was saved without {names}: the policy had been loaded or made with fields {list(run.fields)}; use '
            f"fields={left}, or save it from a policy of load_policy(.., fields='all')",
        )


def check_env_known(run: SavedRun, overrides: Sequence[str] = ()) -> None:
    """Raises: CheckpointError if the policy was saved by hand without an env, and no override names one."""
    if not run.config['env']['id'] and not any(text.startswith('env.id=') for text in overrides):
        raise CheckpointError(
            run.path,
            'is of a policy that was saved by hand, without an env; give env.id=..., or name it when saving: '
            'policy.save(path, env=...)',
        )


def check_given_model(run: SavedRun, is_given: bool) -> None:
    """Raises: CheckpointError if a run was trained with a network of the user's own and none is given now."""
    if run.given_model is not None and not is_given:
        raise CheckpointError(
            run.path,
            f'is of a run that was trained with a model given as model=, a {run.given_model}, whose code no checkpoint '
            'holds; pass one like it again: serial_pipeline(resume=.., model=..), load_policy(.., model=..)',
        )


def _is_bound(text: str) -> str:
    with suppress(ValueError):
        if not math.isnan(float(text)):
            return text
    raise ValueError('should be a number')


IntegerType = Annotated[str, Field(pattern='^(bool|u?int(8|16|32|64))$')]


class _Discrete(Strict):
    kind: Literal['discrete']
    n: Annotated[int, Field(ge=1, le=2**31)]
    start: Integer
    dtype: IntegerType = Discrete.dtype  # older checkpoints have none

    def space(self) -> Discrete:
        return Discrete(self.n, self.start, self.dtype)


class _Box(Strict):
    kind: Literal['box']
    shape: Shape
    dtype: Annotated[str, Field(pattern='^(bool|u?int(8|16|32|64)|float(16|32|64))$')]
    low: list[Annotated[str, Field(max_length=40), AfterValidator(_is_bound)]]
    high: list[Annotated[str, Field(max_length=40), AfterValidator(_is_bound)]]

    @model_validator(mode='after')
    def _has_all_bounds(self) -> _Box:
        n = math.prod(self.shape)
        if any(len(bound) not in (1, n) for bound in (self.low, self.high)):
            raise ValueError(f'should have {n} bounds, by its shape, or one for all')
        return self

    def space(self) -> Box:
        bounds = (np.array([float(x) for x in texts]) for texts in (self.low, self.high))
        n = math.prod(self.shape)
        low, high = (b.reshape(self.shape) if b.size == n else np.full(self.shape, b[0]) for b in bounds)
        return Box(low, high, self.dtype)


class _MultiDiscrete(Strict):
    kind: Literal['multi_discrete']
    nvec: list[Annotated[int, Field(ge=1, le=2**31)]]
    start: list[Integer]
    shape: Shape
    dtype: IntegerType = MultiDiscrete.dtype

    @model_validator(mode='after')
    def _has_all_numbers(self) -> _MultiDiscrete:
        n = math.prod(self.shape)
        if (len(self.nvec), len(self.start)) != (n, n):
            raise ValueError(f'should have {n} numbers, by its shape')
        return self

    def space(self) -> MultiDiscrete:
        return MultiDiscrete(tuple(self.nvec), tuple(self.start), tuple(self.shape), self.dtype)


class _MultiBinary(Strict):
    kind: Literal['multi_binary']
    shape: Shape
    dtype: IntegerType = MultiBinary.dtype

    def space(self) -> MultiBinary:
        return MultiBinary(tuple(self.shape), self.dtype)


class _Dict(Strict):
    kind: Literal['dict']
    spaces: list[Annotated[tuple[Annotated[str, Field(max_length=100)], SavedSpace], Field(strict=False)]]
    is_tuple: bool

    def space(self) -> Dict:
        return Dict({name: each.space() for name, each in self.spaces}, self.is_tuple)


SavedSpace = Annotated[_Discrete | _Box | _MultiDiscrete | _MultiBinary | _Dict, Field(discriminator='kind')]
"""A space as its `to_json` gives it; `space()` builds the space."""


def _n_number(space: SavedSpace) -> int:
    if isinstance(space, _Dict):
        return sum(_n_number(each) for _, each in space.spaces)
    return _n_number_of_leaf(space)


def _n_number_of_leaf(leaf: _Discrete | _Box | _MultiDiscrete | _MultiBinary | Leaf) -> int:
    if isinstance(leaf, _MultiDiscrete | MultiDiscrete):
        return sum(leaf.nvec)  # the number of columns of a one-hot code
    if isinstance(leaf, _Discrete):
        return 1
    return math.prod(leaf.shape)


def _at_most(n: int) -> AfterValidator:
    def check(space: SavedSpace) -> SavedSpace:
        if _n_number(space) > n:
            raise ValueError(f'should have at most {n} numbers')
        return space

    return AfterValidator(check)


def space_problem(name: Literal['observation', 'action'], space: Space) -> str:
    """A sentence about a space that no checkpoint can hold; '' if one can."""
    if name == 'observation':
        most = MAX_OBS
    else:
        most = MAX_ACTION
    n = sum(_n_number_of_leaf(leaf) for _, leaf in leaf_spaces(space))
    if n > most:
        return (
            f'the {name} space has {n:,} numbers but a checkpoint holds a space of at most {most:,}; use a smaller one'
        )
    n_byte = len(json.dumps(space.to_json()))
    if n_byte > MAX_HEADER // 4:  # the text of both, inside a JSON string, and a config are to fit
        return (
            f'the {name} space has bounds, or numbers of values, that differ: written as text they take '
            f'{n_byte / 1e6:,.0f} MB, and a checkpoint holds at most {MAX_HEADER / 4e6:,.0f} MB of them; use one bound for all'
        )
    return ''


class _Loose(BaseModel):
    """A section of which only some fields are read before the config's own schema checks all of them."""

    model_config = ConfigDict(strict=True, extra='allow', protected_namespaces=())


class _Env(_Loose):
    id: str
    game: str | None = None
    action_mode: Literal['clip', 'rescale'] = 'clip'


class _Eval(_Loose):
    env: dict[str, Any] | None = None
    sets: dict[str, dict[str, Any]] | None = None


class _Policy(_Loose):
    type: str
    collect: dict[str, Any] = {}
    eval: _Eval | None = None


class _Logger(_Loose):
    root: str


class _Config(_Loose):
    exp_name: str
    seed: Annotated[int, Field(ge=0, lt=2**128)]
    max_env_step: Annotated[int, Field(ge=1, lt=2**63)]
    env: _Env
    policy: _Policy
    buffer: dict[str, Any]
    checkpoint: dict[str, Any]
    logger: _Logger

    @model_validator(mode='before')
    @classmethod
    def _is_possible(cls, config: object) -> Any:
        if isinstance(config, dict):
            check_config_size(config)
        return config


class _Meta(Strict):
    config: _Config
    env_step: Count
    train_iter: Count
    best_return: Return | None
    obs_space: Annotated[SavedSpace, _at_most(MAX_OBS)]
    action_space: Annotated[SavedSpace, _at_most(MAX_ACTION)]
    version: dict[str, str]
    fields: Annotated[list[Mode], Field(min_length=1, max_length=len(MODES))] = list(MODES)  # only some, if saved so
    model: Annotated[str, Field(max_length=MAX_KEY)] | None = None
    rank_num: Annotated[int, Field(ge=1, lt=2**31)] = 1  # processes that trained together
    learners: Annotated[list[LearnerName], Field(min_length=1, max_length=MAX_ENTRIES)] = ['']  # noqa: RUF012


def check_config_size(config: dict[str, Any]) -> None:
    """Raises: ValueError if a config is so large that explaining each unknown key of it would take minutes."""
    env = config.get('env')
    kwargs = None
    if isinstance(env, dict):
        kwargs = env.get('kwargs')
    n_entry = 0
    for path, key, value, is_data in _entries(config, kwargs):
        n_entry += key is not None or not is_data
        if n_entry > MAX_ENTRIES:
            raise ValueError(f'should have at most {MAX_ENTRIES} keys and items of lists; pass data in files')
        if isinstance(key, str) and len(key) > MAX_KEY:
            raise ValueError(f'should have no key of more than {MAX_KEY} characters')
        if isinstance(value, str) and len(value) > MAX_TEXT and not is_data:
            raise ValueError(f'should have no text of more than {MAX_TEXT} characters, as {shown(path)} has')
        # a seed may be that of a numpy SeedSequence
        if key == 'seed':
            power = 128
        else:
            power = 63
        if isinstance(value, int) and abs(value) >= 2**power:
            raise ValueError(f'should have no integer of 2**{power} or more, as {shown(path)} is')


def leaf_values(value: object, path: str = '') -> Iterator[tuple[str, Any]]:
    """Yields path and value of everything that is neither dict nor list; the items of a list have its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaf_values(item, join_path(path, key))
    elif isinstance(value, list):
        for item in value:
            yield from leaf_values(item, path)
    else:
        yield path, value


def _entries(
    value: dict[str, Any] | list[Any], data: object, is_data: bool = False, path: str = ''
) -> Iterator[tuple[str, Any, Any, bool]]:
    """Yields (path, key, value, whether it is in `data`) for all items of nested dicts and lists; in a list, key is None."""
    is_data = is_data or value is data
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, dict):
        items = value.items()
    else:
        items = ((None, item) for item in value)
    for key, item in items:
        if key is None:
            where = path
        else:
            where = join_path(path, str(key))
        yield where, key, item, is_data
        if isinstance(item, dict | list):
            yield from _entries(item, data, is_data, where)
