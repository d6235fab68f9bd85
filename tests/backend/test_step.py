"""A gradient step as data: its numbers and the parts of its loss."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.forked import run_python
from tests.policy.updates import parameters, ppg, ppo, samples_of
from zoo.backend.step import LossSpec, StepNumbers, as_step
from zoo.policy.ppg import PPGPolicy
from zoo.policy.ppo import PPOPolicy, descend, policy_terms, value_loss_terms


def test_step_numbers_are_those_of_their_flat_list() -> None:
    numbers = StepNumbers(0.1, 0.02, 0.7, 2.5, None, 0.5, (0.3, 0.0))
    assert numbers.flat() == [0.1, 0.02, 0.7, 2.5, None, 0.5, 0.3, 0.0]
    assert StepNumbers.from_flat(numbers.flat()) == numbers


def test_a_loss_is_hashed_by_its_parts() -> None:
    assert hash(LossSpec()) == hash(LossSpec()) and LossSpec() != LossSpec(measure_kl=True)


def old_step(model: Any, dist: Any, optimizers: Any, minibatch: Any, numbers: Any) -> Any:
    """A step of PPO without entropy, in its form with five parameters."""
    columns = {**minibatch, 'log_old': dist.log_prob(minibatch['logit'], minibatch['action'])}
    output, columns = numbers.forward(model, 'compute_actor_critic', columns)
    policy, metrics = policy_terms(dist, output, columns, *numbers)
    value, _ = value_loss_terms(output, columns, numbers.value_loss, numbers.clip_ratio)
    grad_norm = descend(optimizers, policy + numbers.value_weight * value, numbers.grad_clip)
    return {'policy_loss': metrics['policy_loss'], 'grad_norm': grad_norm}


def new_step(model: Any, dist: Any, optimizers: Any, minibatch: Any, loss: LossSpec, numbers: StepNumbers) -> Any:
    """The same step with six parameters."""
    columns = {**minibatch, 'log_old': dist.log_prob(minibatch['logit'], minibatch['action'])}
    output, columns = loss.forward(model, 'compute_actor_critic', columns)
    policy, metrics = policy_terms(dist, output, columns, loss, numbers)
    value, _ = value_loss_terms(output, columns, loss.value_loss, numbers.clip_ratio)
    grad_norm = descend(optimizers, policy + numbers.value_weight * value, numbers.grad_clip)
    return {'policy_loss': metrics['policy_loss'], 'grad_norm': grad_norm}


LEARN = {
    'surrogate': 'spo',
    'value_loss': 'huber',
    'value_weight': 0.7,
    'clip_ratio': {'start': 0.3, 'end': 0.1, 'over': 20_000},
    'penalties': [{'type': 'kl', 'weight': 0.5}],
    'epoch_per_collect': 2,
    'batch_size': 16,
    'grad_clip': 0.1,
}


def trained_by(step: Callable[..., Any], executor: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Parameters of a PPO policy, and those of PPG, after two rollouts with this step."""
    monkeypatch.setattr(PPOPolicy, 'step', staticmethod(step))
    monkeypatch.setattr(PPGPolicy, 'joint_step', staticmethod(step))
    policy = ppo({**LEARN, 'executor': executor})
    shared = ppg({'executor': executor, 'value_loss': 'huber', 'batch_size': 16}, 'shared')
    for seed in range(2):
        policy.learn_mode.set_env_step(10_000 * seed)
        policy.learn_mode.forward(samples_of(policy, seed))
        shared.learn_mode.forward(samples_of(shared, seed))
    return {**parameters(policy), **{f'ppg.{name}': x for name, x in parameters(shared).items()}}


@pytest.mark.filterwarnings('ignore:the gradient step:DeprecationWarning')
@pytest.mark.usefixtures('graphs')
@pytest.mark.parametrize('executor', ['eager', pytest.param('graph', marks=pytest.mark.long)])
def test_a_step_with_five_parameters_trains_as_the_same_step_with_six(
    executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = trained_by(old_step, executor, monkeypatch)
    new = trained_by(new_step, executor, monkeypatch)
    assert all(torch.equal(x, new[name]) for name, x in old.items())
    plain = parameters(ppo())
    assert any(not torch.equal(x, new[name]) for name, x in plain.items())  # it trained


class OldStep:
    def __call__(self, model: Any, dist: Any, optimizers: Any, minibatch: Any, numbers: Any) -> Any:
        return {}


def made() -> tuple[Any, int]:
    """A new step of the older form, and the line that defines it."""

    def own(model: Any, dist: Any, optimizers: Any, minibatch: Any, numbers: Any) -> Any:
        return {}

    return own, made.__code__.co_firstlineno + 3


def wrapped(step: Any) -> Any:
    @wraps(step)
    def wrapper(*args: Any) -> Any:
        return step(*args)

    return wrapper


@wraps(PPOPolicy.step)
def like_zoo(model: Any, dist: Any, optimizers: Any, minibatch: Any, numbers: Any) -> Any:
    return {}


def reduced(scale: float, model: Any, dist: Any, optimizers: Any, minibatch: Any, numbers: Any) -> Any:
    return {}


def warnings_of(*steps: Any) -> list[Any]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter('always')
        for step in steps:
            as_step(step)
    return found


@pytest.fixture(autouse=True)
def _no_step_has_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('zoo.backend.step.warned_of', set())


def test_a_step_with_five_parameters_warns_once_at_the_line_that_defines_it() -> None:
    step, line = made()
    [warning] = warnings_of(step, made()[0], step)
    assert warning.category is DeprecationWarning
    assert (warning.filename, warning.lineno) == (__file__, line)
    assert str(warning.message).startswith("the gradient step 'own' has five parameters")
    assert '(model, dist, optimizers, minibatch, loss, numbers)' in str(warning.message)
    assert 'zoo.backend.step.LossSpec' in str(warning.message)


@pytest.mark.parametrize(
    ('steps', 'line'),
    [
        ((OldStep(), OldStep()), OldStep.__call__.__code__.co_firstlineno),
        ((OldStep().__call__, OldStep()), OldStep.__call__.__code__.co_firstlineno),
        ((wrapped(old_step), old_step), old_step.__code__.co_firstlineno),
        ((like_zoo,), like_zoo.__code__.co_firstlineno),
        ((partial(reduced, 0.1), partial(reduced, 0.2)), reduced.__code__.co_firstlineno),
    ],
    ids=['object', 'method', 'wrapper', 'like zoo', 'partial'],
)
def test_steps_of_one_definition_warn_once_at_its_line(steps: Any, line: int) -> None:
    assert [(each.filename, each.lineno) for each in warnings_of(*steps)] == [(__file__, line)]


def test_two_steps_with_five_parameters_warn_once_each() -> None:
    assert len(warnings_of(old_step, made()[0], old_step, made()[0])) == 2


def test_steps_with_six_parameters_and_those_of_zoo_do_not_warn() -> None:
    assert warnings_of(new_step, lambda *args: {}, PPOPolicy.step, PPGPolicy.value_step) == []


SCRIPT = """
from zoo import serial_pipeline
from zoo.policy import PPOPolicy
from zoo.policy.ppo import ppo_step

def step(model, dist, optimizers, minibatch, numbers):
    return ppo_step(model, dist, optimizers, minibatch, numbers)

PPOPolicy.with_updates('five', step=step)
quiet = dict(console='off', tensorboard=False)
policy = dict(type='five', collect=dict(n_step=32), learn=dict(batch_size=128, executor='eager'))
serial_pipeline(dict(max_env_step=512, env=dict(id='CartPole-v1', collector_env_num=4), policy=policy, logger=quiet))
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_script_with_a_step_of_five_parameters_shows_the_warning_at_its_line_once(tmp_path: Path) -> None:
    file = tmp_path / 'mine.py'
    file.write_text(SCRIPT)
    done = run_python(file, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    line = 1 + SCRIPT.split('\n').index('def step(model, dist, optimizers, minibatch, numbers):')
    assert done.stderr.count('has five parameters') == 1
    assert f"{file}:{line}: DeprecationWarning: the gradient step 'step' has five parameters" in done.stderr


@pytest.mark.long
def test_a_plain_run_gives_no_deprecation_warning(tmp_path: Path) -> None:
    words = ['-W', 'error::DeprecationWarning', '-m', 'zoo', 'train', 'cartpole_ppo', '--steps', '4_096']
    command = [sys.executable, *words, 'logger.console=off']
    env = {**os.environ, 'PYTHONPATH': str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
