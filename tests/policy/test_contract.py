"""Contracts of every registered policy and model; installed plugins are tested too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.policy_envs import differing, phase_held_back
from zoo.config.section import Config, fields_of
from zoo.core.data import leaves
from zoo.core.errors import UserError
from zoo.core.registry import BUFFER_REGISTRY, MODEL_REGISTRY, POLICY_REGISTRY
from zoo.core.seeding import stream
from zoo.core.spaces import Box, Discrete
from zoo.env import EnvConfig, make_vector_env
from zoo.policy.base import Policy
from zoo.policy.modes import CollectMode, EvalMode, LearnMode
from zoo.rl_utils.distribution import make_dist
from zoo.run.checkpoint.file import load_checkpoint, save_checkpoint
from zoo.run.config import explain_config, resolve_config, resolve_policy
from zoo.worker.collector import Collector

N_STEP, N_ENV = 8, 4
N_UPDATE = 3  # enough updates for an auxiliary phase, where a policy has one
ENVS = {
    'box to discrete': dict(id='tests.envs:limit_env'),
    'box to box': dict(id='tests.envs:limit_env', kwargs={'action': 'box'}),
    'discrete to discrete': dict(id='tests.policy_envs:match_env'),
    'with reset rows': dict(id='tests.envs:Limit-v0'),
}
NAMES = [name for name in POLICY_REGISTRY.names() if not POLICY_REGISTRY.get(name).__module__.startswith('tests.')]
policies = pytest.mark.parametrize('name', NAMES)
# each policy with the env that has reset rows, and with one of the other envs
cases = pytest.mark.parametrize(
    ('name', 'env'),
    [
        (name, env)
        for i, name in enumerate(NAMES)
        for env in (('box to discrete', 'box to box', 'discrete to discrete')[i % 3], 'with reset rows')
    ],
)


def build(
    name: str, env: str, enable_field: list[Any] | None = None, obs_norm: bool = False
) -> tuple[Policy, Collector]:
    """Returns a policy with default options and small rollouts, and its collector (None if `enable_field` is given)."""
    vector = make_vector_env(EnvConfig(**ENVS[env]), N_ENV)
    cls = POLICY_REGISTRY.get(name)
    known = dict(fields_of(cls.config))
    small: dict[str, Any] = {'type': name, 'model': {'obs_norm': obs_norm}}
    rows = {
        'learn.batch_size': 16,
        'collect.n_step': N_STEP,
        'learn.aux_freq': N_UPDATE - 1,
        'learn.aux_batch_size': 16,
    }
    for path, value in rows.items():
        if path in known:
            section, key = path.split('.')
            small.setdefault(section, {})[key] = value
    try:
        policy = cls(resolve_policy(small), vector.obs_space, vector.action_space, enable_field=enable_field)
    except UserError as error:
        if 'is for Discrete actions' not in str(error):
            raise
        pytest.skip(str(error))
    collector = Collector([vector], policy.collect_mode) if enable_field is None else None
    if collector is not None:
        collector.reset(stream(0, 'test'))
    return policy, collector  # type: ignore[return-value]


@policies
def test_modes_are_named_tuples_of_functions(name: str) -> None:
    policy, _ = build(name, 'box to discrete')
    for field, kind in (('learn', LearnMode), ('collect', CollectMode), ('eval', EvalMode)):
        mode = getattr(policy, f'{field}_mode')
        assert type(mode) is kind
        fields = mode._asdict()
        optional = {'initial_state', 'env_action', 'recorder'}  # None without a recurrent state or action conversion
        assert all(fields[key] is None for key in optional & fields.keys())
        numbers = {'n_step', 'has_aux'}
        assert all(callable(value) for key, value in fields.items() if key not in numbers | optional)
        alone, _ = build(name, 'box to discrete', enable_field=[field])
        assert type(getattr(alone, f'{field}_mode')) is kind  # one mode can be built without the others
    assert policy.collect_mode.n_step == N_STEP
    assert policy.default_model() in MODEL_REGISTRY


@cases
def test_actions_have_the_shape_and_dtype_of_the_space(name: str, env: str) -> None:
    policy, _ = build(name, env)
    is_index = isinstance(policy.obs_space, Discrete)
    obs = torch.zeros(6, dtype=torch.int64) if is_index else torch.zeros(6, *policy.obs_space.shape)
    for output in (policy.collect_mode.forward(obs, None), policy.eval_mode.forward(obs, None)):
        action = output['action']
        if isinstance(policy.action_space, Box):
            assert action.shape == (6, *policy.action_space.shape) and action.dtype == torch.float32
        else:
            assert action.shape == (6,) and action.dtype == torch.int64
            assert 0 <= action.min() and action.max() < policy.action_space.n
        assert not action.requires_grad


@cases
def test_samples_are_flat_and_metrics_are_those_announced(name: str, env: str) -> None:
    policy, collector = build(name, env)
    samples = policy.collect_mode.get_train_sample(collector.collect())
    assert type(samples) is dict
    for key, value in leaves(samples):
        assert value.shape[0] == N_STEP * N_ENV and not value.requires_grad, key
        assert not value.is_floating_point() or value.isfinite().all(), key
    if 'weight' in samples:
        assert samples['weight'].mean().item() == pytest.approx(1)
    policy.learn_mode.set_env_step(0)
    before = policy.learn_mode.train_iter()
    metrics = policy.learn_mode.forward(samples)
    assert metrics.keys() == set(policy.learn_mode.monitor_vars())
    for key, value in metrics.items():
        assert isinstance(value, Tensor) and value.dim() == 0 and not value.requires_grad and value.isfinite(), key
    assert policy.learn_mode.train_iter() > before


@cases
def test_ratio_is_one_before_the_first_step_of_every_rollout(name: str, env: str) -> None:
    """The network that learns is the one that acted, also after updates that change the statistics of observations."""
    policy, collector = build(name, env, obs_norm=True)
    for _ in range(N_UPDATE):
        samples = policy.collect_mode.get_train_sample(collector.collect())
        if 'logit' not in samples:
            pytest.skip('it acts by no distribution')
        with torch.no_grad():
            logit = policy.model.compute_actor(samples['obs'])
        now, then = (policy.dist.log_prob(x, samples['action']) for x in (logit, samples['logit']))
        torch.testing.assert_close(now, then, rtol=0, atol=1e-5)  # computed from 4 rows or from 32
        policy.learn_mode.forward(samples)


@cases
def test_state_goes_through_a_checkpoint_and_continues_the_same(name: str, env: str, tmp_path: Path) -> None:
    policy, collector = build(name, env)
    first = policy.collect_mode.get_train_sample(collector.collect())
    policy.learn_mode.forward(first)
    state = {'policy': policy.state_dict(), 'memory': policy.memory_state_dict()}
    save_checkpoint(tmp_path / 'a.safetensors', state, {})
    other, _ = build(name, env)  # the same seed, because random orders depend on it
    assert differing(other.state_dict(), policy.state_dict())
    loaded = load_checkpoint(tmp_path / 'a.safetensors').state
    other.load_state_dict(loaded['policy'])
    other.load_memory_state_dict(loaded['memory'])
    assert not differing(other.state_dict(), policy.state_dict())
    assert not differing(other.memory_state_dict(), policy.memory_state_dict())
    assert other.learn_mode.train_iter() == policy.learn_mode.train_iter() > 0
    for p in (policy, other):  # the next updates are the same too, and so is an auxiliary phase between them
        for _ in range(N_UPDATE):
            p.learn_mode.forward(first)
    assert not differing(other.state_dict(), policy.state_dict())
    assert not differing(other.memory_state_dict(), policy.memory_state_dict())


@cases
def test_auxiliary_phase_counts_its_steps_and_gives_metrics_of_its_own(name: str, env: str) -> None:
    policy, collector = build(name, env)
    samples = policy.collect_mode.get_train_sample(collector.collect())
    given: list[dict[str, Tensor]] = []
    for _ in range(N_UPDATE):
        with phase_held_back(policy):
            assert policy.learn_mode.forward(samples).keys() == set(policy.learn_mode.monitor_vars())
        before = policy.learn_mode.train_iter()
        given.append(policy.learn_mode.learn_aux())
        assert (policy.learn_mode.train_iter() > before) == bool(given[-1])
        assert policy.learn_mode.learn_aux() == {}  # not due again
    has_one = 'learn.aux_freq' in dict(fields_of(POLICY_REGISTRY.get(name).config))
    assert any(given) == has_one
    for metrics in given:
        assert not metrics.keys() & set(policy.learn_mode.monitor_vars())  # so their means stay separate
        for key, value in metrics.items():
            assert value.dim() == 0 and not value.requires_grad and value.isfinite(), key


@cases
def test_policies_that_draw_separately_learn_from_both_parts_or_one(name: str, env: str) -> None:
    policy, collector = build(name, env)
    sizes = policy.learn_mode.get_batch_size()
    assert policy.takes_separate_draws == isinstance(sizes, dict)
    if not policy.takes_separate_draws:
        assert isinstance(sizes, int) and sizes >= 1
        return
    samples = policy.collect_mode.get_train_sample(collector.collect())
    with phase_held_back(policy):
        given = [
            policy.learn_mode.forward({part: samples for part in parts}).keys()
            for parts in (list(sizes), *([part] for part in sizes))
        ]
    wanted = set(policy.learn_mode.monitor_vars())
    assert given[0] == wanted and all(one < wanted for one in given[1:]) and set().union(*given[1:]) == wanted


@policies
def test_default_buffer_is_registered_and_every_key_described(name: str) -> None:
    cls, config = POLICY_REGISTRY.get(name), {'env': {'id': 'CartPole-v1'}, 'policy': {'type': name}}
    resolved = resolve_config(config)
    assert resolved.policy.type == name and resolved.buffer.type == cls.default_buffer() in BUFFER_REGISTRY
    assert cls.takes_separate_draws or resolved.buffer.type != 'multi'
    rows = explain_config(config)
    assert len(rows) > 20 and not [row.key for row in rows if not row.description]
    assert {row.key for row in rows} >= {'seed', 'env.id', 'policy.type', 'checkpoint.freq', 'logger.root'}
    assert not [path for path, field in fields_of(cls.config) if not field.description and '.' in path]


@pytest.mark.parametrize('registry', [MODEL_REGISTRY, BUFFER_REGISTRY], ids=['model', 'buffer'])
def test_fields_of_models_and_buffers_have_descriptions(registry: Any) -> None:
    for name in registry.names():
        for path, field in fields_of(registry.get(name).config):
            assert field.description, f'{name} {path}'


BOX = Box(np.full(3, -np.inf), np.full(3, np.inf))
SPACES = {
    'box to discrete': (BOX, Discrete(4)),
    'box to box': (BOX, Box(-np.ones(2), np.ones(2))),
    'discrete to discrete': (Discrete(5), Discrete(4)),
}
models = pytest.mark.parametrize('name', MODEL_REGISTRY.names())
spaces = pytest.mark.parametrize('space', SPACES)


def model_of(name: str, space: str, **cfg: Any) -> Any:
    cls = MODEL_REGISTRY.get(name)
    return cls(Config(cls.config(**cfg).model_dump()), *SPACES[space])


def some_obs(space: str, *lead: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    is_index = space.startswith('discrete')
    return torch.randint(5, lead, generator=generator) if is_index else torch.randn(*lead, 3, generator=generator)


@models
@spaces
def test_model_outputs_are_of_the_spaces_and_of_each_row_alone(name: str, space: str) -> None:
    model = model_of(name, space)
    for lead in ((6,), (2, 3)):
        obs = some_obs(space, *lead)
        actor, critic, both = model.compute_actor(obs), model.compute_critic(obs), model.compute_actor_critic(obs)
        assert actor.shape == (*lead, 4) and critic.shape == lead  # 4 logits, or 2 means and 2 deviations
        assert torch.equal(both['logit'], actor) and torch.equal(both['value'], critic)
        torch.testing.assert_close(model.compute_actor(obs[1:2]), actor[1:2])
        torch.testing.assert_close(model.compute_critic(obs[1:2]), critic[1:2])


@models
@spaces
def test_first_policy_is_near_uniform(name: str, space: str) -> None:
    model, obs = model_of(name, space), some_obs(space, 50)
    first = make_dist(SPACES[space][1]).mode(model.compute_actor(obs))
    if not first.is_floating_point():  # an index: compare the logits instead
        first = model.compute_actor(obs)
    assert (first - first.mean(-1, keepdim=True)).abs().max() < 0.1
