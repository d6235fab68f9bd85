"""Games of PettingZoo's two interfaces, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.agents.envs import CartPoleParallel, CartPoleTurns, Clockwork
from zoo.agents.game import number
from zoo.agents.games import Cycle, ParallelGame, game_of, make_game
from zoo.env.config import env_config
from zoo.env.errors import BrokenContractError, UnknownEnvError

tictactoe_v3 = pytest.importorskip('pettingzoo.classic.tictactoe_v3', reason='the extra agents')


def test_tictactoe_won_by_the_first_player():
    """Moves 0 3 1 4 2 complete the first column for player_1: its outcome is +1, that of the last move of player_2 is -1."""
    game = game_of(tictactoe_v3.env(), 'tictactoe')
    turn = game.reset(seed=0)
    rewards = []
    for move, player in zip((0, 3, 1, 4, 2), ('player_1', 'player_2') * 3, strict=False):
        assert list(turn.acts) == [player]
        assert turn.acts[player]['action_mask'][move] == 1
        turn = game.step({player: np.int64(move)})
        rewards.append((turn.rewards['player_1'], turn.rewards['player_2']))
    assert rewards == [(0, 0)] * 4 + [(1, -1)]
    assert turn.acts == {}
    assert {name: end.terminated for name, end in turn.ended.items()} == {'player_1': True, 'player_2': True}
    assert list(game.reset(seed=0).acts) == ['player_1']


def test_deaths_and_births_of_a_parallel_env():
    game = game_of(Clockwork(), 'clockwork')
    turn = game.reset()
    seen = [list(turn.acts)]
    ends = []
    while turn.acts:
        turn = game.step(dict.fromkeys(turn.acts, 0))
        seen.append(list(turn.acts))
        ends.append({name: end.terminated for name, end in turn.ended.items()})
    assert seen == [['a', 'b'], ['a', 'b'], ['b', 'c'], ['b', 'c'], ['c'], []]
    assert ends == [{}, {'a': True}, {}, {'b': False}, {'c': True}]


@pytest.mark.parametrize('make', [CartPoleParallel, CartPoleTurns])
def test_one_agent_is_an_env_of_agents_too(make):
    game = game_of(make(), 'cartpole')
    assert game.agents == ('one',)
    turn = game.reset(seed=3)
    assert turn.acts['one'].shape == (4,)
    assert game.step({'one': 1}).rewards == {'one': 1.0}


def test_env_of_one_agent_is_no_game():
    import gymnasium

    assert game_of(gymnasium.make('CartPole-v1'), 'CartPole-v1') is None


class Broken(Clockwork):
    """Clockwork whose step is changed by a function of its five dicts and the env."""

    def __init__(self, change):
        super().__init__()
        self._change = change

    def step(self, actions):
        result = super().step(actions)
        return self._change(self, *result) or result


@pytest.mark.parametrize(
    ('change', 'sentence'),
    [
        (lambda env, obs, rewards, *rest: rewards.pop('b') and None, "rewards without agent 'b', which acted"),
        (lambda env, obs, *rest: obs.pop('a') is None, "no observation of agent 'a', which is in `agents`"),
        (lambda env, *rest: env.agents.remove('b'), "agent 'b' is gone from `agents`, but was neither"),
        (
            lambda env, o, r, terminated, *rest: terminated.update(a=True),
            "agent 'a' has ended, but is still in `agents`",
        ),
        (lambda env, o, rewards, *rest: rewards.update(a='much'), "the reward of agent 'a' is 'much'"),
        (lambda env, o, rewards, *rest: rewards.update(a=[1, 2]), 'has 2 numbers, env.reward_weights 0'),
        (lambda env, *rest: rest[:4], 'step returned a tuple of 4'),
    ],
)
def test_parallel_env_that_breaks_its_contract_is_named(change, sentence):
    game = game_of(Broken(change), 'clockwork')
    game.reset()
    with pytest.raises(BrokenContractError, match=sentence):
        game.step({'a': 0, 'b': 0})


def test_rewards_may_have_any_type():
    types = [3, 3.0, np.int32(3), np.float64(3), np.array(3), np.array([3.0]), [3]]
    assert [number(x, 'a') for x in types] == [3.0] * len(types)
    assert number(np.array([1.0, 2.0]), 'a', [0.5, 2.0]) == 4.5


@pytest.mark.parametrize('env_id', ['pettingzoo:classic/tictactoe-v3', 'pettingzoo:classic/rps-v2'])
def test_names_of_the_registry(env_id):
    game = make_game(env_config({'id': env_id}))
    assert len(game.agents) == 2
    game.close()


@pytest.mark.parametrize(
    ('env_id', 'sentence'),
    [
        ('pettingzoo:classic/tictacto-v3', "did you mean 'classic/tictactoe-v3'"),
        ('pyspiel:kuhn_pokr', "did you mean 'kuhn_poker'"),
    ],
)
def test_unknown_names_are_refused_with_close_ones(env_id, sentence):
    with pytest.raises(UnknownEnvError, match=sentence):
        make_game(env_config({'id': env_id}))


def test_returns_are_those_of_the_env_itself():
    """Random legal play of connect four and of a game through the adapter, against the sum of rewards over `agent_iter`."""
    connect_four_v3 = pytest.importorskip('pettingzoo.classic.connect_four_v3')
    for seed in range(20):
        rng = np.random.default_rng(seed)
        game = game_of(connect_four_v3.env(), 'connect_four')
        turn = game.reset(seed=seed)
        moves = []
        total = dict.fromkeys(game.agents, 0.0)
        while turn.acts:
            (agent,) = turn.acts
            moves.append(int(rng.choice(np.flatnonzero(turn.acts[agent]['action_mask']))))
            turn = game.step({agent: moves[-1]})
            for name, reward in turn.rewards.items():
                total[name] += reward
        env = connect_four_v3.env()
        env.reset(seed=seed)
        own = dict.fromkeys(game.agents, 0.0)
        for agent in env.agent_iter():
            _, reward, terminated, truncated, _ = env.last()
            own[agent] += reward
            env.step(None if terminated or truncated else moves.pop(0))
        assert total == own


def test_cycle_of_turns_equals_the_step_of_pettingzoo():
    """Two copies of simple_spread behind aec_to_parallel with the same actions; an episode has 25 steps."""
    simple_spread_v3 = pytest.importorskip('mpe2.simple_spread_v3', reason='the extra agents')
    theirs = simple_spread_v3.parallel_env()
    ours = simple_spread_v3.parallel_env()
    step = ParallelGame(ours).step_env
    assert isinstance(step, Cycle)
    draws = np.random.default_rng(0)
    for seed in (0, 1):
        for env in (theirs, ours):
            env.reset(seed=seed)
        n = 0
        while theirs.agents:
            actions = {agent: int(draws.integers(5)) for agent in theirs.agents}
            expected = theirs.step(actions)
            result = step(actions)
            for agent in actions:
                assert np.array_equal(expected[0][agent], result[0][agent])
                assert [part[agent] for part in expected[1:]] == [part[agent] for part in result[1:]]
            assert theirs.agents == ours.agents
            n += 1
        assert n == 25


def test_cycle_with_another_agent_on_turn_says_so():
    simple_spread_v3 = pytest.importorskip('mpe2.simple_spread_v3', reason='the extra agents')
    env = simple_spread_v3.parallel_env()
    env.reset(seed=0)
    env.aec_env.step(0)  # agent_0 has acted already
    with pytest.raises(BrokenContractError, match="'agent_1' is on turn"):
        Cycle(env)(dict.fromkeys(env.agents, 0))
