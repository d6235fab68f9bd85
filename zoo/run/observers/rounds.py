"""Observers of a plain run: count of samples, check of metric names, evaluations, changes and resets of envs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import gymnasium
import torch
from torch import Tensor

from zoo.buffer.base import Batch, Buffer
from zoo.config.section import validate
from zoo.core.data import Metrics, first_leaf
from zoo.core.errors import UserError
from zoo.core.seeding import stream
from zoo.env import EnvConfig
from zoo.env.settings import EnvSettings
from zoo.policy.metrics import scalar_metrics, summary
from zoo.run.base_config import JobConfig
from zoo.run.observers.base import Observer, Parts, RunView
from zoo.worker.evaluation_env import MAIN, evaluation_envs, naming_section
from zoo.worker.evaluator import Evaluation

logger = logging.getLogger(__name__)


def evaluate_if_due(job: RunView) -> None:
    """Evaluates the policy every eval_freq env steps."""
    freq = job.cfg.policy.eval.eval_freq
    if job.env_step // freq > job.progress.eval_step // freq:
        job.evaluate()


def stop_at_value(job: RunView, evaluation: Evaluation) -> None:
    """Ends the run, without a text as reason, when an evaluation reaches policy.eval.stop_value."""
    if job.progress.reached(job.cfg.policy.eval.stop_value):
        job.stop_reason = job.stop_reason or ''


class EnvSchedules(Observer):
    """Sets the values that change in the envs during a run: env.schedule, env.reset_options.

    They depend on the env step alone, so that a resume continues them.
    """

    def __init__(self, cfg: JobConfig, parts: Parts) -> None:
        self._cfg = cfg
        self._groups = parts.envs
        self._training = EnvSettings(validate(EnvConfig, cfg.env, 'env'))
        self._evaluation = [
            (name, EnvSettings(section), parts.evaluators[name].env) for name, section in evaluation_envs(cfg).items()
        ]

    @property
    def changes(self) -> bool:
        """Whether there is anything to set."""
        return self._training.changes or any(settings.changes for _, settings, _ in self._evaluation)

    def before_rollout(self, job: RunView) -> None:
        self._training.apply(self._groups, job.env_step)

    def before_evaluation(self, job: RunView) -> None:
        for name, settings, env in self._evaluation:
            with naming_section(self._cfg, name):
                settings.apply([env], job.env_step)

    def metrics(self) -> dict[str, float]:
        """The current values of env.schedule, by their names in the log."""
        return {f'env/schedule/{name}': float(value) for name, value in self._training.values.items()}


def reset_if_due(n: int, job: RunView) -> None:
    """Resets the training envs before every n-th rollout of the run, resumes included, unless that was just done."""
    n_rollout = job.collector.collect_iter
    if n_rollout > 0 and n_rollout % n == 0 and job.collector.reset_iter != n_rollout:
        job.reset_env()


def reset_every(cfg: JobConfig) -> int | None:
    """The number of rollouts between two resets of all training envs; None: they are not reset."""
    if cfg.policy.collect.get('batch_mode') != 'episode':
        return cfg.env.reset_every
    spec = None
    if isinstance(cfg.env.id, str):
        spec = gymnasium.registry.get(cfg.env.id)
    limit = cfg.env.max_episode_steps or (None if spec is None else spec.max_episode_steps)
    if limit is not None and limit > cfg.policy.collect.n_step:
        logger.warning(
            "policy.collect.batch_mode is 'episode', a rollout has %d steps in each env and episodes may last %d: nothing is "
            'learned from those that are longer than a rollout; raise policy.collect.n_step, or lower '
            'env.max_episode_steps',
            cfg.policy.collect.n_step,
            limit,
        )
    return 1


def play_evaluations(
    parts: Parts, seed: int, env_step: int, stop: Callable[[], bool], key: tuple[int, ...] = ()
) -> Evaluation | None:
    """Plays this rank's share of the episodes of all evaluations, from seeds that depend on the run's seed and env step.

    Args: stop: called during the episodes, returns whether to stop; key: further numbers that the seeds depend on.
    Returns: None if `stop` returned true before all episodes had ended.
    """
    found: dict[str, Evaluation] = {}
    for name, evaluator in parts.evaluators.items():
        words = *((name,) if name != MAIN else ()), *key
        part = evaluator.evaluate(stream(seed, 'evaluate', env_step, *words), stop)
        if part is None:
            return None
        found[name] = part
    return found.pop(MAIN)._replace(sets=found)


class SampleCount(Observer):
    """Counts the samples that were learned from."""

    def on_batch(self, job: RunView, batch: Batch, metrics: Metrics) -> None:
        job.learner.n_sample += _n_sample(batch)


class MetricNames(Observer):
    """Compares the metrics of the first batch for a whole update with those that each policy names. Raises: ValueError."""

    def __init__(self) -> None:
        self._checked: set[str] = set()  # names of learners

    def on_batch(self, job: RunView, batch: Batch, metrics: Metrics) -> None:
        """Checks the first complete batch; a batch for a part of the update gives only a part of the metrics."""
        learner = job.learner
        if learner.name in self._checked:
            return
        mode = learner.mode
        parts = mode.get_batch_size()
        if isinstance(parts, dict) and batch.keys() < parts.keys():
            return
        wanted = set(mode.monitor_vars())
        if not (metrics.keys() >= wanted if mode.has_aux else metrics.keys() == wanted):
            raise ValueError(
                f'_forward_learn returned the metrics {sorted(metrics)} but _monitor_vars_learn names '
                f'{sorted(wanted)}; make the two agree'
            )
        self._checked.add(learner.name)


def refuse_empty(buffer: Buffer) -> None:
    """Raises: UserError if the buffer is empty by its attribute `is_empty`, which is optional."""
    if getattr(buffer, 'is_empty', False):
        raise UserError(
            'there is nothing to learn from: the buffer is empty; collect a rollout and push its samples before each '
            'round of updates'
        )


def mean_metrics(found: Sequence[Metrics]) -> Metrics:
    """Merges each metric over the batches that gave it: the mean, for maxima the greatest, for minima the least.

    A metric that is a list of K numbers becomes K metrics, see `scalar_metrics`.
    """
    if len(found) == 1:
        return scalar_metrics(found[0])
    values: dict[str, list[Tensor]] = {}
    for each in found:
        for name, value in scalar_metrics(each).items():
            values.setdefault(name, []).append(value)
    return {name: v[0] if len(v) == 1 else summary(name, torch.stack(v)) for name, v in values.items()}


def _n_sample(batch: Batch) -> int | Tensor:
    """The number of samples of weight above 0, by steps in sequences; of separate draws, those of the policy count."""
    if batch.keys() <= {'policy', 'value'}:
        if 'policy' in batch:
            return _n_sample(batch['policy'])
        return 0
    if 'weight' in batch:
        return torch.count_nonzero(batch['weight'])
    column = next((batch[name] for name in ('adv', 'return_') if name in batch), None)
    if column is None:
        return len(first_leaf(batch))
    return column.numel()
