"""The choice of an executor: models that C runs, runs that are worth compiling, and the messages about it."""

from __future__ import annotations

import copy
import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zoo.backend.native.executor
from tests.backend.problems import CPU, DISTS, INPUTS, KL, NVEC, OWN_CRITIC, VIEWS, Case, Problem
from tests.policy_envs import TWO_ACTIONS, make_policy
from tests.step_parts import PolicyNumbers, ValueNumbers
from zoo.backend import trace
from zoo.backend.choose import WORTH_STEPS, ExecutorRequest, Named, choose_executor, env_compiler
from zoo.backend.executor import forward_rows
from zoo.backend.native import bindings, build, unknown_parts
from zoo.backend.native.bindings import Kind, Surrogate, ValueLoss
from zoo.backend.native.executor import knows_components, step_spec
from zoo.buffer import reuse_of
from zoo.config.components import Component, make_component
from zoo.config.section import validate
from zoo.core.errors import UserError
from zoo.core.registry import PENALTY_REGISTRY, SURROGATE_REGISTRY, VALUE_LOSS_REGISTRY
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space
from zoo.model import VAC, VACConfig
from zoo.policy.options.off_policy_correction import ProximalLoss
from zoo.policy.options.passes import ForwardInPrecision
from zoo.rl_utils import Categorical, Gaussian, make_dist
from zoo.run.config import resolve_config

pytestmark = pytest.mark.usefixtures('native')
OBS = Box(np.full(3, -np.inf), np.full(3, np.inf))
AUTO, NATIVE = ExecutorRequest('auto', 'auto', None), ExecutorRequest('native', 'auto', None)
DIST = make_dist(TWO_ACTIONS)


# --- models that C runs


def model_of(obs_space: Space = OBS, action_space: Space = TWO_ACTIONS, **fields: Any) -> Any:
    return VAC(validate(VACConfig, {'hidden_sizes': [8, 8], **fields}), obs_space, action_space)


class Mine(VAC):
    """A user's model, which may compute anything."""


class Other(nn.Linear):
    """A user's layer, which may compute anything."""


class Choice(Categorical):
    """A distribution with its own `sample`, which never draws the last choice."""

    def sample(self, param: Tensor, noise: Tensor) -> Tensor:
        return param[..., 1:].argmax(-1)


REPLACED = 'a part of the model was replaced or has a hook, which the native executor does not run'
INPUT = "zoo's C code takes vectors and indices as input, not "
NONE = 'the native executor has no'
VARIANTS = 'the native executor runs the models VAC and PPG of zoo, not '
IMAGES = Box(np.zeros((8, 8, 3)), np.full((8, 8, 3), 255.0), 'uint8')
TWO = Dict({'a': Discrete(2), 'b': Discrete(3)})
WITH_IMAGE = Dict({'a': OBS, 'b': IMAGES})
SEVENTEEN = Dict({str(i): OBS for i in range(17)})


def own_forward(x: Tensor) -> Tensor:
    return x[..., 0]


def edit(model: Any, path: str, value: Any) -> None:
    """Replaces an attribute or a layer of a model."""
    *owners, name = path.split('.')
    for owner in owners:
        model = getattr(model, owner)
    if name.isdigit():
        model[int(name)] = value
    else:
        setattr(model, name, value)


# name -> (change of the model, the reason why C does not run it)
CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    'another encoder': (
        lambda m: edit(m, 'actor_encoder', nn.Sequential(nn.Linear(3, 8))),
        f'{NONE} Sequential as actor_encoder',
    ),
    'another head': (lambda m: edit(m, 'policy_head', Other(8, 2)), 'has no Other as policy_head'),
    'a layer of a subclass': (lambda m: edit(m, 'actor_encoder.layers.0', Other(3, 8)), REPLACED),
    'a layer without bias': (lambda m: edit(m, 'actor_encoder.layers.0', nn.Linear(3, 8, bias=False)), REPLACED),
    'a forward hook': (lambda m: m.value_head.register_forward_hook(print), REPLACED),
    'a hook before': (lambda m: m.register_forward_pre_hook(print), REPLACED),
    'a backward hook': (lambda m: m.actor_encoder.register_full_backward_hook(print), REPLACED),
    'a method of its own': (lambda m: edit(m, 'compute_critic', own_forward), REPLACED),
    'a forward of its own': (lambda m: edit(m, 'value_head.forward', own_forward), REPLACED),
    'one layer in two parts': (lambda m: edit(m, 'critic_encoder.layers.0', m.actor_encoder.layers[0]), REPLACED),
    'two activations': (lambda m: edit(m, 'critic_encoder.activation', 'relu'), REPLACED),
    'float64': (lambda m: m.double(), 'computes in float32 and a parameter of the model is of another type'),
    'another input': (lambda m: edit(m, 'input', Other(3, 3)), f'{NONE} Other as input'),
    'another distribution of the model': (lambda m: edit(m, 'dist', Choice(2)), REPLACED),
    'a method of the distribution': (lambda m: edit(m, 'dist.masked', own_forward), REPLACED),
    'a wider head': (lambda m: edit(m, 'policy_head', nn.Linear(8, 3)), REPLACED),
    'one encoder for both': (lambda m: edit(m, 'critic_encoder', m.actor_encoder), REPLACED),
    'a critic of distributions': (
        lambda m: m.predict_distribution(3, lambda logits: logits[..., 0]),
        f'{NONE} WideValueHead as value_head',
    ),
}
# name -> (observation space, fields of policy.model, the reason why C does not run it)
FIELDS: dict[str, tuple[Space, dict[str, Any], str]] = {
    'another activation': (OBS, dict(activation='gelu'), 'has the activations tanh and relu, not gelu'),
    'layer norm': (OBS, dict(layer_norm=True), 'has no layer normalisation, as in actor_encoder'),
    'layers of the actor': (OBS, dict(actor_head=[8]), 'has no hidden layers in policy_head'),
    'layers of the critic': (OBS, dict(critic_head=[8]), 'has no hidden layers in value_head'),
    'a memory of 100 numbers': (
        OBS,
        dict(recurrent={'cell': 'gru', 'hidden_size': 100}),
        'takes hidden sizes of a memory that are multiples of 16, and actor_core has 100',
    ),
    'three layers of memory': (
        OBS,
        dict(recurrent={'cell': 'lstm', 'n_layer': 3}),
        'takes up to 2 recurrent layers and actor_core has 3',
    ),
    'a memory on layer norm': (
        OBS,
        dict(recurrent={'cell': 'lstm'}, layer_norm=True),
        'has no layer normalisation, as in actor_encoder',
    ),
    'simba': (OBS, dict(encoder='simba'), f'{NONE} Simba as actor_encoder'),
    'no network': (OBS, dict(encoder='flat'), f'{NONE} Flat as actor_encoder'),
    'nine layers': (OBS, dict(hidden_sizes=[4] * 9), 'takes up to 8 layers and actor_encoder has 9'),
    'images': (IMAGES, dict(encoder='mlp'), INPUT + 'images'),
    'several indices': (MultiDiscrete((2, 3), (0, 0), (2,)), {}, INPUT + 'several indices'),
    'an image among entries': (WITH_IMAGE, {}, INPUT + "images, as the entry 'b' is"),
    'an image for the critic': (
        WITH_IMAGE,
        dict(actor_obs=['a'], critic_obs=['b']),
        INPUT + "images, as the entry 'b' is",
    ),
    'several indices in an entry': (
        Dict({'a': OBS, 'b': MultiDiscrete((2, 3), (0, 0), (2,))}),
        {},
        INPUT + "several indices, as the entry 'b' is",
    ),
    'a network for an entry': (
        TWO,
        dict(encoder=dict(type='multi', encoders={'b': 'mlp'})),
        "the native executor has no encoder of a single entry, such as MLP of 'b'",
    ),
    'entries without a network': (TWO, dict(encoder=dict(type='multi', join=None)), f'{NONE} NoneType as the join'),
    'another network of entries': (TWO, dict(encoder='simba'), f'{NONE} Simba as the join of actor_encoder'),
    'layer norm over entries': (TWO, dict(layer_norm=True), 'has no layer normalisation, as in actor_encoder'),
    'many entries': (SEVENTEEN, {}, 'takes up to 16 entries of observations and the networks see 17'),
    'a window that is normalised': (
        Dict({'a': Box(np.full((2, 3), -np.inf), np.full((2, 3), np.inf)), 'window_mask': MultiBinary((2,))}),
        dict(obs_norm=True),
        'the native executor does not normalise windows of observations',
    ),
}


def refused_model(name: str) -> tuple[Any, Any, torch.device, str]:
    """Returns a model, its distribution, the device and the reason why C does not run it."""
    if name in CHANGES:
        model, (change, why) = model_of(), CHANGES[name]
        change(model)
        return model, DIST, CPU, why
    if name in FIELDS:
        obs_space, fields, why = FIELDS[name]
        return model_of(obs_space, **fields), DIST, CPU, why
    if name == 'a subclass':
        return Mine(validate(VACConfig, {'hidden_sizes': [8]}), OBS, TWO_ACTIONS), DIST, CPU, VARIANTS + 'Mine'
    if name == 'a distribution of a subclass':
        return model_of(), Choice(2), CPU, 'the native executor does not know the action distribution Choice'
    model = model_of(action_space=Box(-np.ones(2), np.ones(2)))
    model.policy_head = nn.Linear(8, 4)
    return model, Gaussian(2), CPU, REPLACED


MORE = ('a subclass', 'a distribution of a subclass', 'a gaussian whose head is one layer')


@pytest.mark.parametrize('name', [*CHANGES, *FIELDS, *MORE])
def test_model_that_may_compute_something_else_runs_eagerly_and_the_log_says_why(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, dist, device, why = refused_model(name)
    with caplog.at_level('INFO'):
        assert choose_executor(model, dist, device, AUTO).name == 'eager'
    (record,) = caplog.records
    assert record.getMessage().startswith('updates and acting run in PyTorch: ') and why in record.getMessage()
    with pytest.raises(UserError, match="executor is 'native' but .*; use 'auto', 'eager' or 'graph'") as error:
        choose_executor(model, dist, device, NATIVE)
    assert why in str(error.value)


def test_model_with_a_hook_on_a_parameter_acts_in_c_and_its_steps_run_eagerly_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = model_of()
    model.policy_head.weight.register_hook(abs)
    why = 'a parameter of the model has a hook, which only the eager executor runs'
    long_run = AUTO._replace(n_step=10 * WORTH_STEPS)  # else compiled
    with caplog.at_level('INFO'):
        assert choose_executor(model, DIST, CPU, long_run).name == 'native'
    (record,) = caplog.records
    assert record.getMessage().endswith(f', updates run eagerly: {why}')
    for name in ('native', 'graph'):
        with pytest.raises(UserError) as error:
            choose_executor(model, DIST, CPU, ExecutorRequest(name, 'auto', None))
        assert str(error.value) == f"policy.learn.executor is {name!r} but {why}; use 'auto' or 'eager'"
    model.actor_encoder.activation = 'gelu'  # which C does not know
    assert choose_executor(model, DIST, CPU, long_run).name == 'eager'


@pytest.mark.slow
def test_unmodified_models_run_natively(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level('INFO'):
        for i, (dist, stage) in enumerate(itertools.product(DISTS, [*INPUTS, *VIEWS])):
            arch = 'dual'
            if stage not in VIEWS:
                arch = list(OWN_CRITIC)[(i + i // 6) % 6]
            problem = Problem(Case('PPO', dist, arch, (4,) * 8, input=stage, masked=dist in NVEC), n_step=1)
            assert choose_executor(problem.model, problem.dist, CPU, (AUTO, NATIVE)[i % 2]).name == 'native'
    found = {record.getMessage().split('(')[0] for record in caplog.records}
    assert found == {"updates and acting run in zoo's C code, not in PyTorch "}


def test_hook_on_all_modules_and_another_device_run_eagerly() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *args: None)
    try:
        assert choose_executor(model_of(), DIST, CPU, AUTO).name == 'eager'
    finally:
        handle.remove()
    meta = torch.device('meta')
    with pytest.raises(UserError, match="'native' but the native executor runs on a CPU and the policy is on meta"):
        choose_executor(model_of().to(meta), DIST, meta, NATIVE)


# --- components of updates that C knows


def surrogate(spec: Any) -> Any:
    return make_component(SURROGATE_REGISTRY, spec)


def value_loss(spec: Any) -> Any:
    return make_component(VALUE_LOSS_REGISTRY, spec)


def test_parts_that_c_has_are_known_and_kinds_that_no_step_has_are_nothing_to_it() -> None:
    for name, loss in zip(
        ('clip', 'asymmetric_clip', 'none', 'spo'), ('mse', 'clip', 'error_clip', 'huber'), strict=True
    ):
        known = [Named('optimizer', 'adam'), Named('proximal policy', 'behaviour'), Named('draw', 'prioritized')]
        parts = [surrogate(name), value_loss(loss), KL, *known, Named('estimator', 'n_step')]
        assert unknown_parts(parts) == ''


@pytest.mark.parametrize(
    ('part', 'said'),
    [
        (surrogate('dpo'), "the surrogate 'dpo'"),
        (value_loss('two_hot'), "the value loss 'two_hot'"),
        (value_loss({'type': 'huber', 'range': 3.0}), "the option 'range' of the value loss 'huber'"),
        (make_component(PENALTY_REGISTRY, 'reverse_kl'), "the penalty 'reverse_kl'"),
        (Named('optimizer', 'muon'), "the optimizer 'muon'"),
        (Named('proximal policy', 'ewma'), "the proximal policy 'ewma'"),
        (Named('option', 'policy.learn.accumulate'), 'policy.learn.accumulate'),
        (Named('surrogate', 'clip', (('margin', 1.0),)), "the option 'margin' of the surrogate 'clip'"),
        (Component('surrogate', 'clip', pytest.approx), f"the surrogate 'clip' of {pytest.approx.__module__}"),
    ],
    ids=lambda x: x if isinstance(x, str) else '',
)
def test_first_component_that_c_does_not_have_is_named(part: Any, said: str) -> None:
    assert unknown_parts([surrogate('clip'), part]) == f'the native executor does not know {said}'


def test_two_penalties_are_more_than_c_takes() -> None:
    assert unknown_parts([KL, KL]) == 'the native executor takes one penalty, not 2'


def test_each_step_asks_only_for_the_parts_that_it_reads() -> None:
    numbers = PolicyNumbers(value_loss=value_loss('two_hot'))
    assert knows_components(Kind.POLICY, numbers.loss) and not knows_components(Kind.PPO, numbers.loss)
    assert not knows_components(Kind.VALUE, ValueNumbers(value_loss=value_loss('two_hot')).loss)
    assert knows_components(Kind.AUX, ValueNumbers().loss)
    assert not knows_components(Kind.PPO, PolicyNumbers(proximal=ProximalLoss(None)).loss)
    assert not knows_components(Kind.AUX, ValueNumbers(forward=ForwardInPrecision('bf16', forward_rows)).loss)


def test_bounds_ranges_and_weights_of_a_step_are_those_of_the_options_or_the_clip_ratio() -> None:
    asymmetric = surrogate({'type': 'asymmetric_clip', 'high': 0.4})
    found = step_spec(Kind.PPO, True, *PolicyNumbers(0.1, surrogate=asymmetric, value_loss=value_loss('clip')))
    assert found[:2] == (Kind.PPO, True)
    assert (found.surrogate, found.clip_low, found.clip_high) == (Surrogate.CLIP, 0.1, 0.4)
    assert (found.value_loss, found.value_range) == (ValueLoss.CLIPPED_VALUE, 0.1)
    for name, option, limit in (('clip', 'range', 0.7), ('error_clip', 'range', 4.0), ('huber', 'delta', 2.0)):
        numbers = ValueNumbers(0.1, value_loss=value_loss({'type': name, option: limit}))
        assert step_spec(Kind.VALUE, False, *numbers).value_range == limit
    assert step_spec(Kind.VALUE, False, *numbers).value_loss == ValueLoss.HUBER
    penalised = PolicyNumbers(entropy_weight=0.02, surrogate=surrogate('spo'), terms=(KL,), term_weights=(0.3,))
    found = step_spec(Kind.POLICY, False, *penalised)
    assert (found.surrogate, found.kl_penalty, found.entropy_weight) == (Surrogate.SPO, 0.3, 0.02)
    assert step_spec(Kind.POLICY, False, *PolicyNumbers()).kl_penalty is None
    assert step_spec(Kind.AUX, False, *ValueNumbers(bc_weight=2.5)).bc_weight == 2.5


# --- the library


def truncated(folder: Path) -> None:
    """Writes a truncated library; opening it would end the process with a bus error."""
    whole = next(Path(bindings.__file__).parent.glob('_native*.so'))
    (folder / '_native.so').write_bytes(whole.read_bytes()[:20_000])


def foreign(folder: Path) -> None:
    try:
        build.build(folder, ('-UZOO_SOURCE', '-DZOO_SOURCE=5u'))
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ('prepare', 'words'),
    [
        (lambda folder: None, 'is not built'),
        (lambda folder: (folder / '_native.so').write_bytes(b'no library'), 'cannot be opened'),
        (truncated, 'is incomplete (_native.so)'),
        pytest.param(foreign, 'was compiled from other sources (_native.so)', marks=pytest.mark.long),
    ],
    ids=['missing', 'broken', 'truncated', 'foreign'],
)
@pytest.mark.soak
def test_library_that_cannot_serve_is_one_sentence_of_the_log(
    prepare: Callable[[Path], object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    prepare(tmp_path)
    monkeypatch.setattr(zoo.backend.native.executor, 'load', lambda: bindings.load(tmp_path))
    with caplog.at_level('INFO'):
        policy = make_policy(OBS, TWO_ACTIONS)
    assert policy.executor_name.startswith('eager')
    (record,) = [each for each in caplog.records if 'C' in each.getMessage() or 'eager' in each.getMessage()]
    message = record.getMessage()
    assert record.levelname == 'WARNING' and '\n' not in message
    assert message.startswith('nothing runs in C, which would be several times as fast: ')
    assert f'the native executor {words}' in message and "run 'python -m zoo.backend.native.build'" in message
    with pytest.raises(UserError, match="policy.learn.executor is 'native' but the native executor ") as error:
        make_policy(OBS, TWO_ACTIONS, learn=dict(executor='native'))
    assert words in str(error.value)


def test_copy_where_there_is_no_library_takes_another_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy(OBS, TWO_ACTIONS, learn=dict(executor='native'))
    monkeypatch.setattr(zoo.backend.native.executor, 'load', lambda: bindings.load(tmp_path))
    assert copy.deepcopy(policy).executor_name == 'eager'


def test_policy_that_only_evaluates_needs_no_executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(zoo.backend.native.executor, 'load', lambda: bindings.load(tmp_path))
    monkeypatch.setenv('CXX', 'no-such-compiler')
    for learn in (dict(executor='native'), dict(executor='graph'), dict(compile='on')):
        policy = make_policy(OBS, TWO_ACTIONS, learn=learn, enable_field=['eval'])
        assert policy.act(np.zeros(3, np.float32)) in (0, 1)
    assert not caplog.records


def test_unknown_level_is_a_sentence_that_names_the_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('ZOO_NATIVE_LEVEL', 'bogus')
    with pytest.raises(UserError, match="ZOO_NATIVE_LEVEL is 'bogus'; use base, v3 or v4"):
        bindings.load.__wrapped__()


# --- runs that are worth compiling


@pytest.mark.parametrize('name, n_step', [('cartpole_ppo', 3906), ('cartpole_ppo_offpolicy', 3880)])
def test_estimate_of_gradient_steps_is_what_the_run_takes(name: str, n_step: int) -> None:
    """Tolerance 2%: in the first rounds an off-policy buffer has too few samples for all draws."""
    cfg = resolve_config(name)
    learn = {key: cfg.policy.learn[key] for key in ('batch_size', 'epoch_per_collect')}
    policy: Any = make_policy(OBS, TWO_ACTIONS, type=cfg.policy.type, learn=learn)
    policy.run = policy.run._replace(reuse=reuse_of(cfg.buffer, cfg.policy.collect.n_sample))
    assert policy.steps_per_env_step() * cfg.max_env_step == pytest.approx(n_step, rel=0.02)


@pytest.mark.parametrize('kind', ['pg', 'a2c', 'trpo'])
def test_gradient_steps_count_every_draw_of_a_sample(kind: str) -> None:
    """A buffer that yields each sample three times triples the number of gradient steps, for any policy."""
    policy: Any = make_policy(OBS, TWO_ACTIONS, type=kind, learn=dict(batch_size=64))
    once = policy.steps_per_env_step()
    policy.run = policy.run._replace(reuse={'policy': 3.0, 'value': 1.0})
    assert policy.steps_per_env_step() == pytest.approx(3 * once)


PASSES = dict(actor_epoch_per_collect=2, critic_epoch_per_collect=2, batch_size=32)


@pytest.mark.parametrize(
    'policy, model, learn, want',
    [
        ('ppo', {}, dict(epoch_per_collect=10, batch_size=64), 10 / 64),
        ('ppg', dict(arch='dual'), dict(batch_size=32, aux_batch_size=128), 2 / 32 + 6 / 128),
        ('ppg', dict(arch='shared'), PASSES, 2 / 32 + 6 / 1024),
    ],
)
def test_gradient_steps_of_a_run_follow_from_its_config(policy: str, model: Any, learn: Any, want: float) -> None:
    """For example, PPO with 10 epochs of minibatches of 64 takes 10 / 64 steps per env step."""
    found: Any = make_policy(OBS, TWO_ACTIONS, type=policy, learn=learn, model=model)
    assert found.steps_per_env_step() == pytest.approx(want)


LINEAR, CONVOLUTION = nn.Linear(1, 1), nn.Sequential(nn.Conv2d(1, 1, 1))


@pytest.mark.parametrize(
    'wanted, model, cxx, name, is_env_compiled',
    [
        (ExecutorRequest('auto', 'auto', WORTH_STEPS), LINEAR, 'true', 'graph', True),
        (ExecutorRequest('auto', 'auto', WORTH_STEPS - 1), LINEAR, 'true', 'eager', False),
        (ExecutorRequest('auto', 'auto', None), LINEAR, 'true', 'eager', False),
        (ExecutorRequest('auto', 'auto', 1e9), LINEAR, 'no-such-compiler', 'eager', False),
        (ExecutorRequest('auto', 'off', 1e9), LINEAR, 'true', 'eager', False),
        (ExecutorRequest('auto', 'on', 1.0), LINEAR, 'true', 'graph', True),
        (ExecutorRequest('graph', 'auto', 1.0), LINEAR, 'true', 'graph', False),
        (ExecutorRequest('eager', 'auto', 1e9), LINEAR, 'true', 'eager', True),
        (ExecutorRequest('auto', 'auto', 1e9), CONVOLUTION, 'true', 'eager', True),
        (ExecutorRequest('graph', 'auto', 1e9), CONVOLUTION, 'true', 'graph', True),
        (ExecutorRequest('eager', 'auto', 1e9), model_of(), 'true', 'eager', True),  # though C could run it
    ],
)
def test_long_runs_of_a_model_that_native_does_not_serve_are_compiled_and_steps_of_tensor_envs(
    wanted: ExecutorRequest, model: Any, cxx: str, name: str, is_env_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('CXX', cxx)
    assert choose_executor(model, Categorical(2), CPU, wanted).name == name
    assert (env_compiler(wanted, CPU) is not None) == is_env_compiled


NO_COMPILER = 'but there is no C\\+\\+ compiler'


# C knows the model, but not this optimizer
PARTLY = ExecutorRequest('auto', 'on', 1e9, components=[Named('optimizer', 'rmsprop')])


@pytest.mark.parametrize(
    'wanted, model, words',
    [
        (ExecutorRequest('graph', 'auto', 1e9), LINEAR, f"policy.learn.executor is 'graph' {NO_COMPILER}"),
        (ExecutorRequest('auto', 'on', 1e9), LINEAR, f"policy.learn.compile is 'on' {NO_COMPILER}"),
        (
            ExecutorRequest('graph', 'off', None),
            LINEAR,
            "executor is 'graph' but policy.learn.compile is 'off'; leave one",
        ),
        (PARTLY, model_of(), f"policy.learn.compile is 'on' {NO_COMPILER}"),
    ],
)
def test_compilation_that_is_asked_for_and_cannot_be_is_an_error(
    wanted: ExecutorRequest, model: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('CXX', 'no-such-compiler')
    with pytest.raises(UserError, match=words):
        choose_executor(model, DIST, CPU, wanted)


def test_compiler_is_not_missed_where_nothing_would_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('CXX', 'no-such-compiler')
    hooked = PARTLY._replace(eager_only='a hook reads gradients')
    assert choose_executor(model_of(), DIST, CPU, hooked).name == 'native'


@pytest.mark.slow
def test_env_step_that_is_to_be_compiled_and_cannot_be_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError('there is no compiler')

    importlib.import_module('torch._inductor.config')  # the import reads CXX, once for all tests
    monkeypatch.setenv('CXX', 'no-such-compiler')
    monkeypatch.setattr(trace, 'inductor', fail)
    compiler = env_compiler(ExecutorRequest('auto', 'on', 1.0), CPU)
    assert compiler is not None
    (found,) = compiler(lambda x: [x + 1], 'the step of the env')(torch.ones(2))
    assert found.tolist() == [2, 2]
    assert 'the step of the env could not be compiled and runs uncompiled from now on' in caplog.text
