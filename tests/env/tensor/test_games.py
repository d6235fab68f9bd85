"""Games as tensor envs, beside those of OpenSpiel and PettingZoo by real steps."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from zoo.core.spaces import ACTION_MASK
from zoo.env.tensor.games import ConnectFour, Deal, Hand, KuhnPoker, LeducPoker, RockPaperScissors, TicTacToe

NO_NOISE = torch.zeros(1, 0)


def test_kuhn_poker_equals_openspiel_in_every_hand():
    pyspiel = pytest.importorskip('pyspiel', reason='the extra agents')
    env = KuhnPoker()
    n_end = 0

    def walk(theirs, mine):
        nonlocal n_end
        player = theirs.current_player()
        obs = env.observe(mine)['obs'][0]
        for i in range(2):
            assert obs[i].tolist() == theirs.information_state_tensor(i)
        assert env.acts(mine)[0].tolist() == [player == 0, player == 1]
        for move in theirs.legal_actions():
            after = theirs.child(move)
            state, reward, is_over = env.step(mine, torch.full((1, 2), move), NO_NOISE)
            assert reward[0].tolist() == after.returns()
            assert bool(is_over) == after.is_terminal()
            n_end += after.is_terminal()
            if not after.is_terminal():
                walk(after, state)

    for first in range(3):
        for second in set(range(3)) - {first}:
            theirs = pyspiel.load_game('kuhn_poker').new_initial_state()
            theirs.apply_action(first)
            theirs.apply_action(second)
            walk(
                theirs, Hand(torch.tensor([[first, second]]), torch.full((1, 3), -1), torch.zeros(1, dtype=torch.int64))
            )
    assert n_end == 30  # 6 deals with 5 ends each


def test_kuhn_poker_deals_each_pair_of_cards_equally_often():
    state = KuhnPoker().reset(torch.rand(60_000, 2, generator=torch.Generator().manual_seed(0)))
    counts = Counter(map(tuple, state.card.tolist()))
    assert len(counts) == 6
    # 10,000 each, standard deviation 91
    assert all(abs(n - 10_000) < 400 for n in counts.values())


def dealt(first, second, public):
    """A hand of Leduc poker before the first move."""
    one = torch.ones((1, 2), dtype=torch.int64)
    return Deal(torch.tensor([[first, second, public]]), torch.full((1, 2, 4), -1), one[:, 0] * 0, one)


def compare_all_hands(env, theirs, mine, public):
    """Walks all moves of a hand of Leduc poker; returns the number of its ends."""
    if theirs.is_chance_node():  # after the first round
        theirs.apply_action(public)
    player = theirs.current_player()
    seen = env.observe(mine)
    for i in range(2):
        assert seen['obs'][0, i].tolist() == theirs.information_state_tensor(i)
    assert seen[ACTION_MASK][0, player].tolist() == [bool(x) for x in theirs.legal_actions_mask(player)]
    assert env.acts(mine)[0].tolist() == [player == 0, player == 1]
    n_end = 0
    for move in theirs.legal_actions():
        after = theirs.child(move)
        state, reward, is_over = env.step(mine, torch.full((1, 2), move), NO_NOISE)
        assert bool(is_over) == after.is_terminal()
        assert reward[0].tolist() == after.returns()
        if after.is_terminal():
            n_end += 1
        else:
            n_end += compare_all_hands(env, after, state, public)
    return n_end


@pytest.mark.parametrize(('first', 'second', 'public'), [(0, 3, 5), (0, 1, 4), (4, 2, 5), (2, 5, 3), (1, 5, 2)])
def test_leduc_poker_equals_openspiel_in_every_move(first, second, public):
    pyspiel = pytest.importorskip('pyspiel', reason='the extra agents')
    theirs = pyspiel.load_game('leduc_poker').new_initial_state()
    theirs.apply_action(first)
    theirs.apply_action(second)
    # a round has 9 ends by these moves: cc, rf, rc, rrf, rrc, crf, crc, crrf, crrc; 4 are folds, 5 lead to the next round
    assert compare_all_hands(LeducPoker(), theirs, dealt(first, second, public), public) == 4 + 5 * 9


def test_leduc_poker_deals_each_three_cards_equally_often():
    state = LeducPoker().reset(torch.rand(120_000, 3, generator=torch.Generator().manual_seed(0)))
    counts = Counter(map(tuple, state.card.tolist()))
    assert len(counts) == 6 * 5 * 4
    assert all(len(set(cards)) == 3 for cards in counts)
    # 1,000 each, standard deviation 31
    assert all(abs(n - 1000) < 150 for n in counts.values())


def test_leduc_poker_takes_an_illegal_move_as_a_call():
    env = LeducPoker()
    fold = torch.full((1, 2), 0)
    more = torch.full((1, 2), 2)
    checked, _, is_over = env.step(dealt(0, 3, 5), fold, NO_NOISE)  # nothing to pay
    assert not is_over
    assert checked.moves[0, 0].tolist() == [0, -1, -1, -1]
    raised, _, _ = env.step(env.step(dealt(0, 3, 5), more, NO_NOISE)[0], more, NO_NOISE)
    third, _, _ = env.step(raised, more, NO_NOISE)
    assert third.paid.tolist() == [[5, 5]]  # 1 + 2 + 2 each
    assert third.stage.tolist() == [1]


def play_both(theirs, mine, rng, choose):
    """A game in PettingZoo's env of turns and in the tensor env, with the same moves; compares all that is seen."""
    state = mine.reset(torch.zeros(1, 0))
    is_over = False
    while not is_over:
        agent = theirs.agent_selection
        seat = theirs.possible_agents.index(agent)
        seen = theirs.observe(agent)
        obs = mine.observe(state)
        assert mine.acts(state)[0].tolist() == [seat == 0, seat == 1]
        np.testing.assert_array_equal(obs['observation'][0, seat].numpy(), seen['observation'])
        np.testing.assert_array_equal(obs[ACTION_MASK][0, seat].numpy(), seen['action_mask'])
        move = choose(seen['action_mask'], rng)
        theirs.step(move)
        state, reward, over = mine.step(state, torch.full((1, 2), move), NO_NOISE)
        is_over = bool(over)
        assert is_over == all(theirs.terminations.values())
        assert reward[0].tolist() == [theirs.rewards[agent] for agent in theirs.possible_agents]
    return reward[0].tolist()


@pytest.mark.long
def test_tictactoe_equals_pettingzoo_in_random_games():
    tictactoe = pytest.importorskip('pettingzoo.classic.tictactoe_v3', reason='the extra agents')
    rng = np.random.default_rng(0)
    theirs = tictactoe.env()
    results = Counter()
    for _ in range(300):
        theirs.reset()
        results[
            tuple(play_both(theirs, TicTacToe(), rng, lambda mask, rng: int(rng.choice(np.flatnonzero(mask)))))
        ] += 1
    assert set(results) == {(1.0, -1.0), (-1.0, 1.0), (0.0, 0.0)}


def column_or_two(mask, rng):
    """One of the first two columns that are free, so that some games fill the board; else any."""
    free = np.flatnonzero(mask)
    if rng.random() < 0.5:
        free = free[:2]
    return int(rng.choice(free))


def test_connect_four_equals_pettingzoo_in_random_games():
    connect_four = pytest.importorskip('pettingzoo.classic.connect_four_v3', reason='the extra agents')
    rng = np.random.default_rng(0)
    theirs = connect_four.env()
    results = Counter()
    for _ in range(60):
        theirs.reset()
        results[tuple(play_both(theirs, ConnectFour(), rng, column_or_two))] += 1
    assert set(results) >= {(1.0, -1.0), (-1.0, 1.0)}


@pytest.mark.parametrize(
    ('moves', 'winner'),
    [
        ([0, 1, 0, 1, 0, 1, 0], 0),  # a column
        ([6, 3, 6, 4, 0, 5, 1, 6, 1, 6], None),  # three in a row, the fourth place of the row has another disc
        ([0, 3, 0, 4, 1, 5, 1, 6], 1),  # the lowest row, to its right end
        ([3, 4, 4, 5, 5, 6, 5, 6, 6, 0, 6], 0),  # a rising diagonal
        ([3, 2, 2, 1, 1, 0, 1, 0, 0, 6, 0], 0),  # a falling one
    ],
)
def test_connect_four_is_won_by_four_in_a_line(moves, winner):
    env = ConnectFour()
    state = env.reset(torch.zeros(1, 0))
    for i, move in enumerate(moves):
        state, reward, is_over = env.step(state, torch.full((1, 2), move), NO_NOISE)
        assert bool(is_over) == (winner is not None and i == len(moves) - 1)
    wanted = {None: [0.0, 0.0], 0: [1.0, -1.0], 1: [-1.0, 1.0]}
    assert reward[0].tolist() == wanted[winner]


def test_connect_four_ends_in_a_draw_when_the_board_is_full():
    env = ConnectFour()
    state = env.reset(torch.zeros(1, 0))
    # a disc in the middle, then all other columns, then the rest of the middle: rows of one colour are cut by the middle
    order = [3] + [0] * 6 + [1] * 6 + [2] * 6 + [4] * 6 + [5] * 6 + [6] * 6 + [3] * 5
    for i, move in enumerate(order):
        assert env.observe(state)[ACTION_MASK][0, i % 2, move]
        state, reward, is_over = env.step(state, torch.full((1, 2), move), NO_NOISE)
        assert bool(is_over) == (i == 41)
    assert reward[0].tolist() == [0.0, 0.0]
    assert not env.observe(state)[ACTION_MASK].any()


def test_rock_paper_scissors_equals_pettingzoo():
    rps = pytest.importorskip('pettingzoo.classic.rps_v2', reason='the extra agents')
    theirs = rps.parallel_env(max_cycles=15)
    rng = np.random.default_rng(0)
    seen, _ = theirs.reset(seed=0)
    mine = RockPaperScissors()
    state = mine.reset(torch.zeros(1, 0))
    for _ in range(15):
        got = mine.observe(state)[0].argmax(1).tolist()
        assert got == [int(x) for x in seen.values()]
        action = rng.integers(3, size=2)
        seen, rewards, *_ = theirs.step(dict(zip(theirs.possible_agents, action.tolist(), strict=True)))
        state, reward, _ = mine.step(state, torch.from_numpy(action).unsqueeze(0), NO_NOISE)
        assert reward[0].tolist() == [float(x) for x in rewards.values()]
    assert not theirs.agents  # its episode is over after as many rounds
    assert mine.max_episode_steps == 15
