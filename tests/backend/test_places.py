"""Code that a user puts on a model, an option or an optimiser: each executor runs it as the eager one does, or refuses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.backend.problems import OwnAdam
from tests.policy.updates import OBS, parameters, ppo, samples_of
from tests.policy_envs import TWO_ACTIONS
from zoo.backend.places import PLACES, Name
from zoo.config.section import validate
from zoo.core.errors import UserError
from zoo.model import VAC, VACConfig
from zoo.policy.options.base import UpdateOption
from zoo.policy.ppo import ppo_step, surrogate_loss
from zoo.rl_utils import FlatAdam

pytestmark = pytest.mark.usefixtures('native', 'graphs')
BY_NAME = {place.name: place for place in PLACES}


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Flipped(UpdateOption):
    def before_update(self, batch: Any) -> Any:
        return flipped(batch)


def flipped(columns: Any) -> dict[str, Any]:
    """The columns with the opposite advantages."""
    return {**columns, 'adv': -columns['adv']}


def forward_hook_on_linear(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
    return 1.5 * output if isinstance(module, nn.Linear) else None


def doubled_loss(dist: Any, logit: Tensor, minibatch: Any, loss: Any, numbers: Any) -> Any:
    error, rows = surrogate_loss(dist, logit, minibatch, loss, numbers)
    return 2 * error, rows


def sharper(forward: Callable[..., Any], model: Any, method: str, minibatch: Any) -> Any:
    output, rows = forward(model, method, minibatch)
    return {**output, 'logit': 3 * output['logit']}, rows


def drift(dist: Any, output: Any, minibatch: Any) -> Tensor:
    return output['value'].square()


drift.name = 'drift'  # type: ignore[attr-defined]


class InLoss:
    """Replaces a part of the loss: by its slot, or in a policy that is built."""

    def __init__(self, name: str, part: Any) -> None:
        self.name = name
        self.part = part

    def fill(self, update: Any, option: UpdateOption) -> None:
        getattr(update, self.name).fill(option, self.part)

    def __call__(self, policy: Any) -> None:
        policy.loss = policy.loss._replace(**{self.name: self.part})


class InForward:
    def fill(self, update: Any, option: UpdateOption) -> None:
        update.around_forward.append(lambda forward: partial(sharper, forward))

    def __call__(self, policy: Any) -> None:
        policy.loss = policy.loss._replace(forward=partial(sharper, policy.loss.forward))


class InTerms:
    def fill(self, update: Any, option: UpdateOption) -> None:
        update.terms.append(drift)

    def __call__(self, policy: Any) -> None:
        policy.loss = policy.loss._replace(terms=(drift,))
        policy._further_weights = (1.0,)


class InInputs:
    def fill(self, update: Any, option: UpdateOption) -> None:
        update.inputs.append(flipped)

    def __call__(self, policy: Any) -> None:
        policy.samples.inputs.append(flipped)


def own_optimizer_class(policy: Any) -> None:
    for optimizer in policy.optimizers.values():
        optimizer.__class__ = OwnAdam


def half_step(optimizer: FlatAdam, grad_clip: Any = None) -> Tensor:
    before = optimizer.param.clone()
    norm = FlatAdam.step(optimizer, grad_clip)
    optimizer.param.lerp_(before, 0.5)
    return norm


def optimizer_method(policy: Any) -> None:
    for optimizer in policy.optimizers.values():
        optimizer.step = partial(half_step, optimizer)


def own_step(model: Any, dist: Any, optimizers: Any, minibatch: Any, loss: Any, numbers: Any) -> Any:
    return ppo_step(model, dist, optimizers, flipped(minibatch), loss, numbers)


def policy_step(policy: Any) -> None:
    policy.step = own_step


def steps_of_passes(policy: Any) -> None:
    original = policy.passes.take
    policy.passes.take = lambda step, optimizers, plan, *parts: original(
        step, optimizers, plan._replace(columns=flipped(plan.columns)), *parts
    )


def order_of_passes(policy: Any) -> None:
    """The first half of the rows, twice."""

    def first_half(columns: Any, n_pass: int, generator: Any) -> Any:
        n = len(columns['adv'])
        return torch.arange(n).remainder(n // 2).expand(n_pass, n).contiguous(), columns

    policy.passes.draw = first_half


def option_before_update(policy: Any) -> None:
    policy.options = (*policy.options, Flipped())


def hook_of_parameter(model: Any) -> None:
    model.actor_encoder.layers[0].weight.register_hook(lambda grad: 0 * grad)


def hook_after_gradient(model: Any) -> None:
    def clear(p: Any) -> None:
        p.grad.zero_()

    model.actor_encoder.layers[0].weight.register_post_accumulate_grad_hook(clear)


def hook_of_module(model: Any) -> None:
    model.actor_encoder.register_forward_hook(lambda module, args, output: 2 * output)


def hook_before_module(model: Any) -> None:
    model.actor_encoder.register_forward_pre_hook(lambda module, args: (2 * args[0],))


def backward_hook_of_module(model: Any) -> None:
    model.policy_head.register_full_backward_hook(lambda module, grads, outputs: tuple(0 * x for x in grads))


def hook_of_all_modules(model: Any) -> Any:
    return nn.modules.module.register_module_forward_hook(forward_hook_on_linear)


def method_of_model(model: Any) -> None:
    original = model.compute_actor_critic

    def sharper_output(obs: Tensor) -> dict[str, Tensor]:
        output = original(obs)
        return {**output, 'logit': 3 * output['logit']}

    model.compute_actor_critic = sharper_output


def part_of_model(model: Any) -> None:
    model.actor_encoder.layers[0].__class__ = Doubled


def method_of_distribution(model: Any) -> None:
    original = model.dist.log_prob
    model.dist.log_prob = lambda param, action: 0.5 * original(param, action)


class Code(NamedTuple):
    """Code at a place. of: what `put` takes: the model, or the policy; 'option': it has a method `fill`, too."""

    place: str
    of: Literal['model', 'option', 'policy']
    put: Callable[[Any], Any]


CODE = (
    Code('hook of a parameter', 'model', hook_of_parameter),
    Code('hook of a parameter', 'model', hook_after_gradient),
    Code('class of an optimizer', 'policy', own_optimizer_class),
    Code('method of an optimizer', 'policy', optimizer_method),
    Code('loss.forward', 'option', InForward()),
    Code(
        'loss.extra_columns', 'option', InLoss('extra_columns', lambda model, optimizers, mb, loss: {'adv': -mb['adv']})
    ),
    Code('loss.proximal', 'option', InLoss('proximal', doubled_loss)),
    Code('loss.surrogate', 'option', InLoss('surrogate', lambda log_ratio, ratio, adv, clip: 2 * log_ratio * adv)),
    Code('loss.value_loss', 'option', InLoss('value_loss', lambda value, return_, old, clip: (value - return_).abs())),
    Code('loss.terms', 'option', InTerms()),
    Code('hook of a module', 'model', hook_of_module),
    Code('hook of a module', 'model', hook_before_module),
    Code('hook of a module', 'model', backward_hook_of_module),
    Code('hook of all modules', 'model', hook_of_all_modules),
    Code('method of the model', 'model', method_of_model),
    Code('part of the model', 'model', part_of_model),
    Code('method of the distribution', 'model', method_of_distribution),
    Code('policy.step', 'policy', policy_step),
    Code('samples.inputs', 'option', InInputs()),
    Code('passes.take', 'policy', steps_of_passes),
    Code('passes.draw', 'policy', order_of_passes),
    Code('option.before_update', 'policy', option_before_update),
)


@pytest.fixture(autouse=True)
def _no_global_hooks() -> Iterator[None]:
    yield
    nn.modules.module._global_forward_hooks.clear()


class Filling(UpdateOption):
    """An option that puts code into an update, and names no components."""

    def __init__(self, code: Any) -> None:
        self.code = code

    def fill(self, update: Any, policy: Any) -> None:
        self.code.fill(update, self)


def learner(executor: str, code: Code | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A policy with the code at its place from the beginning; executor: a name, or 'auto compiled'."""
    name, _, compiled = executor.partition(' ')
    torch.manual_seed(0)
    model = VAC(validate(VACConfig, {'hidden_sizes': [8, 8]}), OBS, TWO_ACTIONS)
    if code is not None and code.of == 'model':
        code.put(model)
    with monkeypatch.context() as patch:
        if code is not None and code.of == 'option':
            patch.setattr('zoo.policy.actor_critic.options_of', lambda policy: (Filling(code.put),))
        learn = dict(executor=name, compile='on' if compiled else 'auto', epoch_per_collect=2, batch_size=16)
        policy: Any = ppo(learn, network=model)
    if code is not None and code.of == 'policy':
        code.put(policy)
    return policy


def put_later(policy: Any, code: Code) -> None:
    code.put(policy.model if code.of == 'model' else policy)


@pytest.fixture(scope='module')
def batches() -> list[dict[str, Any]]:
    policy = ppo(dict(executor='eager'))
    return [samples_of(policy, k) for k in range(3)]


def trained(policy: Any, batches: list[Any], code: Code | None = None) -> dict[str, Tensor]:
    """Parameters after one update on each batch. code: put at its place after the first update."""
    for k, batch in enumerate(batches):
        if code is not None and k == 1:
            put_later(policy, code)
        policy.learn_mode.forward(batch)
    return parameters(policy)


Eager = Callable[[Code | None, Code | None], dict[str, Tensor]]


@pytest.fixture(scope='module')
def eager(batches: list[dict[str, Any]]) -> Eager:
    """Parameters after eager steps with code from the beginning, or put at its place after the first update."""

    @cache
    def found(first: Code | None, later: Code | None) -> dict[str, Tensor]:
        with pytest.MonkeyPatch.context() as patch:
            parameters_after = trained(learner('eager', first, patch), batches, later)
        nn.modules.module._global_forward_hooks.clear()
        return parameters_after

    return found


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    return max((a[name] - b[name]).abs().max().item() for name in a)


def test_each_place_of_the_list_is_tried_here() -> None:
    assert {code.place for code in CODE} == set(BY_NAME)


@pytest.mark.many
@pytest.mark.parametrize('executor', ['native', 'graph', 'auto', pytest.param('auto compiled', marks=pytest.mark.long)])
@pytest.mark.parametrize(
    'is_late',
    [pytest.param(False, id='from the beginning'), pytest.param(True, id='after an update', marks=pytest.mark.long)],
)
@pytest.mark.parametrize('code', CODE, ids=lambda code: f'{code.place}, {getattr(code.put, "__name__", "")}')
def test_code_at_a_place_runs_as_in_eager_steps_or_is_refused_by_name(
    code: Code, is_late: bool, executor: str, batches: list[Any], eager: Eager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal to eager steps up to rounding: the difference that the code makes is above 1e-3, the tolerance 1e-5."""
    first, later = (None, code) if is_late else (code, None)
    want = eager(first, later)
    assert distance(eager(None, None), want) > 1e-3

    def found() -> dict[str, Tensor]:
        return trained(learner(executor, first, monkeypatch), batches, later)

    place, name = BY_NAME[code.place], executor.partition(' ')[0]
    # C has acted with the model as it was, so later changes of what it computes are refused, not passed on
    is_too_late = is_late and name != 'graph' and code.of == 'model' and place.is_used is None
    if is_too_late or name not in ('auto', *place.runs_in):
        with pytest.raises(UserError, match=place.said) as error:
            found()
        if is_too_late:
            assert 'came after the policy was made: use policy.learn.executor=eager' in str(error.value)
        else:
            assert f"policy.learn.executor is '{name}'" in str(error.value)
    else:
        assert distance(found(), want) < 1e-5


@pytest.mark.parametrize('executor', ['native', 'graph'])
def test_steps_without_code_of_a_user_run_in_the_named_executor(
    executor: Name, batches: list[Any], monkeypatch: pytest.MonkeyPatch, graphs: list[Any]
) -> None:
    policy = learner(executor, None, monkeypatch)
    assert policy.executor_name.startswith(executor)
    want = trained(learner('eager', None, monkeypatch), batches)
    assert distance(trained(policy, batches), want) < 1e-5
    assert bool(graphs) == (executor == 'graph')


def test_option_that_sets_forward_without_components_is_named_in_the_log_of_auto(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, batches: list[Any]
) -> None:
    code = next(code for code in CODE if code.place == 'loss.forward')
    with caplog.at_level('INFO'):
        trained(learner('auto', code, monkeypatch), batches)
    lines = [line for line in caplog.messages if 'updates' in line]
    why = 'the steps have another forward, which the native executor does not run'
    assert len(lines) == 1 and lines[0].endswith(f'updates run eagerly: {why}')
