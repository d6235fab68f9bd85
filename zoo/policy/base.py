"""Base of every policy: three modes, one config section, one state. `with_updates` makes a policy without a class statement."""

from __future__ import annotations

import copy
import copyreg
import importlib
import inspect
import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from zoo.backend.executor import OUTPUT, Acting, acting_by
from zoo.config.section import Section, fields_of, plain, validate, with_defaults
from zoo.core.action_map import ActionMap
from zoo.core.data import (
    Columns,
    Metrics,
    Obs,
    Rollout,
    Sample,
    State,
    Timestep,
    Transition,
    as_tensors,
    keeps_state,
    recorder_of,
)
from zoo.core.errors import UserError, did_you_mean, shown, unknown_name
from zoo.core.ranks import RunInfo
from zoo.core.registry import MODEL_REGISTRY, POLICY_REGISTRY, SAVE_REGISTRY, TOOL_REGISTRY
from zoo.core.seeding import stream
from zoo.core.spaces import Dict, Raw, Space, space_words
from zoo.model.check import set_fields
from zoo.policy.config import PolicyConfig, device_of
from zoo.policy.modes import MODES, CollectMode, EvalMode, LearnMode, Mode
from zoo.policy.parameters import PartialLoad, freeze, load_partly
from zoo.rl_utils.distribution import ActionDist

if TYPE_CHECKING:
    from zoo.backend.choose import Compile
    from zoo.policy.inference import (
        ActionDistribution,
        Judged,
        JudgedWithState,
        Sampled,
        SampledWithState,
        Session,
    )
    from zoo.rl_utils.optimizer import FlatOptimizer

Own = TypeVar('Own', bound='Policy')
KINDS = staticmethod, classmethod, property


def _reduced(self: Any, protocol: Any) -> Any:
    """Pickles an object by the registered name of its class, since the module may have no variable of that name."""
    reduced: Any = object.__reduce_ex__(self, protocol)
    cls = type(self)
    is_made_here = vars(cls).get('__reduce_ex__') is _reduced  # not so for a subclass by a class statement
    if not is_made_here or reduced[0] is not copyreg.__newobj__:  # type: ignore[attr-defined]
        return reduced
    return _new, (cls.__module__, cls.__name__), *reduced[2:]


def _new(module: str, name: str) -> Any:
    """Makes an object, still without a state, of the class that `module` registered under `name`."""
    importlib.import_module(module)
    cls = POLICY_REGISTRY.get(name)
    return cls.__new__(cls)


def _like(base: type, key: str, value: Any) -> Any:
    """Makes the value the same kind of attribute as the one with this name in the base, e.g. a property."""
    known = sorted(
        {name for each in base.__mro__ if each not in (object, ABC) for name in vars(each) if not name.startswith('__')}
        - {'_abc_impl', 'with_updates', 'config'}
    )
    if key not in known:
        words = did_you_mean(key, known, f'there are {", ".join(known)}.')
        raise UserError(f'{base.__name__} has no method {key!r}, so nothing would call it: {words}')
    kept = inspect.getattr_static(base, key)
    is_method = callable(kept) or isinstance(kept, KINDS)
    if isinstance(value, KINDS):
        return value
    if is_method != callable(value):
        if is_method:
            wanted = 'a function'
        else:
            wanted = f'a value like {shown(kept)}'
        raise UserError(f'{key} is {shown(value)} but {base.__name__}.{key} is {wanted}; give one')
    return next((kind(value) for kind in KINDS if isinstance(kept, kind)), value)


def _section(base: Any, name: str, config: Any) -> type[Section]:
    """The section of a policy with other defaults; its default type is `name`."""
    if isinstance(config, type) and issubclass(config, base.config):
        return config
    if config is not None and not isinstance(config, dict):
        raise UserError(
            f'config is {shown(config)} but must be a dict of defaults, or a class derived from {base.config.__name__}'
        )
    data = {**plain(config or {}), 'type': name}
    if 'model' in data:
        raise UserError(
            'config has defaults for model, whose fields depend on its type; give default_model=lambda cls: name, and the '
            'rest in the config of a run'
        )
    validate(base.config, data, 'policy', [path for path, _ in fields_of(base.config, 'policy')])
    return with_defaults(base.config, data)


def _giving_tensors(forward: Callable[[Obs, State], dict[str, Any]]) -> Callable[[Obs, State], dict[str, Any]]:
    """A `_forward_eval` whose outputs are tensors."""

    def converted(obs: Obs, state: State = None) -> dict[str, Any]:
        found: dict[str, Any] = as_tensors(forward(obs, state), OUTPUT)
        return found

    return converted


def _making_tensors(initial_state: Callable[[int], State]) -> Callable[[int], State]:
    """A function of `_initial_state` whose states are tensors."""
    return lambda n_env: as_tensors(initial_state(n_env), 'the initial state')


logger = logging.getLogger(__name__)


class Policy(ABC):
    """Base of policies. To add one, write a subclass, set `config` and use `@POLICY_REGISTRY.register(name)`.

    Args:
      cfg: the resolved section `policy` (attributes as in `config`).
      obs_space, action_space: of one env.
      seed: the run's seed; every use of random numbers has its own stream, derived from it.
      enable_field: the modes to build; None: learn, collect and eval. Use of any other mode raises AttributeError.
      model: a ready network that replaces the registered one; fields of cfg.model then have no effect.
      action_mode: whether `act` clips actions to the env's bounds or rescales them (env.action_mode of the run).
      run: information about the run that the policy belongs to.
    """

    cfg: PolicyConfig
    config: ClassVar[type[PolicyConfig]] = PolicyConfig
    announces_gradients: ClassVar[bool] = False
    """Whether its steps call `zoo.policy.hooks.gradient_ready`, which callbacks with `on_gradient` need."""
    writes_priority: ClassVar[bool] = False
    """Whether `_forward_learn` writes the column 'priority' into its batch, which buffers with alpha > 0 need."""
    takes_separate_draws: ClassVar[bool] = False
    """Whether `_forward_learn` also takes the dicts of buffer 'multi', with separate batches for 'policy', 'value' or both."""
    calls_learn_aux: ClassVar[bool] = False
    """Whether `_forward_learn` calls `learn_aux` itself; otherwise `learn_mode.forward` calls it after each batch."""
    sequence_len = 1
    sequence_stride = 1
    """Steps in one entry of the samples, above 1 for a recurrent model; steps from the start of one entry to the next."""
    compile_env: Compile | None = None
    """Compiler for the step of envs that are tensor programs; None: this run does not compile them."""
    _collect_step = 0  # env steps of the run before the present rollout
    _first_env = 0
    """Index of the first env for which `_forward_collect` acts, among all envs of the run."""

    def __init__(
        self,
        cfg: PolicyConfig,
        obs_space: Space,
        action_space: Space,
        *,
        seed: int = 0,
        enable_field: Sequence[Mode] | None = None,
        model: nn.Module | None = None,
        action_mode: Literal['clip', 'rescale'] = 'clip',
        run: RunInfo | None = None,
    ) -> None:
        dtype = torch.get_default_dtype()
        if dtype != torch.float32:
            raise UserError(
                f"torch's default dtype is {dtype} but policies compute in float32; "
                'call torch.set_default_dtype(torch.float32) before'
            )
        if run is None:
            self.run = RunInfo()
        else:
            self.run = run
        self.cfg = cfg
        self.obs_space = obs_space
        self.action_space = action_space
        self.seed = seed
        self._action_map = ActionMap(action_space, action_mode)
        self.device = torch.empty(0, device=device_of(cfg.device)).device  # 'cuda' becomes 'cuda:0', as in tensors
        default = torch.get_default_device().type
        if default not in ('cpu', self.device.type):
            raise UserError(
                f"torch's default device is {default} but the policy is on {self.device}; "
                "call torch.set_default_device('cpu') before, and choose a device by policy.device"
            )
        if enable_field is not None:
            self._fields = tuple(enable_field)
        else:
            self._fields = MODES
        self.given_model: str | None
        if model is None:
            self.given_model = None
        else:
            self.given_model = type(model).__name__
        if model is None:
            with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
                torch.manual_seed(int(stream(seed, 'model').generate_state(1)[0]))
                model = self._make_model()
        elif 'learn' in self._fields and (fields := set_fields(cfg.model, self.default_model())):
            logger.warning(
                '%s: without effect on the model given, a %s; leave this out',
                ', '.join(f'policy.model.{name}' for name in fields),
                self.given_model,
            )
        self._model: Any = model.to(self.device)
        self._normalizers: Any = nn.ModuleDict()
        if 'learn' in self._fields:
            self._frozen = freeze(self._model, cfg.learn.get('freeze') or ())  # names
        self._build()
        for name, init in (('collect', self._init_collect), ('learn', self._init_learn), ('eval', self._init_eval)):
            if name in self._fields:
                init()

    @classmethod
    def with_updates(cls, name: str, config: Any = None, **methods: Any) -> type[Policy]:
        """Makes a subclass with other methods or defaults, and registers it under `name`; returns it.

        For example `PPOPolicy.with_updates('calm_ppo', {'learn': {'clip_ratio': 0.1}}, step=my_step)`.
        Args:
          config: other defaults of the section `policy`, as a nested dict; or a Section class, to add fields.
          methods: replacements for methods (functions with `self`) and attributes of this class, by name.
            A function that replaces a static method, class method or property becomes one too. `__doc__` is the line
            that `zoo list policies` shows.
        Policies of the subclass can be copied and pickled if importing the calling module makes the subclass again. To
        pickle the subclass itself, the module must have it in a variable called `name`.
        Raises: UserError if this class lacks a name in `methods` (nothing would call it) or if `name` is taken;
          ConfigError if the section refuses the defaults.
        """
        if not isinstance(name, str) or not name:
            raise UserError(
                f'with_updates got {shown(name)} as a name but must get a non-empty text, e.g. {cls.__name__!r}'
            )
        body = {key: _like(cls, key, value) for key, value in methods.items() if key != '__doc__'}
        caller = sys._getframe(1)
        module = caller.f_globals.get('__name__', '?')
        body |= {'config': _section(cls, name, config), '__module__': module, '__qualname__': name}
        body['__doc__'] = methods.get('__doc__', cls.__doc__)
        new: Any = type(cls)(name, (cls,), {'__reduce_ex__': _reduced, **body})  # type: ignore[misc]
        POLICY_REGISTRY._add(name, new, f'{module}:{caller.f_lineno}')
        return new

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
        """Acts with exploration: obs [B, *O] -> {action, logit, ...}, all [B, ...]; called without gradient.

        For a recurrent model, `state` is the state of these B envs, and the output has the next one under 'state'.
        The B envs are one group; if there are several groups (env.collector_group_num), they take turns.
        """

    @abstractmethod
    def _process_transition(self, obs: Obs, output: dict[str, Any], timestep: Timestep) -> Transition:
        """Returns the columns to store of a rollout: a dict of tensors [T, B, ...], or of nested dicts of such tensors.

        Called once per rollout. obs: [T, B, *O]; output: the outputs of `_forward_collect`, stacked; timestep: the fields
        of `Timestep`, stacked. Its obs are those after the steps, its info has only env.info_columns, and its final_obs
        and final_index are None.
        """

    @abstractmethod
    def _get_train_sample(self, rollout: Rollout) -> Sample:
        """Turns a rollout [T, B] into a `Sample`: rows [N], N = T * B, t-major, or S sequences of L steps, [S, L, ...]."""

    @abstractmethod
    def _forward_eval(self, obs: Obs, state: State) -> dict[str, Any]:
        """Acts greedily, without gradient: obs [B, *O] -> {action}, and 'state' as in `_forward_collect`."""

    def _forward_sample(self, obs: Obs, state: State, generator: torch.Generator | None) -> dict[str, Any]:
        """Like `_forward_eval`, with actions drawn at random by `generator`; None: by torch's own. Optional.

        A policy without it cannot be evaluated with policy.eval.deterministic=false.
        """
        raise NotImplementedError

    def _judge(self, obs: Obs, with_value: bool) -> tuple[ActionDist, Tensor, Tensor | None]:
        """Returns the action distribution for obs [B, *O], its parameters [B, P], and values [B] in return units if with_value.

        They have a gradient if it is enabled. The value is also None for a policy without a critic.
        """
        raise UserError(
            f'policy {self.cfg.type!r} has neither a distribution of actions nor a critic; act(obs) gives its actions, and '
            'model.compute_actor(obs) what its network says'
        )

    def _judge_in_state(self, obs: Obs, state: State) -> tuple[ActionDist, Tensor, Tensor | None, State]:
        """As `_judge` with values, for a model with a memory in this state; returns the next state too."""
        raise UserError(
            f'policy {self.cfg.type!r} tells no distribution of a model with a memory; `session` acts with it'
        )

    def _build(self) -> None:
        """Builds or checks everything that all modes share; called after the model is built."""

    def _follow_model(self) -> None:
        """Called when the model got other parameters: resets the copies of parameters that learning keeps to these."""

    def _make_model(self) -> nn.Module:
        if self.default_model() is None and not self.cfg.model:
            return nn.Module()
        return MODEL_REGISTRY.get(self.cfg.model.type)(self.cfg.model, self.obs_space, self.action_space)

    def check_fields(self) -> None:
        """Raises: UserError if nothing reads a field of the config; for new runs only, as older ones may have such fields."""

    def _start_acting(self, obs: Obs, first: int = 0) -> Acting:
        """Makes an `Acting` on rows 0 to T - 1 of a block of observations [T + 1, B, *O], by `_forward_collect`.

        Args: first: index of the first of these envs among all envs of the run.
        """

        def forward(obs: Obs, state: State) -> dict[str, Any]:
            self._first_env = first
            return self._forward_collect(obs, state)

        return acting_by(forward, obs, self._initial_state(), self._model)

    @property
    def executor_name(self) -> str:
        """Name of the executor that runs the updates, for the records of a run."""
        return 'eager'

    def _optional_obs(self) -> tuple[str, ...]:
        """Entries of a Dict observation that acting does not read."""
        leaves = getattr(self._model, 'actor_leaves', None)
        if leaves is None or not isinstance(self.obs_space, Dict):
            return ()
        return tuple(name for name in self.obs_space.spaces if name not in leaves)

    def _initial_state(self) -> Callable[[int], State] | None:
        """Function that makes the recurrent state of B envs at the start of an episode; None for a model without state."""
        if keeps_state(self._model):
            return self._model.initial_state
        return None

    def _env_action(self) -> Callable[[Tensor], Tensor] | None:
        """Function that converts the policy's actions for the env, before `ActionMap`; None: they need no conversion."""
        return None

    def _init_eval(self) -> None:
        """Builds what evaluation needs; most policies need nothing."""

    def _begin_rollout(self, collect_iter: int, env_step: int | None = None) -> None:
        """Called when a rollout begins. Args: rollouts before it; env steps before it, None: the number given last."""
        if env_step is not None:
            self._collect_step = env_step

    def _reset_collect(self) -> None:
        """Called when all envs were reset between two rollouts: drops everything that belongs to their old episodes."""

    def _forget_envs(self, envs: slice) -> None:
        """Like `_reset_collect`, for some of the envs."""

    @property
    def _acts_without_critic(self) -> bool:
        """Whether acting surely reads none of the model's `critic_parameters`; False if this is unknown."""
        return False

    def acting_state(self) -> dict[str, Tensor]:
        """The tensors that acting reads, by name: parameters and buffers of the model, as views of live memory.

        Before each rollout runners get the values of these. A policy that acts by tensors outside of its model adds them:
        `{**super().acting_state(), 'bonus': self._bonus}`, each the same tensor for ever, which is changed in place.
        """
        from zoo.backend.trace import named_tensors

        has_list = self._acts_without_critic and callable(getattr(self._model, 'critic_parameters', None))
        left_out = {}
        if has_list:
            left_out = dict(self._model.critic_parameters())
        return {name: x.detach() for name, x in named_tensors(self._model).items() if name not in left_out}

    def _monitor_vars_learn(self) -> list[str]:
        return []

    def _set_env_step(self, env_step: int) -> None:
        """Sets the env step of the run, for the schedules of learning."""

    def _state_dict_learn(self) -> dict[str, Any]:
        return {}

    def _load_state_dict_learn(self, state: dict[str, Any]) -> None:
        """Copies a `_state_dict_learn` in."""

    def _state_dict_collect(self) -> dict[str, Any]:
        return {}

    def _load_state_dict_collect(self, state: dict[str, Any]) -> None:
        """Copies a `_state_dict_collect` in."""

    def _get_train_iter(self) -> int:
        """Gradient steps so far, one for each minibatch; `policy.learn.accumulate` of them make one step of the optimiser."""
        return 0

    def _get_batch_size(self) -> int | dict[str, int] | None:
        """Samples per gradient step, as a dict by part of the update if the parts draw separately; None: all samples."""
        return self.cfg.learn.batch_size

    def learn_aux(self) -> Metrics:
        """Runs the auxiliary phase if the policy has one and it is due; returns its metrics, else {}."""
        return {}

    @property
    def learn_mode(self) -> LearnMode:
        """The functions that a learner uses."""
        self._need('learn')
        has_aux = type(self).learn_aux is not Policy.learn_aux

        def with_aux(batch: Columns) -> Metrics:
            return {**self._forward_learn(batch), **self.learn_aux()}

        return LearnMode(
            forward=with_aux if has_aux and not self.calls_learn_aux else self._forward_learn,
            learn_aux=self.learn_aux,
            monitor_vars=self._monitor_vars_learn,
            set_env_step=self._set_env_step,
            train_iter=self._get_train_iter,
            get_batch_size=self._get_batch_size,
            state_dict=self._state_dict_learn,
            load_state_dict=self._load_state_dict_learn,
            has_aux=has_aux,
        )

    @property
    def collect_mode(self) -> CollectMode:
        """The functions that a collector uses."""
        self._need('collect')
        return CollectMode(
            forward=torch.no_grad()(self._forward_collect),
            start=self._start_acting,
            process_transition=self._process_transition,
            get_train_sample=self._get_train_sample,
            reset=self._reset_collect,
            begin=self._begin_rollout,
            forget=self._forget_envs,
            n_step=self.cfg.collect.n_step,
            env_action=self._env_action(),
            recorder=recorder_of(self._model),
        )

    @property
    def eval_mode(self) -> EvalMode:
        """The functions that an evaluator uses."""
        self._need('eval')
        draws = type(self)._forward_sample is not Policy._forward_sample
        sample = None
        if draws:
            sample = self._forward_sample
        forward: Callable[[Obs, State], dict[str, Any]] = self._forward_eval
        if not str(getattr(forward, '__module__', '')).startswith('zoo.'):  # a user's method, which may give arrays
            forward = _giving_tensors(forward)
        initial = self._initial_state()
        if initial is not None and not str(getattr(initial, '__module__', '')).startswith('zoo.'):
            initial = _making_tensors(initial)
        return EvalMode(forward, initial, self._env_action(), sample)

    def act(self, obs: Raw, deterministic: bool = True, generator: torch.Generator | None = None) -> Any:
        """Returns actions for the env, for one raw observation [*O] or a batch [B, *O]; by default greedy, like evaluation.

        A model with a recurrent state acts as at the start of an episode; `session` keeps the state between calls.
        Entries of a Dict observation that only the critic reads may be missing.
        Args: deterministic: False: draw actions from the policy; generator: source of the draws, None: torch's own.
        """
        return self.session().act(obs, deterministic=deterministic, generator=generator)

    def session(self) -> Session:
        """Returns a `Session`, which acts through whole episodes and keeps the recurrent state of the model, if it has one."""
        from zoo.policy.inference import Session

        return Session(self)

    @torch.no_grad()
    def value(self, obs: Raw, state: State = None, begins: Raw = None) -> Tensor:
        """The critic's value of raw observations, [B], or 0-dim for one; in the unit of returns, without gradient.

        This method and those below take observations as `act` does, and return tensors on the policy's device.
        Args: state: of a model with a memory: the state before these observations, as `sample` returned it for those
          before; begins: [B] bool, or one bool: an episode begins with this observation, so that its state is the first one.
          begins=True needs no state; without both, a warning
          says that the model is in its first state.
        Raises: UserError if the policy trains no critic, or if state or begins do not fit.
        """
        from zoo.policy.inference import judged

        _, value, _ = judged(self, obs, 'value', state, begins)
        if value is None:
            raise UserError(
                f'policy {self.cfg.type!r} trains no critic, so it knows no values; use a policy with a critic, such as ppo'
            )
        return value

    @torch.no_grad()
    def distribution(self, obs: Raw, state: State = None, begins: Raw = None) -> ActionDistribution:
        """The distribution of actions for raw observations: log_prob, entropy, sample, mode, kl; without gradient.

        Args: see `value`. Raises: UserError as there, and if the policy has none, such as 'dqn'.
        """
        from zoo.policy.inference import judged

        return judged(self, obs, 'distribution', state, begins)[0]

    @torch.no_grad()
    def sample(
        self, obs: Raw, generator: torch.Generator | None = None, state: State = None, begins: Raw = None
    ) -> Sampled | SampledWithState:
        """Draws actions for raw observations; returns them with log-probabilities and values, without gradient.

        The log-probabilities are those of the returned actions; `env_action` converts these actions for an env. With a memory
        and state or begins, the state after the observations is returned too, for the next call.
        Args: generator: source of the draws, None: torch's own; the others: see `value`. Raises: UserError as there.
        """
        from zoo.policy.inference import Sampled, SampledWithState, judged

        found, value, after = judged(self, obs, 'sample', state, begins)
        action = found.sample(generator)
        if after is None:
            return Sampled(action, found.log_prob(action), value)
        return SampledWithState(action, found.log_prob(action), value, after)

    def evaluate_actions(
        self, obs: Raw, action: Raw, state: State = None, begins: Raw = None
    ) -> Judged | JudgedWithState:
        """Log-probability, entropy and value for raw observations and actions as `sample` gives them, with gradient.

        With a memory and state or begins, the state after the observations is returned too; it has a gradient, so that a loss over several calls
        goes back through time. Args: see `value`. Raises: UserError as there.
        """
        from zoo.policy.inference import Judged, JudgedWithState, judged

        found, value, after = judged(self, obs, 'evaluate_actions', state, begins)
        if after is None:
            return Judged(found.log_prob(action), found.entropy(), value)
        return JudgedWithState(found.log_prob(action), found.entropy(), value, after)

    def env_action(self, action: Tensor) -> Any:
        """Converts a batch of this policy's actions [B, ...] to arrays for the env: clipped or rescaled to its bounds."""
        change = self._env_action()
        given = torch.as_tensor(action)
        return self._action_map(given if change is None else change(given))

    def clone(self: Own, seed: int | None = None) -> Own:
        """Makes an independent copy, with all parameters, statistics, moments, counters and memories of this policy.

        Args: seed: of the copy, whose random numbers then differ from those of this policy; None: it draws the same ones.
        """
        if seed is None:
            return copy.deepcopy(self)
        model = None
        if self.given_model is not None:
            model = copy.deepcopy(self._model)
        other = type(self)(
            self.cfg,
            self.obs_space,
            self.action_space,
            seed=seed,
            enable_field=self._fields,
            model=model,
            action_mode=self._action_map.mode,
            run=self.run,
        )
        other.load_state_dict(copy.deepcopy(self.state_dict()))
        other.load_memory_state_dict(copy.deepcopy(self.memory_state_dict()))
        return other

    def reset_optimizers(self, names: Sequence[str] | None = None) -> None:
        """Sets optimisers back to their state before the first step: their moments, their counters of steps, their averages.

        Parameters stay. Args: names: of these optimisers alone, such as 'actor'; None: of all.
        Raises: UserError if the policy has no optimiser of a name, or does not learn.
        """
        self._need('learn')
        optimizers: dict[str, FlatOptimizer] = getattr(self, 'optimizers', {})
        if not optimizers:
            raise UserError(f'policy {self.cfg.type!r} keeps no optimisers in `optimizers`, so none can be reset')
        for name in optimizers if names is None else names:
            if name not in optimizers:
                raise UserError(unknown_name('optimiser', name, optimizers, 'this policy has'))
            optimizers[name].reset()

    def __repr__(self) -> str:
        n = sum(p.numel() for p in self._model.parameters())
        if self._fields == MODES:
            modes = ''
        else:
            modes = f', modes {"/".join(self._fields)}'
        return (
            f'<{type(self).__name__} {self.cfg.type!r}: {type(self._model).__name__} of {n:,} parameters on {self.device}{modes}\n'
            f'  observations {shorten(space_words(self.obs_space), 160)}\n'
            f'  actions {shorten(space_words(self.action_space), 160)}>'
        )

    @property
    def model(self) -> Any:
        """The network."""
        return self._model

    def save(
        self, path: str | os.PathLike[str], *, env: Any = None, env_step: int | None = None, form: str = 'checkpoint'
    ) -> Path:
        """Writes this policy to a file, with all that its modes need to continue, and returns the path.

        `load_policy` reads the file. For a policy made by hand, `env` tells `zoo eval` the env.
        Args: env: section `env` as a dict, or an id; None: that of the run; env_step: env steps of training so far;
          None: those of the file that the policy was loaded from, else 0; form: a name in SAVE_REGISTRY.
        Raises: UserError for what the form cannot hold; OSError, e.g. on a full disk.
        """
        return SAVE_REGISTRY.get(form)(self, path, env, self.run.env_step if env_step is None else env_step)

    def export(self, path: str | os.PathLike[str], format: str | None = None, *, value: bool = False) -> Any:
        """Exports the acting to a file that runs without zoo: raw observations in, greedy actions of the env out.

        Before the file is put in place, it is compared with `act` on 1,000 random observations. A recurrent state is an
        input and an output of the file. Everything is computed in float32.
        Args: format: 'onnx' or 'torch-export'; None: by the ending of the file, .onnx or .pt2; value: whether the critic's
          value, in the unit of returns, is an output too.
        Returns: `zoo.tools.export.Exported`. Raises: UserError if the format does not support the policy; RunError if the file
          acts differently.
        """
        return TOOL_REGISTRY.get('export_policy')(self, path, format, value=value)

    def state_dict(self) -> dict[str, Any]:
        """Everything that this policy needs to continue as if it had not stopped: nested dicts of tensors and JSON scalars."""
        state: dict[str, Any] = {
            'model': dict(self._model.state_dict()),
            'normalizer': dict(self._normalizers.state_dict()),
        }
        if 'learn' in self._fields:
            state['learn'] = self._state_dict_learn()
        if 'collect' in self._fields:
            state['collect'] = self._state_dict_collect()
        return state

    def load_state_dict(
        self, state: dict[str, Any], strict: bool = True, only: Sequence[str] = ('*',)
    ) -> PartialLoad | None:
        """Copies a `state_dict` in; modes that this policy does not have are left out.

        Args:
          strict: False: copies only the parameters and statistics that fit by name and shape, not the optimiser's state.
          only: with strict False, patterns of parameter names, e.g. ['actor_*'].
        Returns: with strict False, the names that were copied and those that did not fit.
        Raises: with strict True, RuntimeError if names or shapes differ.
        """
        if not strict:
            report = load_partly(self._model, self._normalizers, state, only)
            if 'learn' in self._fields:
                self._follow_model()
            return report
        self._model.load_state_dict(state['model'])
        known = self._normalizers.state_dict()
        self._normalizers.load_state_dict({k: v for k, v in state['normalizer'].items() if k in known})
        if 'learn' in self._fields:
            self._load_state_dict_learn(state['learn'])
        if 'collect' in self._fields:
            self._load_state_dict_collect(state.get('collect', {}))
        return None

    def memory_state_dict(self) -> dict[str, Any]:
        """Data of past rollouts that the learner keeps, if any; it is large, so a checkpoint may leave it out."""
        return {}

    def load_memory_state_dict(self, state: dict[str, Any]) -> None:
        """Copies a `memory_state_dict` in, after `load_state_dict`; an empty one means that the checkpoint left it out."""

    def _need(self, name: str) -> None:
        if name not in self._fields:
            raise AttributeError(
                f'this policy was built with enable_field={list(self._fields)} and has no {name} '
                f"mode; add '{name}' to enable_field"
            )
