"""Rows of policies in tables, and actions joined to tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from zoo.agents.layout import EPISODE, N_COLUMN, REWARD, Group, Layout
from zoo.agents.rows import ActionJoin, Owners, PolicyRows, outcomes
from zoo.core.spaces import Box, Dict, Discrete
from zoo.env.adapter import convert_space, gymnasium_space

VECTOR = Box(torch.full((2,), -1.0).numpy(), torch.full((2,), 1.0).numpy())
BOTH = Dict({'turn': Discrete(3), 'push': VECTOR})


def group(policy, slots, action_space):
    n = len(slots)
    return Group(policy, f'of_{policy}', slots, VECTOR, action_space, (VECTOR,) * n, (action_space,) * n, False, '')


LAYOUT = Layout(
    'x', ('a', 'b', 'c'), (group('q', (0, 2), BOTH), group('p', (1,), Discrete(5))), 'off', None, 'none', (0,), True
)


def test_rows_are_copy_by_copy_agent_by_agent():
    tables = {'of_q': torch.arange(2 * 3 * 2 * 2.0).view(2, 3, 2, 2), 'rows': torch.zeros(2, 3, 3, N_COLUMN)}
    rows = PolicyRows(tables, LAYOUT.groups[0])
    assert rows.obs.shape == (2, 6, 2)
    assert rows.obs.data_ptr() == tables['of_q'].data_ptr()  # no copy
    assert rows.obs[0].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11]]


def test_actions_have_the_order_of_the_space_of_the_envs():
    _, actions = LAYOUT.table_spaces()
    space = convert_space(gymnasium_space(actions), 'action', 'x')
    assert list(space.spaces) == ['of_p', 'of_q']  # gymnasium sorts them
    push = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    turn = torch.tensor([[2.0], [1.0]])
    order = list(BOTH.spaces)
    q = torch.cat([turn, push], 1) if order[0] == 'turn' else torch.cat([push, turn], 1)
    joined = ActionJoin(LAYOUT, space)({'p': torch.tensor([4]), 'q': q})
    first, second = (list(space.spaces['of_q'].spaces)[i] for i in range(2))
    parts = {'turn': [2.0, 1.0], 'push': [0.1, 0.2, 0.3, 0.4]}
    assert torch.allclose(joined, torch.tensor([[4.0, *parts[first], *parts[second]]]))


def test_outcome_of_the_last_step_is_in_the_last_table():
    columns = torch.zeros(3, 2, 1, N_COLUMN)
    columns[:, :, 0, REWARD] = torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, 0.0]])
    final = np.zeros((1, 1, N_COLUMN), np.float32)
    final[0, 0, REWARD] = 9.0
    gained = outcomes(columns, [(1, np.array([1]), {'rows': final})])
    assert gained[..., 0, REWARD].tolist() == [[1.0, 2.0], [3.0, 9.0]]


def test_owners_change_with_the_episode():
    def mapping(agent, episode, copy):
        return 'pq'[(episode + copy + 'abc'.index(agent)) % 2]

    owners = Owners(replace(LAYOUT, mapping=mapping), 2, first=1)
    columns = torch.zeros(2, 3, N_COLUMN)
    columns[1, :, EPISODE] = 3
    q, p = 0, 1  # the order of the groups
    # copies 1 and 2; agent a of copy 1 in episode 0: 'pq'[1]
    assert owners.see(columns).tolist() == [[q, p, q], [q, p, q]]
    columns[0, :, EPISODE] = 1
    assert owners.see(columns).tolist() == [[p, q, p], [q, p, q]]


def test_owner_chooses_whose_action_counts():
    shared = tuple(group(name, (0, 1, 2), Discrete(5))._replace(entry='of all') for name in 'pq')
    layout = replace(LAYOUT, groups=shared)
    _, actions = layout.table_spaces()
    join = ActionJoin(layout, convert_space(gymnasium_space(actions), 'action', 'x'))
    joined = join({'p': torch.tensor([1, 1, 1]), 'q': torch.tensor([2, 3, 4])}, torch.tensor([[0, 1, 1]]))
    assert joined.tolist() == [[1, 3, 4]]
