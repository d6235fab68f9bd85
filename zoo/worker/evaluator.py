"""Evaluation of a policy: whole episodes on separate envs; returns, lengths and the envs' own numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from zoo.core.errors import UserError, shown
from zoo.core.registry import TOOL_REGISTRY
from zoo.core.seeding import child_of, stream
from zoo.env import AnyVectorEnv, Timestep
from zoo.env.errors import SeveralAgentsError
from zoo.policy.base import Policy
from zoo.policy.config import MAX_EPISODE_STEPS
from zoo.policy.modes import EvalMode
from zoo.policy.sequences import begins_of, replace_rows
from zoo.worker.evaluation_env import open_env, refuse_other_spaces
from zoo.worker.infos import ALL_NUMBERS, InfoKeys, InfoReader, success_of


class Evaluation(NamedTuple):
    """Undiscounted returns of raw rewards and lengths in env steps, one per episode, those of the first env first."""

    returns: list[float]
    lengths: list[int]
    cut: Sequence[bool] = ()
    """Whether each episode was cut off, see `Evaluator`; empty: none was."""
    infos: dict[str, list[float]] = {}  # noqa: RUF012
    """The env's own numbers by key of its info, one per episode; nan where an episode had none."""
    sets: dict[str, Evaluation] = {}  # noqa: RUF012
    """The evaluations of policy.eval.sets, by name."""
    learners: dict[str, Evaluation] = {}  # noqa: RUF012
    """The parts of the learners in this evaluation, by name, in a run with several policies."""
    agents: dict[str, list[float]] = {}  # noqa: RUF012
    """The returns of each agent, one per episode, where an env has several."""
    return_of: str = ''
    """Whose return is that of an episode, in words, where an env has several agents: 'mean over 3 agents'."""

    @property
    def n_cut(self) -> int:
        """Episodes that were cut off."""
        return sum(self.cut)

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def return_std(self) -> float:
        """Standard deviation over episodes."""
        return float(np.std(self.returns))

    @property
    def return_min(self) -> float:
        return min(self.returns)

    @property
    def return_max(self) -> float:
        return max(self.returns)

    @property
    def length_mean(self) -> float:
        """Mean length, env steps."""
        return float(np.mean(self.lengths))

    @property
    def success_rate(self) -> float | None:
        """Share of episodes whose last info says `is_success` (or `success`); None if none says either."""
        return success_of({key: found for key in self.infos if (found := self.info_mean(key)) is not None})

    def return_quantile(self, q: float) -> float:
        """The q-quantile of the returns, q in [0, 1], by linear interpolation between two returns."""
        return float(np.quantile(self.returns, q))

    def info_mean(self, key: str) -> float | None:
        """Mean of one of the env's own numbers, over the episodes that had it; None if none had."""
        values = [value for value in self.infos.get(key, []) if not math.isnan(value)]
        if values:
            return float(np.mean(values))
        return None

    def rows(self) -> list[dict[str, Any]]:
        """One dict per episode: episode, return, length, cut, the env's own numbers by key, and of several agents the returns.

        All have the same keys; the return of an agent is `agent/NAME`.
        """
        cut = self.cut or [False] * len(self.returns)
        numbers = {**self.infos, **{f'agent/{name}': returns for name, returns in self.agents.items()}}
        return [
            episode_row(i, self.returns[i], self.lengths[i], cut[i], {key: x[i] for key, x in numbers.items()})
            for i in range(len(self.returns))
        ]

    def metrics(self) -> dict[str, float]:
        """The metrics for the log, without the group's name 'eval/'; those of sets and learners as 'name/return_mean'."""
        means = {f'info/{key}_mean': self.info_mean(key) for key in self.infos} | {'success_rate': self.success_rate}
        found = {
            'return_mean': self.return_mean,
            'return_std': self.return_std,
            'return_min': self.return_min,
            'return_max': self.return_max,
            'episode_len_mean': self.length_mean,
            'episode_cut': self.n_cut,
            **{name: mean for name, mean in means.items() if mean is not None},
        }
        if self.agents:
            found['team_return_mean'] = float(np.sum(list(self.agents.values()), 0).mean())
            if len(self.agents) <= MOST_AGENTS:
                found |= {f'agent/{name}/return_mean': float(np.mean(returns)) for name, returns in self.agents.items()}
        for name, evaluation in (*self.sets.items(), *self.learners.items()):
            found |= {f'{name}/{metric}': value for metric, value in evaluation.metrics().items()}
        return found


def episode_row(episode: int, return_: float, length: int, cut: bool, infos: Mapping[str, float]) -> dict[str, Any]:
    """The row of one episode; an info entry with the name of one of the first four keys becomes 'info/<name>'."""
    row: dict[str, Any] = {'episode': episode, 'return': return_, 'length': length, 'cut': bool(cut)}
    return row | {f'info/{key}' if key in row else key: value for key, value in infos.items()}


MOST_AGENTS = 16  # whose returns the log has one by one
CHECK_EVERY = 1000  # steps; an env whose state is nan may never end its episode
LONG = 10_000  # steps of an episode after which the log says that it continues; few tasks have longer episodes
SAMPLING = 1 << 30  # child of an evaluation's seed for drawn actions; those of the envs have smaller numbers
EpisodeCallback = Callable[[dict[str, Any]], object]
logger = logging.getLogger(__name__)


class Evaluator:
    """Runs n_episode whole episodes, a fixed share of them in each env.

    The share is fixed because taking the first n_episode that end would favour short episodes.

    Args:
      max_episode_steps: env steps after which an episode is cut off: it counts, with what it has earned so far. None:
        never, and an episode may last for ever.
      deterministic: whether the mode's greedy actions are taken; else actions are drawn, from the seed of `evaluate`.
      infos: which of the env's own numbers are kept.   quiet: whether cut-off and long episodes give no warning.
    Attributes: env: the evaluation envs; first_copy: number of the first of them among those of all ranks.
    Raises: UserError if actions are to be drawn but the policy draws none.
    """

    first_copy = 0

    def __init__(
        self,
        env: AnyVectorEnv,
        mode: EvalMode,
        n_episode: int,
        max_episode_steps: int | None = MAX_EPISODE_STEPS,
        *,
        deterministic: bool = True,
        infos: InfoKeys = ALL_NUMBERS,
        quiet: bool = False,
    ) -> None:
        self.env = env
        self._mode = mode
        self._limit = max_episode_steps
        share, rest = divmod(n_episode, env.n_env)
        self._quota = np.array([share + (i < rest) for i in range(env.n_env)])
        self._has_warned = self._has_told = quiet
        if deterministic:
            self._sample = None
        else:
            self._sample = mode.sample
        if not deterministic and mode.sample is None:
            raise UserError(
                'actions are to be drawn in evaluation (deterministic=false) but the policy has no _forward_sample(obs, '
                'state, generator); write it, or evaluate deterministic actions'
            )
        env.request_infos(infos.step)
        self._infos = InfoReader(infos, env.n_env, env.autoreset)

    def evaluate(
        self,
        seed: np.random.SeedSequence,
        stop: Callable[[], bool] = lambda: False,
        callback: EpisodeCallback | None = None,
    ) -> Evaluation | None:
        """Runs all episodes on envs seeded by `seed`; returns None if `stop` became true before they had ended.

        callback: called with the row of each episode when it ends, see `Evaluation.rows`.
        """
        tally = self._new_tally(callback)
        n_round = 0
        generator = torch.Generator().manual_seed(int(child_of(seed, SAMPLING).generate_state(1, np.uint64)[0]) >> 1)
        while tally.n_left.any():  # a second time only after episodes were cut off: no env can be reset alone
            if n_round == 0:
                first = seed
            else:
                first = child_of(seed, self.env.n_env + n_round)
            if not self._play(first, generator, tally, stop):
                return None
            n_round += 1
        self.env.check()
        evaluation = tally.evaluation()
        if evaluation.n_cut and not self._has_warned:
            self._has_warned = True
            logger.warning(
                '%d of %d evaluation episodes of %s had not ended after %s steps and were cut off; if they never end, '
                'set env.max_episode_steps, else raise policy.eval.max_episode_steps',
                evaluation.n_cut,
                len(evaluation.returns),
                self.env.name,
                self._limit,
            )
        return evaluation

    def _new_tally(self, callback: EpisodeCallback | None) -> Tally:
        return Tally(self._quota, self._limit, self._infos, callback)

    def _play(
        self, seed: np.random.SeedSequence, generator: torch.Generator, tally: Tally, stop: Callable[[], bool]
    ) -> bool:
        """Plays from a reset until each env had its share of episodes, or one was cut off; False if it was stopped."""
        n_env = self.env.n_env
        obs = self.env.reset(seed)
        n_step = 0
        if self._mode.initial_state is None:
            initial = None
        else:
            initial = self._mode.initial_state(n_env)
        state = initial
        to_env = self._mode.env_action
        tally.begin()
        while tally.plays.any():
            if stop():
                return False
            n_step += 1
            if n_step % CHECK_EVERY == 0:
                self.env.check()
            if n_step == LONG:
                self._tell_of_long_episodes(tally)
            sample = self._sample
            if sample is None:
                output = self._mode.forward(obs, state)
            else:
                output = sample(obs, state, generator)
            action = output['action']
            timestep = self.env.step(action if to_env is None else to_env(action))
            if initial is not None:
                state = replace_rows(begins_of(timestep), initial, output['state'])
            tally.record(timestep)
            obs = timestep.obs
        return True

    def _tell_of_long_episodes(self, tally: Tally) -> None:
        """Warns once of long episodes, since the run logs nothing else meanwhile."""
        n_long = np.count_nonzero(tally.plays & (tally.length > LONG - 2))
        if self._has_told or not n_long or self._limit is not None and self._limit <= LONG:
            return
        self._has_told = True
        end = 'for ever if it never ends (policy.eval.max_episode_steps is null)'
        if self._limit is not None:
            end = f'up to {self._limit:,} steps (policy.eval.max_episode_steps), and is then cut off'
        logger.warning(
            'evaluation: %d episodes of %s have not ended after %s steps; each continues %s. If they never end by '
            'themselves, set env.max_episode_steps',
            n_long,
            self.env.name,
            f'{LONG:,}',
            end,
        )


class Tally:
    """Counts the episodes of each env. Attributes [B]: n_left: episodes still wanted; plays: whether it plays; length: steps."""

    def __init__(
        self, quota: np.ndarray, limit: int | None, reader: InfoReader, callback: EpisodeCallback | None
    ) -> None:
        self.n_left = quota.copy()
        self._limit = limit
        self._reader = reader
        self._callback = callback
        self._episodes: list[list[tuple[float, int, bool, Mapping[str, float]]]] = [[] for _ in quota]
        self._n_episode = 0

    def begin(self) -> None:
        """Called after a reset of all envs."""
        self.plays = self.n_left > 0
        self._total = np.zeros(len(self.plays))
        self.length = np.zeros(len(self.plays), dtype=np.int64)
        self._reader.restart()

    def record(self, timestep: Timestep) -> None:
        if timestep.is_reset is None:
            is_reset = None
        else:
            is_reset = timestep.is_reset.cpu().numpy()
        # of the game, if training changes them
        reward = timestep.raw_reward
        end = timestep.raw_end
        ended = (timestep.terminated | timestep.truncated if end is None else end).cpu().numpy()
        self._total += (timestep.reward if reward is None else reward).cpu().numpy()
        if is_reset is None:
            self.length += 1
        else:
            self.length += ~is_reset
        numbers = self._reader.read(timestep.info or {}, ended, is_reset)
        for b in ended.nonzero()[0].tolist():
            is_broken = timestep.is_broken is not None and bool(timestep.is_broken[b])  # another episode replaces it
            if self.plays[b] and not is_broken:
                self._count(b, False, numbers.get(b, {}))
                self.plays[b] = self.n_left[b] > 0
            self._total[b] = 0.0
            self.length[b] = 0
        if self._limit is not None and self.length.max() >= self._limit:
            for b in (self.plays & (self.length >= self._limit)).nonzero()[0].tolist():
                self._count(b, True, self._reader.means(b))
                self.plays[b] = False

    def evaluation(self) -> Evaluation:
        """The episodes counted, those of the first env first."""
        episodes = [episode for env in self._episodes for episode in env]
        keys = dict.fromkeys(key for *_, numbers in episodes for key in numbers)
        returns, lengths, cut, infos = map(list, zip(*episodes, strict=True))
        by_key = {key: [numbers.get(key, float('nan')) for numbers in infos] for key in keys}
        return Evaluation(returns, lengths, cut if any(cut) else (), by_key)

    def _count(self, b: int, is_cut: bool, numbers: Mapping[str, float]) -> None:
        episode = float(self._total[b]), int(self.length[b]), is_cut, numbers
        self._episodes[b].append(episode)
        self.n_left[b] -= 1
        if self._callback is not None:
            self._callback(episode_row(self._n_episode, *episode))
        self._n_episode += 1


class Player:
    """A policy as evaluations and recordings take it. That of an env of several agents has several, which act together.

    Attributes: policy: the one whose options of evaluation count.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def seated(self, env: object) -> tuple[object, Player]:
        """The env to make and the player that plays it, for an env in any form that `evaluate` takes."""
        return env, self

    def refuse_other_spaces(self, env: AnyVectorEnv) -> None:
        """Raises: UserError if the envs have other spaces than the policy."""
        refuse_other_spaces(self.policy, env)

    def evaluator(
        self, env: AnyVectorEnv, n_episode: int, limit: int | None, deterministic: bool, quiet: bool
    ) -> Evaluator:
        """An evaluator on these envs. Args: as of `Evaluator`; limit: its max_episode_steps."""
        return Evaluator(env, self.policy.eval_mode, n_episode, limit, deterministic=deterministic, quiet=quiet)


Playing = Policy | Mapping[str, Policy] | Player
"""What is evaluated: a policy; the policies of a run with several agents, by name; a player."""
Result = TypeVar('Result')


def player_of(policy: Playing) -> Player:
    """The player for a policy, or for the policies of several agents. Raises: UserError for any other type."""
    if isinstance(policy, Player):
        return policy
    if isinstance(policy, Policy):
        return Player(policy)
    if isinstance(policy, Mapping) and policy and all(isinstance(each, Policy) for each in policy.values()):
        player: Player = TOOL_REGISTRY.get('agents_player')(policy)
        return player
    raise UserError(
        f'policy is {shown(policy)} but must be a policy, e.g. of load_policy or a TrainResult, or a dict of the policies of '
        'several agents, e.g. of load_policies'
    )


def with_player(policy: Playing, play: Callable[[Player], Result]) -> Result:
    """Calls a function with the player for a policy; if the env has several agents, again with one whose policy acts for all."""
    player = player_of(policy)
    try:
        return play(player)
    except SeveralAgentsError:
        if not isinstance(policy, Policy):
            raise
        return play(TOOL_REGISTRY.get('agents_player')({'': policy}))


def evaluate(
    policy: Playing,
    env: object,
    n_episode: int = 10,
    seed: int = 0,
    *,
    deterministic: bool | None = None,
    max_step: int | None = None,
    callback: EpisodeCallback | None = None,
) -> Evaluation:
    """Evaluates a policy over whole episodes, without learning; the same seed gives the same episodes.

    Args:
      policy: in an env of several agents a policy that acts for all, or the policies of a run by name, as of `load_policies`.
      env: the section `env` of a config (a dict, or an EnvConfig), an env's id, a callable that makes one env, or an env or
        vector env of gymnasium's, which is used unmodified and stays open.
      deterministic: take the likeliest action of each state, or draw actions; None: as policy.eval.deterministic says.
      max_step: env steps after which an episode is cut off; None: as policy.eval.max_episode_steps says.
      callback: called with the row of each episode when it ends, a dict with episode, return, length, cut and the env's
        own numbers; `episode` counts in the order in which they end.
    Raises: ConfigError; UserError if the env's spaces are not those of the policy (bounds of a Box may differ), if an
      argument is of another type, or if actions are to be drawn but the policy draws none.
    """
    check_arguments(n_episode, seed, deterministic, max_step, callback)

    def play(player: Player) -> Evaluation:
        options = player.policy.cfg.eval
        draws_none = options.deterministic
        if deterministic is not None:
            draws_none = deterministic
        limit = options.max_episode_steps
        if max_step is not None:
            limit = max_step
        stage, seated = player.seated(env)
        with open_env(stage, player.policy, n_episode) as vector:
            seated.refuse_other_spaces(vector)
            # the caller of max_step wants episodes cut off
            evaluator = seated.evaluator(vector, n_episode, limit, draws_none, quiet=max_step is not None)
            evaluation = evaluator.evaluate(stream(seed, 'evaluate'), callback=callback)
        assert evaluation is not None, 'nothing stops it'
        return joined_evaluations([evaluation])

    return with_player(policy, play)


def check_arguments(n_episode: object, seed: object, deterministic: object, max_step: object, callback: object) -> None:
    """Raises: UserError for an argument of another type than `evaluate` takes."""
    for name, number, least in (('n_episode', n_episode, 1), ('seed', seed, 0), ('max_step', max_step, 1)):
        if (number is not None or name != 'max_step') and (not isinstance(number, Integral) or number < least):
            raise UserError(f'{name} is {shown(number)} but must be an integer >= {least}')
    if deterministic is not None and not isinstance(deterministic, bool):
        raise UserError(
            f'deterministic is {shown(deterministic)} but must be True, False, or None for what the config says'
        )
    if callback is not None and not callable(callback):
        raise UserError(
            f'callback is {shown(callback)} but must be a function that takes the row of an episode, a dict'
        )


OnEvaluation = Callable[[int, Evaluation], str | None]


def joined_evaluations(parts: Sequence[Evaluation]) -> Evaluation:
    """Joins the evaluations of several ranks; the episodes of the first rank come first. Raises: UserError if none counts."""
    if not any(part.returns for part in parts):
        raise UserError(
            'no episode of the evaluation counts: the policy of agents.score, or the only one that learns, had no agent in any '
            'of them; use more episodes (policy.eval.n_episode), or agents.score=team'
        )
    if len(parts) == 1:
        return parts[0]
    n_each = [len(part.returns) for part in parts]
    keys = dict.fromkeys(key for part in parts for key in part.infos)
    infos = {
        key: [x for part, n in zip(parts, n_each, strict=True) for x in part.infos.get(key, [float('nan')] * n)]
        for key in keys
    }
    cut = [x for part, n in zip(parts, n_each, strict=True) for x in (part.cut or [False] * n)]
    learners: dict[str, list[Evaluation]] = {}  # of the ranks in whose episodes each has agents
    for part in parts:
        for name, evaluation in part.learners.items():
            learners.setdefault(name, []).append(evaluation)
    return Evaluation(
        [x for part in parts for x in part.returns],
        [x for part in parts for x in part.lengths],
        cut,
        infos,
        {name: joined_evaluations([part.sets[name] for part in parts]) for name in parts[0].sets},
        {name: joined_evaluations(of_learner) for name, of_learner in learners.items()},
        {name: [x for part in parts for x in part.agents[name]] for name in parts[0].agents},
        parts[0].return_of,
    )
