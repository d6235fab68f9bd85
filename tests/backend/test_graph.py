"""A compiled step against the eager one: the same numbers, the same counters, the same checkpoint; and what stops it.

Most tests run the graph that was traced as it is, which is where ours could go wrong; two have it compiled.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.policy.test_updates import (
    OBS,
    archs,
    groups_of,
    model_and_batch,
    ppg_model_and_batch,
    spaces,
    weights,
)
from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, differing, flat, job_config, make_policy
from zoo import serial_pipeline
from zoo.backend.executor import Steps
from zoo.backend.graph import CompiledStep
from zoo.backend.trace import MAX_GRAPHS, inductor
from zoo.core.errors import UserError
from zoo.core.spaces import Box
from zoo.policy import steps as steps_module
from zoo.policy.updates import StepConfig, aux_step, policy_step, ppo_step, value_step
from zoo.rl_utils import kernels
from zoo.rl_utils.optimizer import FlatAdam

CLOSE = dict(rtol=1e-5, atol=1e-6)  # float32 sums in another order; Adam divides by gradients that may be near 0
CPU = torch.device('cpu')
ALL = StepConfig(0.15, 0.7, 0.03, True, 1.5, 0.5, True)
KL = StepConfig(0.15, 0.7, 0.03, grad_clip=None, kl_penalty=0.6)


class Traced:
    """A backend that runs the graph as it was traced, and counts the graphs."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        self.graphs.append(graph)
        return graph


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith('zoo')]


def adam(model: nn.Module) -> FlatAdam:
    return FlatAdam(model.named_parameters(), lr=3e-3)


def as_dict(batch: Any) -> dict[str, Any]:
    return {k: v if isinstance(v, Tensor) else dict(v.items()) for k, v in batch.items()}


def assert_same_steps(
    make: Callable[[], tuple[Any, Any, Any]], step: Any, configs: Sequence[StepConfig], backend: Any
) -> None:
    """As many steps as there are configs, by each way, from the same start: metrics, buffers and counters agree."""
    (model, optimizer, batch), (other, other_optimizer, _) = make(), make()
    compiled_step = CompiledStep(step, other, other_optimizer, backend)
    for config in configs:
        want = step(model, optimizer, batch, config)
        torch.testing.assert_close(compiled_step(as_dict(batch), config), want, **CLOSE)
    pairs = (
        [(optimizer, other_optimizer)]
        if isinstance(optimizer, FlatAdam)
        else zip(optimizer, other_optimizer, strict=True)
    )
    for a, b in pairs:
        for name, x, y in zip(a.state._fields, a.state, b.state, strict=True):
            torch.testing.assert_close(y, x, **CLOSE, msg=lambda m, name=name: f'{name}: {m}')
        assert a.count_skipped(9) == b.count_skipped(9) == 0
    for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q, p, **CLOSE, msg=lambda m, name=name: f'{name}: {m}')


@weights
@spaces
@pytest.mark.parametrize('config', [StepConfig(), ALL], ids=['plain', 'all'])
def test_ppo_steps_are_those_of_the_eager_step(config: StepConfig, space: Any, weighted: bool) -> None:
    def make() -> tuple[Any, Any, Any]:
        model, batch = model_and_batch(space, weighted)
        return model, adam(model), batch

    assert_same_steps(make, ppo_step, [config] * 5, Traced())


@spaces
@archs
@pytest.mark.parametrize(
    'step, config', [(policy_step, ALL), (policy_step, KL), (value_step, ALL)], ids=['policy', 'policy_kl', 'value']
)
def test_steps_of_ppg_are_those_of_the_eager_steps(step: Any, config: StepConfig, arch: str, space: Any) -> None:
    def make() -> tuple[Any, Any, Any]:
        model, batch = ppg_model_and_batch(arch, space)
        return model, groups_of(model, arch)[-1 if step is value_step else 0], batch

    assert_same_steps(make, step, [config] * 4, Traced())


def aux_case(arch: str, space: Any, weighted: bool) -> tuple[Any, Any, Any]:
    model, batch = ppg_model_and_batch(arch, space, weighted)
    return model, groups_of(model, arch), batch.select('obs', 'return_', 'logit', 'weight', strict=False)


@weights
@spaces
@archs
def test_aux_steps_are_those_of_the_eager_step(arch: str, space: Any, weighted: bool) -> None:
    config = StepConfig(bc_weight=1.5, grad_clip=0.05)
    assert_same_steps(lambda: aux_case(arch, space, weighted), aux_step, [config] * 4, Traced())


@pytest.mark.parametrize('shared', [False, True])
def test_steps_over_images_are_those_of_the_eager_step(shared: bool) -> None:
    """In bfloat16 where this machine has it: the same operations in the same order."""
    space = Box(np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 255, np.uint8))

    def make() -> tuple[Any, Any, Any]:
        model = make_policy(space, TWO_ACTIONS, seed=3, model=dict(shared_encoder=shared))._model
        batch = model_and_batch(TWO_ACTIONS, False)[1]
        batch['obs'] = torch.randint(256, (16, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
        return model, adam(model), batch

    assert_same_steps(make, ppo_step, [StepConfig()] * 2, Traced())


def test_numbers_of_schedules_are_inputs_of_one_graph() -> None:
    backend = Traced()
    moving = [StepConfig(0.2 / n, 0.5, 0.01 / n, True, 3.0, 0.5 / n) for n in range(1, 5)]

    def make() -> tuple[Any, Any, Any]:
        model, batch = model_and_batch(TWO_ACTIONS, True)
        return model, adam(model), batch

    assert_same_steps(make, ppo_step, moving, backend)
    assert len(backend.graphs) == 1


def test_learning_rate_may_change_between_steps() -> None:
    (model, batch), (other, _) = model_and_batch(TWO_ACTIONS, False), model_and_batch(TWO_ACTIONS, False)
    optimizer, other_optimizer, backend = adam(model), adam(other), Traced()
    step = CompiledStep(ppo_step, other, other_optimizer, backend)
    for n in range(1, 4):
        optimizer.lr = other_optimizer.lr = 0.01 / n
        ppo_step(model, optimizer, batch, StepConfig())
        step(batch, StepConfig())
    torch.testing.assert_close(other_optimizer.param, optimizer.param, **CLOSE)
    assert len(backend.graphs) == 1


def test_terms_of_weight_zero_may_be_infinite() -> None:
    """As in the eager step a term switched off is not in the graph: 0 times its infinity would be NaN."""
    model, batch = model_and_batch(TWO_ACTIONS, False)
    batch['return_'][0] = torch.inf
    metrics = CompiledStep(ppo_step, model, adam(model), Traced())(batch, StepConfig(value_weight=0.0))
    assert metrics['value_loss'].isinf() and metrics['grad_norm'].isfinite()


def test_a_term_whose_weight_reaches_zero_may_be_infinite() -> None:
    """Where a schedule ends: the term is in the graph of the steps before, so this step has another, once."""
    (model, batch), (other, _) = model_and_batch(TWO_ACTIONS, False), model_and_batch(TWO_ACTIONS, False)
    optimizer, other_optimizer, backend = adam(model), adam(other), Traced()
    step = CompiledStep(ppo_step, other, other_optimizer, backend)
    for value_weight in (0.5, 0.25, 0.0, 0.0):
        if value_weight == 0:
            batch['return_'][0] = torch.inf
        config = StepConfig(value_weight=value_weight)
        torch.testing.assert_close(step(batch, config), ppo_step(model, optimizer, batch, config), **CLOSE)
    torch.testing.assert_close(other_optimizer.param, optimizer.param, **CLOSE)
    assert other_optimizer.step_count == 4 and other_optimizer.count_skipped(9) == 0
    assert len(backend.graphs) == 2


@pytest.mark.parametrize(
    'step, config', [(ppo_step, StepConfig()), (policy_step, KL), (aux_step, StepConfig())], ids=['ppo', 'kl', 'aux']
)
def test_graphs_are_of_the_reference_where_eager_steps_run_kernels(
    step: Any, config: StepConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, whose kernels would read the data of stand-ins; torch.compiler.is_compiling() is False there."""

    def make() -> tuple[Any, Any, Any]:
        if step is aux_step:
            return aux_case('dual', TWO_ACTIONS, True)
        model, batch = model_and_batch(TWO_ACTIONS, True)
        return model, adam(model), batch

    monkeypatch.setattr(kernels, 'MODE', 'interpret')
    model, optimizer, batch = make()
    found = CompiledStep(step, model, optimizer, Traced())(as_dict(batch), config)
    monkeypatch.setattr(kernels, 'MODE', '0')
    model, optimizer, batch = make()
    torch.testing.assert_close(found, step(model, optimizer, batch, config), **CLOSE)


def test_each_shape_has_a_graph_of_its_own_up_to_a_limit() -> None:
    model, batch = model_and_batch(TWO_ACTIONS, False)
    backend = Traced()
    step = CompiledStep(ppo_step, model, adam(model), backend)
    for n in (4, 8, 4, 8):
        step(batch[:n], StepConfig())
    assert len(backend.graphs) == 2
    with pytest.raises(RuntimeError, match='more than 8 shapes'):
        for n in range(1, MAX_GRAPHS + 2):
            step(batch[:n], StepConfig())


def test_statistics_of_observations_are_read_anew() -> None:
    """They move between rollouts: a graph that had them built in would go on with the old ones."""
    (model, batch), (other, _) = (model_and_batch(TWO_ACTIONS, False, model=dict(obs_norm=True)) for _ in range(2))
    optimizer, other_optimizer = adam(model), adam(other)
    backend = Traced()
    step = CompiledStep(ppo_step, other, other_optimizer, backend)
    for n in range(3):
        for each in (model, other):
            each.update_normalizer(batch['obs'] * 3**n + n)
        config = StepConfig(0.2)  # a new one for each rollout
        want = ppo_step(model, optimizer, batch, config)
        torch.testing.assert_close(step(batch, config), want, **CLOSE)
    torch.testing.assert_close(other_optimizer.param, optimizer.param, **CLOSE)
    assert len(backend.graphs) == 1


@pytest.mark.parametrize('arch', ['dual', 'shared'])
@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(value: float, arch: str) -> None:
    """The critic's gradient breaks; where it has an optimiser of its own, the actor moves on, as eagerly."""
    config = StepConfig(bc_weight=1.0)
    (model, optimizers, batch), (other, other_optimizers, _) = (aux_case(arch, TWO_ACTIONS, False) for _ in range(2))
    step = CompiledStep(aux_step, other, other_optimizers, Traced())
    bad = batch.clone()
    if arch == 'dual':
        for each in (model, other):
            each.value_head.layer.bias.data.fill_(value)
    else:
        bad['return_'][3] = value
    before = [[x.clone() for x in o.state] for o in other_optimizers]
    for _ in range(2):
        aux_step(model, optimizers, bad, config)
        step(as_dict(bad), config)
    for a, b, old in zip(optimizers, other_optimizers, before, strict=True):
        broke = not b.grad.isfinite().all()
        assert broke == (not a.grad.isfinite().all())
        assert a.count_skipped(9) == b.count_skipped(9) == 2 * broke
        for name, x, y in zip(b.state._fields, b.state, old, strict=True):
            if broke and name != 'grad':
                torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)
        assert b.step_count == (0 if broke else 2)
    assert sum(o.n_skipped for o in other_optimizers) == 2
    # the name of what broke is that of the eager step
    assert [o._culprit() for o in optimizers if o.n_skipped] == [o._culprit() for o in other_optimizers if o.n_skipped]


def test_a_graph_writes_nothing_before_all_gradients_are_there() -> None:
    """So that a step which fails on its way has changed nothing, with two optimisers too."""
    model, optimizers, batch = aux_case('dual', ONE_NUMBER, False)
    backend = Traced()
    CompiledStep(aux_step, model, optimizers, backend)(as_dict(batch), StepConfig())
    nodes = list(backend.graphs[0].graph.nodes)
    inputs = [node for node in nodes if node.op == 'placeholder']
    writes = [node for node in nodes if node.target is torch.ops.aten.copy_.default and node.args[0] in inputs]
    norms = [node for node in nodes if node.target is torch.ops.aten.linalg_vector_norm.default][:2]
    assert len(writes) == 10 and len(norms) == 2

    def needs(node: Any) -> set[Any]:
        seen, todo = set(), [node]
        while todo:
            for x in todo.pop().all_input_nodes:
                if x not in seen:
                    seen.add(x)
                    todo.append(x)
        return seen

    assert all(set(norms) <= needs(write) for write in writes)


class Failing:
    """A backend that fails: when it compiles (at 0), or at the n-th step, as a machine that ran out of memory would."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Any]:
        if self._left == 0:
            raise NotImplementedError('no such operation\nand more')

        def run(*values: Tensor) -> Any:
            self._left -= 1
            if self._left == 0:
                raise RuntimeError('out of memory\nwith details')
            return graph(*values)

        return run


@pytest.mark.parametrize('at', [0, 1, 3])
def test_a_step_that_fails_is_taken_eagerly_and_none_is_lost(at: int, caplog: pytest.LogCaptureFixture) -> None:
    (model, batch), (other, _) = model_and_batch(TWO_ACTIONS, False), model_and_batch(TWO_ACTIONS, False)
    optimizer, other_optimizer = adam(model), adam(other)
    steps = Steps(other, 'on', CPU, Failing(at))
    for _ in range(5):
        want = ppo_step(model, optimizer, batch, StepConfig())
        torch.testing.assert_close(steps.take(ppo_step, other_optimizer, StepConfig(), batch), want, **CLOSE)
    torch.testing.assert_close(other_optimizer.param, optimizer.param, **CLOSE)
    assert other_optimizer.step_count == 5 and other_optimizer.count_skipped(9) == 0 and not steps.active
    why = 'RuntimeError: out of memory' if at else 'NotImplementedError: no such operation'
    assert messages(caplog) == [f'the compiled update failed and the run goes on without it: {why}']


class Odd(nn.Module):
    """An actor-critic over observations [N, 3] with something that no graph can hold."""

    def __init__(self, odd: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self._odd = nn.Linear(3, 3), odd

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Tensor]:
        out = self._odd(self.layer(obs))
        return {'logit': out[:, :2], 'value': out[:, 2]}


SHIFT = torch.ones(3)  # neither parameter nor buffer: a graph would never see it change
ODD = {
    'random numbers are drawn': nn.Dropout(0.5),
    'data-dependent': lambda x: x if x.mean() > 0 else -x,
    'FakeTensor': lambda x: x + SHIFT,
}


class Tied(nn.Module):
    """Actor and critic with one bias, and the critic's module under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(3, 2), nn.Linear(3, 2)
        self.critic.bias = self.actor.bias
        self.again = self.critic

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Tensor]:
        return {'logit': self.actor(obs), 'value': self.again(obs).sum(-1)}


def test_parameters_in_two_places_are_one() -> None:
    def make() -> tuple[Any, Any, Any]:
        torch.manual_seed(0)
        model = Tied()
        return model, adam(model), model_and_batch(TWO_ACTIONS, False)[1]

    assert_same_steps(make, ppo_step, [StepConfig()] * 3, Traced())


@pytest.mark.parametrize('why', ODD)
def test_a_model_that_no_graph_can_hold_is_trained_eagerly(why: str, caplog: pytest.LogCaptureFixture) -> None:
    batch = model_and_batch(TWO_ACTIONS, False)[1]
    found = []
    for mode in ('off', 'on'):
        torch.manual_seed(0)
        model = Odd(ODD[why])
        steps, optimizer = Steps(model, mode, CPU, Traced()), adam(model)
        for _ in range(3):
            steps.take(ppo_step, optimizer, StepConfig(), batch)
        found.append(optimizer.param)
    assert torch.equal(*found)  # with the same random numbers
    assert len(messages(caplog)) == 1 and why in messages(caplog)[0]


def test_errors_of_the_step_itself_are_those_of_the_eager_step() -> None:
    model, batch = model_and_batch(TWO_ACTIONS, False)
    with pytest.raises(ValueError, match=r'adv has shape \(16, 1\)'):
        Steps(model, 'on', CPU, Traced()).take(
            ppo_step, adam(model), StepConfig(), {**as_dict(batch), 'adv': batch['adv'][:, None]}
        )


@pytest.mark.parametrize(
    'n_step, n_graph, cxx, active, says',
    [
        (40_000, 1, 'true', True, 'the update is compiled, for a run of 40,000 gradient steps'),
        (
            39_999,
            1,
            'true',
            False,
            'a run of 39,999 gradient steps is too short to gain from it; from 40,000 on it would',
        ),
        (
            79_999,
            3,
            'true',
            False,
            'a run of 79,999 gradient steps is too short to gain from it; from 80,000 on it would',
        ),
        (40_000, 1, 'no-such-compiler', False, "there is no C++ compiler 'no-such-compiler' here; install one"),
    ],
)
def test_auto_compiles_long_runs_where_there_is_a_compiler(
    n_step: float | None,
    n_graph: int,
    cxx: str,
    active: bool,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv('CXX', cxx)
    caplog.set_level(logging.INFO)
    steps = Steps(nn.Linear(1, 1), 'auto', CPU)
    for _ in range(3):  # it is decided, and said, once
        steps.decide(n_step, n_graph)
    assert steps.active == active and len(messages(caplog)) == 1 and says in messages(caplog)[0]


def test_auto_knows_the_length_of_the_run_from_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 rows, 4 epochs, minibatches of 8: half a gradient step per env step, so 80,000 env steps are 40,000."""
    monkeypatch.setattr(steps_module, 'inductor', Traced())
    for max_env_step, active in ((79_999, False), (80_000, True)):
        policy = make_policy(OBS, TWO_ACTIONS, learn=dict(batch_size=8))
        policy.max_env_step = max_env_step
        policy.learn_mode.forward(model_and_batch(TWO_ACTIONS, False)[1])
        assert policy._steps.active == active


def test_auto_leaves_convolutions_on_a_cpu_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    steps = Steps(nn.Sequential(nn.Conv2d(1, 1, 1)), 'auto', CPU)
    steps.decide(1e9, 1)
    assert not steps.active and 'convolutions' in messages(caplog)[0]


def test_on_without_a_compiler_is_an_error_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('CXX', 'no-such-compiler')
    with pytest.raises(UserError, match="policy.learn.compile is 'on' but there is no C\\+\\+ compiler"):
        make_policy(OBS, TWO_ACTIONS, learn=dict(compile='on'))
    make_policy(OBS, TWO_ACTIONS, learn=dict(compile='on'), enable_field=['collect', 'eval'])  # these need none


@pytest.mark.parametrize(
    'policy, learn, want',
    [
        ('ppo', dict(epoch_per_collect=10, batch_size=64), [10 / 64]),
        ('ppg', dict(batch_size=32, aux_batch_size=128), [1 / 32, 1 / 32, 6 / 128]),
        ('ppg', dict(actor_epoch_per_collect=2, critic_epoch_per_collect=2, batch_size=32), [2 / 32, 6 / 1024]),
    ],
)
def test_gradient_steps_of_a_run_follow_from_its_config(policy: str, learn: Any, want: list[float]) -> None:
    """E.g. PPO with 10 epochs of minibatches of 64 takes 10 / 64 steps per env step."""
    model = dict(arch='shared') if len(want) == 2 else {}
    found = make_policy(OBS, TWO_ACTIONS, type=policy, learn=learn, model=model)._steps_per_env_step()
    assert found == pytest.approx(want)


@pytest.mark.parametrize('policy', ['ppo', 'ppg'])
def test_checkpoints_pass_between_compiled_and_eager_learners(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two updates each: eager and eager, compiled and eager, eager and compiled."""
    backend = Traced()
    monkeypatch.setattr(steps_module, 'inductor', backend)
    batch = model_and_batch(TWO_ACTIONS, False)[1]
    learn = dict(batch_size=8) | (dict(aux_freq=2, aux_train_epoch=2, aux_batch_size=16) if policy == 'ppg' else {})
    states = []
    for modes in (('off', 'off'), ('on', 'off'), ('off', 'on')):
        state: dict[str, Any] = {}
        for mode in modes:
            learner = make_policy(OBS, TWO_ACTIONS, seed=3, type=policy, learn=learn | dict(compile=mode))
            if state:
                learner.load_state_dict(state['learner'])
                learner.load_memory_state_dict(state['memory'])
            learner.learn_mode.set_env_step(0)
            learner.learn_mode.forward(batch)
            learner.learn_mode.learn_aux()
            state = {'learner': learner.state_dict(), 'memory': learner.memory_state_dict()}
        states.append(flat(state))
    for other in states[1:]:
        assert other.keys() == states[0].keys()
        for name, x in states[0].items():
            torch.testing.assert_close(torch.as_tensor(other[name]), torch.as_tensor(x), **CLOSE)
    # a graph for each kind of step; the auxiliary phase comes with the second update
    assert len(backend.graphs) == {'ppo': 1 + 1, 'ppg': 2 + 3}[policy]


def test_a_compiled_run_learns_what_an_eager_run_learns(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through torch's inductor; and what it changes in the process is put back."""
    monkeypatch.setattr(torch.distributions.Distribution, '_validate_args', True)
    state, numpy_state, torch_state = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    results = {}
    for mode in ('off', 'on'):
        config = job_config(
            tmp_path,
            exp_name=mode,
            policy=dict(
                learn=dict(compile=mode, target_kl=1.0, entropy_weight=0.01, learning_rate=dict(start=1e-3, end=0.0))
            ),
        )
        results[mode] = serial_pipeline(config)
    steps = results['on'].policy._steps
    assert steps.active and results['on'].train_iter == 4 * 2 * 2  # it did not fall back
    a, b = (flat(results[mode].policy.state_dict()) for mode in ('off', 'on'))
    assert a.keys() == b.keys()
    for name, x in a.items():
        torch.testing.assert_close(torch.as_tensor(b[name]), torch.as_tensor(x), rtol=1e-4, atol=1e-5)
    assert random.getstate() == state and np.array_equal(np.random.get_state()[1], numpy_state)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert torch.distributions.Distribution._validate_args is True


def test_two_compiled_runs_are_bit_equal(tmp_path: Any) -> None:
    config = dict(policy=dict(learn=dict(compile='on', target_kl=1.0, entropy_weight=0.01)))
    runs = [serial_pipeline(job_config(tmp_path, exp_name=str(i), **config)) for i in range(2)]
    assert all(run.policy._steps.active for run in runs)  # they did not fall back
    assert differing(*(run.policy.state_dict() for run in runs)) == []


def test_compiled_auxiliary_steps_are_those_of_the_eager_step() -> None:
    """Two optimisers, a Gaussian policy and rows of weight 0, through torch's inductor."""
    assert_same_steps(lambda: aux_case('dual', ONE_NUMBER, True), aux_step, [StepConfig(bc_weight=1.5)] * 3, inductor)
