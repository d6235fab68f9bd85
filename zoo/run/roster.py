"""Roster: the learners of a run, and how they share its envs. Here one learner acts for all rows of the envs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.agents.config import AgentsConfig
from zoo.core.errors import UserError, shown
from zoo.core.spaces import Space
from zoo.env import AnyVectorEnv, EnvConfig, check_env
from zoo.policy.base import Policy
from zoo.policy.modes import CollectMode, EvalMode
from zoo.run.base_config import JobConfig
from zoo.run.learner import SINGLE, Learner
from zoo.run.observers.base import Observer
from zoo.worker.collector import Collector
from zoo.worker.evaluation_env import refuse_other_spaces
from zoo.worker.evaluator import Evaluator, Player
from zoo.worker.infos import InfoKeys

logger = logging.getLogger(__name__)
# keys of section `policy` that need rollouts with a column for each env, and their values without that need
_NEEDS_ROWS = {
    'collect.batch_mode': 'fragment',
    'learn.intrinsic': None,
    'learn.constraint': None,
    'learn.baseline': 'critic',
}


class Roster:
    """Names the learners of a run, and makes the collector and the evaluators in which their policies act together.

    This one has a single learner. For a run of several policies override `configs`, `collector` and `evaluator`, and
    the others where the policies differ; `SerialJob.roster` returns the
    roster of a run. The first learner counts as that of the run wherever only one can: the config names its sections, it
    takes a policy or a model that is given, and main checkpoints have its state.

    Attributes: has_idle_rows: whether rows of rollouts may be idle, such as those of agents that wait for their turns.
    """

    has_idle_rows = False

    @property
    def return_of(self) -> str:
        """Whose return counts as that of an episode, in words, in an env of several agents: 'mean over 3 agents'; else ''."""
        return ''

    def configs(self, cfg: JobConfig) -> dict[str, JobConfig]:
        """The config of each learner, by name: that of the run with the learner's own sections `policy` and `buffer`.

        In each, policy.collect.n_sample is the number of samples of its own rows. See `zoo.run.learner.config_of_learner`.
        Args: cfg: of the run; with several ranks, that of this rank.
        """
        return {SINGLE: cfg}

    def learns(self, name: str) -> bool:
        """Whether a learner is trained; a frozen opponent is not."""
        return True

    def spaces(self, name: str, env: AnyVectorEnv) -> tuple[Space, Space]:
        """The observation space and the action space of a learner's policy."""
        return env.obs_space, env.action_space

    def env(self, section: EnvConfig) -> EnvConfig:
        """The section from which envs of the run are made, for that section of the config."""
        return section

    def check_env(self, section: EnvConfig, before_run: bool = False) -> None:
        """Takes some steps in an env of a section of the config. Args, raises: as of `zoo.env.check_env`."""
        check_env(section, before_run=before_run)

    def check_evaluation_env(self, policies: Mapping[str, Policy], env: AnyVectorEnv, where: str) -> None:
        """Raises: UserError if the policies do not fit an evaluation env. Args: where: the config section that names it."""
        for policy in policies.values():
            refuse_other_spaces(policy, env, where)

    def meet(self, learners: Mapping[str, Learner]) -> None:
        """Called once, with the learners of the run, before evaluators and collectors are made."""

    def collector(
        self, envs: Sequence[AnyVectorEnv], modes: Mapping[str, CollectMode], infos: InfoKeys, first: int
    ) -> Collector:
        """Makes the collector, whose `collect_by_name` gives the rollout of each learner that is trained.

        Args: as of `Collector`, with the collect mode of each policy.
        """
        (mode,) = modes.values()
        return Collector(envs, mode, infos, first)

    def why_not_runners(self, n_learner: int) -> str:
        """The reason why runners cannot collect for these learners, as a clause; '' if they can. See `joining_collector`."""
        if n_learner == 1:
            return ''
        return f'the run has {n_learner} policies, and runners act with one'

    def joining_collector(
        self, source: Collector, envs: Sequence[Any], modes: Mapping[str, CollectMode], first: int
    ) -> Collector:
        """Makes the collector of a run with runners, each of which has one of `collector`, whose blocks are joined.

        Args: source: fills the joined blocks; envs: those of each runner, which this process sends commands; others: as of
          `collector`.
        """
        return source

    def evaluator(
        self,
        env: AnyVectorEnv,
        modes: Mapping[str, EvalMode],
        n_episode: int,
        max_episode_steps: int | None,
        deterministic: bool,
        infos: InfoKeys,
    ) -> Evaluator:
        """Makes the evaluator of one set of envs; its `Evaluation` may have one of each learner, in `learners`.

        Args: as of `Evaluator`, with the eval mode of each policy.
        """
        (mode,) = modes.values()
        return Evaluator(env, mode, n_episode, max_episode_steps, deterministic=deterministic, infos=infos)

    def player(self, policies: Mapping[str, Policy]) -> Player:
        """The policies as recordings take them. Args: policies: of all learners, by name."""
        (policy,) = policies.values()
        return Player(policy)

    def observers(self) -> Sequence[Observer]:
        """Further observers of the run."""
        return ()

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint has of it; empty where it has none."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], run_dir: Path) -> None:
        """Restores a state from `state_dict`. Args: run_dir: the folder of the run that saved it."""


ONE_LEARNER = Roster()


class OneColumnRoster(Roster):
    """Roster of a run whose rollouts have the steps of all envs in one column, one env after the other.

    Args: given: the setting that makes them so, for messages, e.g. 'env.ready_num is 4'.
    """

    def __init__(self, given: str) -> None:
        self.given = given

    def meet(self, learners: Mapping[str, Learner]) -> None:
        """Raises: UserError if the samples of a learner need rollouts with a column for each env."""
        for learner in learners.values():
            cfg = learner.cfg.policy
            if getattr(learner.policy, 'has_state', False):
                raise UserError(
                    f'{self.given} but the policy has a memory, whose sequences need the steps of an env in a column of its '
                    'own; leave one of the two out, or use windows of observations (env.window)'
                )
            for key, plain in _NEEDS_ROWS.items():
                section, _, name = key.rpartition('.')
                value = cfg[section].get(name, plain)
                if value != plain:
                    raise UserError(
                        f'{self.given} but policy.{key} is {shown(value)}, which reads the steps of each env in a column of '
                        'its own; leave one of the two out'
                    )


class ReadyRoster(OneColumnRoster):
    """The roster of a run whose envs step asynchronously (env.ready_num). Args: cfg: of the run."""

    def __init__(self, cfg: JobConfig) -> None:
        self._n_ready = cfg.env.ready_num
        super().__init__(f'env.ready_num is {self._n_ready}')

    def why_not_runners(self, n_learner: int) -> str:
        return f'env.ready_num is {self._n_ready}, and runners step their envs together'

    def collector(
        self, envs: Sequence[AnyVectorEnv], modes: Mapping[str, CollectMode], infos: InfoKeys, first: int
    ) -> Collector:
        from zoo.worker.ready_collector import ReadyCollector

        if infos.step:
            raise UserError(
                f'env.ready_num is {self._n_ready} but logger.info_step_keys is {list(infos.step)}, means over steps that '
                'come together; use logger.info_keys'
            )
        (mode,) = modes.values()
        logger.info(
            'env.ready_num is %d: the envs that answer first are acted for first, so neither a second run with this seed nor '
            'a resume repeats a run bit for bit',
            self._n_ready,
        )
        return ReadyCollector(envs, mode, infos, first)


def refuse_ready_agents(cfg: JobConfig) -> None:
    """Raises: UserError if a run of several agents has env.ready_num."""
    if cfg.env.ready_num is not None:
        raise UserError(
            f'env.ready_num is {cfg.env.ready_num} but the run has several agents, whose envs step together; leave it out'
        )


def refuse_agents(cfg: JobConfig, given: str) -> None:
    """Raises: UserError if a run has several agents. Args: given: the setting that takes one, for the message."""
    if cfg.agents != AgentsConfig():
        raise UserError(f'{given} but section agents is set, and only one agent is served; leave one of the two out')
