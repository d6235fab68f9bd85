"""What every policy promises: three modes, one config section, one state."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from tensordict import TensorDict
from torch import Tensor, nn

from zoo.backend.actor import Acting, ForwardActing
from zoo.config.section import Section
from zoo.core.data import Rollout
from zoo.core.errors import UserError
from zoo.core.registry import MODEL_REGISTRY
from zoo.core.seeding import stream
from zoo.core.spaces import ActionMap, Space, obs_to_tensor

Metrics = dict[str, Tensor]
DEVICE = r'^(auto|cpu|cuda(:\d+)?)$'
Mode = Literal['learn', 'collect', 'eval']


class LearnConfig(Section):
    """Section `policy.learn`: how a policy is updated."""


class CollectConfig(Section):
    """Section `policy.collect`: how experience is gathered and turned into samples."""


class EvalConfig(Section):
    """Section `policy.eval`: when and how long a policy is evaluated."""

    eval_freq: int = Field(20_000, ge=1, description='env steps between evaluations')
    n_episode: int = Field(10, ge=1, description='episodes per evaluation, shared out evenly over the evaluation envs')
    stop_value: float | None = Field(
        None, description='mean return of an evaluation at which the run stops; null: never'
    )


class PolicyConfig(Section):
    """Section `policy`."""

    type: str = Field('ppo', description='registered name of the policy')
    device: str = Field(
        'auto', pattern=DEVICE, description="'auto' (cuda where there is one), 'cpu', 'cuda' or 'cuda:N'"
    )
    n_thread: Annotated[int, Field(ge=1)] | None = Field(
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

    forward: Callable[[Any], Metrics]  # a TensorDict [N], or a dict of such where a buffer draws apart
    learn_aux: Callable[[], Metrics]
    monitor_vars: Callable[[], list[str]]
    set_env_step: Callable[[int], None]
    train_iter: Callable[[], int]
    get_batch_size: Callable[[], int | dict[str, int]]
    state_dict: Callable[[], dict[str, Any]]
    load_state_dict: Callable[[dict[str, Any]], None]


class CollectMode(NamedTuple):
    """What a collector is given."""

    forward: Callable[[Tensor, Any], dict[str, Any]]
    start: Callable[[Tensor], Acting]  # given where the observations of each rollout will be, [T + 1, B, *O]
    process_transition: Callable[[Tensor, dict[str, Any], Any], dict[str, Any]]  # once per rollout
    get_train_sample: Callable[[Rollout], TensorDict]
    reset: Callable[[], None]
    n_step: int


class EvalMode(NamedTuple):
    """What an evaluator is given."""

    forward: Callable[[Tensor, Any], dict[str, Any]]


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
      model: a ready network in place of the registered one.
      action_mode: how `act` turns the policy's actions into the env's (env.action_mode of the run).
    """

    config: ClassVar[type[PolicyConfig]] = PolicyConfig
    draws_apart: ClassVar[bool] = False
    """Whether `_forward_learn` also takes {'policy': batch, 'value': batch}, or one of these, from buffer 'multi'."""
    reuse: Mapping[str, float] = {'policy': 1.0, 'value': 1.0}
    """How often a sample is drawn from the buffer on average, for each phase: who runs it sets this too."""
    compiled: bool = False
    """Whether it runs compiled; then envs that are tensor programs are compiled too."""
    max_env_step: int | None = None
    """Env steps of the whole run, where they are known: who runs it sets this before the first update."""

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
    ) -> None:
        self.cfg, self.obs_space, self.action_space, self.seed = cfg, obs_space, action_space, seed
        self._action_map = ActionMap(action_space, action_mode)
        self.device = device_of(cfg.device)
        self._fields = tuple(enable_field) if enable_field is not None else ('learn', 'collect', 'eval')
        if model is None:
            with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
                torch.manual_seed(int(stream(seed, 'model').generate_state(1)[0]))
                model = MODEL_REGISTRY.get(cfg.model.type)(cfg.model, obs_space, action_space)
        self._model: Any = model.to(self.device)
        self._normalizers: Any = nn.ModuleDict()
        self._build()
        for name, init in (('collect', self._init_collect), ('learn', self._init_learn), ('eval', self._init_eval)):
            if name in self._fields:
                init()

    @classmethod
    @abstractmethod
    def default_model(cls) -> str:
        """Registered name of the model that is built when the config names none."""

    @classmethod
    def default_buffer(cls) -> str:
        """Registered name of the buffer that is built when the config names none."""
        return 'rollout'

    @abstractmethod
    def _init_learn(self) -> None:
        """Builds what learning needs: optimiser, generators."""

    @abstractmethod
    def _forward_learn(self, batch: TensorDict) -> Metrics:
        """Updates the model from a batch [N]; returns detached 0-dim tensors named as in `_monitor_vars_learn`."""

    @abstractmethod
    def _init_collect(self) -> None:
        """Builds what collecting needs."""

    @abstractmethod
    def _forward_collect(self, obs: Tensor, state: Any) -> dict[str, Any]:
        """obs [B, *O] -> {action, logit, ...}, all [B, ...], exploring; called without gradient.

        The B envs are one group (env.collector_group_num): where there are more, the groups alternate.
        """

    @abstractmethod
    def _process_transition(self, obs: Tensor, output: dict[str, Any], timestep: Any) -> dict[str, Any]:
        """What to remember of a rollout: a dict of [T, B, ...] tensors, one level of nesting allowed.

        Called once per rollout. obs [T, B, *O]; output: what `_forward_collect` returned, stacked; timestep: the fields
        of `Timestep` likewise, its obs the observations that followed, without info, final_obs and final_index.
        """

    @abstractmethod
    def _get_train_sample(self, rollout: Rollout) -> TensorDict:
        """A rollout [T, B] -> samples [N], N = T * B, t-major."""

    @abstractmethod
    def _forward_eval(self, obs: Tensor, state: Any) -> dict[str, Any]:
        """obs [B, *O] -> {action}, greedy, no gradient."""

    def _build(self) -> None:
        """Builds or checks what all modes share, once the model is there."""

    def _start_acting(self, obs: Tensor) -> Acting:
        """Acts on the rows of a block, [T + 1, B, *O], of which the last one is only seen; by `_forward_collect`."""
        return ForwardActing(self._forward_collect, obs)

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
        )

    @property
    def eval_mode(self) -> EvalMode:
        """The evaluator's view."""
        self._need('eval')
        return EvalMode(self._forward_eval)

    def act(self, obs: Any) -> np.ndarray:
        """Greedy actions as the env takes them, for one raw observation [*O] or a batch [B, *O]; as evaluation acts."""
        batch = obs_to_tensor(self.obs_space, obs)
        single = batch.dim() == len(getattr(self.obs_space, 'shape', ()))
        output = self.eval_mode.forward(batch.unsqueeze(0) if single else batch, None)
        action = self._action_map(output['action'])
        return action[0] if single else action

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
