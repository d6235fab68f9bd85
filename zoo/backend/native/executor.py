"""The executor 'native': passes of gradient steps, acting and values of zoo's own MLP models, also with a memory, in C.

Below it: the models and updates that it knows, as their description for C, or why it cannot run them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from zoo.backend.executor import Acting, DrawNoise, Eager, Explore, Step, StepPlan
from zoo.backend.native.bindings import (
    MAX_ENTRY,
    MAX_LAYER,
    ActingBlocks,
    Activation,
    Column,
    Dist,
    Entry,
    Input,
    Kind,
    Library,
    Model,
    Output,
    StepSpec,
    Surrogate,
    Trunk,
    ValueLoss,
    load,
)
from zoo.backend.places import MODEL_PLACE, StepParts, has_hook, has_own_method, why_not
from zoo.backend.step import LossSpec, StepNumbers, is_own_forward
from zoo.core.data import Columns, Metrics, Obs, State
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE
from zoo.core.spaces import ACTION_MASK, leaves_by_path
from zoo.model.actor_critic import PPG, VAC, Networks
from zoo.model.encoder import MLP, Flat, MultiEncoder
from zoo.model.images import Pixels
from zoo.model.inputs import (
    DictInput,
    NormedVector,
    OneHot,
    OneHots,
    ToVector,
    entry_at,
    has_windows,
    input_width,
)
from zoo.model.layers import ValueHead
from zoo.rl_utils.distribution import ActionDist, own_name
from zoo.rl_utils.distributions.gaussian import Gaussian, GaussianHead
from zoo.rl_utils.normalizer import RunningMeanStd
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
_OUTPUTS = {'compute_actor': Output.LOGIT, 'compute_critic': Output.VALUE}
_OF_SEQUENCES = ('is_first', 'is_burned')

logger = logging.getLogger(__name__)


def obstacle(model: nn.Module, dist: ActionDist, device: torch.device) -> str:
    """Why the native executor cannot run a model, as the end of a sentence; empty if it can."""
    return obstacle_of_model(model, dist, device) or missing()


def missing() -> str:
    """Why the library is missing or is of another version of zoo, in a sentence; empty if it can be used."""
    return load()[1]


def level() -> str:
    """The instruction set in use: 'base', 'v3' (AVX2) or 'v4' (AVX-512); 'none' where the library is not there."""
    library, _ = load()
    if library is None:
        return 'none'
    return library.level().name.lower()


class NativeExecutor(Eager):
    """Runs the four kinds of steps of zoo.policy.ppo and ppg in C; a fallback executor runs what C does not know.

    That is a step of another kind, one with a component of `unknown_parts`, optimisers of other kinds, or other columns.
    Args: model: one without `obstacle`; fallback: an executor of the same model, None: an eager one;
      only_acts: whether the fallback takes all steps; is_named: whether the config names this executor, so that zoo's own steps
      that C cannot run are refused; said: why C does not run some steps, which the log says already.
    """

    name = 'native'

    def __init__(
        self,
        model: nn.Module,
        dist: ActionDist,
        fallback: Eager | None = None,
        only_acts: bool = False,
        is_named: bool = False,
        said: str = '',
    ) -> None:
        library, why = load()
        if library is None:
            raise RuntimeError(why)
        self._library: Library = library
        super().__init__(model, dist)
        if fallback is None:
            self._fallback = Eager(model, dist)
        else:
            self._fallback = fallback
        self._workspace = library.workspace()
        self._only_acts = only_acts
        self._is_named = is_named
        self._said = said
        self._described: Model | None = None
        self._places: list[int] = []

    def run(
        self, step: Step, optimizers: Sequence[FlatOptimizer], plan: StepPlan, loss: LossSpec, numbers: StepNumbers
    ) -> Metrics:
        """As `Eager.run`.

        Raises: UserError if the model was changed after construction, so that C cannot run it any more; if the executor is
          named and the step has code that C does not run.
        """
        why = obstacle_of_model(self._model, self._dist, _CPU)
        if why:
            raise UserError(f'{why}; it came after the policy was made: use policy.learn.executor=eager')
        is_known = not self._only_acts and getattr(step, 'kind_of', None) is step
        if is_known:
            kind = Kind[step.kind]  # type: ignore[attr-defined]
            loss_in_c = read_by(kind, loss)
            own_code = why_not('native', StepParts(self._model, optimizers, loss_in_c))
            if own_code:
                self._refuse(own_code)
            is_known = not own_code and _is_known(kind, optimizers, loss_in_c)
        columns = None
        if is_known:
            columns = self._columns(plan.columns, plan.device)
        if columns is None:
            return self._fallback.run(step, optimizers, plan, loss, numbers)
        options = step_spec(kind, plan.normalize_adv, loss, numbers)
        size = plan.batch_size
        n_rest = plan.order.shape[1] % plan.batch_size
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

    def _refuse(self, why: str) -> None:
        """Refuses steps that C cannot run, or says once that another executor runs them."""
        if self._is_named:
            raise UserError(f"policy.learn.executor is 'native' but {why}; use 'auto' or 'eager'")
        if why != self._said:
            logger.info('updates do not run in C: %s', why)
            self._said = why

    def start_acting(
        self, obs: Obs, noise: DrawNoise, has_value: bool, explore: Explore | None = None
    ) -> Acting | None:
        if explore is not None or (has_memory(self._model) and not has_value):  # C moves the states of both networks
            return None
        entries, mask = self._parts(obs)
        if all(x is None or x.is_cpu for x in entries):
            return NativeActing(self, entries, mask, noise, has_value)
        return None

    def compute_critic(self, obs: Obs, state: State = None) -> Tensor:
        entries = [None if x is None else x.contiguous() for x in self._parts(obs)[0]]
        model = self.described(entries)
        n_thread = torch.get_num_threads()
        states = None
        if state is not None:
            states = {name: x.contiguous() for name, x in state.items()}
        return self._library.forward(self._workspace, model, entries, Output.VALUE, n_thread, state=states)['value']

    def outputs(self, method: str, columns: Columns, loss: LossSpec) -> dict[str, Tensor]:
        """As `Eager.outputs`. C runs zoo's own sequences, the rest runs as in the fallback."""
        output = _OUTPUTS.get(method)
        found = None
        is_own = output is not None and 'state' in columns and is_own_forward(loss.forward) and not self._only_acts
        if is_own and not obstacle_of_model(self._model, self._dist, _CPU):
            found = self._columns(columns, _CPU)
        if found is None or output is None:
            return self._fallback.outputs(method, columns, loss)
        model = self.described(found['obs'])
        return self._library.outputs(self._workspace, model, found, output, torch.get_num_threads())

    def described(self, entries: Sequence[Tensor | None]) -> Model:
        """The model as C reads it, by addresses; described again if its tensors have moved or were frozen."""
        modules = modules_of(self._model)
        params = parameters_of(modules)
        grads = [p.grad for p in params]
        places = [x.data_ptr() for x in [*params, *buffers_of(modules)]]
        places += [0 if x is None else x.data_ptr() for x in grads]
        are_bits = [x is not None and x.dtype == torch.bool for x in entries]
        places += [p.requires_grad for p in params] + are_bits
        if self._described is None or places != self._places:
            self._described = model_of(self._model, self._dist, are_bits)
            self._places = places
        return self._described

    def _parts(self, obs: Obs) -> tuple[list[Tensor | None], Tensor | None]:
        """The entries of observations that the networks see, None where one is missing; and the action mask if there is one."""
        mask = None
        if self._model.is_masked:
            mask = obs[ACTION_MASK]
        return [entry_at(obs, path) for path, _ in _stages(self._model)], mask

    def _columns(self, given: Columns, device: torch.device) -> Columns | None:
        """The columns that the four kinds of steps read; None if C cannot read them.

        It takes rows on a CPU, and for a model with a memory sequences.
        """
        is_sequences = 'state' in given
        if 'logit_proximal' in given:  # of a loss with a proximal policy
            return None
        if device.type != 'cpu' or is_sequences != has_memory(self._model):
            return None
        columns = {name: given[name] for name in _READ if name in given}
        entries, mask = self._parts(columns.pop('obs'))
        if any(columns[name].dim() != 1 + is_sequences for name in _PER_ROW if name in columns):
            return None
        if mask is not None:
            columns['mask'] = mask
        states: dict[str, Tensor] = {}
        if is_sequences:
            columns |= {name: given[name] for name in _OF_SEQUENCES if name in given}
            # a rollout that is one sequence of each env is a view across its rows
            columns = {name: x.contiguous() for name, x in columns.items()}
            entries = [None if x is None else x.contiguous() for x in entries]
            states = {name: x.contiguous() for name, x in given['state'].items()}
        known = torch.float32, torch.int64, torch.bool
        tensors = [*columns.values(), *states.values(), *(x for x in entries if x is not None)]
        if not all(x.is_cpu and x.is_contiguous() and x.dtype in known for x in tensors):
            return None
        found: dict[str, Any] = {**columns, 'obs': entries}
        if is_sequences:
            found['state'] = states
        return found

    def _epoch(
        self, options: StepSpec, columns: Columns, optimizers: Sequence[FlatOptimizer], order: Tensor, batch_size: int
    ) -> Tensor:
        """Runs steps; returns their metrics [n_step, Column], and gives their gradient norms to the optimisers."""
        rows = self._library.epoch(
            self._workspace,
            self.described(columns['obs']),
            options,
            columns,
            optimizers,
            order.contiguous(),
            batch_size,
            torch.get_num_threads(),
            optimizers[0].ranks.in_c,
        )
        for i, optimizer in enumerate(optimizers):
            optimizer.note_step(rows[:, Column.GRAD_NORM_0 + i])
        return rows


class NativeActing:
    """Network, noise and action in one call of C a step, which writes its outputs directly into the blocks.

    C reads and replaces the recurrent state in memory of its own; `state` gives a copy of it, and takes one.
    """

    def __init__(
        self,
        executor: NativeExecutor,
        entries: Sequence[Tensor | None],
        mask: Tensor | None,
        draw: DrawNoise,
        has_value: bool,
    ) -> None:
        self._executor = executor
        self._entries = entries
        self._mask = mask
        self._draw = draw
        self._library = executor._library
        self._workspace = self._library.workspace()
        self._act = self._library.actor(self._workspace)
        n_row, self._n_env = next(x.shape[:2] for x in entries if x is not None)
        lead = (n_row - 1, self._n_env)
        model = executor.described(entries)
        action = torch.empty((*lead, *model.action_shape), dtype=model.action_dtype, device='cpu')
        self.output: dict[str, Any] = {'action': action, 'logit': self._library.empty((*lead, model.n_logit))}
        if has_value:
            self.output['value'] = self._library.empty(lead)
        self._now = {name: torch.zeros(self._n_env, n, device='cpu') for name, n in model.n_state.items()}
        self._states = {name: self._library.empty((*lead, n)) for name, n in model.n_state.items()}
        if self._states:
            self.output['state'] = self._states
        self._begins: Sequence[Tensor] = ()
        self._rollout: ActingBlocks | None = None  # kept: C reads from its tensors
        self._actions = action.unbind(0)

    def begin(self) -> None:
        """Draws the noise of the rollout and packs the weights as they are now."""
        noise = self._draw(self._n_env).contiguous()
        output = self.output
        model = self._executor.described(self._entries)
        blocks = output['action'], output['logit'], output.get('value')
        rollout = self._rollout
        if rollout is None or rollout.model is not model or rollout.begins is not self._begins:
            rollout = ActingBlocks(
                model, self._entries, noise, *blocks, self._mask, self._now, self._states, self._begins
            )
            self._rollout = rollout
        else:
            rollout.set_noise(noise)
        self._library.act_begin(self._workspace, rollout)

    @property
    def state(self) -> State:
        if not self._now:
            return None
        return {name: x.clone() for name, x in self._now.items()}

    @state.setter
    def state(self, state: State) -> None:
        for name, x in (state or {}).items():
            self._now[name].copy_(x)

    def restart(self, begins: Tensor) -> None:
        """Sets the state of envs whose episode begins with the next row, [B] bool, to zero."""
        for x in self._now.values():
            self._library.zero_rows(x, begins.contiguous())

    def restarts_after(self, marks: Sequence[Tensor]) -> None:
        """From the next `begin` on, `step` restarts by itself after rows that one of these blocks marks, [T, B] bool."""
        self._begins = marks

    def step(self, t: int) -> Tensor:
        self._act(t)
        return self._actions[t]


def _is_known(kind: Kind, optimizers: Sequence[FlatOptimizer], loss: LossSpec) -> bool:
    """Whether C has a step of zoo with this loss, and the optimisers, and can sum over their ranks."""
    ranks = {optimizer.ranks for optimizer in optimizers if isinstance(optimizer, FlatOptimizer)}
    return (
        len(optimizers) <= 2
        and all(each is ALONE or each.in_c is not None for each in ranks)
        and all(type(each) is FlatAdam and each.is_plain for each in optimizers)
        and knows_components(kind, loss)
    )


_STAGES = (nn.Identity, OneHot, RunningMeanStd, ToVector, NormedVector)
_OTHER_STAGES = {Pixels: 'images', OneHots: 'several indices'}
_PARTS: dict[str, tuple[type, ...]] = {
    'input': (*_STAGES, DictInput),
    'actor_encoder': (MLP, MultiEncoder),
    'critic_encoder': (MLP, MultiEncoder),
    'policy_head': (nn.Linear, GaussianHead),
    'value_head': (ValueHead,),
    'aux_head': (ValueHead,),
}
_HEADS = {'categorical': nn.Linear, 'multi_categorical': nn.Linear, 'gaussian': GaussianHead}
_KNOWN = {
    VAC,
    PPG,
    nn.Linear,
    nn.ModuleList,
    nn.ModuleDict,
    Flat,
    *(kind for kinds in _PARTS.values() for kind in kinds),
}


def has_memory(model: nn.Module) -> bool:
    """Whether a model of zoo has layers of memory."""
    return 'actor_core' in model._modules


def obstacle_of_model(model: nn.Module, dist: ActionDist, device: torch.device) -> str:
    """Why the native executor cannot run a model, as the end of a sentence; empty if it can.

    It knows the classes `VAC` and `PPG`, with or without a memory, and their fully connected parts exactly: a subclass, a
    replaced part or a hook may compute something else.
    """
    kind = type(model)
    kinds: tuple[type, ...] = (VAC, PPG)
    if has_memory(model):
        kinds = _memory().MODELS
    if device.type != 'cpu':
        return f'the native executor runs on a CPU and the policy is on {device}'
    if own_name(dist) not in _HEADS:
        return f'the native executor does not know the action distribution {type(dist).__name__}'
    if not isinstance(model, Networks) or kind not in kinds:
        return f'the native executor runs the models VAC and PPG of zoo, not {kind.__name__}'
    if any(has_windows(stage) for _, stage in _stages(model)):
        return 'the native executor does not normalise windows of observations'
    for name, part in model.named_children():
        why = _obstacle_of_part(name, part)
        if why:
            return why
    if _is_other_head(model, dist) or _is_changed(model):
        return f'{MODEL_PLACE}, which the native executor does not run'
    if _has_any_global_hook():
        return 'there is a hook on all modules, which the native executor does not run'
    if any(type(p) is not nn.Parameter or p.dtype != torch.float32 for p in parameters_of(modules_of(model))):
        return 'the native executor computes in float32 and a parameter of the model is of another type'
    return ''


def _memory() -> Any:
    """The module about recurrent models, which only those load."""
    from zoo.backend.native import memory

    return memory


def _stages(model: Networks) -> list[tuple[tuple[str, ...], nn.Module]]:
    """The path of each entry that the networks see in the observations, and the stage that makes their input of it."""
    stage = model.input
    if isinstance(stage, DictInput):
        return list(stage.named_stages())
    if model.leaf is None:
        return [((), stage)]
    return [((model.leaf,), stage)]


def _mlp_of(encoder: Any) -> Any:
    """The layers of an encoder, which one for several entries has in `join`."""
    if isinstance(encoder, MultiEncoder):
        return encoder.join
    return encoder


def _obstacle_of_part(name: str, part: Any) -> str:
    if name == 'input':
        return _obstacle_of_input(part)
    if name in ('actor_core', 'critic_core'):
        why: str = _memory().obstacle_of_core(name, part)
        return why
    if type(part) is nn.Sequential and name in ('policy_head', 'value_head'):
        return f'the native executor has no hidden layers in {name}'
    if type(part) not in _PARTS.get(name, ()):
        return f'the native executor has no {type(part).__name__} as {name}'
    if type(part) is MultiEncoder:
        for entry, encoder in zip(part.entry_names, part.parts.values(), strict=True):
            if type(encoder) is not Flat:
                return f'the native executor has no encoder of a single entry, such as {type(encoder).__name__} of {entry!r}'
        part = part.join
        if type(part) is not MLP:
            return f'the native executor has no {type(part).__name__} as the join of {name}'
    if type(part) is not MLP:
        return ''
    if len(part.layers) > MAX_LAYER:
        return f'the native executor takes up to {MAX_LAYER} layers and {name} has {len(part.layers)}'
    if part.norms is not None:
        return f'the native executor has no layer normalisation, as in {name}'
    if part.activation.upper() not in Activation.__members__:
        return f'the native executor has the activations tanh and relu, not {part.activation}'
    return ''


def _obstacle_of_input(part: Any) -> str:
    """Why the native executor has no such input stage, as the end of a sentence; empty if it has."""
    stages = {'': part}
    if type(part) is DictInput:
        stages = dict(zip(part.entry_names, part.stages.values(), strict=True))
    if len(stages) > MAX_ENTRY:
        return f'the native executor takes up to {MAX_ENTRY} entries of observations and the networks see {len(stages)}'
    for name, stage in stages.items():
        where = ''
        if name:
            where = f', as the entry {name!r} is'
        if type(stage) in _OTHER_STAGES:
            return f"zoo's C code takes vectors and indices as input, not {_OTHER_STAGES[type(stage)]}{where}"
        if type(stage) not in _STAGES:
            return f'the native executor has no {type(stage).__name__} as input{where}'
    return ''


def _is_other_head(model: Networks, dist: ActionDist) -> bool:
    """Whether the policy head does not fit the distribution, or the model's own distribution is another one."""
    head = model.policy_head
    own = model.dist
    n_out = dist.n_param
    if type(own) is not type(dist) or getattr(own, 'nvec', None) != getattr(dist, 'nvec', None):
        return True
    if type(head) is not _HEADS[dist.name] or any(map(has_own_method, (own, dist))):
        return True
    if isinstance(head, GaussianHead):
        head = head.mu
        n_out = dist.n_action
    return bool(head.out_features != n_out)


def modules_of(module: nn.Module) -> list[nn.Module]:
    """The module and all below it, a module with two names twice; faster than `nn.Module.modules`."""
    found = [module]
    for module in found:  # which grows meanwhile
        if module._modules:
            found += [child for child in module._modules.values() if child is not None]
    return found


def parameters_of(modules: list[nn.Module]) -> list[nn.Parameter]:
    """The modules' own parameters, without those of modules below them."""
    return [p for module in modules for p in module._parameters.values() if p is not None]


def buffers_of(modules: list[nn.Module]) -> list[Tensor]:
    """The modules' own buffers, without those of modules below them."""
    return [x for module in modules for x in module._buffers.values() if x is not None]


def _is_changed(model: Networks) -> bool:
    """Whether a part is of another class, has a hook or a method of its own, or shares a parameter with another."""
    children = dict.fromkeys(child for child in model._modules.values() if child is not None)  # each once
    parts = [part for child in children for part in modules_of(child)]
    known: Set[type] = _KNOWN
    if has_memory(model):
        known = _KNOWN | _memory().KNOWN
        if not _memory().shares_as_encoder(model):
            return True
    for part in (model, *parts):
        if type(part) not in known or has_own_method(part) or has_hook(part):
            return True
        if type(part) is nn.Linear and part.bias is None:
            return True
    for _, stage in _stages(model):
        if type(stage) is NormedVector and (type(stage.vector), type(stage.norm)) != (ToVector, RunningMeanStd):
            return True
    stage = model.input
    actor = model.actor_encoder
    critic = model.critic_encoder
    if not _reads_input(actor, stage) or not _reads_input(critic, stage):
        return True
    params = parameters_of(parts)
    is_shared = len({id(p) for p in params}) != len(params) or any(p is not None for p in model._parameters.values())
    if is_shared or (critic is not actor) != (model.arch == 'dual'):
        return True
    return bool(_mlp_of(actor).activation != _mlp_of(critic).activation)


def _reads_input(encoder: nn.Module, stage: nn.Module) -> bool:
    """Whether an encoder takes what the input stage gives: an encoder of several entries those that it joins."""
    if isinstance(encoder, MultiEncoder) and isinstance(stage, DictInput):
        return set(encoder.entry_names) <= set(stage.entry_names)
    return not isinstance(encoder, MultiEncoder) and not isinstance(stage, DictInput)


def _entry(stage: nn.Module, width: int, is_bits: bool) -> Entry:
    """Describes an entry of the observations by the stage of `make_input` for it."""
    if isinstance(stage, NormedVector):
        stage = stage.norm
    if isinstance(stage, OneHot):
        return Entry(Input.INDEX, width)
    if isinstance(stage, RunningMeanStd):
        return Entry(Input.NORMALIZED, width, stage.shift, stage.scale, stage.clip)
    if is_bits:
        return Entry(Input.BOOL, width)
    return Entry(Input.FLOAT, width)


def _trunk(encoder: Any, stage: nn.Module) -> Trunk:
    """Describes an encoder: its layers, and the numbers of the entries that it reads."""
    if not isinstance(stage, DictInput):
        return Trunk(encoder.layers)
    names = stage.entry_names
    return Trunk(encoder.join.layers, [names.index(name) for name in encoder.entry_names])


def model_of(model: Networks, dist: ActionDist, are_bits: Sequence[bool]) -> Model:
    """Describes a model without obstacle by its tensors; are_bits: of each entry that the networks see, whether it is bool."""
    head = model.policy_head
    is_shared = model.critic_encoder is model.actor_encoder
    stage: nn.Module = model.input
    if isinstance(stage, DictInput):
        widths = [input_width(leaf) for leaf in leaves_by_path(stage.space).values()]
    else:
        widths = [model.actor_encoder.layers[0].in_features]
    stages = [each for _, each in _stages(model)]
    options: dict[str, Any] = {'policy_head': head}
    if isinstance(head, GaussianHead):
        options |= {'policy_head': head.mu, 'log_std_min': head.log_std_min, 'log_std_max': head.log_std_max}
        if head.log_std_layer is None:
            options |= {'log_std': head.log_std}
        else:
            options |= {'std_head': head.log_std_layer}
    if has_memory(model):
        options |= {'actor_core': _memory().cells_of(model.actor_core)}
        if not is_shared:
            options |= {'critic_core': _memory().cells_of(model.critic_core)}
    aux_head: Any = getattr(model, 'aux_head', None)
    if aux_head is not None:
        options |= {'aux_head': aux_head.layer}
    return Model(
        entries=[_entry(*each) for each in zip(stages, widths, are_bits, strict=True)],
        activation=Activation[_mlp_of(model.actor_encoder).activation.upper()],
        actor=_trunk(model.actor_encoder, stage),
        critic=None if is_shared else _trunk(model.critic_encoder, stage),
        distribution=Dist.GAUSSIAN if isinstance(dist, Gaussian) else Dist.CATEGORICAL,
        nvec=getattr(dist, 'nvec', None),
        value_head=cast(nn.Linear, model.value_head.layer),
        stop_value_gradient=model.arch == 'detach',
        **options,
    )


_SURROGATES = {
    'clip': Surrogate.CLIP,
    'asymmetric_clip': Surrogate.CLIP,
    'none': Surrogate.UNCLIPPED,
    'spo': Surrogate.SPO,
}
_VALUE_LOSSES = {
    'mse': ValueLoss.MSE,
    'clip': ValueLoss.CLIPPED_VALUE,
    'error_clip': ValueLoss.CLIPPED_ERROR,
    'huber': ValueLoss.HUBER,
}
_KNOWN_COMPONENTS: dict[str, tuple[str, ...]] = {
    'surrogate': tuple(_SURROGATES),
    'value loss': tuple(_VALUE_LOSSES),
    'penalty': ('kl',),
    'optimizer': ('adam',),
    'proximal policy': ('behaviour',),
}
_OPTIONS = {'asymmetric_clip': ('high',), 'clip': ('range',), 'error_clip': ('range',), 'huber': ('delta',)}


def unknown_parts(components: Sequence[Any]) -> str:
    """Why the native executor cannot run updates that have these components, as the end of a sentence; empty if it can.

    Args: components: each with `kind` and `name`, as a `zoo.config.components.Component`; those of the kind 'option' are keys
      of the config that C does not know. Other kinds that no gradient step has are ignored.
    """
    for component in components:
        if component.kind == 'option':
            return f'the native executor does not know {component.name}'
        if component.kind not in _KNOWN_COMPONENTS:
            continue
        if component.name not in _KNOWN_COMPONENTS[component.kind]:
            return f'the native executor does not know the {component.kind} {component.name!r}'
        home = getattr(getattr(component, 'function', None), '__module__', 'zoo')
        if home.partition('.')[0] != 'zoo':  # registered in place of zoo's own, by `register(name, force=True)`
            return f'the native executor does not know the {component.kind} {component.name!r} of {home}'
        known = _OPTIONS.get(component.name, ())
        options: Sequence[Any] = ()
        if component.kind != 'optimizer':
            options = getattr(component, 'options', ())
        for name in [name for name, x in options if x is not None and name not in known]:
            return f'the native executor does not know the option {name!r} of the {component.kind} {component.name!r}'
    n = sum(component.kind == 'penalty' for component in components)
    if n > 1:
        return f'the native executor takes one penalty, not {n}'
    return ''


_OF_POLICY = (Kind.PPO, Kind.POLICY)
_OF_CRITIC = (Kind.PPO, Kind.VALUE)


def read_by(kind: Kind, loss: LossSpec) -> LossSpec:
    """The parts of a loss that a step of this kind reads."""
    if kind in _OF_POLICY:
        return loss
    return LossSpec(value_loss=loss.value_loss, forward=loss.forward)


def knows_components(kind: Kind, loss: LossSpec) -> bool:
    """Whether C has all components that a step of this kind reads from its loss."""
    loss = read_by(kind, loss)
    is_plain = not why_not('native', StepParts(loss=loss)) and is_own_forward(loss.forward)
    return is_plain and not unknown_parts(_components_of(kind, loss))


def step_spec(kind: Kind, normalize_adv: bool, loss: LossSpec, numbers: StepNumbers) -> StepSpec:
    """The options of a step, from its loss, whose components are all known, and its numbers."""
    fields: dict[str, Any] = {
        'kind': kind,
        'normalize_adv': normalize_adv,
        'clip_low': numbers.clip_ratio,
        'clip_high': numbers.clip_ratio,
        'value_weight': numbers.value_weight,
        'bc_weight': numbers.bc_weight,
        'grad_clip': numbers.grad_clip,
    }
    if kind in _OF_POLICY:
        fields['entropy_weight'] = numbers.entropy_weight
        fields['dual_clip'] = numbers.dual_clip
        fields['measure_kl'] = loss.measure_kl
    for component in _components_of(kind, loss):
        options = dict(component.options)
        if component.kind == 'surrogate':
            fields['surrogate'] = _SURROGATES[component.name]
            fields['clip_high'] = options.get('high', numbers.clip_ratio)
        elif component.kind == 'value loss':
            fields['value_loss'] = _VALUE_LOSSES[component.name]
            limit = options.get('delta' if component.name == 'huber' else 'range')
            if limit is None:
                fields['value_range'] = numbers.clip_ratio
            else:
                fields['value_range'] = limit
        else:
            (fields['kl_penalty'],) = numbers.term_weights
    return StepSpec(**fields)


def _components_of(kind: Kind, loss: LossSpec) -> list[Any]:
    """The components that a step of this kind reads."""
    found: list[Any] = []
    if kind in _OF_POLICY:
        found += [loss.surrogate, *loss.terms]
    if kind in _OF_CRITIC:
        found.append(loss.value_loss)
    return found
