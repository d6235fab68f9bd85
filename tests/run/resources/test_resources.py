"""Limits on memory: building a network, the samples of a run, envs; the samples for which threads are chosen."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.policy_envs import job_config
from zoo import POLICY_REGISTRY
from zoo.config.section import Config, ConfigError
from zoo.core.processes import machine_memory
from zoo.core.spaces import Box
from zoo.model.check import AllocationError, AllocationLimit
from zoo.pipeline import serial_pipeline
from zoo.policy import PPOPolicy
from zoo.run import build
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.run.resources import (
    ROW_BYTES,
    STEP_BYTES,
    Phase,
    memory_problem,
    sample_bytes,
    training_bytes,
)


def test_small_network_is_built_as_without_a_limit() -> None:
    torch.manual_seed(0)
    with AllocationLimit(1 << 20):
        limited = nn.init.orthogonal_(nn.Linear(30, 20).weight)
    torch.manual_seed(0)
    assert torch.equal(limited, nn.init.orthogonal_(nn.Linear(30, 20).weight))


@pytest.mark.parametrize(
    'build',
    [
        lambda: nn.Linear(1 << 20, 1 << 20),
        lambda: [nn.Linear(300, 300) for _ in range(10)],  # 10 x 361 kB
        lambda: torch.zeros(3).new_empty(1 << 40),
        lambda: torch.randn(1 << 40, generator=torch.Generator()),
        lambda: torch.arange(1 << 40),
    ],
)
def test_more_than_the_limit_is_refused_before_it_is_allocated(build: Callable[[], object]) -> None:
    with pytest.raises(AllocationError) as error, AllocationLimit(1 << 20):
        build()
    assert error.value.n_byte > 1 << 20


def test_machine_has_memory() -> None:
    assert machine_memory() > 1 << 28


def config(n_env: int = 2, n_step: int = 8, **sections: Any) -> Any:
    env = {'collector_env_num': n_env, 'evaluator_env_num': 1, 'vectorization': 'auto'}
    collect = {'n_step': n_step, 'n_sample': n_env * n_step}
    policy = {'collect': collect, 'eval': {'n_episode': 10}, 'learn': {}}
    return Config({'env': env, 'policy': policy, 'buffer': {'type': 'rollout'}} | sections)


def test_samples_take_a_row_for_each_and_the_objects_of_each_step() -> None:
    # 2 x 8 rows of 64 bytes + 3 x 4 numbers of 4 bytes (an observation); 8 steps of 1,000 bytes
    space = Box(np.zeros((3, 4)), np.ones((3, 4)))
    assert sample_bytes(config()) == 16 * 64 + 8_000
    assert sample_bytes(config(), space) == 16 * (64 + 48) + 8_000
    assert sample_bytes(config(buffer={'type': 'replay', 'size': 100, 'n_sample': 16}), space) == 100 * 112 + 8_000


def test_training_takes_copies_of_the_observations_that_one_phase_learns_from() -> None:
    # 16 rows with an observation of 48 bytes; 2.2 - 1 = 1.2 copies more
    space = Box(np.zeros((3, 4)), np.ones((3, 4)))
    assert training_bytes(config(), space) == 16 * (64 + 48) + 8_000 + round(1.2 * 16 * 48)
    assert training_bytes(config()) == sample_bytes(config())
    replay = config(buffer={'type': 'replay', 'size': 100, 'n_sample': 16})  # of 100 rows 16 are drawn
    assert training_bytes(replay, space) == 100 * 112 + 8_000 + round(1.2 * 16 * 48)
    on_disk = config()
    on_disk['policy']['learn'] = {'aux_freq': 4, 'aux_memory': 'disk'}
    assert training_bytes(on_disk, space) == 64 * 64 + 16 * 48 + 8_000 + round(1.2 * 16 * 48)


LARGE_ENV = """
import gymnasium, numpy as np

class Large(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1_000_000,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        return np.zeros(1_000_000, np.float32), {}
    def step(self, action):
        return np.zeros(1_000_000, np.float32), 1.0, False, False, {}
"""


@pytest.mark.long
def test_run_that_needs_more_than_the_shell_allows_is_refused_before_training(tmp_path: Path) -> None:
    # 8 envs x 128 steps x 4 MB = 4.1 GB of samples, 9 GB to train; torch alone maps some GB
    (tmp_path / 'large.py').write_text(LARGE_ENV)
    words = 'train large.py:Large env.vectorization=sync policy.model.hidden_sizes=[1] env.collector_env_num=8'
    zoo = f'{sys.executable} -m zoo {words} policy.collect.n_step=128 policy.learn.batch_size=64'
    command = ['bash', '-c', f'ulimit -v 9000000; exec {zoo}']
    environ = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[3]))
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=200)
    assert done.returncode == 2 and 'ask for samples that take 9 GB or more but the limit on' in done.stderr
    assert 'Traceback' not in done.stderr


def test_samples_of_a_buffer_take_the_largest_size_of_its_parts() -> None:
    def n_byte(**buffer: Any) -> int:
        config = {'env': {'collector_env_num': 1}, 'policy': {'collect': {'n_step': 1}}, 'buffer': buffer}
        return sample_bytes(config) - STEP_BYTES

    own, null = {'size': 300}, {'size': None}
    assert n_byte(size=100) == 100 * ROW_BYTES
    assert n_byte(size=100, policy=own, value=null) == n_byte(size=100, policy=null, value=own) == 300 * ROW_BYTES
    assert n_byte(size=500, policy=own, value=null) == 500 * ROW_BYTES
    assert n_byte(size=500, policy=own, value={'size': 200}) == 300 * ROW_BYTES  # 500 is used by neither


def test_samples_of_an_auxiliary_memory_are_those_of_its_window() -> None:
    cfg = config()  # 16 rows in a rollout
    cfg['policy']['learn'] = {'aux_freq': 2, 'aux_window': 5}
    assert sample_bytes(cfg) == 5 * 16 * 64 + 8_000
    cfg['policy']['learn'] = {'aux_freq': 2, 'aux_window': None}
    assert sample_bytes(cfg) == 2 * 16 * 64 + 8_000
    cfg['policy']['learn'] = {'aux_freq': 2, 'aux_window': 10**9}
    assert 'policy.learn.aux_window 1000000000 ask for samples' in memory_problem(cfg)


def test_samples_of_overlapping_sequences_are_counted_as_often_as_they_are_kept() -> None:
    cfg = config()  # 8 steps have 8 - 4 + 1 = 5 sequences of 4, one at each step: 20 rows for 8
    cfg['policy'] |= {'model': {'recurrent': {'cell': 'lstm'}}, 'learn': {'sequence': {'len': 4, 'overlap': 'maximum'}}}
    assert sample_bytes(cfg) == 2 * 20 * 64 + 8_000
    cfg['policy']['collect']['n_step'] = 10**9
    assert 'policy.learn.sequence.overlap maximum ask for samples' in memory_problem(cfg)


@pytest.mark.parametrize(
    ('sections', 'said'),
    [
        ({'n_env': 10**9}, 'env.collector_env_num 1000000000, policy.collect.n_step 8, '),
        ({'n_step': 10**9}, 'policy.collect.n_step 1000000000'),
        (
            {'buffer': {'type': 'replay', 'size': 10**12}},
            'buffer.size 1000000000000 ask for samples that take 64,000 GB',
        ),
    ],
)
def test_more_samples_than_memory_holds_are_a_problem(sections: dict[str, Any], said: str) -> None:
    assert memory_problem(config()) == ''
    assert 'overlap' not in memory_problem(config(**sections))
    assert said in memory_problem(config(**sections)) and memory_problem(config(**sections)).endswith('use fewer.')


@pytest.mark.parametrize(('how', 'n_env'), [('sync', 10**9), ('async', 10**7)])
def test_more_envs_than_memory_holds_are_a_problem(how: str, n_env: int) -> None:
    asked = config(n_step=1)
    for key in ('collector_env_num', 'evaluator_env_num'):
        many = config(n_step=1)
        many['env'] |= {'vectorization': how, key: n_env}
        many['policy']['eval']['n_episode'] = 10**9
        assert f'{key} {n_env}' in memory_problem(many) and 'ask for envs that take' in memory_problem(many)
    assert memory_problem(asked) == ''


@pytest.mark.parametrize(
    'change', ['policy.model.hidden_sizes=[1_000_000, 1_000_000]', 'policy.model.hidden_sizes=[10**9]']
)
def test_network_of_more_than_memory_is_refused_before_it_is_built(change: str) -> None:
    with pytest.raises(ConfigError, match='network that takes [0-9,]+ GB or more|policy.model.hidden_sizes is'):
        serial_pipeline({'env': {'id': 'CartPole-v1'}}, overrides=[change.replace('10**9', '1_000_000_000')])


@pytest.mark.long
def test_run_is_built_without_importing_what_it_does_not_need() -> None:
    code = (
        'import sys\nimport torch\nof_torch = set(sys.modules)\n'
        'from zoo.run.job import SerialJob\nfrom zoo.run.config import resolve_config\n'
        'cfg = resolve_config("cartpole_ppo", ["logger.tensorboard=false"])\n'
        'job = SerialJob(cfg)\njob.iteration()\njob.close()\n'
        'more = set(sys.modules) - of_torch\n'
        'print(*sorted(x for x in more if x.startswith("torch.")))\n'
        'packages = {x.split(".")[0] for x in more if not x.startswith("_")} - set(sys.stdlib_module_names)\n'
        'print(*sorted(packages - {"torch", "torchgen", "numpy", "zoo", "dizoo_configs"}))'
    )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, '-c', code], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    of_torch, packages = done.stdout.splitlines()[-2:]
    assert of_torch == 'torch.utils._device'  # all others, e.g. torch._dynamo, are for runs that need them
    assert packages == (
        'annotated_types cython_runtime easydict farama_notifications gymnasium pydantic pydantic_core typing_inspection yaml'
    )


# --- the number of samples for which threads are chosen ---


class Silent(PPOPolicy):
    """PPO that tells the run another batch size than that of its config."""

    told: Any = None

    def _get_batch_size(self) -> Any:
        return self.told


@pytest.mark.parametrize(
    ('told', 'buffer', 'want'),
    [
        (32, {}, 32),
        (None, {}, 64),  # the whole rollout: 16 steps x 4 envs
        (None, {'type': 'replay', 'n_sample': 96}, 96),
        ({'policy': 32, 'value': None}, {'type': 'multi', 'policy': {'n_sample': 64}, 'value': {'n_sample': 160}}, 160),
    ],
)
def test_threads_are_chosen_for_all_samples_where_no_batch_size_is_given(
    told: Any, buffer: dict[str, Any], want: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[Phase, int]] = []

    def phase_threads(policy: Any, rows: dict[Phase, int], limit: int) -> Any:
        found.append(rows)
        return dict.fromkeys(('collect', 'learn', 'evaluate'), 1)

    monkeypatch.setattr(build, 'phase_threads', phase_threads)
    POLICY_REGISTRY.register('silent_parts_test', force=True)(
        type('Told', (Silent,), {'told': told, 'takes_separate_draws': True})
    )
    cfg = job_config(tmp_path, policy=dict(type='silent_parts_test'), buffer=buffer)
    SerialJob(resolve_config(cfg)).close()
    assert [rows['learn'] for rows in found] == [want]
