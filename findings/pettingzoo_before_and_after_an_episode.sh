#!/usr/bin/env bash
# PettingZoo's envs of turns before a reset, at an end and after it: attributes, masks, flags, rewards.
#
# One would guess: an env of turns is told by hasattr(env, 'agent_selection'); an agent that does not act has no mask or that
# of its choices; at an end no choice is allowed; a player who makes an illegal move loses to the other, by termination; a
# dict of rewards has the agents of the env and no others; a step returns five values.
# What is:
# - Before the first reset hasattr is False for agent_selection, agents, rewards, terminations: OrderEnforcingWrapper, in
#   which PettingZoo's own envs are, raises AttributeError. agent_iter, last, possible_agents and state are there.
# - Masks of agents that are not on turn are all 0. When a game is won, the mask of the agent on turn still allows the free
#   cells.
# - After an illegal move all agents are terminated and truncated at once; the mover has -1 and the other 0, not 1.
# - rewards of aec_to_parallel are a defaultdict(int): rewards['nobody'] is 0, and then an entry, so a missing agent is no
#   error.
# - turn_based_aec_to_parallel gives five values, but four (without truncations) in a step after the end, where
#   aec_to_parallel gives five.
#
# pettingzoo 1.27.0, numpy 2.4.6, Python 3.11. Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q --disable-pip-version-check \
  pettingzoo==1.27.0 gymnasium==1.4.0 numpy==2.4.6 pygame-ce==2.5.8
cat > "$folder/edges.py" <<'PY'
from importlib.metadata import version

from pettingzoo.classic import rps_v2, tictactoe_v3
from pettingzoo.utils.conversions import turn_based_aec_to_parallel

BEFORE = ('agent_selection', 'agents', 'rewards', 'terminations')
ALWAYS = ('agent_iter', 'last', 'possible_agents', 'state')
WIN = (0, 3, 1, 4, 2)  # the first player has a row


def game(*moves):
    env = tictactoe_v3.env()
    env.reset(seed=0)
    for move in moves:
        env.step(move)
    return env


def mask(env, agent):
    return env.observe(agent)['action_mask'].tolist()


print('pettingzoo', version('pettingzoo'))
env = tictactoe_v3.env()
print('before a reset:', {name: hasattr(env, name) for name in BEFORE + ALWAYS})
assert not any(hasattr(env, name) for name in BEFORE) and all(hasattr(env, name) for name in ALWAYS)
env.reset(seed=0)
assert all(hasattr(env, name) for name in BEFORE + ALWAYS)
print('after it: player_1 is on turn, masks', mask(env, 'player_1'), mask(env, 'player_2'))
assert env.agent_selection == 'player_1' and (mask(env, 'player_1'), mask(env, 'player_2')) == ([1] * 9, [0] * 9)

env = game(*WIN)
print('won:', dict(env.rewards), 'masks', mask(env, 'player_1'), mask(env, 'player_2'))
assert all(env.terminations.values()) and not any(env.truncations.values())
assert [mask(env, agent) for agent in env.agents if agent == env.agent_selection] == [[0, 0, 0, 0, 0, 1, 1, 1, 1]]

env = game(0, 0)  # the second player takes the same cell: the rules of the env say what this means
print('illegal:', dict(env.rewards), 'terminated', dict(env.terminations), 'truncated', dict(env.truncations))
assert env.rewards == {'player_1': 0, 'player_2': -1}
assert all(env.terminations.values()) and all(env.truncations.values())

env = rps_v2.parallel_env(max_cycles=1)
env.reset(seed=0)
rewards = env.step(dict.fromkeys(env.agents, 0))[1]
print('rewards of aec_to_parallel:', type(rewards).__name__, 'nobody', rewards['nobody'], 'then', list(rewards))
assert rewards['nobody'] == 0 and list(rewards) == ['player_0', 'player_1', 'nobody']
assert not env.agents
after_end = len(env.step({}))
env = turn_based_aec_to_parallel(tictactoe_v3.raw_env())
env.reset(seed=0)
lengths = [len(env.step(dict.fromkeys(env.agents, move))) for move in WIN]
print('values of a step of turn_based_aec_to_parallel:', lengths, 'after the end', len(env.step({})))
print('of aec_to_parallel after the end:', after_end)
assert not env.agents and set(lengths) == {5} and len(env.step({})) == 4 and after_end == 5
PY
"$folder/venv/bin/python" -W ignore "$folder/edges.py" 2>&1 | grep -v '^pygame'
