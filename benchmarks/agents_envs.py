"""Returns of agents in envs of many packages, next to those that each package's own loop gives for the same actions.

    python benchmarks/agents_envs.py [--only mpe2 ...] [--episodes 5] [-o FOLDER]

Random legal actions are played through zoo (zoo.agents.games), then once more in a new env of the package with its own loop:
`step` of parallel envs, `agent_iter` and `last` of envs of turns, `step` of gymnasium envs of several agents, `returns` of
OpenSpiel. Rows whose package is not installed say so. Writes results/agents/envs.md and envs.json. Shimmy's envs of turns are
compared with the returns of OpenSpiel's state, since `last` counts the last reward of removed agents several times there: its
column `last` has how many returns differ by it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from report import RESULTS, git_commit, machine, table, today, write_json  # noqa: E402
from zoo.agents.games import make_game  # noqa: E402
from zoo.env.config import env_config  # noqa: E402

MOST_STEPS = 2_000  # of an episode


class Row(NamedTuple):
    """An env: its package on PyPI, the name of its maker, its keywords."""

    package: str
    env_id: str
    kwargs: dict[str, Any] = {}  # noqa: RUF012
    weights: list[float] | None = None


ROWS = [
    *(Row('mpe2', f'mpe2.{name}:parallel_env') for name in (
        'simple_v3', 'simple_adversary_v3', 'simple_crypto_v3', 'simple_push_v3', 'simple_reference_v3',
        'simple_speaker_listener_v4', 'simple_spread_v3', 'simple_tag_v3', 'simple_world_comm_v3',
    )),
    Row('mpe2', 'mpe2.simple_spread_v3:env'),
    *(Row('pettingzoo', f'pettingzoo.classic.{name}:env') for name in ('tictactoe_v3', 'connect_four_v3', 'rps_v2')),
    *(Row('pettingzoo', f'pettingzoo.sisl.{name}:parallel_env') for name in ('pursuit_v5', 'multiwalker_v9')),
    *(Row('pettingzoo', f'pettingzoo.butterfly.{name}:parallel_env') for name in (
        'pistonball_v6', 'cooperative_pong_v6', 'knights_archers_zombies_v11'
    )),
    Row('pettingzoo', 'pettingzoo.butterfly.knights_archers_zombies_v11:env'),
    Row('pettingzoo', 'pettingzoo:classic/tictactoe-v3'),
    *(Row('magent2', f'magent2.environments.{name}:parallel_env', kwargs) for name, kwargs in (
        ('battle_v4', dict(map_size=12)), ('adversarial_pursuit_v4', dict(map_size=12)), ('gather_v5', {}),
        ('tiger_deer_v4', dict(map_size=12)),
    )),
    *(Row('momaland', f'momaland.envs.{name}:parallel_env', {}, weights) for name, weights in (
        ('beach.beach', [1.0, 1.0]), ('item_gathering.item_gathering', [1.0, 1.0, 1.0]),
    )),
    *(Row('Shimmy', 'shimmy.openspiel_compatibility:OpenSpielCompatibilityV0', {'game_name': name}) for name in (
        'tic_tac_toe', 'connect_four',
    )),
    *(Row('rware', f'rware:{name}') for name in ('rware-tiny-2ag-v2',)),
    *(Row('lbforaging', f'lbforaging:{name}') for name in ('Foraging-8x8-2p-2f-v3',)),
    *(Row('open_spiel', f'pyspiel:{name}') for name in (
        'kuhn_poker', 'leduc_poker', 'tic_tac_toe', 'connect_four', 'liars_dice', 'phantom_ttt', 'backgammon', 'matrix_pd',
        'goofspiel(players=2,num_cards=4,imp_info=True)',
    )),
]  # fmt: skip


def maker(row: Row) -> Callable[[], Any]:
    """What makes the game of a row."""
    cfg = env_config({'id': row.env_id, 'kwargs': row.kwargs, 'reward_weights': row.weights})
    return lambda: make_game(cfg)


class Played(NamedTuple):
    """An episode: its seed, the actions of each step, the returns, and whether it ended by itself."""

    seed: int
    actions: list[dict[str, Any]]
    returns: dict[str, float]
    is_whole: bool


def play(make: Callable[[], Any], seed: int) -> Played:
    """Plays an episode of random legal actions through zoo."""
    rng = np.random.default_rng(seed)
    game = make()
    spaces = {agent: game.action_space(agent) for agent in game.agents}
    for i, space in enumerate(spaces.values()):
        space.seed(seed + i)
    turn = game.reset(seed=seed)
    actions = []
    returns: dict[str, float] = defaultdict(float)
    while turn.acts and len(actions) < MOST_STEPS:
        chosen = {}
        for agent, obs in turn.acts.items():
            mask = turn.masks.get(agent)
            if mask is None and isinstance(obs, dict):
                mask = obs.get('action_mask')
            chosen[agent] = spaces[agent].sample() if mask is None else int(rng.choice(np.flatnonzero(mask)))
        actions.append(chosen)
        turn = game.step(chosen)
        for agent, reward in turn.rewards.items():
            returns[agent] += reward
    game.close()
    return Played(seed, actions, dict(returns), not turn.acts)


def own_returns(row: Row, game: Any, played: Played) -> tuple[dict[str, float], int]:
    """The returns of the same actions by the package's own loop, and how many differ from the sums of `last`."""
    env = game.env
    returns: dict[str, float] = defaultdict(float)
    kind = type(game).__name__

    def add(agent: str, reward: Any) -> None:
        values = np.asarray(reward, np.float64).reshape(-1)
        returns[agent] += float(values[0] if len(values) == 1 else np.dot(values, row.weights))

    if kind == 'ParallelGame':
        env.reset(seed=played.seed)
        for chosen in played.actions:
            for agent, reward in env.step(chosen)[1].items():
                add(agent, reward)
    elif kind == 'TurnGame':
        env.reset(seed=played.seed)
        moves = [action for chosen in played.actions for action in chosen.values()]
        for agent in env.agent_iter():
            _, reward, terminated, truncated, _ = env.last()
            add(agent, reward)
            if not moves and not (terminated or truncated):
                break
            env.step(None if terminated or truncated else moves.pop(0))
        if row.package == 'Shimmy':
            own = dict(zip(game.agents, map(float, env.unwrapped.game_state.returns()), strict=True))
            return own, sum(own[agent] != returns[agent] for agent in game.agents)
    elif kind == 'TupleGame':
        env.reset(seed=played.seed)
        for chosen in played.actions:
            for agent, reward in zip(game.agents, env.step(tuple(chosen.values()))[1], strict=True):
                add(agent, reward)
    else:
        turn = game.reset(seed=played.seed)  # the deals are those of the seed; the returns are OpenSpiel's own
        for chosen in played.actions:
            turn = game.step(chosen)
        assert not turn.acts
        return dict(zip(game.agents, game.position.returns(), strict=True)), 0
    env.close()
    return dict(returns), 0


def compare(row: Row, n_episode: int) -> dict[str, Any]:
    """Plays a row. Returns: numbers for the table."""
    try:
        version = importlib.metadata.version(row.package)
        make = maker(row)
        make().close()
    except (ImportError, importlib.metadata.PackageNotFoundError) as error:
        return dict(env=row.env_id, version='not installed', result=str(error)[:80])
    n_agent = n_differ = n_compared = n_step = n_last = 0
    largest = 0.0
    kind = ''
    for seed in range(n_episode):
        played = play(make, seed)
        game = make()
        kind = type(game).__name__
        n_agent = len(game.agents)
        n_step += len(played.actions)
        own, n_wrong = own_returns(row, game, played)
        n_last += n_wrong
        if kind == 'TurnGame' and not played.is_whole:
            continue  # its loop gives a reward only with the next turn of an agent
        for agent in game.agents:
            difference = abs(played.returns.get(agent, 0.0) - own.get(agent, 0.0))
            n_compared += 1
            n_differ += difference > 1e-9 * max(1.0, abs(own.get(agent, 0.0)))
            largest = max(largest, difference)
    return dict(
        env=_name(row), version=f'{row.package} {version}', kind=kind, agents=n_agent, steps=n_step, compared=n_compared,
        differ=n_differ, largest=largest, last=n_last,
    )  # fmt: skip


def _name(row: Row) -> str:
    if row.package == 'Shimmy':
        return f'{row.env_id}, {row.kwargs["game_name"]}'
    return row.env_id


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', default=[], help='packages')
    parser.add_argument('--episodes', type=int, default=5)
    parser.add_argument('-o', '--results', type=Path, default=RESULTS / 'agents', help='folder of envs.md')
    options = parser.parse_args()
    found = []
    for row in ROWS:
        if options.only and row.package not in options.only:
            continue
        try:
            found.append(compare(row, options.episodes))
        except Exception as error:
            found.append(dict(env=row.env_id, version=row.package, result=f'{type(error).__name__}: {error}'[:160]))
        print(found[-1], flush=True)
    columns = ('env', 'version', 'kind', 'agents', 'steps', 'compared', 'differ', 'last', 'largest')
    rows = [
        [str(each.get(name, '')) for name in columns[:-1]] + [str(each.get('largest', each.get('result')))]
        for each in found
    ]
    text = (
        '# Returns of agents, beside those of the packages\n\n'
        f'`python benchmarks/agents_envs.py --episodes {options.episodes}`, {today()}, commit {git_commit()}, {machine()}.\n'
        'compared: returns of agents, random legal play; differ: those that differ from the sum of the own loop of the package;\n'
        'last: those of the sums of `last` that differ from the returns of the state of the game (Shimmy alone).\n\n'
        f'{table(columns, rows)}\n'
    )
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / 'envs.md').write_text(text, encoding='utf-8')
    write_json(options.results / 'envs.json', found)


if __name__ == '__main__':
    main()
