"""Runners: their replies, weights and requests, and the learners that they refuse."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch

from zoo.cluster.messages import Request, WeightLayout
from zoo.cluster.pickled_code import packed, versions
from zoo.cluster.remote_collector import payload_of
from zoo.cluster.runner import Runner, RunnerSpec
from zoo.core.errors import UserError
from zoo.env.interface import EnvCommand
from zoo.run.build import make_parts
from zoo.run.config import resolve_config
from zoo.run.roster import ONE_LEARNER
from zoo.worker.infos import NO_NUMBERS

REQUEST = Request('run', 1, 0, 0, 0, (3, 1))
SIZES = ['env.collector_env_num=4', 'policy.collect.n_sample=64', 'policy.learn.batch_size=64']


@pytest.fixture(name='made')
def _made() -> Iterator[tuple[RunnerSpec, Any, WeightLayout]]:
    with ExitStack() as undo:
        cfg = resolve_config('cartpole_ppo', [*SIZES, 'env.vectorization=sync']).read_only()
        parts = make_parts(cfg, None, undo, 1)
        policy = parts.first.policy
        layout = WeightLayout(policy.acting_state())
        spaces = policy.obs_space, policy.action_space
        payload = packed(payload_of(cfg, {'': policy}, cfg.env, spaces, NO_NUMBERS, ONE_LEARNER.collector))
        yield RunnerSpec(1, 2, 2, None, versions(), layout.digest, payload), policy, layout


@pytest.fixture
def runner(made: Any) -> Iterator[Runner]:
    """A runner with weights of version 0."""
    spec, _, layout = made
    with closing(Runner(spec)) as runner:
        runner.load(layout.pack(), 0)
        yield runner


def test_a_reply_has_the_rows_of_its_envs_under_dotted_names(runner: Runner) -> None:
    start = perf_counter()
    reply = runner.collect(REQUEST)
    took = perf_counter() - start
    shapes = {name: block.shape for name, block in reply.blocks.items()}
    n_step, b = 16, 2
    assert shapes['obs'] == (n_step + 1, b, 4) and shapes['output.logit'] == (n_step, b, 2)
    assert {'steps.reward', 'steps.terminated', 'steps.truncated', 'output.action'} <= shapes.keys()
    assert reply[:4] == ('run', 1, 0, 0) and reply.time.keys() == {'env', 'act'}
    assert 0 < reply.time['env'] < reply.time['env'] + reply.time['act'] <= took  # both are parts of `took`
    assert all(0 <= i < b for _, envs, _ in reply.finals for i in envs)


def test_weights_act_from_the_next_rollout_on(made: Any, runner: Runner) -> None:
    _, policy, layout = made
    before, again = (runner.collect(REQUEST).blocks['output.logit'].copy() for _ in range(2))
    assert np.array_equal(again, before)  # the seed, rollout and weights are the same
    with torch.no_grad():
        for x in policy.acting_state().values():
            x.mul_(1.5)
    runner.load(layout.pack(), 1)
    assert not np.array_equal(runner.collect(REQUEST).blocks['output.logit'], before)


def test_an_order_for_a_lost_runner_has_no_rows(runner: Runner) -> None:
    reply = runner.collect(REQUEST._replace(reset_seed=None, attempt=2))
    assert not reply.blocks and reply.attempt == 2


def test_what_is_set_is_there_before_the_reset(runner: Runner) -> None:
    commands, options = (EnvCommand('set', 'gravity', (5.0,)),), {'low': 0.01, 'high': 0.02}
    reply = runner.collect(REQUEST._replace(commands=commands, reset_options=options))
    assert runner.command(EnvCommand('get', 'gravity')) == [5.0, 5.0]
    first = reply.blocks['obs'][0]
    assert ((first >= 0.01) & (first <= 0.02)).all()


def test_other_versions_or_weights_than_the_learners_are_refused(made: Any) -> None:
    spec, _, _ = made
    with pytest.raises(UserError, match='has zoo .* and the learner 0.0.1; install the same on both'):
        Runner(replace(spec, versions={**versions(), 'zoo': '0.0.1'}))
    with pytest.raises(UserError, match='has other weights than that of the learner'):
        Runner(replace(spec, digest='0'))


@pytest.mark.slow
def test_torch_has_its_threads_again_after_a_rollout(made: Any) -> None:
    spec, _, layout = made
    before = torch.get_num_threads()
    with closing(Runner(replace(spec, n_thread=before + 1))) as runner:
        runner.load(layout.pack(), 0)
        runner.collect(REQUEST)
    assert torch.get_num_threads() == before
