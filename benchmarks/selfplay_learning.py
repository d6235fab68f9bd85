"""Trains a config of self-play with several seeds, and measures each last policy. Needs the extra agents.

    python benchmarks/selfplay_learning.py CONFIG [--seeds 0 1 2] [--out benchmarks/results/selfplay/raw] [KEY=VALUE ...]

Writes OUT/NAME_seedN.json: the command, env steps, seconds, and
- in tic-tac-toe and connect four wins, draws and losses against the players of benchmarks/selfplay_games.py, greedy and drawn;
- in games of OpenSpiel, and Kuhn poker as a tensor env, exact exploitability and value of the policy and of its snapshots' average;
- in simple_spread the return summed over agents (S) in 512 episodes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import selfplay_games  # noqa: E402

from zoo import evaluate, exploitability, load_policy, serial_pipeline  # noqa: E402
from zoo.run.config import resolve_config  # noqa: E402

BOARDS = ('tictactoe', 'connect_four')
CARDS = {'kuhn_poker': 'pyspiel:kuhn_poker', 'leduc_poker': 'pyspiel:leduc_poker'}


def measured(run: str, env: Mapping[str, Any], n_game: int) -> dict[str, Any]:
    """What the last policy of a run is worth. Args: env: its section env."""
    env_name = f'{env["id"]}/{env.get("game") or ""}'
    for game in BOARDS:
        if game in env_name:
            return {'games': list(results(run, game, n_game))}
    for game, env_id in CARDS.items():
        if game in env_name:
            last = exploitability(run, env_id)
            average = exploitability(run, env_id, average=True)
            return {
                'exploitability': last.exploitability,
                'value': last.value,
                'exploitability_of_average': average.exploitability,
                'value_of_average': average.value,
            }
    evaluation = evaluate(load_policy(run), {'id': env['id'], 'game': env.get('game')}, n_episode=512, seed=1)
    return {'team_return_mean': sum(sum(returns) for returns in evaluation.agents.values()) / 512}


def results(run: str, game: str, n_game: int) -> Any:
    """The rows of all matches of a policy."""
    for is_greedy in (True, False):
        player = selfplay_games.player_of(run, is_greedy)
        for name, opponent in selfplay_games.OPPONENTS[game].items():
            for seat in range(2):
                counts = selfplay_games.match(selfplay_games.GAMES[game], player, opponent, seat, n_game)
                yield {'greedy': is_greedy, 'opponent': name, 'seat': seat + 1, **counts}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config')
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2])
    parser.add_argument('--out', type=Path, default=Path('benchmarks/results/selfplay/raw'))
    parser.add_argument('--name', help='of the files; default: the config')
    parser.add_argument('--games', type=int, default=200)
    parser.add_argument('overrides', nargs='*', help='KEY=VALUE')
    args = parser.parse_intermixed_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    name = args.name or args.config
    for seed in args.seeds:
        config = resolve_config(args.config, [*args.overrides, f'seed={seed}'])
        start = time.perf_counter()
        run = serial_pipeline(config)
        row = {
            'config': args.config,
            'overrides': args.overrides,
            'seed': seed,
            'env_step': run.env_step,
            'seconds': round(time.perf_counter() - start, 1),
            **measured(str(run.run_dir), config['env'], args.games),
        }
        (args.out / f'{name}_seed{seed}.json').write_text(json.dumps(row, indent=1) + '\n')
        print(json.dumps(row), flush=True)
    return 0


if __name__ == '__main__':
    sys.exit(main())
