"""Keys that may have a space in a population, and sentences about the others."""

from __future__ import annotations

from typing import Any

import pytest

from zoo.run.config import frozen_config, resolve_config
from zoo.tools.population.mutable_keys import space_problems, state_problems
from zoo.tools.sweep.spaces import DEFAULT_SPACES, split_spaces

SOURCE: dict[str, Any] = dict(env=dict(id='CartPole-v1'), policy=dict(type='ppo'))


def problems(texts: list[str], overrides: list[str] | None = None) -> list[str]:
    cfg = frozen_config(resolve_config(SOURCE, overrides or []))
    return space_problems(cfg, split_spaces(texts)[0])


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('seed=int(1,4)', 'each member has a seed of its own'),
        ('max_env_step=int(1,4)', 'use --every and --generations'),
        ('env.id=choice(a,b)', 'env.kwargs and env.reset_options may have spaces'),
        ('env.collector_env_num=int(1,8)', 'all members train in the same env'),
        ('policy.eval.n_episode=int(1,8)', 'measured in the same way'),
        ('policy.type=choice(ppo,ppg)', 'a population of its own'),
        ('policy.model.hidden_sizes=choice([32],[64])', 'use --mutate architecture'),
        ('cluster.runner_num=int(1,2)', 'run in the same way'),
        ('logger.freq=int(1,2)', 'write their logs'),
        ('checkpoint.freq=int(1,2)', 'save in the same way'),
        ('stop=choice(a,b)', 'the same for all members'),
        ('policy.device=choice(cpu,cuda)', 'the same for all members'),
    ],
)
def test_key_that_is_the_same_for_all_members_is_refused(text: str, said: str) -> None:
    found = problems([text])
    assert len(found) == 1
    assert found[0].startswith(text.partition('=')[0])
    assert said in found[0]


def test_values_that_a_run_adapts_are_refused() -> None:
    adaptive = ['policy.learn.learning_rate={start: 1e-3, kl_target: .01}']
    found = problems(['policy.learn.learning_rate.start=log(1e-4,1e-2)'], adaptive)
    assert 'follows a target' in found[0]
    assert problems(['policy.learn.learning_rate=log(1e-4,1e-2)'], adaptive) == []  # a number replaces it
    schedule = ['policy.learn.learning_rate={start: 1e-3, end: 0}']
    assert problems(['policy.learn.learning_rate.start=log(1e-4,1e-2)'], schedule) == []


def test_default_spaces_and_keys_of_the_env_are_allowed() -> None:
    for policy, texts in DEFAULT_SPACES.items():
        spaces = split_spaces([f'{key}={text}' for key, text in texts.items()])[0]
        cfg = frozen_config(resolve_config({**SOURCE, 'policy': {'type': policy}}))
        assert space_problems(cfg, spaces) == []
    assert problems(['env.kwargs.gravity=uniform(5,15)', 'env.reset_options.low=uniform(0,1)']) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('policy.learn.value_norm=choice(true,false)', 'policy.learn.value_norm=true'),
        ('policy.learn.reward_norm=choice(false,true)', 'policy.learn.reward_norm=true'),
        ('policy.learn.optimizer=choice(adam,rmsprop)', 'policy.learn.optimizer=rmsprop'),
        ('policy.learn.value_loss=choice(mse,hl_gauss)', 'policy.learn.value_loss=hl_gauss'),
        ('policy.learn.epoch_per_collect=int(1,10)', ''),
        ('policy.learn.batch_size=choice(64,128)', ''),
        ('policy.learn.grad_clip=uniform(.1,1)', ''),
        ('policy.learn.adam_eps=log(1e-8,1e-3)', ''),
        ('policy.learn.adv_norm=choice(off,batch)', ''),
    ],
)
def test_key_with_another_state_is_refused(text: str, value: str) -> None:
    found = state_problems(SOURCE, [], split_spaces([text])[0])
    assert bool(found) == bool(value)
    assert value in ' '.join(found)
