"""The env 'minatar': its five games with the interface of gymnasium, and how their episodes end."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import pytest

from zoo.core.errors import UserError
from zoo.env import EnvConfig, EnvKwargsError, MissingExtraError, check_env, make_env
from zoo.env.families.minatar import GAMES, MinAtar

# not importorskip: the import takes two seconds in each process that collects the tests
pytestmark = pytest.mark.skipif(find_spec('minatar') is None, reason='needs the extra minatar')

N_ACTION = {'asterix': 5, 'breakout': 3, 'freeway': 3, 'seaquest': 6, 'space_invaders': 4}
N_CHANNEL = {'asterix': 4, 'breakout': 4, 'freeway': 7, 'seaquest': 10, 'space_invaders': 6}
UP = 1  # in freeway


@pytest.mark.parametrize('game', GAMES)
def test_minatar_keeps_the_interface_of_gymnasium(game: str) -> None:
    cfg = EnvConfig(id='minatar', kwargs={'game': game})
    assert check_env(cfg) == []
    env = make_env(cfg)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (10, 10, N_CHANNEL[game]) and obs.dtype == np.uint8 and set(np.unique(obs)) == {0, 255}
    assert env.action_space.n == N_ACTION[game]


def episode(env: MinAtar, seed: int | None, n_step: int = 200) -> list[tuple[bytes, float]]:
    """What is seen and earned in n_step steps of a fixed sequence of actions; ended episodes are reset."""
    first, _ = env.reset(seed=seed)
    seen = [(first.tobytes(), 0.0)]
    for t in range(n_step):
        obs, reward, terminated, truncated, _ = env.step(t * 7 % env.action_space.n)
        seen.append((obs.tobytes(), reward))
        if terminated or truncated:
            env.reset()
    return seen


@pytest.mark.parametrize('game', GAMES)
def test_minatar_seed_decides_all_that_happens(game: str) -> None:
    env = MinAtar(game)
    assert episode(env, 3) == episode(MinAtar(game), 3) == episode(env, 3)
    assert episode(env, 3) != episode(env, 4)


def test_minatar_freeway_pays_1_for_each_crossing_and_its_time_limit_truncates() -> None:
    env = MinAtar('freeway', sticky_action_prob=0.0)
    env.reset(seed=0)
    steps = [env.step(UP) for _ in range(2501)]  # the original counts down from 2500 and ends below 0
    assert [terminated or truncated for _, _, terminated, truncated, _ in steps] == [False] * 2500 + [True]
    assert steps[-1][2:4] == (False, True)
    n_crossing = sum(reward for _, reward, *_ in steps)
    assert {reward for _, reward, *_ in steps} == {0.0, 1.0}
    assert 10 < n_crossing < 2500 / (9 * 3)  # 9 rows, 3 steps each


def test_minatar_breakout_ends_as_a_death_when_the_ball_is_missed() -> None:
    env = MinAtar('breakout', sticky_action_prob=0.0)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(30)]
    assert (True, False) in ends and not any(truncated for _, truncated in ends)


def test_minatar_repeats_the_last_action_with_the_given_probability() -> None:
    def moves(sticky: float) -> int:
        env = MinAtar('breakout', sticky_action_prob=sticky, ramping=False)
        places = [np.argwhere(env.reset(seed=0)[0][-1, :, 0])[0, 0]]
        places += [np.argwhere(env.step(1 + t % 2)[0][-1, :, 0])[0, 0] for t in range(4)]  # left, right, left, right
        return int(np.count_nonzero(np.diff(places)))

    assert moves(0.0) == 4
    assert moves(1.0) == 0  # the game begins with 'no operation' as its last action


def test_minatar_picture_has_a_color_for_each_thing() -> None:
    env = MinAtar('breakout', render_mode='rgb_array')
    obs, _ = env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (10, 10, 3) and picture.dtype == np.uint8
    assert np.array_equal(picture.any(-1), obs.any(-1))
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) == 1 + 3  # nothing, paddle, ball, bricks; its trail is new


@pytest.mark.parametrize(
    ('kwargs', 'said'),
    [
        ({'game': 'breakou'}, "game is 'breakou': did you mean 'breakout'[?] minatar has asterix, "),
        ({'game': 3}, 'game is 3: minatar has asterix, .*; use one of these'),
        ({'game': 'asterix', 'sticky_action_prob': 2.0}, 'sticky_action_prob is 2.0: .* pass a number from 0 to 1'),
        ({'game': 'asterix', 'sticky_action_prob': 'x'}, "sticky_action_prob is 'x': .* pass a number from 0 to 1"),
    ],
)
def test_minatar_kwargs_out_of_range_are_refused(kwargs: dict[str, object], said: str) -> None:
    with pytest.raises(EnvKwargsError, match=said):
        make_env(EnvConfig(id='minatar', kwargs=kwargs))


def test_minatar_takes_its_game_from_the_kwargs_and_any_seed_of_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match='leave env.game out, or use env.kwargs.game if it takes that'):
        make_env(EnvConfig(id='minatar', game='asterix'))
    MinAtar('asterix').reset(seed=2**40)
    monkeypatch.setitem(sys.modules, 'minatar', None)
    with pytest.raises(MissingExtraError, match="env 'minatar' needs the minatar extra"):
        make_env(EnvConfig(id='minatar', kwargs={'game': 'asterix'}))
