"""Games of two players of pgx beside zoo's own, which are those of PettingZoo."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from zoo.core.spaces import ACTION_MASK, Discrete
from zoo.env import EnvRequest, UnsupportedEnvError
from zoo.env.tensor.games import ConnectFour, TicTacToe

pytest.importorskip('jax')

from zoo.env.tensor.jax_games import PgxGame, make_pgx_game  # noqa: E402  # it imports jax


def game(env_id: str, n_env: int) -> Any:
    pgx = pytest.importorskip('pgx')
    return make_pgx_game(pgx, env_id, EnvRequest(f'pgx:{env_id}', '', n_env, True, None))


@pytest.mark.parametrize(('env_id', 'own'), [('tic_tac_toe', TicTacToe), ('connect_four', ConnectFour)])
@pytest.mark.slow
def test_random_moves_give_the_rewards_and_ends_of_zoos_own_game(env_id: str, own: Any) -> None:
    """16 games at once, 60 steps of the same random moves: who acts, masks, observations, rewards and ends are the same."""
    n = 16
    env = game(env_id, n)
    seen = env.reset(3)
    rules = own()
    state = rules.reset(torch.zeros(n, 0))
    rng = np.random.default_rng(0)
    n_end = 0
    for _ in range(60):
        wanted = rules.observe(state)
        acts = rules.acts(state)
        assert torch.equal(seen.acts, acts)
        for i in range(2):
            assert torch.equal(seen.obs[i]['observation'].bool(), wanted['observation'][:, i].bool())
            mask = seen.obs[i][ACTION_MASK]
            assert torch.equal(mask[acts[:, i]], wanted[ACTION_MASK][acts[:, i], i])
            assert mask[~acts[:, i]].all()
        masks = wanted[ACTION_MASK][torch.arange(n), acts.long().argmax(1)].numpy()
        move = torch.tensor([int(rng.choice(np.flatnonzero(mask))) for mask in masks])
        both = torch.stack((move, move), 1)
        state, reward, terminated = rules.step(state, both, torch.zeros(n, 0))
        out = env.step([move, move])
        torch.testing.assert_close(out.reward, reward)
        assert torch.equal(out.terminated, terminated) and not out.truncated.any()
        last = rules.observe(state)['observation']
        for i in range(2):
            assert torch.equal(out.reached.obs[i]['observation'].bool(), last[:, i].bool())
        assert not out.reached.acts[terminated].any()
        n_end += int(terminated.sum())
        fresh = rules.reset(torch.zeros(n, 0))
        if isinstance(state, tuple):
            state = type(state)(
                torch.where(terminated.view(-1, *[1] * (x.dim() - 1)), new, x)
                for new, x in zip(fresh, state, strict=True)
            )
        else:
            state = torch.where(terminated.view(-1, 1, 1), fresh, state)
        seen = out.seen
    assert n_end > n
    assert env.find_bad() is None


def test_spaces_are_those_of_pettingzoo() -> None:
    env = game('tic_tac_toe', 2)
    assert isinstance(env, PgxGame)
    assert env.action_spaces == (Discrete(9), Discrete(9))
    assert env.obs_spaces[0].to_json() == TicTacToe().obs_space.to_json()


def test_games_of_one_player_are_no_games_of_agents_and_four_are_refused() -> None:
    request = EnvRequest('pgx:some', '', 1, True, None)

    def players(n: int) -> Any:
        return SimpleNamespace(make=lambda env_id: SimpleNamespace(num_players=n))

    assert make_pgx_game(players(1), 'some', request) is None
    with pytest.raises(UnsupportedEnvError, match='a game of 4 players'):
        make_pgx_game(players(4), 'some', request)
