"""Roster of a run in which a policy plays against itself: its league draws the opponents and rates them."""

from __future__ import annotations

import copy
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zoo.agents.actors import Actor
from zoo.agents.collector import AgentCollector
from zoo.agents.config import SHARED, AgentsConfig
from zoo.agents.exploitability import NotExactError, Play, play_of, tree_of
from zoo.agents.layout import Layout, by_function
from zoo.agents.match import Contestant
from zoo.agents.self_play import BUILT_IN, MAIN, League, SelfPlayConfig, fixed_name, slot_name
from zoo.agents.stage import look_at_agents, refuse_keys_of_single_envs
from zoo.config.section import ConfigError
from zoo.config.user_code import names_code
from zoo.config.yaml_io import storable
from zoo.core.errors import UserError
from zoo.env import AnyVectorEnv
from zoo.policy.base import Policy
from zoo.policy.modes import CollectMode, EvalMode
from zoo.run.agents_player import AgentsPlayer
from zoo.run.agents_roster import AgentsRoster
from zoo.run.base_config import JobConfig
from zoo.run.checkpoint import CheckpointError, Trust, malformed, shown
from zoo.run.checkpoint.consent import modules_of
from zoo.run.learner import Learner
from zoo.run.observers.base import Observer, RunView
from zoo.run.policy_file import load_policy
from zoo.run.result import TrainResult
from zoo.worker.collector import Collector
from zoo.worker.evaluator import Player
from zoo.worker.infos import InfoKeys

logger = logging.getLogger(__name__)


class SelfPlayRoster(AgentsRoster):
    """One learner, MAIN, and its opponents: itself, snapshots of its past, and fixed ones.

    Args: cfg: of the run, with agents.self_play.   Raises: ConfigError for keys that do not go with it, or for one agent.
    """

    def __init__(self, cfg: JobConfig) -> None:
        section = cfg.agents.self_play
        assert section is not None, 'it asks for self-play'
        defaults = AgentsConfig()
        for key in ('policies', 'mapping', 'train', 'team'):
            if getattr(cfg.agents, key) != getattr(defaults, key):
                raise ConfigError(
                    f'agents.{key} and agents.self_play are both set, but self-play has one policy and draws its opponents itself; '
                    f'leave agents.{key} out, or agents.self_play.'
                )
        _refuse_no_opponent(section)
        refuse_keys_of_single_envs(cfg.env)
        self._shared = cfg.agents.model_copy(update={'self_play': None, 'score': None})
        layout = look_at_agents(cfg.env, self._shared)
        if len(layout.agents) < 2:
            raise ConfigError('agents.self_play is set but the env has one agent; leave it out.')
        self.league = league = League(section, layout.agents, cfg.seed, self._eval_mode_of)
        self._exact: LeagueExploitability | None = None
        if section.exploitability:
            self._exact = LeagueExploitability(cfg, self._snapshot_policy)
        changes: dict[str, Any] = {'policies': league.policies, 'mapping': league.policy_of, 'self_play': None}
        agents = cfg.agents.model_copy(update=changes)
        super().__init__(cfg.model_copy(update={'agents': agents}), by_function(layout, agents, [MAIN]))
        self._n_slot = section.slots
        self._modules = modules_of(storable(cfg))
        self._policy: Policy | None = None

    def meet(self, learners: Mapping[str, Learner]) -> None:
        (learner,) = learners.values()
        self._policy = learner.policy
        initial_state = learner.policy.eval_mode.initial_state
        for i in range(self._n_slot):
            self._actors[slot_name(i)] = Actor(self.league.slot_mode(i, initial_state), draws=True)

    def collector(
        self, envs: Sequence[AnyVectorEnv], modes: Mapping[str, CollectMode], infos: InfoKeys, first: int
    ) -> Collector:
        collector = super().collector(envs, modes, infos, first)
        assert isinstance(collector, AgentCollector), 'the roster of several agents makes it'
        collector.league = self.league
        return collector

    def why_not_runners(self, n_learner: int) -> str:
        return 'agents.self_play is set, whose opponents only this process has'

    def configs(self, cfg: JobConfig) -> dict[str, JobConfig]:
        if cfg.env.collector_env_num != self._cfg.env.collector_env_num:
            raise ConfigError(
                'agents.self_play is set but several ranks train together, and each would rate its own opponents; train in one '
                'process.'
            )
        return super().configs(cfg)

    def _evaluation_layout(self) -> Layout:
        """The rows of the policy and the first fixed opponent, if there is one."""
        playing = [MAIN]
        if self.league.fixed:
            playing.append(fixed_name(0))
        return replace(
            self._layout,
            groups=tuple(group for group in self._layout.groups if group.policy in playing),
            mapping=self.league.evaluation_policy_of,
        )

    def player(self, policies: Mapping[str, Policy]) -> Player:
        """The policy in all seats."""
        (policy,) = policies.values()
        return AgentsPlayer({SHARED: policy}, self._shared)

    def observers(self) -> Sequence[Observer]:
        return [LeagueObserver(self.league, self._exact)]

    def state_dict(self) -> dict[str, Any]:
        return self.league.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], run_dir: Path) -> None:
        if not state:
            return
        folder = run_dir / 'league'
        try:
            self.league.load_state_dict(state, folder)
        except UserError:
            raise
        except (LookupError, TypeError, ValueError) as error:
            raise malformed(folder, f'the results of its games cannot be read ({shown(str(error))})') from error

    def _eval_mode_of(self, path: Path, is_own: bool) -> EvalMode:
        """The eval mode of a snapshot. Args: as of `_snapshot_policy`."""
        return self._snapshot_policy(path, is_own).eval_mode

    def _snapshot_policy(self, path: Path, is_own: bool = False) -> Policy:
        """The policy of a snapshot. Args: is_own: this process wrote it; else it may name no code that the run does not."""
        policy = self._policy
        assert policy is not None, 'snapshots are taken and restored once the learner is there'
        trust: Trust = self._modules
        if is_own:
            trust = True
        model = None
        if policy.given_model is not None:
            model = copy.deepcopy(policy.model)
        snapshot = load_policy(path, trust=trust, model=model)
        if (snapshot.obs_space, snapshot.action_space) != (policy.obs_space, policy.action_space):
            raise CheckpointError(path, 'is of a policy with other spaces than those of the run; use its own snapshots')
        return snapshot


def _refuse_no_opponent(section: SelfPlayConfig) -> None:
    """Raises: ConfigError for a fixed opponent that is neither a player of zoo's own, nor code, nor a path."""
    for name in section.fixed:
        if name not in BUILT_IN and not names_code(name) and not Path(name).exists():
            raise ConfigError(
                f"agents.self_play.fixed has {shown(name)!r} but opponents are 'random', 'one_move_ahead', 'module:function' "
                'or the folder of a run; correct it.'
            )


class LeagueObserver(Observer):
    """Takes the first snapshot when the run begins, further ones when they are due, and shows the ratings at its end.

    The file of a snapshot stays as long as a checkpoint of the run names it, so that a run may continue from each of them.
    """

    def __init__(self, league: League, exact: LeagueExploitability | None = None) -> None:
        self._league = league
        self._exact = exact
        self._named: dict[Path, set[int]] = {}  # the snapshots that each checkpoint needs

    def on_start(self, job: RunView) -> None:
        folder = job.run_dir / 'league'
        before = self._league.folder
        if before is not None and before.resolve() != folder.resolve():  # a resumed run in a new folder
            folder.mkdir(parents=True, exist_ok=True)
            for step in self._league.snapshots:
                shutil.copy2(before / f'{step}.safetensors', folder)
        self._league.folder = folder
        for checkpoint in (job.run_dir / 'checkpoints').glob('*.safetensors'):
            self._named[checkpoint] = set(_snapshot_files(folder))
        self._take_if_due(job)
        if self._exact is not None:
            self._exact.measure(self._league)  # also of a run that continues

    def after_round(self, job: RunView) -> None:
        self._take_if_due(job)

    def on_checkpoint(self, job: RunView, path: Path) -> None:
        self._named[path] = set(self._league.snapshots)
        self._named = {checkpoint: steps for checkpoint, steps in self._named.items() if checkpoint.exists()}
        needed = self._league.snapshots.keys() | set().union(*self._named.values())
        for step, file in _snapshot_files(job.run_dir / 'league').items():
            if step not in needed:
                file.unlink(missing_ok=True)

    def on_end(self, job: RunView, result: TrainResult) -> None:
        logger.info('ratings (Elo):\n%s', self._league.table())

    def _take_if_due(self, job: RunView) -> None:
        if self._league.is_due(job.env_step):
            self._league.take(job.policy.save, job.env_step)
            if self._exact is not None:
                self._exact.measure(self._league)


class LeagueExploitability:
    """Measures the exploitability of the newest snapshot of a league, and of the average of all its snapshots.

    Args: cfg: of the run; load: the policy of a snapshot.   Raises: ConfigError for a game of which it cannot be computed.
    """

    def __init__(self, cfg: JobConfig, load: Callable[[Path], Policy]) -> None:
        try:
            self._tree = tree_of(cfg.env)
        except NotExactError as error:
            raise ConfigError(f'agents.self_play.exploitability is true but {error}; leave it out.') from error
        self._cfg = cfg
        self._load = load
        self._plays: dict[int, Play] = {}

    def measure(self, league: League) -> None:
        """Measures the snapshots that the league has now, into its metrics."""
        plays = {}
        for step in league.snapshots:
            if step in self._plays:
                plays[step] = self._plays[step]
            else:
                plays[step] = self._play_of(self._load(league.path(step)))
        self._plays = plays
        newest = self._tree.measure(plays[max(plays)])
        average = self._tree.measure(self._tree.average(list(plays.values())))
        league.exact = {
            'league/exploitability': newest.exploitability,
            'league/exploitability_of_average': average.exploitability,
            'league/value': newest.value,
        }

    def _play_of(self, policy: Policy) -> Play:
        agents = self._cfg.agents
        try:
            return play_of(Contestant(MAIN, policy, state=agents.state, pad=agents.pad), self._cfg.env, self._tree)
        except NotExactError as error:
            raise ConfigError(f'agents.self_play.exploitability is true but {error}; leave it out.') from error


def _snapshot_files(folder: Path) -> dict[int, Path]:
    """The files of snapshots in a folder, by env step."""
    return {int(file.stem): file for file in folder.glob('*.safetensors') if file.stem.isdecimal()}
