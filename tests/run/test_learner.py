"""A policy with its buffer: names, optional methods of buffers, states."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.policy_envs import job_config
from zoo import make_policy
from zoo.run.config import frozen_config, resolve_config
from zoo.run.learner import Learner, config_of_learner


class PlainBuffer:
    """A buffer with none of the methods that it need not have."""

    def push(self, samples: Any) -> None:
        self.pushed = samples

    def batches(self) -> Any:
        yield self.pushed

    def state_dict(self) -> dict[str, Any]:
        return {'n': 3}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class NotingBuffer(PlainBuffer):
    """A buffer that notes calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def keep(self) -> None:
        self.calls.append('keep')

    def set_env_step(self, env_step: int) -> None:
        self.calls.append(env_step)


def learner(name: str = '', buffer: Any = None) -> Learner:
    cfg = frozen_config(resolve_config(job_config('runs', 'CartPole-v1')))
    return Learner(name, cfg, make_policy(job_config('runs', 'CartPole-v1')), buffer or PlainBuffer())


@pytest.mark.parametrize('name', ['prey', 'A', 'team-1_b', 'x' * 64])
def test_metric_of_one_of_several_has_its_name_in_front(name: str) -> None:
    assert learner(name).metric('kl') == f'{name}/kl'
    assert learner().metric('kl') == 'kl'


@pytest.mark.parametrize('name', ['1st', 'a/b', 'a.b', '../a', ' ', 'rank_1', 'x' * 65, 'a\n'])
def test_name_that_cannot_be_part_of_a_file_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match='its name must begin with a letter'):
        learner(name)


def test_metrics_of_a_further_learner_have_its_name() -> None:
    metrics = {'kl': torch.tensor(0.5), 'lr/0': torch.tensor(1.0)}
    one = learner()
    assert one.named(metrics) == metrics
    one.name = 'prey'
    assert one.named(metrics) == {'prey/kl': metrics['kl'], 'prey/lr/0': metrics['lr/0']}


def test_buffer_is_told_of_rounds_if_it_has_the_methods() -> None:
    buffer = NotingBuffer()
    one, plain = learner(buffer=buffer), learner()
    for each in (one, plain):
        each.keep()
        each.begin_update(64)
    assert buffer.calls == ['keep', 64]


def test_state_has_the_memory_of_the_auxiliary_phase_only_where_it_is_whole() -> None:
    one = learner()
    one.policy.memory_state_dict = lambda: {'rows': 5}  # type: ignore[method-assign]
    assert one.state_dict(with_memory=True)['memory'] == {'rows': 5}
    state = one.state_dict(with_memory=False)
    assert state['memory'] == {} and state['buffer'] == {'n': 3} and 'model' in state['policy']


def test_further_learner_has_a_seed_that_follows_from_its_name_alone() -> None:
    cfg = frozen_config(resolve_config(job_config('runs')))
    seeds = [config_of_learner(cfg, name).seed for name in ('prey', 'other', 'prey')]
    assert seeds[0] == seeds[2] != seeds[1] and cfg.seed not in seeds
    assert config_of_learner(cfg, 'prey', buffer=cfg.buffer).policy is cfg.policy
