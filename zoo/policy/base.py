"""What every policy promises: three modes, one config section, one state."""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from zoo.backend.executor import Acting, Compile, ForwardActing
from zoo.config.section import Section
from zoo.core.action_map import ActionMap, first_row, forbids_all
from zoo.core.data import (
    Columns,
    Metrics,
    Obs,
    Rollout,
    RunInfo,
    Sample,
    State,
    Transition,
    first_leaf,
    keeps_state,
    map_tensors,
    replace_rows,
)
from zoo.core.errors import UserError
from zoo.core.registry import MODEL_REGISTRY
from zoo.core.seeding import stream
from zoo.core.spaces import ACTION_MASK, Dict, Space, mask_space, n_lead, obs_to_tensor
from zoo.model.unread import set_fields

logger = logging.getLogger(__name__)

DEVICE = r'^(auto|cpu|cuda(:\d+)?)$'
Mode = Literal['learn', 'collect', 'eval']


class LearnConfig(Section):
    """Section `policy.learn`: how a policy is updated."""

    batch_size: int = Field(
        256, ge=1, description='samples per gradient step (64 to 4096 is usual); smaller ones learn more from a sample'
    )


class CollectConfig(Section):
    """Section `policy.collect`: how experience is gathered; give n_sample or n_step, the other is derived."""

    n_sample: Annotated[int, Field(ge=1)] | None = Field(None, description='env steps per rollout, over all envs')
    n_step: Annotated[int, Field(ge=1)] | None = Field(
        128, description='env steps per rollout and env (32 to 2048 is usual); longer ones are less biased'
    )


MAX_EPISODE_STEPS = 100_000  # of an evaluation; the longest of Atari have 27,000


class EvalConfig(Section):
    """Section `policy.eval`: when and how long a policy is evaluated."""

    eval_freq: int = Field(20_000, ge=1, description='env steps between evaluations')
    n_episode: int = Field(10, ge=1, description='episodes per evaluation, shared out evenly over the evaluation envs')
    stop_value: float | None = Field(
        None, description='mean return of an evaluation at which the run stops; null: never'
    )
    max_episode_steps: Annotated[int, Field(ge=1)] | None = Field(
        MAX_EPISODE_STEPS,
        description='env steps after which an evaluation cuts an episode off and counts it as it is; null: never',
    )


class PolicyConfig(Section):
    """Section `policy`."""

    type: str = Field('ppo', description='registered name of the policy')
    device: str = Field(
        'auto', pattern=DEVICE, description="'auto' (cuda where there is one), 'cpu', 'cuda' or 'cuda:N'"
    )
    n_thread: Annotated[int, Field(ge=1, le=1_024)] | None = Field(
        None,
        description='torch threads of all phases of the run; null: chosen for each phase, 1 for small networks, '
        'never more than torch has at the start (OMP_NUM_THREADS)',
    )
    model: dict[str, Any] = Field({}, description='the model: {type: registered name, ...its fields}')
    learn: LearnConfig = LearnConfig()
    collect: CollectConfig = CollectConfig()
    eval: EvalConfig = EvalConfig()


class LearnMode(NamedTuple):
    """What a learner is given."""

    forward: Callable[[Any], Metrics]  # a `Sample` [N], or {'policy': .., 'value': ..} of such
    learn_aux: Callable[[], Metrics]
    monitor_vars: Callable[[], list[str]]
    set_env_step: Callable[[int], None]
    train_iter: Callable[[], int]
    get_batch_size: Callable[[], int | dict[str, int]]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[dict[str, Any]], None]


class CollectMode(NamedTuple):
    """What a collector is given."""

    forward: Callable[[Obs, State], dict[str, Any]]
    start: Callable[[Obs], Acting]  # given where the observations of each rollout will be, [T + 1, B, *O]
    process_transition: Callable[[Obs, dict[str, Any], Any], Transition]  # once per rollout
    get_train_sample: Callable[[Rollout], Sample]
    reset: Callable[[], None]
    n_step: int
    env_action: Callable[[Tensor], Tensor] | None = None  # of an action, what the env is sent; None: the same


class EvalMode(NamedTuple):
    """What an evaluator is given."""

    forward: Callable[[Obs, State], dict[str, Any]]
    initial_state: Callable[[int], State] | None = None
    env_action: Callable[[Tensor], Tensor] | None = None  # as in `CollectMode`


def device_of(name: str) -> torch.device:
    """The device that `policy.device` names."""
    if name == 'auto':
        return torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    if not re.fullmatch(DEVICE, name):
        raise UserError(f"policy.device is {name!r} but must be 'auto', 'cpu', 'cuda' or 'cuda:N'")
    if name != 'cpu' and not torch.cuda.is_available():
        raise UserError(f"policy.device is {name!r} but there is no CUDA here; use 'auto' or 'cpu'")
    return torch.device(name)


class Policy(ABC):
    """A policy with learn, collect and eval modes; subclass, set `config`, use `@POLICY_REGISTRY.register(name)`.

    Args:
      cfg: the resolved section `policy` (attributes as in `config`).
      obs_space, action_space: of one env.
      seed: the run's seed; each part draws from its own stream of it.
      enable_field: modes to build; None: all three. A mode that was not built raises AttributeError when used.
      model: a ready network in place of the registered one; fields of cfg.model have no effect then.
      action_mode: how `act` turns the policy's actions into the env's (env.action_mode of the run).
      run: what is known of the run that the policy is part of.
    """

    config: ClassVar[type[PolicyConfig]] = PolicyConfig
    draws_apart: ClassVar[bool] = False
    """Whether `_forward_learn` also takes {'policy': batch, 'value': batch}, or one of these, from buffer 'multi'."""

    def __init__(
        self,
        cfg: Any,
        obs_space: Space,
        action_space: Space,
        *,
        seed: int = 0,
        enable_field: Sequence[Mode] | None = None,
        model: nn.Module | None = None,
        action_mode: Literal['clip', 'rescale'] = 'clip',
        run: RunInfo | None = None,
    ) -> None:
        if (dtype := torch.get_default_dtype()) != torch.float32:
            raise UserError(
                f"torch's default dtype is {dtype} but policies compute in float32; "
                'call torch.set_default_dtype(torch.float32) before'
            )
        self.run = RunInfo() if run is None else run
        self.cfg, self.obs_space, self.action_space, self.seed = cfg, obs_space, action_space, seed
        self._action_map = ActionMap(action_space, action_mode)
        self.device = device_of(cfg.device)
        self._fields = tuple(enable_field) if enable_field is not None else ('learn', 'collect', 'eval')
        self.given_model: str | None = None if model is None else type(model).__name__
        if model is None:
            with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
                torch.manual_seed(int(stream(seed, 'model').generate_state(1)[0]))
                model = self._make_model()
        elif 'learn' in self._fields and (fields := set_fields(cfg.model, self.default_model())):
            names = ', '.join(f'policy.model.{name}' for name in fields)
            logger.warning('%s: without effect on the model given, a %s; leave this out', names, self.given_model)
        self._model: Any = model.to(self.device)
        self._normalizers: Any = nn.ModuleDict()
        self._build()
        for name, init in (('collect', self._init_collect), ('learn', self._init_learn), ('eval', self._init_eval)):
            if name in self._fields:
                init()

    @classmethod
    @abstractmethod
    def default_model(cls) -> str | None:
        """Registered name of the model that is built when the config names none; None: a policy without a network."""

    @classmethod
    def default_buffer(cls) -> str:
        """Registered name of the buffer that is built when the config names none."""
        return 'rollout'

    @abstractmethod
    def _init_learn(self) -> None:
        """Builds what learning needs: optimiser, generators."""

    @abstractmethod
    def _forward_learn(self, batch: Columns) -> Metrics:
        """Updates the model from a batch [N]; returns detached 0-dim tensors named as in `_monitor_vars_learn`."""

    @abstractmethod
    def _init_collect(self) -> None:
        """Builds what collecting needs."""

    @abstractmethod
    def _forward_collect(self, obs: Obs, state: State) -> dict[str, Any]:
        """obs [B, *O] -> {action, logit, ...}, all [B, ...], exploring; called without gradient.

        A model with state: `state` is that of these rows, and the output has the next one under 'state'.

        The B envs are one group (env.collector_group_num): where there are more, the groups alternate.
        """

    @abstractmethod
    def _process_transition(self, obs: Obs, output: dict[str, Any], timestep: Any) -> Transition:
        """What to remember of a rollout: a dict of [T, B, ...] tensors, or of nested dicts of such.

        Called once per rollout. obs [T, B, *O]; output: what `_forward_collect` returned, stacked; timestep: the fields
        of `Timestep` likewise, its obs the observations that followed, without info, final_obs and final_index.
        """

    @abstractmethod
    def _get_train_sample(self, rollout: Rollout) -> Sample:
        """A rollout [T, B] -> a `Sample`: rows [N], N = T * B, t-major, or sequences [S] of entries [L, ...]."""

    @abstractmethod
    def _forward_eval(self, obs: Obs, state: State) -> dict[str, Any]:
        """obs [B, *O] -> {action} (and 'state', as in `_forward_collect`), greedy, no gradient."""

    def _build(self) -> None:
        """Builds or checks what all modes share, once the model is there."""

    def _make_model(self) -> nn.Module:
        if self.default_model() is None and not self.cfg.model:
            return nn.Module()
        return MODEL_REGISTRY.get(self.cfg.model.type)(self.cfg.model, self.obs_space, self.action_space)

    def check_fields(self) -> None:
        """Raises: UserError for a field of the config that nothing reads; for new runs, since older ones may have some."""

    def _start_acting(self, obs: Obs) -> Acting:
        """Acting on the rows of a block [T + 1, B, *O], whose last one is not acted on; by `_forward_collect`."""
        return ForwardActing(self._forward_collect, obs, self._initial_state())

    @property
    def executor_name(self) -> str:
        """What runs the updates, for the records of a run."""
        return 'eager'

    @property
    def sequence_len(self) -> int:
        """Steps in one entry of the samples: 1, or for a model with a recurrent state those of a sequence."""
        return 1

    @property
    def sequence_stride(self) -> int:
        """Steps of an env from the start of one entry of the samples to that of the next."""
        return 1

    @property
    def compile_env(self) -> Compile | None:
        """What compiles the step of envs that are tensor programs, where this run is worth it."""
        return None

    def _optional_obs(self) -> tuple[str, ...]:
        """Entries of a Dict observation that acting does not read."""
        leaves = getattr(self._model, 'actor_leaves', None)
        names = self.obs_space.spaces if isinstance(self.obs_space, Dict) else ()
        return () if leaves is None else tuple(name for name in names if name not in leaves)

    def _initial_state(self) -> Callable[[int], State] | None:
        """Makes the recurrent state of B envs at the start of an episode; None for a model without state."""
        return self._model.initial_state if keeps_state(self._model) else None

    def _env_action(self) -> Callable[[Tensor], Tensor] | None:
        """What turns an action into the one that the env is sent, before `ActionMap`; None: they are the same."""
        return None

    def _init_eval(self) -> None:
        """Builds what evaluation needs; most policies need nothing."""

    def _reset_collect(self) -> None:
        """The envs were reset between two rollouts: drop what belongs to their old episodes."""

    def _monitor_vars_learn(self) -> list[str]:
        return []

    def _set_env_step(self, env_step: int) -> None:
        """Tells the learner how far the run is, for schedules."""

    def _state_dict_learn(self) -> dict[str, Any]:
        return {}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        """Copies a `_state_dict_learn` in."""

    def _state_dict_collect(self) -> dict[str, Any]:
        return {}

    def _load_state_dict_collect(self, state: dict[str, Any]) -> None:
        """Copies a `_state_dict_collect` in."""

    def _get_train_iter(self) -> int:
        """Optimiser steps so far."""
        return 0

    def _get_batch_size(self) -> int | dict[str, int]:
        return self.cfg.learn.batch_size

    def learn_aux(self) -> Metrics:
        """The auxiliary phase, where a policy has one."""
        return {}

    @property
    def learn_mode(self) -> LearnMode:
        """The learner's view."""
        self._need('learn')
        return LearnMode(
            self._forward_learn,
            self.learn_aux,
            self._monitor_vars_learn,
            self._set_env_step,
            self._get_train_iter,
            self._get_batch_size,
            self._state_dict_learn,
            self._load_state_dict_learn,
        )

    @property
    def collect_mode(self) -> CollectMode:
        """The collector's view."""
        self._need('collect')
        return CollectMode(
            torch.no_grad()(self._forward_collect),
            self._start_acting,
            self._process_transition,
            self._get_train_sample,
            self._reset_collect,
            self.cfg.collect.n_step,
            self._env_action(),
        )

    @property
    def eval_mode(self) -> EvalMode:
        """The evaluator's view."""
        self._need('eval')
        return EvalMode(self._forward_eval, self._initial_state(), self._env_action())

    def act(self, obs: Any) -> Any:
        """Greedy actions as the env takes them, for one raw observation [*O] or a batch [B, *O]; as evaluation acts.

        A model with a recurrent state acts as at the start of an episode; `session` keeps the state between calls.
        Entries of a Dict observation that only the critic reads may be missing.
        """
        return self.session().act(obs)

    def session(self) -> Session:
        """Greedy acting through whole episodes, with the recurrent state of a model that has one."""
        return Session(self)

    def state_dict(self) -> dict[str, Any]:
        """Everything that makes this policy continue as if it had not stopped: nested, tensors and JSON scalars."""
        state: dict[str, Any] = {
            'model': dict(self._model.state_dict()),
            'normalizer': dict(self._normalizers.state_dict()),
        }
        if 'learn' in self._fields:
            state['learn'] = self._state_dict_learn()
        if 'collect' in self._fields:
            state['collect'] = self._state_dict_collect()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copies a `state_dict` in; modes that this policy does not have are left out."""
        self._model.load_state_dict(state['model'])
        known = self._normalizers.state_dict()
        self._normalizers.load_state_dict({k: v for k, v in state['normalizer'].items() if k in known})
        if 'learn' in self._fields:
            self._load_state_dict_learn(state['learn'])
        if 'collect' in self._fields:
            self._load_state_dict_collect(state['collect'])

    def memory_state_dict(self) -> dict[str, Any]:
        """What the learner keeps of past rollouts, where it keeps any: large, so a checkpoint may leave it out."""
        return {}

    def load_memory_state_dict(self, state: dict[str, Any]) -> None:
        """Copies a `memory_state_dict` in, after `load_state_dict`; an empty one says that it was left out."""

    def _need(self, name: str) -> None:
        if name not in self._fields:
            raise AttributeError(
                f'this policy was built with enable_field={list(self._fields)} and has no {name} '
                f"mode; add '{name}' to enable_field"
            )


class Session:
    """Greedy acting of a policy in one env, or a batch of envs, through whole episodes.

    A recurrent state is kept from call to call; say with `begins` where an episode begins, or call `reset`.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self._mode = policy, policy.eval_mode
        self._state: State = None

    def reset(self) -> None:
        """All episodes begin anew, with any number of envs."""
        self._state = None

    def act(self, obs: Any, begins: Any = None) -> Any:
        """Actions as the env takes them, for one raw observation [*O], or a batch [B, *O] in the order of the last call.

        Args: begins: [B] bool, or one bool: an episode begins with this observation.
        Raises: UserError if obs is not of the space of observations, or of another number of envs than before.
        """
        policy, space = self._policy, self._policy.obs_space
        batch = obs_to_tensor(space, obs, optional=policy._optional_obs())
        is_single = n_lead(space, batch) == 0
        batch = map_tensors(lambda x: x.unsqueeze(0), batch) if is_single else batch
        if mask_space(space) is not None and bool((none := forbids_all(policy.action_space, batch[ACTION_MASK])).any()):
            row = int(none.nonzero()[0])
            raise UserError(f'the action mask of observation {row} forbids every action; it must allow one or more')
        output = self._mode.forward(batch, self._before(len(first_leaf(batch)), begins))
        self._state = output.get('state')
        action = output['action']
        actions = policy._action_map(action if self._mode.env_action is None else self._mode.env_action(action))
        return first_row(actions) if is_single else actions

    def _before(self, n_env: int, begins: Any) -> State:
        if self._state is None or self._mode.initial_state is None:
            return None
        if (n := len(first_leaf(self._state))) != n_env:
            raise UserError(f'act got {n_env} observations but the session is of {n} envs; call reset() before')
        if begins is None:
            return self._state
        given = np.asarray(begins)
        if given.dtype != bool or given.shape not in ((), (n_env,)):
            raise UserError(f'begins is {begins!r} but must be one bool, or one for each of the {n_env} envs')
        rows = torch.as_tensor(given).expand(n_env)
        return replace_rows(rows, self._mode.initial_state(n_env), self._state)
