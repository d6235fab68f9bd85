"""The rounds of a run, and users' own pipelines, which change what a round does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import Field

from tests.envs import LimitEnv
from tests.policy_envs import differing, job_config, run_config
from zoo import PIPELINE_REGISTRY, Section
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import load_checkpoint
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob


class TimesConfig(Section):
    n: int = Field(2, ge=1, description='rollouts for each round of updates')


@PIPELINE_REGISTRY.register('times_test')
class Times(SerialJob):
    """Pipeline that collects n rollouts before each round of updates."""

    config = TimesConfig

    @property
    def step_per_iteration(self) -> int:
        return self.options.n * super().step_per_iteration

    def collect_round(self) -> None:
        for _ in range(self.options.n):
            super().collect_round()


@PIPELINE_REGISTRY.register('every_second_test')
class EverySecond(SerialJob):
    """Pipeline that learns in every second round, from two rollouts."""

    n_round = 0

    def learn_round(self) -> None:
        self.n_round += 1
        if self.n_round % 2 == 0:
            super().learn_round()


class DefaultsEnv(LimitEnv):
    """Changes torch's default dtype in its 20th step, as a simulator may that a step loads."""

    def __init__(self, dtype: str = '') -> None:
        super().__init__()
        self.dtype, self.n_step = dtype, 0

    def step(self, action: Any) -> Any:
        self.n_step += 1
        if self.n_step == 20 and self.dtype:
            torch.set_default_dtype(getattr(torch, self.dtype))
        return super().step(action)


def numbers_of(result: Any) -> tuple[int, int]:
    return result.env_step, result.train_iter


@pytest.mark.parametrize(
    ('sections', 'want'), [({}, 'serial'), *((dict(pipeline=x), x) for x in ('serial', {'type': 'serial'}))]
)
def test_serial_is_the_default_and_by_any_spelling_the_same_run(sections: Any, want: Any, tmp_path: Path) -> None:
    with SerialJob(resolve_config(job_config(tmp_path, **sections))) as job:
        assert type(job) is SerialJob and job.cfg.pipeline == want


def test_plan_by_name_and_options_collects_twice_and_learns_once(tmp_path: Path) -> None:
    # each rollout of 64 samples gives 2 epochs x 2 minibatches = 4 steps; 256 env steps have 4 rollouts, of which 3 fit n=3
    assert numbers_of(serial_pipeline(job_config(tmp_path, pipeline='times_test'))) == (256, 16)
    assert numbers_of(serial_pipeline(job_config(tmp_path, pipeline=dict(type='times_test', n=3)))) == (192, 12)


def test_round_of_two_rollouts_learns_from_both_as_they_were_collected(tmp_path: Path) -> None:
    """The buffer 'rollout' copies samples only if the next rollout would overwrite them."""
    pushed: list[Any] = []
    learned: list[Any] = []

    def on_samples(job: Any, samples: Any) -> None:
        pushed.append({name: x.clone() for name, x in samples.items()})
        if len(pushed) == 1:
            forward = job.learn_mode.forward

            def noting(batch: Any) -> Any:
                learned.append({name: x.clone() for name, x in batch.items()})
                return forward(batch)

            job.learn_mode = job.learn_mode._replace(forward=noting)

    serial_pipeline(job_config(tmp_path, 'CartPole-v1', pipeline='times_test'), callbacks=[on_samples])
    assert len(pushed) == len(learned) == 4
    for was, now in zip(pushed, learned, strict=True):
        assert all(torch.equal(was[name], now[name]) for name in was)
    assert not torch.equal(pushed[0]['obs'], pushed[1]['obs'])


def test_plan_that_learns_in_every_second_round_gives_schedules_the_step_of_its_first_rollout(tmp_path: Path) -> None:
    steps: list[int] = []

    def on_start(job: Any) -> None:
        mode = job.learn_mode
        job.learn_mode = mode._replace(set_env_step=lambda step: (steps.append(step), mode.set_env_step(step)))

    result = serial_pipeline(job_config(tmp_path, pipeline='every_second_test'), callbacks=[on_start])
    assert numbers_of(result) == (256, 16) and steps == [0, 128]


def test_plan_is_kept_by_a_checkpoint(tmp_path: Path) -> None:
    first = serial_pipeline(job_config(tmp_path, max_env_step=128, pipeline='times_test'))
    assert load_checkpoint(first.run_dir).meta['config']['pipeline'] == 'times_test'
    assert numbers_of(serial_pipeline(resume=first.run_dir, max_env_step=320)) == (256, 16)  # a round more: 384 > 320


@pytest.mark.slow
def test_plan_works_with_a_buffer_that_keeps_samples(tmp_path: Path) -> None:
    cfg = run_config(tmp_path, 'ppo_offpolicy') | dict(pipeline='times_test')
    result = serial_pipeline(cfg)
    plain = serial_pipeline(run_config(tmp_path, 'ppo_offpolicy'))
    assert 0 < result.train_iter < plain.train_iter and result.env_step == plain.env_step


@pytest.mark.parametrize(
    ('given', 'overrides', 'want'),
    [
        (dict(type='times_test'), [], {'type': 'times_test', 'n': 2}),
        ('times_test', ['pipeline.n=3'], {'type': 'times_test', 'n': 3}),
        ('serial', ['pipeline=times_test'], 'times_test'),
        ('serial', ['pipeline.type=times_test'], {'type': 'times_test', 'n': 2}),
        ('serial', ['pipeline={type: times_test}'], {'type': 'times_test', 'n': 2}),
        (dict(type='times_test', m=2), [], 'unknown key pipeline.m'),
        (dict(type='times_test', n=0), [], 'pipeline.n is 0'),
        ('seriel', [], "pipeline: unknown pipeline 'seriel': did you mean 'serial'"),
    ],
)
def test_plan_and_its_options_are_checked_and_completed(given: Any, overrides: list[str], want: Any) -> None:
    if isinstance(want, str) and want != 'times_test':
        with pytest.raises(ConfigError, match=want):
            resolve_config(job_config('runs', pipeline=given), overrides)
    else:
        assert resolve_config(job_config('runs', pipeline=given), overrides).pipeline == want


def test_registered_thing_that_is_no_run_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PIPELINE_REGISTRY, 'entries', dict(PIPELINE_REGISTRY.entries))  # undone after the test
    PIPELINE_REGISTRY.register('function_test')(lambda *args: None)
    with pytest.raises(
        ConfigError, match="'function_test' of tests.run.test_job.* is no class derived from zoo.SerialJob"
    ):
        serial_pipeline(job_config(tmp_path, pipeline='function_test'))
    assert not list(tmp_path.iterdir())


def test_job_of_a_plain_config_is_run_round_by_round_and_tells_callbacks_of_the_start_once(tmp_path: Path) -> None:
    starts: list[int] = []

    def on_start(job: Any) -> None:
        starts.append(job.env_step)

    config = job_config(tmp_path)
    with SerialJob(config, callbacks=[on_start]) as job:
        assert starts == []
        job.iteration()
        assert job.env_step == job.step_per_iteration and job.train_iter > 0 and job.n_iteration == 1
        job.iteration()
        job.finish()
        assert job.cfg == resolve_config(config)
    assert starts == [0]


def test_round_returns_the_episodes_metrics_and_evaluation_that_it_had(tmp_path: Path) -> None:
    # 4 envs with episodes of 5 steps, of which 3 each end in the steps 0..15, 16..31 and 32..47
    config = job_config(tmp_path, policy=dict(eval=dict(eval_freq=120)))
    with SerialJob(config) as job:
        first = job.iteration()
        assert (first.returns, first.lengths, first.evaluation) == ([5.0] * 12, [5] * 12, None)
        assert (first.env_step, first.train_iter) == (64, 4)  # 2 epochs of 2 minibatches
        episodes = job.collect_round()
        metrics = job.learn_round()
        second = job.iteration()
    assert episodes == ([5.0] * 12, [5] * 12)
    assert metrics is not None and metrics.keys() == first.metrics.keys() >= {'policy_loss', 'value_loss'}
    assert metrics['policy_loss'].dim() == 0 and metrics is not second.metrics
    assert second.evaluation is not None and second.evaluation.returns == [5.0, 5.0]


def test_round_of_a_pipeline_of_ones_own_has_the_episodes_of_both(tmp_path: Path) -> None:
    with EverySecond(resolve_config(job_config(tmp_path, pipeline='every_second_test'))) as job:
        assert len(job.iteration().metrics) == 0 < len(job.iteration().metrics)
    with Times(resolve_config(job_config(tmp_path, pipeline='times_test'))) as job:
        assert job.iteration().returns == [5.0] * (12 + 12)


@pytest.mark.parametrize(
    ('answer', 'reason'),
    [('stop', 'on_evaluation asked for it'), ('stop: enough is known', 'enough is known')],
)
def test_on_evaluation_is_told_of_each_and_can_stop_the_run(answer: str, reason: str, tmp_path: Path) -> None:
    got: list[tuple[int, float]] = []

    def on_evaluation(env_step: int, evaluation: Any) -> str | None:
        got.append((env_step, evaluation.return_mean))
        return answer if env_step >= 128 else None

    config = job_config(tmp_path, policy=dict(eval=dict(eval_freq=64)))
    result = serial_pipeline(config, on_evaluation=on_evaluation)
    assert [step for step, _ in got] == [64, 128] and result.env_step == 128
    assert result.last_return == got[-1][1]
    assert result.stop_reason == reason
    assert load_checkpoint(result.run_dir).meta['env_step'] == 128


def test_on_evaluation_that_returns_anything_else_is_refused(tmp_path: Path) -> None:
    config = job_config(tmp_path, policy=dict(eval=dict(eval_freq=64)))
    with pytest.raises(UserError, match="on_evaluation returned True but must return 'stop' or None"):
        serial_pipeline(config, on_evaluation=lambda env_step, evaluation: True)
    with pytest.raises(UserError, match='on_evaluation is 3 but must be a function'):
        serial_pipeline(config, on_evaluation=3)  # type: ignore[arg-type]


def test_errors_of_on_evaluation_pass_through_after_the_run_is_saved(tmp_path: Path) -> None:
    class PrunedError(Exception):
        """An error class of another library."""

    def prune(env_step: int, evaluation: Any) -> None:
        raise PrunedError

    config = job_config(tmp_path, policy=dict(eval=dict(eval_freq=128)))
    with pytest.raises(PrunedError):
        serial_pipeline(config, on_evaluation=prune, run_dir=tmp_path / 'run')
    assert load_checkpoint(tmp_path / 'run').meta['env_step'] == 128


@pytest.mark.usefixtures('native')
@pytest.mark.parametrize('executor', ['eager', 'native'])
@pytest.mark.parametrize('dtype', ['float64', 'float16'])
def test_env_that_changes_torchs_default_dtype_changes_nothing(executor: str, dtype: str, tmp_path: Path) -> None:
    def run(dtype: str) -> Any:
        env = dict(vectorization='sync', kwargs=dict(dtype=dtype))
        return serial_pipeline(job_config(tmp_path, DefaultsEnv, env=env, policy=dict(learn=dict(executor=executor))))

    wanted = run('').policy.state_dict()
    try:
        found = run(dtype).policy.state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    assert not differing(wanted, found)


class ThreadsEnv(LimitEnv):
    """Sets the number of torch's threads, as a package may for itself, when it is made or in each step."""

    def __init__(self, when: str = '') -> None:
        super().__init__()
        self.when = when
        if when == 'made':
            torch.set_num_threads(3)

    def step(self, action: Any) -> Any:
        if self.when == 'step':
            torch.set_num_threads(3)
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize('when', ['made', 'step'])
def test_env_that_sets_the_number_of_torchs_threads_changes_nothing(when: str, tmp_path: Path) -> None:
    def run(when: str) -> Any:
        env = dict(vectorization='sync', kwargs=dict(when=when), check=True)
        model = dict(hidden_sizes=[256, 256])  # large enough that threads share the work of their first weights
        return serial_pipeline(job_config(tmp_path, ThreadsEnv, env=env, policy=dict(model=model)))

    wanted = run('').policy.state_dict()
    assert not differing(wanted, run(when).policy.state_dict())
