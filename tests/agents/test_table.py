"""Tables of a scripted env: who acts, what each agent earned, who ended."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from tests.agents.envs import Clockwork, Rota
from zoo.agents.config import AgentsConfig
from zoo.agents.games import game_of
from zoo.agents.layout import ACTS, BEGINS, EPISODE, REWARD, ROWS, TERMINATED, TRUNCATED, layout_of
from zoo.agents.table import TableEnv
from zoo.env.config import EndsConfig
from zoo.env.errors import BrokenContractError
from zoo.env.interface import EnvCommand
from zoo.env.settings import apply


def make_table(limit=None, **agents):
    game = game_of(Clockwork(), 'clockwork')
    return TableEnv(game, layout_of(game, AgentsConfig(**agents), 'clockwork', ['shared']), limit)


def play(env, n):
    """The tables of an episode, copied, and the results of its steps."""
    tables = [{name: x.copy() for name, x in env.reset(seed=0)[0].items()}]
    results = []
    for _ in range(n):
        table, *result = env.step({'of_shared': np.zeros(3, np.int64)})
        tables.append({name: x.copy() for name, x in table.items()})
        results.append(result[:3])
    return tables, results


def column(tables, index):
    return [table[ROWS][:, index].tolist() for table in tables]


def test_columns_of_an_episode():
    tables, results = play(make_table(), 5)
    assert column(tables, ACTS) == [[1, 1, 0], [1, 1, 0], [0, 1, 1], [0, 1, 1], [0, 0, 1], [0, 0, 0]]
    assert column(tables, BEGINS) == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert column(tables, REWARD)[1:] == [[1, 2, 0], [8, 16, 0], [0, 128, 256], [0, 1024, 2048], [0, 0, 16384]]
    assert [(t, i) for t, row in enumerate(column(tables, TERMINATED)) for i in range(3) if row[i]] == [(2, 0), (5, 2)]
    assert [(t, i) for t, row in enumerate(column(tables, TRUNCATED)) for i in range(3) if row[i]] == [(4, 1)]
    assert [round(reward * 3) for reward, *_ in results] == [3, 24, 384, 3072, 16384]  # the mean over the agents
    assert [ends for _, *ends in results] == [[False, False]] * 4 + [[True, False]]


def test_rows_show_what_agents_act_on_and_zeros_where_they_do_not():
    tables, _ = play(make_table(), 5)
    rows = [table['of_shared'] for table in tables]
    ids = np.eye(3)
    assert all(np.array_equal(row[:, 2:], ids) for row in rows)
    assert rows[0][:, :2].tolist() == [[0, 0], [0, 1], [0, 0]]
    assert rows[2][:, :2].tolist() == [[2, 0], [2, 1], [2, 2]]  # the last observation of a; c is born
    assert rows[3][:, :2].tolist() == [[0, 0], [3, 1], [3, 2]]  # a is dead, and its nan is not read
    assert not any(np.isnan(row).any() for row in rows)


def test_limit_of_steps_cuts_all_agents_off():
    tables, results = play(make_table(limit=2), 2)
    assert results[-1][1:] == [False, True] or results[-1][1:] == [True, False]
    assert column(tables, ACTS)[-1] == [0, 0, 0]
    assert column(tables, TRUNCATED)[-1] == [0, 1, 1]
    assert column(tables, TERMINATED)[-1] == [1, 0, 0]


def test_score_names_the_reward_of_a_step():
    assert [reward for reward, *_ in play(make_table(score='b'), 3)[1]] == [2, 16, 128]
    assert [reward for reward, *_ in play(make_table(score='team'), 3)[1]] == [3, 24, 384]


def test_concat_has_the_observations_of_all_agents():
    tables, _ = play(make_table(state='concat'), 3)
    assert [table['state'].tolist() for table in tables] == [
        [0, 0, 0, 1, 0, 0],
        [1, 0, 1, 1, 0, 0],
        [2, 0, 2, 1, 2, 2],
        [0, 0, 3, 1, 3, 2],
    ]


def test_concat_has_the_observations_of_agents_that_wait():
    """Rota: a acts in steps 0 and 2, where it dies; b in 1, c in 3. Before its first turn an agent has zeros."""
    game = game_of(Rota(), 'rota')
    table = TableEnv(game, layout_of(game, AgentsConfig(state='concat'), 'rota', ['shared']))
    tables, _ = play(table, 5)
    assert [table['state'].tolist() for table in tables] == [
        [0, 0, 0, 0, 0, 0],
        [1, 0, 1, 1, 0, 0],
        [2, 0, 2, 1, 0, 0],
        [3, 0, 3, 1, 3, 2],  # what a observed last
        [0, 0, 4, 1, 4, 2],
        [0, 0, 5, 1, 5, 2],
    ]


class Counted(Clockwork):
    """Clockwork whose observations are numbers, as those of rock-paper-scissors: the step."""

    def observation_space(self, agent):
        return gymnasium.spaces.Discrete(9)

    def observed(self, agent):
        return np.int64(self._t)


def test_observations_may_be_numbers():
    """By hand: the step where an agent acts or has just ended, 0 where it does not act."""
    game = game_of(Counted(), 'counted')
    env = TableEnv(game, layout_of(game, AgentsConfig(id='off'), 'counted', ['shared']))
    tables, _ = play(env, 5)
    rows = [table['of_shared'].tolist() for table in tables]
    assert rows == [[0, 0, 0], [1, 1, 0], [2, 2, 2], [0, 3, 3], [0, 4, 4], [0, 0, 5]]


def test_unknown_agent_is_refused():
    env = make_table()
    env.reset()
    env.game.env.script = ['ab', 'abd', '']
    env.game.env.possible_agents = ['a', 'b', 'c', 'd']
    with pytest.raises(BrokenContractError, match="the env names the agent 'd'"):
        env.step({'of_shared': np.zeros(3, np.int64)})


def test_a_seed_begins_the_count_of_episodes():
    """Resets count on; one with a seed gives the same first observation again, its number 0 included."""
    env = make_table(policies={'p': {}, 'q': {}}, mapping=lambda agent, episode, copy: 'pq'[episode % 2])
    numbers = [env.reset(seed=seed)[0][ROWS][0, EPISODE] for seed in (3, None, None, 3)]
    assert numbers == [0, 1, 2, 0]


class Signs(Clockwork):
    """Clockwork whose info says that the death of a in step 1 was a limit of steps."""

    def step(self, actions):
        *result, infos = super().step(actions)
        if self._t == 2:
            infos = {**infos, 'a': {'is_limit': True}}
        return *result, infos


class BothDie(Signs):
    """As Signs, but b dies in step 1 too, without a limit."""

    ends = {(1, 'a'): True, (1, 'b'): True, (4, 'c'): True}  # noqa: RUF012
    script = ('ab', 'ab', 'c', 'c', 'c', '')


def test_info_of_an_agent_says_nothing_about_the_end_of_another():
    game = game_of(BothDie(), 'clockwork')
    layout = layout_of(game, AgentsConfig(), 'clockwork', ['shared'])
    tables, _ = play(TableEnv(game, layout, ends=EndsConfig(bootstrap_if=dict(is_limit=True))), 2)
    assert column(tables, TERMINATED)[-1] == [0, 1, 0]
    assert column(tables, TRUNCATED)[-1] == [1, 0, 0]


@pytest.mark.parametrize(
    ('ends', 'terminated', 'truncated'),
    [
        (dict(), 'ac', 'b'),
        (dict(terminated='bootstrap'), '', 'abc'),
        (dict(truncated='terminal'), 'abc', ''),
        (dict(bootstrap_if=dict(is_limit=True)), 'c', 'ab'),
        (dict(terminated='bootstrap', terminal_if=dict(is_limit=1)), 'a', 'bc'),
    ],
)
def test_ends_mean_what_the_config_says(ends, terminated, truncated):
    game = game_of(Signs(), 'clockwork')
    layout = layout_of(game, AgentsConfig(), 'clockwork', ['shared'])
    env = TableEnv(game, layout, ends=EndsConfig(**ends))
    tables, results = play(env, 5)
    for index, agents in ((TERMINATED, terminated), (TRUNCATED, truncated)):
        assert ''.join('abc'[i] for i in range(3) if any(row[i] for row in column(tables, index))) == agents
    assert results[-1][1:] == [('c' in terminated), ('c' not in terminated)]
    assert tables[2]['of_shared'][0, :2].tolist() == [2, 0]  # what a observed last


def test_attributes_of_the_env_are_found():
    env = make_table()
    env.env.wind = 1.0
    apply(env, EnvCommand('set', 'wind', (2.0,)))
    assert env.game.env.wind == 2.0
