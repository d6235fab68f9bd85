"""Games of PettingZoo's two interfaces, by hand."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from tests.agents.envs import CartPoleParallel, CartPoleTurns, Clockwork, Rota
from zoo.agents.game import number
from zoo.agents.games import Cycle, ParallelGame, game_of, make_game
from zoo.env.config import env_config
from zoo.env.errors import BrokenContractError, UnknownEnvError, UnsupportedEnvError

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
        (lambda env, *rest: 'done', r"step returned 'done' \(str\)"),
        (lambda env, *rest: (*rest[:4], None), r'step returned infos None \(NoneType\)'),
        (lambda env, obs, *rest: (list(obs), *rest), r"step returned observations \['a', 'b', 'c'\] \(list\)"),
        (lambda env, obs, rewards, *rest: (obs, [1], *rest), r'step returned rewards \[1\] \(list\)'),
        (
            lambda env, o, r, terminated, *rest: terminated.update(a='no'),
            r'return bool\(terminations',
        ),
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


def test_turns_of_a_scripted_env():
    """By hand, from Rota's script: the agents in turn; what all agents earn in a step, before their first action and after their
    end too; the 99 of the steps with None is in no reward."""
    game = game_of(Rota(), 'rota')
    turn = game.reset(seed=0)
    acting = []
    rewards = []
    ends = []
    while turn.acts:
        acting += turn.acts
        turn = game.step(dict.fromkeys(turn.acts, 0))
        rewards.append([turn.rewards[agent] for agent in 'abc'])
        ends.append({agent: (end.terminated, end.obs.tolist()) for agent, end in turn.ended.items()})
    assert acting == list('abacbcc')
    assert rewards == [[2 ** (3 * t), 2 ** (3 * t + 1), 2 ** (3 * t + 2)] for t in range(7)]
    assert ends == [{}, {}, {'a': (True, [3, 0])}, {}, {}, {'b': (False, [6, 1])}, {'c': (True, [7, 2])}]


class BothFlags(Rota):
    """Rota in which all agents are terminated and truncated in step 2."""

    def step(self, action):
        super().step(action)
        if action is not None and self._t == 3:
            self.terminations = dict.fromkeys(self.agents, True)
            self.truncations = dict.fromkeys(self.agents, True)


class BothFlagsParallel(Clockwork):
    """Clockwork in which all agents are terminated and truncated in step 1, as by wrappers that hide deaths."""

    script = ('ab', 'ab', '')

    def step(self, actions):
        obs, rewards, terminated, truncated, infos = super().step(actions)
        both = dict.fromkeys(actions, self._t == 2)
        return obs, rewards, both, both, infos


@pytest.mark.parametrize('make', [BothFlags, BothFlagsParallel])
def test_an_agent_that_is_terminated_and_truncated_has_terminated(make):
    game = game_of(make(), '')
    turn = game.reset(seed=0)
    while turn.acts:
        turn = game.step(dict.fromkeys(turn.acts, 0))
    assert [end.terminated for end in turn.ended.values()] == [True] * len(turn.ended)
    assert len(turn.ended) == (3 if make is BothFlags else 2)


def test_illegal_move_of_tictactoe_ends_the_game():
    """By PettingZoo's rule the mover loses 1 and the other earns 0; both have both flags."""
    game = game_of(tictactoe_v3.env(), 'tictactoe')
    game.reset(seed=0)
    game.step({'player_1': 0})
    turn = game.step({'player_2': 0})
    assert turn.rewards == {'player_1': 0, 'player_2': -1}
    assert turn.acts == {}
    assert {agent: end.terminated for agent, end in turn.ended.items()} == {'player_1': True, 'player_2': True}


class Undead(Rota):
    """Rota that does not remove an agent that is stepped with None."""

    def step(self, action):
        if action is not None:
            super().step(action)


class Vanishing(Rota):
    """Rota in which c is gone after step 0, but has no end."""

    def step(self, action):
        super().step(action)
        for of_agents in (self.terminations, self.truncations):
            of_agents.pop('c', None)


@pytest.mark.parametrize(
    ('make', 'n_step', 'sentence'),
    [
        (Undead, 3, "agent 'a' has ended, and is still in `agents` after its step with None"),
        (Vanishing, 1, "agent 'c' is gone, but was neither terminated nor truncated"),
    ],
)
def test_env_of_turns_that_breaks_its_contract_is_named(make, n_step, sentence):
    game = game_of(make(), 'rota')
    turn = game.reset(seed=0)
    with pytest.raises(BrokenContractError, match=sentence):
        for _ in range(n_step):
            turn = game.step(dict.fromkeys(turn.acts, 0))


def test_rewards_in_a_defaultdict_must_have_all_agents():
    """PettingZoo's aec_to_parallel gives such a dict, which has 0 for every agent that is asked for."""
    game = game_of(Broken(lambda env, o, rewards, *rest: (o, defaultdict(int, a=1), *rest)), 'clockwork')
    game.reset()
    with pytest.raises(BrokenContractError, match="rewards without agent 'b', which acted"):
        game.step({'a': 0, 'b': 0})


def test_vector_rewards_are_weighted():
    def change(env, obs, rewards, *rest):
        return obs, {agent: np.array([reward, 10.0]) for agent, reward in rewards.items()}, *rest

    game = game_of(Broken(change), 'clockwork')
    game.reward_weights = [1.0, 0.5]
    game.reset()
    assert game.step({'a': 0, 'b': 0}).rewards == {'a': 6.0, 'b': 7.0}


class Seeds(Clockwork):
    """Clockwork that keeps the seeds of its resets."""

    def reset(self, seed=None, options=None):
        self.seeds = [*getattr(self, 'seeds', ()), seed]
        return super().reset(seed)


def test_seeds_of_resets_reach_the_env():
    game = game_of(Seeds(), 'clockwork')
    for seed in (3, None, 4):
        game.reset(seed)
    assert game.env.seeds == [3, None, 4]


def test_packages_that_draw_from_the_system_get_a_seed_at_every_reset(monkeypatch):
    """The same first seed gives the same later ones, which differ."""
    monkeypatch.setattr(Seeds, '__module__', 'shimmy.openspiel_compatibility')
    runs = []
    for _ in range(2):
        game = game_of(Seeds(), 'clockwork')
        for seed in (3, None, None):
            game.reset(seed)
        runs.append(game.env.seeds)
    assert runs[0] == runs[1]
    assert None not in runs[0]
    assert len(set(runs[0])) == 3


def turns_of(env, n_agent):
    """Actions drawn as from five choices for each turn. Returns: by agent, the sum of its `last` rewards."""
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    own = Counter(dict.fromkeys(env.possible_agents, 0.0))
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        own[agent] += reward
        env.step(None if terminated or truncated else int(rng.integers(n_agent)))
    return own


@pytest.mark.parametrize(
    ('module', 'n_choice', 'kwargs'),
    [
        ('pettingzoo.classic.rps_v2', 3, {}),
        ('mpe2.simple_spread_v3', 5, {}),
        ('mpe2.simple_adversary_v3', 5, {}),
        ('pettingzoo.sisl.pursuit_v5', 5, {'max_cycles': 20}),
    ],
)
@pytest.mark.parametrize('kind', ['env', 'parallel_env'])
def test_returns_are_those_of_the_loop_of_pettingzoo(module, n_choice, kwargs, kind):
    """The same drawn actions in the order of turns, in both interfaces, against the sum of `last` over `agent_iter`."""
    made = pytest.importorskip(module)
    own = turns_of(made.env(**kwargs), n_choice)
    rng = np.random.default_rng(0)
    game = game_of(getattr(made, kind)(**kwargs), module)
    turn = game.reset(seed=0)
    total = Counter(dict.fromkeys(game.agents, 0.0))
    while turn.acts:
        turn = game.step({agent: int(rng.integers(n_choice)) for agent in turn.acts})
        total.update(turn.rewards)
    assert total == pytest.approx(own)
    assert any(own.values())


def changed(base, **attributes):
    """An env of a class with other attributes."""
    return type('Changed', (base,), attributes)()


@pytest.mark.parametrize(
    ('attributes', 'sentence'),
    [
        ({'possible_agents': []}, r'has the possible_agents \[\], wanted strings that differ'),
        ({'possible_agents': [0, 1]}, r'has the possible_agents \[0, 1\], wanted strings that differ'),
        ({'possible_agents': ['a', 'a']}, r"has the possible_agents \['a', 'a'\], wanted strings that differ"),
        (
            {'observation_space': Discrete(2)},
            r'has observation_space as a Discrete, .*; write def observation_space\(self, agent\)',
        ),
        ({'action_space': None}, r'has action_space as a NoneType, .*; write def action_space\(self, agent\)'),
        ({'reset': lambda self: None}, r'has no method reset\(seed=None, options=None\); write def reset'),
        ({'step': None}, r'has no method step\(actions\); write def step\(self, actions\)'),
    ],
)
@pytest.mark.parametrize('base', [Clockwork, Rota])
def test_env_without_the_interface_is_refused(base, attributes, sentence):
    with pytest.raises(UnsupportedEnvError, match=f"env 'mine': Changed {sentence}"):
        game_of(changed(base, **attributes), 'mine')


def test_spaces_may_be_dicts_by_agent_and_close_may_be_missing():
    spaces = {agent: Discrete(i + 2) for i, agent in enumerate('abc')}
    attributes = {'action_space': None, 'action_spaces': spaces, 'close': None}
    game = game_of(changed(Clockwork, **attributes), 'mine')
    assert [game.action_space(agent).n for agent in 'abc'] == [2, 3, 4]
    game.close()


def test_reset_that_does_not_return_two_dicts_is_named():
    game = game_of(changed(Clockwork, reset=lambda self, seed=None: ({}, None)), 'mine')
    with pytest.raises(BrokenContractError, match=r'reset returned \(\{\}, None\) \(tuple\)'):
        game.reset()


def test_env_of_turns_whose_reset_selects_nobody_is_named():
    def reset(self, seed=None, options=None):
        Rota.reset(self)
        self.agent_selection = selection
        if selection is None:
            del self.agent_selection

    game = game_of(changed(Rota, reset=reset), 'mine')
    selection = None
    with pytest.raises(BrokenContractError, match='after a reset there is no agent_selection'):
        game.reset()
    selection = 'z'
    with pytest.raises(BrokenContractError, match="agent_selection is 'z'"):
        game.reset()
