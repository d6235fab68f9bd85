"""Checks of an env of several agents in a few steps with legal moves, and what they tell about the env."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch

from zoo.agents.game import AgentGame, Turn
from zoo.agents.games import game_of, make_game
from zoo.agents.layout import why_not_padded
from zoo.core.action_map import ActionMap
from zoo.core.errors import UserError, listed, show_error
from zoo.core.registry import TOOL_REGISTRY
from zoo.core.seeding import child_seeds
from zoo.core.spaces import ACTION_MASK, mask_size, space_words
from zoo.env.adapter import convert_space
from zoo.env.calls import env_call
from zoo.env.config import EnvConfig
from zoo.env.errors import STOPS, BrokenContractError, EnvContractError, EnvError, Place, add_place, show_value
from zoo.env.inspection.check import SEED_DO, OutsideError, ToleratedError, checked_leaves, refused
from zoo.env.inspection.family import MAX_REPLAY, SEED, Finding, Range, Recorder, not_repeated, random_actions
from zoo.env.inspection.inspect import EnvReport
from zoo.env.make import env_name
from zoo.env.masks import ChoiceCheck
from zoo.env.validation import action_of

logger = logging.getLogger(__name__)
MOST_LISTED = 8
Seen = dict[str, Any]
"""The values of one step, by what they are; equal if the seed repeats the episode."""


def check_agents(cfg: EnvConfig, n_step: int = 10, before_run: bool = False) -> list[str]:
    """Makes an env of several agents and takes steps with legal random moves; the first of them twice, with the same seed.

    Args: before_run: leaves out warnings that a run gives by itself.
    Returns: warnings, one sentence each, which are also logged.
    Raises: EnvContractError that names env, step, what was got, what was wanted and what to do; errors of `make_game`.
    """
    with closing(make_game(cfg)) as game:
        found = GameCheck(game, cfg).run(n_step)
    for finding in found:
        if finding.is_chance and cfg.check == 'strict':
            raise EnvContractError(refused(finding.sentence))
    sentences = [finding.sentence for finding in found if not (before_run and finding.is_of_runs)]
    for sentence in sentences:
        logger.warning('%s', sentence)
    return sentences


class GameCheck:
    """The checks of one env of several agents.

    Attributes: recorder: of the steps; the rewards are sums over agents; rewards: of each agent; acting: how many agents acted in
      each step; n_early: agents that ended before their episode; n_late: agents that came after its first step; masks: where
      masks were seen.
    """

    def __init__(self, game: AgentGame, cfg: EnvConfig, recorder: Recorder | None = None) -> None:
        self._game = game
        self._cfg = cfg
        self._name = env_name(cfg)
        self._n_step = 0
        self.recorder = recorder or Recorder(None)
        self.rewards = {agent: Range() for agent in game.agents}
        self.acting: Counter[int] = Counter()
        self.n_early = 0
        self.n_late = 0
        self.masks = 'none'
        self._findings: dict[str, Finding] = {}
        self._rng = torch.Generator()
        self._seed = child_seeds(SEED, 0, 1)[0]
        self._agents = {agent: AgentSpaces(game, agent, self._name, cfg.action_mask) for agent in game.agents}

    def run(self, n_step: int) -> list[Finding]:
        """Runs the check. Returns: warnings. Raises: EnvContractError at a fault; exceptions of the env's own code."""
        try:
            with env_call(f'env {self._name!r}, index 0, in its check'):
                unlike = self._run(n_step)
        except BrokenContractError as broken:
            raise Place(self._name, self._n_step).error(0, *broken.args) from broken
        except STOPS:
            raise
        except BaseException as error:
            add_place(error, Place(self._name, self._n_step).of(0))
            raise
        if unlike is not None:
            self._findings['seed'] = Finding(unlike, is_chance=True)
        return list(self._findings.values())

    def _run(self, n_step: int) -> str | None:
        """Runs the check. Returns: a sentence if the seed does not repeat an episode.

        Runs reset their envs with seeds after other episodes, and after resets: so two resets in a row are judged as well.
        """
        once = [seen for step, seen in enumerate(self._play(n_step, self.recorder)) if step <= MAX_REPLAY]
        self._n_step = 0
        begins = [self._seen(self._reset(self._seed, Recorder(None))) for _ in range(2)]
        for begin, which in zip(begins, ('one after other episodes', 'one right after another'), strict=True):
            differ = _difference(once[0], begin)
            if differ:
                did = f'two resets with seed={self._seed}, the first and {which}, returned {differ}'
                return not_repeated(Place(self._name, 0).of(0), did, SEED_DO)
        again = self._play(len(once) - 1, Recorder(None), is_again=True)
        for step, (was, now) in enumerate(zip(once, again, strict=False)):
            differ = _difference(was, now)
            if differ:
                did = f'two episodes with seed={self._seed} and the same actions differ: {differ}'
                return not_repeated(Place(self._name, step).of(0), did, SEED_DO)
        return None

    def _play(self, n_step: int, recorder: Recorder, is_again: bool = False) -> Iterator[Seen]:
        """Yields what a reset gave, then each step; where an episode ends another begins."""
        self._rng.manual_seed(SEED)
        self._n_step = 0
        turn = self._reset(self._seed, recorder)
        yield self._seen(turn)
        for self._n_step in range(1, n_step + 1):
            actions = {
                agent: self._agents[agent].sample(obs, turn.masks.get(agent), self._rng)
                for agent, obs in turn.acts.items()
            }
            start = time.perf_counter()
            turn = self._game.step(actions)
            seconds = time.perf_counter() - start
            checked = self._checked(turn, 'step')
            if not is_again:
                self._count(turn, len(actions))
            is_over = not turn.acts
            is_terminal = any(end.terminated for end in turn.ended.values())
            reward = sum(turn.rewards.values())
            recorder.stepped(
                seconds, checked, reward, is_over and is_terminal, is_over and not is_terminal, _info(turn)
            )
            seen = self._seen(turn)
            if is_over:
                turn = self._reset(None, recorder)
                seen |= self._seen(turn)
            yield seen
            if recorder.is_over():
                return

    def _reset(self, seed: int | None, recorder: Recorder) -> Turn:
        start = time.perf_counter()
        turn = self._game.reset(seed=seed)
        seconds = time.perf_counter() - start
        if not turn.acts:
            raise BrokenContractError('no agent acts after a reset', 'one or more', 'name them in `agents`')
        self._begun = set(turn.acts)
        recorder.began(seconds, self._checked(turn, 'reset'))
        return turn

    def _count(self, turn: Turn, n_acting: int) -> None:
        self.acting[n_acting] += 1
        for agent, reward in turn.rewards.items():
            if agent in self.rewards:
                self.rewards[agent].add(reward)
        if turn.acts:
            self.n_early += len(turn.ended)
        new = turn.acts.keys() - self._begun
        if n_acting > 1:
            self.n_late += len(new)
        self._begun |= new

    def _checked(self, turn: Turn, call: str) -> dict[str, np.ndarray]:
        """Checks the observations, masks and rewards of a turn. Returns: the leaves of the observations, by agent."""
        leaves: dict[str, np.ndarray] = {}
        for agent, obs in turn.acts.items():
            if agent not in self._agents:
                raise BrokenContractError(
                    f'{call} names the agent {agent!r}',
                    f'one of possible_agents, {listed(list(self._agents), MOST_LISTED)}',
                    'name it there',
                )
            spaces = self._agents[agent]
            try:
                checked = checked_leaves(obs, spaces.obs, call, self._note)
            except BrokenContractError as broken:
                got, wanted, do = broken.args
                raise BrokenContractError(f'agent {agent!r}: {got}', wanted, do) from broken
            leaves |= {f'{agent}.{path}' if path else agent: x for path, x in checked.items() if path != ACTION_MASK}
            source = spaces.check_mask(agent, checked.get(ACTION_MASK), turn.masks.get(agent))
            if source:
                self.masks = source
        for agent, reward in turn.rewards.items():
            if not np.isfinite(reward):
                raise BrokenContractError(
                    f'the reward of agent {agent!r} is {reward}', 'a finite number', 'correct the env'
                )
        return leaves

    def _note(self, broken: BrokenContractError) -> None:
        """A fault of an observation: one that a run takes is a warning, the first of each kind."""
        if not isinstance(broken, ToleratedError):
            raise broken
        got, wanted, do = broken.args
        sentence = str(Place(self._name, self._n_step).error(0, got, wanted, do))
        self._findings.setdefault(do, Finding(sentence, is_of_runs=isinstance(broken, OutsideError)))

    def _seen(self, turn: Turn) -> Seen:
        seen: Seen = {f'the observation of {agent}': obs for agent, obs in turn.acts.items()}
        seen |= {f'the reward of {agent}': reward for agent, reward in turn.rewards.items()}
        seen |= {f'the end of {agent}': end.terminated for agent, end in turn.ended.items()}
        return {what: _copy(value) for what, value in seen.items()}


class AgentSpaces:
    """The spaces of one agent, and its legal moves."""

    def __init__(self, game: AgentGame, agent: str, name: str, action_mask: str) -> None:
        self.obs = convert_space(game.obs_space(agent), 'observation', f'{name}, agent {agent}')
        self.action = convert_space(game.action_space(agent), 'action', f'{name}, agent {agent}')
        self._to_env = ActionMap(self.action)
        self._choices: ChoiceCheck | None = None
        if action_mask != 'off' and mask_size(self.action) > 0:
            self._choices = ChoiceCheck(self.action)

    def sample(self, obs: Any, mask: Any, rng: torch.Generator) -> Any:
        """A random action; a legal one if there is a mask."""
        if mask is None and isinstance(obs, Mapping):
            mask = obs.get(ACTION_MASK)
        bits = None
        if mask is not None and self._choices is not None:
            bits = torch.from_numpy(self._choices.bits(mask)[None])
        return action_of(self._to_env(random_actions(self.action, 1, rng, bits)), 0)

    def check_mask(self, agent: str, of_obs: Any, of_info: Any) -> str:
        """The place of the mask, '' if there is none. Raises: BrokenContractError for one that allows nothing."""
        mask = of_obs
        source = 'obs'
        if of_info is not None:
            mask = of_info
            source = 'info'
        if mask is None or self._choices is None:
            return ''
        bits = self._choices.bits(mask)
        if self._choices.empty(bits[None])[0]:
            got, wanted, do = self._choices.fault(bits)
            raise BrokenContractError(f'agent {agent!r}: {got}', wanted, do)
        return source


def _info(turn: Turn) -> dict[str, Any]:
    return {key: value for info in turn.infos.values() if isinstance(info, Mapping) for key, value in info.items()}


def _copy(value: Any) -> Any:
    """A copy of an observation, whose memory the env may use again."""
    if isinstance(value, Mapping):
        return {key: _copy(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(_copy(part) for part in value)
    return np.array(value)


def _difference(was: Seen, now: Seen) -> str:
    """The first pair of values that differ, in words; '' if there is none."""
    for what, value in was.items():
        if not _is_equal(value, now.get(what)):
            return f'{what} {show_value(value)} and {show_value(now.get(what))}'
    return ''


def _is_equal(was: Any, now: Any) -> bool:
    if isinstance(was, dict):
        return isinstance(now, dict) and was.keys() == now.keys() and all(_is_equal(was[key], now[key]) for key in was)
    if isinstance(was, tuple):
        return isinstance(now, tuple) and len(was) == len(now) and all(map(_is_equal, was, now))
    return now is not None and np.array_equal(was, now, equal_nan=np.asarray(was).dtype.kind == 'f')


class _Spy:
    """A PettingZoo env that notes the types of rewards, and agents whose ends have both flags."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.reward_types: set[str] = set()
        self.with_both: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, *args: Any) -> Any:
        result = self._env.step(*args)
        if isinstance(result, tuple) and len(result) == 5:
            _, rewards, terminated, truncated, _ = result
        else:
            rewards, terminated, truncated = self._env.rewards, self._env.terminations, self._env.truncations
        self.reward_types |= {type(reward).__name__ for reward in rewards.values()}
        self.with_both |= {str(agent) for agent in terminated if terminated[agent] and truncated.get(agent)}
        return result


@dataclass(frozen=True)
class AgentsReport(EnvReport):
    """The report about an env of several agents. facts: as of `EnvReport` where they are the same, and those of agents."""

    def lines(self) -> Iterator[tuple[str, str]]:
        if self.facts:
            yield from _lines(self.facts)


def _lines(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the facts as (label, text)."""
    agents = facts['agents']
    yield 'kind', facts['kind']
    yield 'agents', f'{len(agents)}: {listed(agents, MOST_LISTED)}'
    for kind in facts['spaces']:
        whose = ''
        if len(facts['spaces']) > 1:
            whose = f' of {listed(kind["agents"], MOST_LISTED)}'
        yield 'spaces', f'observations {kind["obs_space"]}, actions {kind["action_space"]}{whose}'
    yield 'policies', facts['policies']
    if not facts.get('steps'):
        return
    yield 'acting', facts['acting']
    yield 'ends', facts['ends']
    yield 'action masks', facts['masks_words']
    yield 'state()', facts['state']
    for agent, seen in list(facts['rewards'].items())[:MOST_LISTED]:
        if seen['min'] is not None:
            yield f'reward {agent}', f'{seen["min"]:.4g} to {seen["max"]:.4g}, mean {seen["mean"]:.4g}'
    if facts['reward_types']:
        yield 'reward types', ', '.join(facts['reward_types'])
    episodes = facts['episodes']
    words = 'none ended'
    if episodes['count']:
        words = (
            f'{episodes["count"]} ended after {episodes["length_mean"]:.4g} steps on average, {episodes["length_max"]} at most; '
            f'returns of all agents together {episodes["return_min"]:.4g} to {episodes["return_max"]:.4g}, mean '
            f'{episodes["return_mean"]:.4g}'
        )
    yield 'episodes', words
    yield (
        'speed',
        f'{facts["steps_per_s"]:.4g} steps/s of one env; {facts["step_ms"]:.3g} ms for a step, {facts["reset_ms"]:.3g} ms for a reset',
    )
    yield (
        'seeds',
        {True: 'repeat its episodes', False: 'do not repeat its episodes', None: 'not tested'}[facts['repeats']],
    )


@TOOL_REGISTRY.register('inspect_agents')
def inspect_agents(cfg: EnvConfig, n_step: int = 1000, limit_s: float = 60.0) -> AgentsReport:
    """Takes `n_step` legal random steps with an env of several agents, and reports all that it finds.

    Args and raises: as of `inspect_env`.
    """
    name = env_name(cfg)
    with closing(make_game(cfg)) as game:
        problems = []
        warnings = []
        facts: dict[str, Any] = {}
        try:
            facts = _before_steps(game, name)
            check = GameCheck(game, cfg, Recorder(None, limit_s))
            facts['repeats'] = None
            found = check.run(n_step)
            facts['repeats'] = not any(finding.is_chance for finding in found)
            warnings = [finding.sentence for finding in found]
        except STOPS:
            raise
        except BaseException as error:
            problems.append(_sentence(error))
        else:
            facts |= check.recorder.facts() | _after_steps(game, check)
            facts |= _of_raw_env(game, cfg, name, min(n_step, 200))
            warnings += _warnings(name, facts)
    return AgentsReport(name, problems, warnings, facts)


def _before_steps(game: AgentGame, name: str) -> dict[str, Any]:
    kinds: dict[tuple[str, str], list[str]] = {}
    for agent in game.agents:
        spaces = AgentSpaces(game, agent, name, 'off')
        kinds.setdefault((space_words(spaces.obs), space_words(spaces.action)), []).append(agent)
    policies = 'one policy can act for all agents, as runs do by default'
    if len(kinds) > 1:
        policies = f'one for each of the {len(kinds)} kinds of spaces (agents.policies and agents.mapping)'
        every = [AgentSpaces(game, agent, name, 'off') for agent in game.agents]
        if not why_not_padded([one.obs for one in every], [one.action for one in every], game.agents, name):
            policies += ', or one for all by agents.pad=true'
    return {
        'kind': f'an env of several agents ({type(game.env).__name__})',
        'agents': list(game.agents),
        'spaces': [
            {'agents': agents, 'obs_space': obs, 'action_space': action} for (obs, action), agents in kinds.items()
        ],
        'policies': policies,
    }


def _after_steps(game: AgentGame, check: GameCheck) -> dict[str, Any]:
    n_agent = len(game.agents)
    acting = f'{min(check.acting)} to {max(check.acting)} of {n_agent} agents in a step'
    if set(check.acting) == {n_agent}:
        acting = 'all agents in each step'
    elif set(check.acting) == {1}:
        acting = 'one agent at a time, in turns'
    ends = 'all agents end together'
    if check.n_early:
        ends = f'{check.n_early} agents ended before their episode did'
    if check.n_late:
        ends += f'; {check.n_late} came after its begin'
    masks = {
        'none': 'none',
        'obs': "found: the entry 'action_mask' of the observations",
        'info': "found: 'action_mask' in the infos",
    }
    return {
        'acting': acting,
        'ends': ends,
        'masks': check.masks,
        'masks_words': masks[check.masks],
        'state': _state_words(game),
        'rewards': {agent: seen.to_json() for agent, seen in check.rewards.items()},
    }


def _state_words(game: AgentGame) -> str:
    """The result of state() after a reset, in words."""
    try:
        game.reset(seed=0)
        state = np.asarray(game.state())
        if state.dtype.kind not in 'fiub' or not state.size:
            return 'none that is an array of numbers; agents.state=concat in its place'
    except STOPS:
        raise
    except BaseException:  # libraries differ in how they say that there is none
        return 'none; agents.state=concat joins the observations of all agents'
    return f'{state.dtype} of shape {list(state.shape)}: agents.state=env gives it to critics'


def _of_raw_env(game: AgentGame, cfg: EnvConfig, name: str, n_step: int) -> dict[str, Any]:
    """The values that an env of PettingZoo returns and the game changes: types of rewards, ends with both flags."""
    facts: dict[str, Any] = {'reward_types': [], 'both_flags': []}
    if isinstance(game.env, gymnasium.Env) or not hasattr(game.env, 'possible_agents'):
        return facts
    spy = _Spy(game.env)
    spied = game_of(spy, name)
    assert spied is not None, 'it has possible_agents'
    spied.reward_weights = cfg.reward_weights
    GameCheck(spied, cfg).run(n_step)
    return {'reward_types': sorted(spy.reward_types), 'both_flags': sorted(spy.with_both)}


def _warnings(name: str, facts: Mapping[str, Any]) -> Iterator[str]:
    both = facts['both_flags']
    if both:
        yield (
            f'env {name!r}: ends of {listed(both, MOST_LISTED)} are both terminated and truncated; zoo takes them as terminated, so that no '
            'value follows.'
        )
    if all(seen['min'] == seen['max'] == 0 for seen in facts['rewards'].values() if seen['min'] is not None):
        yield f'env {name!r}: all rewards of {facts["steps"]} random steps are 0, so a policy has nothing to begin with.'


def _sentence(error: BaseException) -> str:
    if isinstance(error, EnvError | UserError):
        return str(error)
    where, at = getattr(error, 'env_place', ('', ''))
    sentence = f'its code raised {show_error(error)}'
    if where:
        sentence = f'{where}: {sentence} at {at}'
    return f'{sentence}; fix it there.'
