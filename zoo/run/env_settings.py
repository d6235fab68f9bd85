"""Gives the envs of a run the values of env.schedule and env.reset_options, and says when env.reset_every resets them."""

from __future__ import annotations

import logging

import gymnasium

from zoo.config.section import Config, validate
from zoo.env import EnvConfig
from zoo.env.steering import AnyVectorEnv, EnvSettings, RunEnvs
from zoo.run.parts import Parts
from zoo.worker.evaluation_env import evaluation_env, evaluation_sets, naming_section

logger = logging.getLogger(__name__)


class RunSettings:
    """What changes in the envs of a run as it lasts. It follows from the env step and the rollouts alone: a resume continues it.

    Attributes: envs: those of the run, see `RunEnvs`.
    """

    def __init__(self, cfg: Config, parts: Parts) -> None:
        evaluators = [parts.evaluator, *parts.evaluation_sets.values()]
        sections = [evaluation_env(cfg), *evaluation_sets(cfg).values()]
        self.envs = RunEnvs(parts.envs, [evaluator.env for evaluator in evaluators])
        self._training = EnvSettings(validate(EnvConfig, cfg.env, 'env'))
        pairs = ((EnvSettings(section), evaluator.env) for section, evaluator in zip(sections, evaluators, strict=True))
        self._cfg = cfg
        self._evaluation: list[tuple[str | None, EnvSettings, AnyVectorEnv]] = [
            (name, *pair) for name, pair in zip([None, *parts.evaluation_sets], pairs, strict=True) if pair[0].changes
        ]
        self._groups = parts.envs
        is_whole = cfg.policy.collect.get('batch_mode') == 'episode'
        self._reset_every: int | None = 1 if is_whole else cfg.env.reset_every
        limit = _episode_limit(cfg.env)
        if is_whole and limit is not None and limit > cfg.policy.collect.n_step:
            logger.warning(
                "policy.collect.batch_mode is 'episode', a rollout has %d steps in each env and episodes may last %d: nothing is "
                'learned from those that are longer than a rollout; raise policy.collect.n_step, or lower '
                'env.max_episode_steps',
                cfg.policy.collect.n_step,
                limit,
            )

    def before_rollout(self, env_step: int) -> None:
        """Sets what the training envs have at an env step."""
        if self._training.changes:
            self._training.apply(self._groups, env_step)

    def before_evaluation(self, env_step: int) -> None:
        """Sets what the evaluation envs have at an env step."""
        for name, settings, env in self._evaluation:
            with naming_section(self._cfg, name):
                settings.apply([env], env_step)

    def resets(self, collect_iter: int) -> bool:
        """Whether the training envs are reset before the next rollout. collect_iter: rollouts so far."""
        return self._reset_every is not None and collect_iter > 0 and collect_iter % self._reset_every == 0

    def metrics(self) -> dict[str, float]:
        """The present values of env.schedule, as the log names them."""
        return {f'env/schedule/{name}': float(value) for name, value in self._training.values.items()}


def _episode_limit(env: Config) -> int | None:
    """Env steps that an episode lasts at most, as far as the config or gymnasium's registry says."""
    spec = gymnasium.registry.get(env.id) if isinstance(env.id, str) else None
    limit: int | None = env.max_episode_steps or (None if spec is None else spec.max_episode_steps)
    return limit
