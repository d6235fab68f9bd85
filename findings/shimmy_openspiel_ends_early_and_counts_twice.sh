#!/usr/bin/env bash
# shimmy's OpenSpiel games: poker ends after one action, and `last()` gives the second player each result twice.
#
# One would guess: OpenSpielCompatibilityV0 plays each game to the end that OpenSpiel gives it, and the rewards of `last()`,
# added up over `agent_iter()` as usual with PettingZoo, are the `returns()` of the game.
# What is:
# - An episode is truncated when its count of nodes exceeds `max_game_length()`. The count begins at 1 and also counts deals
#   and other chance nodes, which the longest length leaves out. Kuhn poker: 1 + 2 deals + 1 action > 3. So every episode of
#   kuhn_poker has one action and rewards of 0, some of leduc_poker are cut off, and a drawn board of tic_tac_toe (9 moves, 1
#   + 9 > 9) is terminated and truncated at once.
# - Each step of an agent that is removed adds the last rewards of all agents that are left to what `last()` gives, once more.
#   So the second agent has its last reward twice: +2 or -2 for a game that it won or lost with 1. Sums of `rewards` right
#   after each step of a living agent are right.
# - The observations at the end are those before the last move: the winning move is in none of them.
# - A reset without a seed draws from the system, also after one with a seed, where gymnasium's envs go on from that seed.
#
# shimmy 2.0.1, open_spiel 2.0.2, pettingzoo 1.27.0, numpy 2.4.6, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check \
  shimmy==2.0.1 open_spiel==2.0.2 pettingzoo==1.27.0 gymnasium==1.4.0 numpy==2.4.6
cat > "$folder/games.py" <<'PY'
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
from shimmy import OpenSpielCompatibilityV0


class Episode(NamedTuple):
    n_action: int
    is_terminal: bool  # by OpenSpiel
    flags: set  # pairs (terminated, truncated) of agents at the end
    by_last: list  # returns of agents: sums of last()
    by_rewards: list  # sums of rewards after each step of a living agent
    returns: list  # by OpenSpiel


def play(name, seed):
    """An episode of random legal actions."""
    rng = np.random.default_rng(seed)
    env = OpenSpielCompatibilityV0(game_name=name)
    env.reset(seed=seed)
    by_last = dict.fromkeys(env.possible_agents, 0.0)
    by_rewards = dict.fromkeys(env.possible_agents, 0.0)
    n_action, flags = 0, set()
    for agent in env.agent_iter():
        _, reward, terminated, truncated, info = env.last()
        by_last[agent] += reward
        if terminated or truncated:
            flags.add((bool(terminated), bool(truncated)))
            env.step(None)
            continue
        env.step(int(rng.choice(np.flatnonzero(info['action_mask']))))
        n_action += 1
        for other, earned in env.rewards.items():
            by_rewards[other] += earned
    state = env.game_state
    return Episode(
        n_action, state.is_terminal(), flags, list(by_last.values()), list(by_rewards.values()), list(state.returns())
    )


def deals():
    """The first observations after a reset with a seed and of 60 resets without."""
    env = OpenSpielCompatibilityV0(game_name='kuhn_poker')
    env.reset(seed=0)
    first = env.observe(env.agent_selection).tolist()
    later = []
    for _ in range(60):
        env.reset()
        later.append(env.observe(env.agent_selection).tolist())
    return first, later


print(*(f'{name} {version(name)}' for name in ('shimmy', 'open_spiel', 'pettingzoo', 'numpy')))
N = 40
played = {}
for game in ('kuhn_poker', 'leduc_poker', 'tic_tac_toe', 'connect_four', 'liars_dice', 'backgammon'):
    played[game] = [play(game, seed) for seed in range(N)]
    whole = [each for each in played[game] if each.is_terminal]
    wrong = [each for each in whole if each.by_last != each.returns]
    print(
        f'{game}: {len(whole)} of {N} episodes reach their end, actions {min(x.n_action for x in played[game])} to '
        f'{max(x.n_action for x in played[game])}, sums of last() differ from returns() in {len(wrong)} of {len(whole)}'
    )
    assert all(each.by_rewards == each.returns for each in whole)
print('connect_four: last()', played['connect_four'][0].by_last, 'returns()', played['connect_four'][0].returns)
assert all(x.n_action == 1 and not x.is_terminal and x.flags == {(False, True)} for x in played['kuhn_poker'])
assert 0 < sum(x.is_terminal for x in played['leduc_poker']) < N
for each in played['connect_four'] + played['liars_dice'] + played['backgammon']:
    assert each.by_last == [each.returns[0], 2 * each.returns[1]]

draws = [each for each in played['tic_tac_toe'] if each.returns == [0, 0]]
print('tic_tac_toe: flags at the end of', len(draws), 'draws:', draws[0].flags)
assert draws and all(each.flags == {(True, True)} for each in draws)

(first, later), (first_again, later_again) = deals(), deals()
print('kuhn_poker, two envs: deals after reset(seed=0) equal:', first == first_again)
print('  60 deals after resets without a seed equal:', later == later_again)
assert first == first_again and later != later_again  # by chance equal: less than 1 in 10^20

env = OpenSpielCompatibilityV0(game_name='tic_tac_toe')
env.reset(seed=0)
for move in (0, 3, 1, 4):
    env.step(move)
before = env.observe('player_0')
env.step(2)  # three in a row
now = np.array(env.game_state.observation_tensor(0)).reshape(before.shape)
print(
    'tic_tac_toe: the observation at the end is that before the last move:',
    np.array_equal(env.observe('player_0'), before),
)
assert (
    all(env.terminations.values())
    and np.array_equal(env.observe('player_0'), before)
    and not np.array_equal(before, now)
)
PY
"$folder/venv/bin/python" -W ignore "$folder/games.py"
