"""The executor 'native': passes of gradient steps, acting and values of zoo's own MLP models, each by one call of C."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from zoo.backend.executor import Acting, DrawNoise, Eager, Explore, Numbers, Step, StepPlan
from zoo.backend.native.bindings import ActingBlocks, Column, Kind, Library, Model, Output, StepSpec, ValueLoss, load
from zoo.backend.native.network import (
    buffers_of,
    knows_components,
    model_of,
    modules_of,
    obstacle_of_model,
    parameters_of,
    step_spec,
)
from zoo.core.data import Columns, Metrics, Obs, State
from zoo.core.errors import UserError
from zoo.core.spaces import ACTION_MASK
from zoo.rl_utils.distribution import ActionDist
from zoo.rl_utils.optimizer import FlatAdam, FlatOptimizer

_POLICY_METRICS = 'policy_loss', 'entropy', 'approx_kl', 'clipfrac', 'grad_norm'
_METRICS = {
    Kind.PPO: (*_POLICY_METRICS, 'value_loss'),
    Kind.POLICY: _POLICY_METRICS,
    Kind.VALUE: ('value_loss', 'value_grad_norm'),
    Kind.AUX: ('auxiliary_loss', 'aux_value_loss', 'behavioral_cloning_loss', 'aux_grad_norm'),
}
_COLUMNS = {column.name.lower(): column for column in Column}  # value_grad_norm and aux_grad_norm are in GRAD_NORM
_CPU = torch.device('cpu')
_PER_ROW = ('value', 'adv', 'return_', 'weight')
_READ = (*_PER_ROW, 'obs', 'action', 'logit')


def obstacle(model: nn.Module, dist: ActionDist, device: torch.device) -> str:
    """Why the native executor cannot run a model, as the end of a sentence; empty if it can."""
    return obstacle_of_model(model, dist, device) or missing()


def missing() -> str:
    """Why the library is missing or is of another version of zoo, in a sentence; empty if it can be used."""
    return load()[1]


def level() -> str:
    """The instruction set in use: 'base', 'v3' (AVX2) or 'v4' (AVX-512); 'none' where the library is not there."""
    library, _ = load()
    return 'none' if library is None else library.level().name.lower()


class NativeExecutor(Eager):
    """Runs the four kinds of steps of zoo.policy.gradient_steps in C; a fallback executor runs what C does not know.

    That is a step of another kind, one with a component of `unknown_parts`, optimisers of other kinds, or other columns.
    Args: model: one without `obstacle`; fallback: an executor of the same model, None: an eager one;
      only_acts: whether the fallback takes all steps.
    """

    name = 'native'

    def __init__(
        self, model: nn.Module, dist: ActionDist, fallback: Eager | None = None, only_acts: bool = False
    ) -> None:
        library, why = load()
        if library is None:
            raise RuntimeError(why)
        self._library: Library = library
        super().__init__(model, dist)
        self._fallback = Eager(model, dist) if fallback is None else fallback
        self._workspace, self._only_acts = library.workspace(), only_acts
        self._described: Model | None = None
        self._places: list[int] = []

    def run(self, step: Step, optimizers: Sequence[FlatOptimizer], plan: StepPlan, numbers: Numbers) -> Metrics:
        """As `Eager.run`. Raises: UserError if the model was changed after construction, so that C cannot run it any more."""
        if why := obstacle_of_model(self._model, self._dist, _CPU):
            raise UserError(f'{why}; it came after the policy was made: use policy.learn.executor=eager')
        is_known = not self._only_acts and _is_known(step, optimizers, numbers)
        columns = self._columns(plan) if is_known else None
        if columns is None:
            return self._fallback.run(step, optimizers, plan, numbers)
        kind = Kind[step.kind]  # type: ignore[attr-defined]
        options = step_spec(kind, plan.normalize_adv, numbers)
        size, n_rest = plan.batch_size, plan.order.shape[1] % plan.batch_size
        if not n_rest:
            rows = self._epoch(options, columns, optimizers, plan.order.flatten(), size)
        else:  # the last minibatch of each pass is smaller
            parts = [part for order in plan.order for part in ((order[:-n_rest], size), (order[-n_rest:], n_rest))]
            rows = torch.cat([self._epoch(options, columns, optimizers, *part) for part in parts if len(part[0])])
        names = list(_METRICS[kind])
        if options.measure_kl:
            names += ['kl', 'ratio_max']
        if 'value_loss' in names and options.value_loss in (ValueLoss.CLIPPED_VALUE, ValueLoss.CLIPPED_ERROR):
            names.append('value_clipfrac')
        if options.kl_penalty is not None:
            names.append('penalty_kl')
        by_column = rows.t().contiguous().float()
        return {name: by_column[_COLUMNS.get(name, Column.GRAD_NORM)] for name in names}

    def start_acting(self, obs: Obs, draw: DrawNoise, has_value: bool, explore: Explore | None = None) -> Acting | None:
        if explore is not None:
            return None
        block, mask = self._parts(obs)
        return NativeActing(self, block, mask, draw, has_value) if block.is_cpu else None

    def compute_critic(self, obs: Obs, state: State = None) -> Tensor:
        block = self._parts(obs)[0].contiguous()
        model, n_thread = self.described(block.dtype), torch.get_num_threads()
        return self._library.forward(self._workspace, model, block, Output.VALUE, n_thread)['value']

    def described(self, obs_dtype: torch.dtype) -> Model:
        """The model as C reads it, by addresses; described again if its tensors have moved or were frozen."""
        modules = modules_of(self._model)
        params = parameters_of(modules)
        grads = [p.grad for p in params]
        places = [x.data_ptr() for x in [*params, *buffers_of(modules)]]
        places += [0 if x is None else x.data_ptr() for x in grads]
        places += [p.requires_grad for p in params] + [obs_dtype == torch.bool]
        if self._described is None or places != self._places:
            self._described, self._places = model_of(self._model, self._dist, obs_dtype), places
        return self._described

    def _parts(self, obs: Obs) -> tuple[Tensor, Tensor | None]:
        """The observations that the network sees, and the action mask if there is one."""
        model = self._model
        return obs if model.leaf is None else obs[model.leaf], obs[ACTION_MASK] if model.is_masked else None

    def _columns(self, plan: StepPlan) -> Columns | None:
        """The columns that the four kinds of steps read; None if C cannot read them: it takes rows on a CPU, not sequences."""
        if 'logit_proximal' in plan.columns:  # of a loss with a proximal policy
            return None
        columns = {name: plan.columns[name] for name in _READ if name in plan.columns}
        columns['obs'], mask = self._parts(columns['obs'])
        if plan.device.type != 'cpu' or any(columns[name].dim() != 1 for name in _PER_ROW if name in columns):
            return None
        if mask is not None:
            columns['mask'] = mask
        known = torch.float32, torch.int64, torch.bool
        fits = all(x.is_cpu and x.is_contiguous() and x.dtype in known for x in columns.values())
        return columns if fits else None

    def _epoch(
        self, options: StepSpec, columns: Columns, optimizers: Sequence[FlatOptimizer], order: Tensor, batch_size: int
    ) -> Tensor:
        """Runs steps; returns their metrics [n_step, Column], and gives their gradient norms to the optimisers."""
        rows = self._library.epoch(
            self._workspace,
            self.described(columns['obs'].dtype),
            options,
            columns,
            optimizers,
            order.contiguous(),
            batch_size,
            torch.get_num_threads(),
        )
        for i, optimizer in enumerate(optimizers):
            optimizer.note_step(rows[:, Column.GRAD_NORM_0 + i])
        return rows


class NativeActing:
    """Network, noise and action in one call of C a step, which writes its outputs directly into the blocks."""

    state: State = None

    def __init__(
        self, executor: NativeExecutor, obs: Tensor, mask: Tensor | None, draw: DrawNoise, has_value: bool
    ) -> None:
        self._executor, self._obs, self._mask, self._draw = executor, obs, mask, draw
        self._library = executor._library
        self._workspace = self._library.workspace()
        lead, model = (len(obs) - 1, obs.shape[1]), executor.described(obs.dtype)
        action = torch.empty((*lead, *model.action_shape), dtype=model.action_dtype, device='cpu')
        self.output = {'action': action, 'logit': self._library.empty((*lead, model.n_logit))}
        if has_value:
            self.output['value'] = self._library.empty(lead)
        self._actions = action.unbind(0)

    def begin(self) -> None:
        """Draws the noise of the rollout and packs the weights as they are now."""
        noise, output = self._draw(self._obs.shape[1]).contiguous(), self.output
        model = self._executor.described(self._obs.dtype)
        blocks = output['action'], output['logit'], output.get('value')
        self._rollout = ActingBlocks(model, self._obs, noise, *blocks, self._mask)  # kept: C reads from its tensors
        self._library.act_begin(self._workspace, self._rollout)

    def step(self, t: int) -> Tensor:
        self._library.act(self._workspace, t)
        return self._actions[t]


def _is_known(step: Step, optimizers: Sequence[FlatOptimizer], numbers: Numbers) -> bool:
    """Whether C has the step with these numbers, and the optimisers; it has no step or optimiser of a user's own."""
    return (
        getattr(step, 'kind_of', None) is step
        and len(optimizers) <= 2
        and all(type(each) is FlatAdam and each.is_plain for each in optimizers)
        and knows_components(Kind[step.kind], numbers)  # type: ignore[attr-defined]
    )
