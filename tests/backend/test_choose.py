"""When a policy's updates and a tensor env's steps are compiled: by the gradient steps of the whole run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.policy_envs import TWO_ACTIONS, make_policy
from zoo.backend.choose import WORTH_STEPS, Wish, choose_executor, env_compiler
from zoo.buffer import reuse_of
from zoo.core.errors import UserError
from zoo.core.spaces import Box
from zoo.rl_utils import Categorical
from zoo.run.config import resolve_config

CPU, DIST = torch.device('cpu'), Categorical(2)
OBS = Box(np.full(3, -np.inf), np.full(3, np.inf))


def test_reuse_of_draws_is_their_samples_over_those_of_a_rollout() -> None:
    # 4 draws of 512 from rollouts of 1,024 are 2 uses; the value part has 6 of 256
    draw = {'n_sample': 512, 'update_per_collect': 4}
    assert reuse_of({'size': 4096, **draw}, 1024) == {'policy': 2.0, 'value': 2.0}
    parts = {'policy': draw, 'value': {'n_sample': 256, 'update_per_collect': 6}}
    assert reuse_of({'size': 4096, **parts}, 1024) == {'policy': 2.0, 'value': 1.5}
    assert reuse_of({'type': 'rollout'}, 1024) == {'policy': 1.0, 'value': 1.0}


@pytest.mark.parametrize('name, n_step', [('cartpole_ppo', 3906), ('cartpole_ppo_offpolicy', 3880)])
def test_estimate_of_gradient_steps_is_what_the_run_takes(name: str, n_step: int) -> None:
    """Within the first rounds, in which an off-policy buffer has too few samples for all draws."""
    cfg = resolve_config(name)
    learn = {key: cfg.policy.learn[key] for key in ('batch_size', 'epoch_per_collect')}
    policy: Any = make_policy(OBS, TWO_ACTIONS, type=cfg.policy.type, learn=learn)
    policy.run = policy.run._replace(reuse=reuse_of(cfg.buffer, cfg.policy.collect.n_sample))
    assert policy._steps_per_env_step() * cfg.max_env_step == pytest.approx(n_step, rel=0.02)


@pytest.mark.parametrize(
    'policy, arch, learn, want',
    [
        ('ppo', None, dict(epoch_per_collect=10, batch_size=64), 10 / 64),
        ('ppg', 'dual', dict(batch_size=32, aux_batch_size=128), 2 / 32 + 6 / 128),
        (
            'ppg',
            'shared',
            dict(actor_epoch_per_collect=2, critic_epoch_per_collect=2, batch_size=32),
            2 / 32 + 6 / 1024,
        ),
    ],
)
def test_gradient_steps_of_a_run_follow_from_its_config(policy: str, arch: str | None, learn: Any, want: float) -> None:
    """E.g. PPO with 10 epochs of minibatches of 64 takes 10 / 64 steps per env step."""
    model = {} if arch is None else dict(arch=arch)
    found: Any = make_policy(OBS, TWO_ACTIONS, type=policy, learn=learn, model=model)
    assert found._steps_per_env_step() == pytest.approx(want)


@pytest.mark.parametrize(
    'wish, cxx, name',
    [
        (Wish('auto', 'auto', WORTH_STEPS), 'true', 'graph'),
        (Wish('auto', 'auto', WORTH_STEPS - 1), 'true', 'eager'),
        (Wish('auto', 'auto', None), 'true', 'eager'),
        (Wish('auto', 'auto', 1e9), 'no-such-compiler', 'eager'),
        (Wish('auto', 'off', 1e9), 'true', 'eager'),
        (Wish('auto', 'on', 1.0), 'true', 'graph'),
        (Wish('graph', 'auto', 1.0), 'true', 'graph'),
        (Wish('eager', 'auto', 1e9), 'true', 'eager'),
    ],
)
def test_long_runs_of_a_model_that_native_does_not_serve_are_compiled(
    wish: Wish, cxx: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('CXX', cxx)
    assert choose_executor(nn.Linear(1, 1), DIST, CPU, wish).name == name


@pytest.mark.parametrize(
    'wish, compiles',
    [
        (Wish('auto', 'auto', WORTH_STEPS), True),
        (Wish('auto', 'auto', WORTH_STEPS - 1), False),
        (Wish('auto', 'on', 1.0), True),
        (Wish('auto', 'off', 1e9), False),
    ],
)
def test_steps_of_tensor_envs_are_compiled_in_long_runs(
    wish: Wish, compiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('CXX', 'true')
    assert (env_compiler(wish, CPU) is not None) == compiles
    monkeypatch.setenv('CXX', 'no-such-compiler')
    assert env_compiler(wish, CPU) is None


def test_convolutions_on_a_cpu_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('CXX', 'true')
    model = nn.Sequential(nn.Conv2d(1, 1, 1))
    assert choose_executor(model, DIST, CPU, Wish('auto', 'auto', 1e9)).name == 'eager'
    assert choose_executor(model, DIST, CPU, Wish('graph', 'auto', 1e9)).name == 'graph'


@pytest.mark.parametrize(
    'wish, key',
    [(Wish('graph', 'auto', 1e9), "executor is 'graph'"), (Wish('auto', 'on', 1e9), "compile is 'on'")],
)
def test_compilation_that_is_asked_for_without_a_compiler_is_an_error(
    wish: Wish, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('CXX', 'no-such-compiler')
    with pytest.raises(UserError, match=f'policy.learn.{key} but there is no C\\+\\+ compiler'):
        choose_executor(nn.Linear(1, 1), DIST, CPU, wish)


def test_graph_without_compiling_contradicts_itself() -> None:
    with pytest.raises(UserError, match="executor is 'graph' but policy.learn.compile is 'off'; leave one"):
        choose_executor(nn.Linear(1, 1), DIST, CPU, Wish('graph', 'off', None))
