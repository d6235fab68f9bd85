"""Exact exploitability of players, of runs, and of the average over the snapshots of a league."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from zoo.agents.config import AgentsConfig
from zoo.agents.exploitability import (
    MOST_POSITIONS,
    SPIEL,
    Exploitability,
    GameTree,
    NotExactError,
    Play,
    joint_play,
    play_of,
    tree_of,
)
from zoo.agents.games import is_tensor_env
from zoo.agents.layout import policy_of_agents
from zoo.config.section import validate
from zoo.core.errors import UserError
from zoo.core.streams import columns
from zoo.env import EnvConfig
from zoo.policy.base import Policy
from zoo.run.checkpoint.consent import Trust
from zoo.run.policy_file import load_policy
from zoo.tools.matches.players import Entrant, Named, entrant_of, env_of_match, snapshots_of
from zoo.worker.evaluator import Playing

LEAGUE_AVERAGE = 'average of the snapshots'


def exploitability(
    player: Named,
    env: object = None,
    *,
    average: bool = False,
    policy: str | None = None,
    best: bool = False,
    trust: Trust = (),
    overrides: Sequence[str] = (),
    most_positions: int = MOST_POSITIONS,
) -> Exploitability:
    """The exact exploitability of a player in a game of OpenSpiel, where it has all seats and draws its actions.

    Args: player, env, policy, best, trust, overrides: as for `match`; average: of the average of the snapshots of a run's league,
      in place of its policy; most_positions: of the game, more are refused.
    Raises: UserError for a game that is too large or none of OpenSpiel, for players without known probabilities, and for runs
      without snapshots.
    """
    entrant = entrant_of(player, trust, policy, best)
    section = env_of_match([entrant], env, trust, overrides)
    tree = tree_of(section, most_positions)
    if not average:
        return tree.measure(play_of(entrant.contestant, section, tree))
    plays = _plays_of_league(entrant, section, tree, trust)
    if not plays:
        raise UserError(
            f'{entrant.contestant.name} has no snapshots of a league, so that they have no average; leave average out'
        )
    return tree.measure(tree.average(plays))


def exact_of_match(entrants: Sequence[Entrant], section: EnvConfig, trust: Trust) -> dict[str, Exploitability]:
    """The exploitability of each player whose probabilities are known, and of the leagues of runs; {} in other games."""
    tree = _small_tree(section)
    found: dict[str, Exploitability] = {}
    if tree is None:
        return found
    for entrant in entrants:
        name = entrant.contestant.name
        try:
            found[name] = tree.measure(play_of(entrant.contestant, section, tree))
        except NotExactError:
            continue
        plays = _plays_of_league(entrant, section, tree, trust)
        if len(plays) > 1:
            found[f'{name}, {LEAGUE_AVERAGE}'] = tree.measure(tree.average(plays))
    return found


def exact_of_run(playing: Playing, section: EnvConfig, run_dir: Path | None, trust: Trust) -> dict[str, Exploitability]:
    """The exploitability of the policies of a run that play all seats, and of its league; {} in other games and for others.

    Args: run_dir: its folder, None: no snapshots are looked for.
    """
    policies: dict[str, Policy] = {}
    if isinstance(playing, Policy):
        policies = {'': playing}
    elif isinstance(playing, Mapping):
        policies = dict(playing)
    tree = None
    if policies:
        tree = _small_tree(section)
    if tree is None:
        return {}
    try:
        play = _joint_play_of(policies, section, tree)
    except NotExactError:
        return {}
    found = {'policy': tree.measure(play)}
    if run_dir is not None and len(policies) == 1:
        entrant = entrant_of(next(iter(policies.values())), trust)._replace(run_dir=run_dir)
        plays = _plays_of_league(entrant, section, tree, trust)
        if len(plays) > 1:
            found[LEAGUE_AVERAGE] = tree.measure(tree.average(plays))
    return found


def _small_tree(section: EnvConfig) -> GameTree | None:
    """The tree of a game of OpenSpiel, or of a tensor env that is the same as one of them; None for other and larger games."""
    is_of_open_spiel = isinstance(section.id, str) and section.id.startswith(SPIEL)
    if not is_of_open_spiel and not (is_tensor_env(section) and find_spec('pyspiel')):
        return None
    try:
        return tree_of(section)
    except NotExactError:
        return None


def _joint_play_of(policies: Mapping[str, Policy], section: EnvConfig, tree: GameTree) -> Play:
    """The play of policies that share the seats by patterns. Raises: NotExactError for other mappings, and as `play_of`."""
    plays = {name: play_of(entrant_of(policy).contestant, section, tree) for name, policy in policies.items()}
    if len(policies) == 1:
        return next(iter(plays.values()))
    config = next(iter(policies.values())).run.config or {}
    agents = validate(AgentsConfig, config.get('agents', {}), 'agents')
    seats = [f'player_{i}' for i in range(tree.n_player)]
    if isinstance(agents.mapping, str) or callable(agents.mapping):
        raise NotExactError('a function maps the agents to policies, which may change from game to game')
    of_agent = policy_of_agents(agents, seats)
    if not set(of_agent.values()) <= set(plays):
        raise NotExactError('some seats are not played by policies of the run')
    return joint_play({i: plays[of_agent[seat]] for i, seat in enumerate(seats)}, tree)


def _plays_of_league(entrant: Entrant, section: EnvConfig, tree: GameTree, trust: Trust) -> list[Play]:
    """The plays of the snapshots of the league of a run, the oldest first."""
    if entrant.run_dir is None:
        return []
    files = snapshots_of(entrant.run_dir).values()
    contestants = [entrant.with_policy(load_policy(file, trust=trust)) for file in files]
    return [play_of(contestant, section, tree) for contestant in contestants]


def exact_text(found: Mapping[str, Exploitability]) -> str:
    """Exploitabilities as a table."""
    rows: list[tuple[str, ...]] = [('', 'exploitability', 'NashConv', 'value of the first seat')]
    for name, exact in found.items():
        rows.append((name, f'{exact.exploitability:.4f}', f'{exact.nash_conv:.4f}', f'{exact.value:+.4f}'))
    return columns(rows)
