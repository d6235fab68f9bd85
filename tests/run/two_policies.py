"""A run of two policies: each acts for a half of the rows of one vector env, and learns from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.policy_envs import job_config
from zoo import PIPELINE_REGISTRY
from zoo.core.data import Rollout, map_tensors
from zoo.env import AnyVectorEnv
from zoo.policy.modes import CollectMode, EvalMode
from zoo.run.base_config import JobConfig
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.run.learner import config_of_learner
from zoo.run.roster import Roster
from zoo.worker.collector import Collector
from zoo.worker.evaluator import Evaluation, Evaluator
from zoo.worker.infos import InfoKeys

PREY = 'prey'


def halves(n_row: int) -> list[slice]:
    return [slice(0, n_row // 2), slice(n_row // 2, n_row)]


class JointActing:
    """Several actings, each on its rows of a block, as one."""

    state = None

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts

    @property
    def output(self) -> dict[str, Any]:
        return map_tensors(lambda *xs: torch.cat(xs, 1), *(part.output for part in self._parts))

    def begin(self) -> None:
        for part in self._parts:
            part.begin()

    def step(self, t: int) -> Tensor:
        return torch.cat([part.step(t) for part in self._parts])


def joint_collect_mode(modes: Sequence[CollectMode]) -> CollectMode:
    """A mode that calls each of the modes, to act for its half of the rows."""

    def start(obs: Tensor, first: int = 0) -> Any:
        n_row = obs.shape[1]
        return JointActing(
            [mode.start(obs[:, rows], first + rows.start) for mode, rows in zip(modes, halves(n_row), strict=True)]
        )

    def process_transition(obs: Tensor, output: dict[str, Any], steps: Any) -> Any:
        parts = []
        for mode, rows in zip(modes, halves(obs.shape[1]), strict=True):
            own_steps = steps._replace(
                **{name: x[:, rows] for name, x in steps._asdict().items() if isinstance(x, Tensor)}
            )
            own_output = map_tensors(lambda x, rows=rows: x[:, rows], output)
            parts.append(mode.process_transition(obs[:, rows], own_output, own_steps))
        return map_tensors(lambda *xs: torch.cat(xs, 1), *parts)

    def reset() -> None:
        for mode in modes:
            mode.reset()

    def begin(collect_iter: int, env_step: int | None = None) -> None:
        for mode in modes:
            mode.begin(collect_iter, env_step)

    return modes[0]._replace(start=start, process_transition=process_transition, reset=reset, begin=begin)


def rows_of(rollout: Rollout, rows: slice) -> Rollout:
    """The rollout of some of its envs."""
    env = rollout.final_index[:, 1]
    is_own = (env >= rows.start) & (env < rows.stop)
    return Rollout(
        map_tensors(lambda x: x[:, rows], rollout.data),
        map_tensors(lambda x: x[rows], rollout.last_obs),
        map_tensors(lambda x: x[is_own], rollout.final_obs),
        rollout.final_index[is_own] - torch.tensor([0, rows.start]),
    )


class HalvesCollector(Collector):
    """Gives each learner the rollout of its half of the rows."""

    def __init__(self, envs: Any, modes: Mapping[str, CollectMode], infos: InfoKeys, first: int) -> None:
        super().__init__(envs, joint_collect_mode(list(modes.values())), infos, first)
        self._names = list(modes)

    def collect_by_name(self) -> dict[str, Rollout]:
        whole = self.collect()
        return {name: rows_of(whole, rows) for name, rows in zip(self._names, halves(self.n_env), strict=True)}


class HalvesEvaluator(Evaluator):
    """Evaluates each policy on its half of the envs, each of which plays one episode."""

    def __init__(self, env: AnyVectorEnv, modes: Mapping[str, EvalMode], n_episode: int, limit: int | None) -> None:
        self._names = list(modes)
        self._rows = halves(n_episode)

        def forward(obs: Tensor, state: Any) -> dict[str, Any]:
            parts = zip(modes.values(), self._rows, strict=True)
            return {'action': torch.cat([mode.forward(obs[rows], None)['action'] for mode, rows in parts])}

        super().__init__(env, EvalMode(forward), n_episode, limit)

    def evaluate(self, *args: Any, **options: Any) -> Evaluation | None:
        whole = super().evaluate(*args, **options)
        assert whole is not None, 'nothing stops it'
        learners = {
            name: Evaluation(whole.returns[rows], whole.lengths[rows])
            for name, rows in zip(self._names, self._rows, strict=True)
        }
        return whole._replace(learners=learners)


class TwoPolicies(Roster):
    """The learner of the config for the first half of the rows, and 'prey', a small ppg policy, for the second."""

    def __init__(self, names: Sequence[str] = ('', PREY)) -> None:
        self._names = names

    def configs(self, cfg: JobConfig) -> dict[str, JobConfig]:
        ppg = resolve_config(
            dict(
                env=dict(id=cfg.env.id, collector_env_num=cfg.env.collector_env_num // 2),
                policy=dict(
                    type='ppg',
                    model=dict(hidden_sizes=[6]),
                    learn=dict(aux_freq=3, batch_size=32, aux_batch_size=32),
                    collect=dict(n_step=cfg.policy.collect.n_step),
                ),
            )
        )
        collect = cfg.policy.collect
        own_collect = collect.model_copy(update={'n_sample': collect.n_sample // 2})
        first, *others = self._names
        configs = {first: cfg.model_copy(update={'policy': cfg.policy.model_copy(update={'collect': own_collect})})}
        for name in others:
            configs[name] = config_of_learner(cfg, name, policy=ppg.policy, buffer=ppg.buffer)
        return configs

    def collector(self, envs: Any, modes: Any, infos: InfoKeys, first: int) -> Collector:
        if len(modes) == 1:
            return super().collector(envs, modes, infos, first)
        return HalvesCollector(envs, modes, infos, first)

    def evaluator(
        self, env: Any, modes: Any, n_episode: int, max_episode_steps: int | None, deterministic: bool, infos: InfoKeys
    ) -> Evaluator:
        if len(modes) == 1:
            return super().evaluator(env, modes, n_episode, max_episode_steps, deterministic, infos)
        return HalvesEvaluator(env, modes, n_episode, max_episode_steps)


@PIPELINE_REGISTRY.register('two_policies_test')
class TwoPoliciesJob(SerialJob):
    """Pipeline that trains two policies together."""

    def roster(self) -> Roster:
        return TwoPolicies()


def two_config(root: Any, **sections: Any) -> dict[str, Any]:
    """8 envs of CartPole, 4 for each of two policies; evaluations of 2 episodes each; 512 env steps are 4 rounds."""
    base: dict[str, Any] = dict(
        max_env_step=512,
        pipeline='two_policies_test',
        env=dict(collector_env_num=8, evaluator_env_num=4, vectorization='sync'),
        policy=dict(eval=dict(eval_freq=256, n_episode=4)),
    )
    for name, section in sections.items():
        base[name] = {**base[name], **section} if name in base and isinstance(section, dict) else section
    return job_config(root, 'CartPole-v1', **base)
