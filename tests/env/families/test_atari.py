"""Real Atari games. The oracle of a training env is the raw game with the same seed and actions."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import numpy as np
import pytest
import torch

from zoo.config.section import ConfigError
from zoo.env import EnvConfig, VectorEnv, make_vector_env
from zoo.env.errors import MissingExtraError
from zoo.env.make import check_source, make_env

pytestmark = pytest.mark.skipif(importlib.util.find_spec('ale_py') is None, reason='the extra atari is not installed')


def make(game: str, n_env: int = 2, training: bool = False, **fields: Any) -> VectorEnv:
    return make_vector_env(EnvConfig(id='atari', game=game, **fields), n_env, training=training)


def actions(n: int, n_env: int, n_step: int) -> torch.Tensor:
    return torch.randint(n, (n_step, n_env), generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
def test_step_images_stay_bytes_and_stack_the_last_four_frames() -> None:
    env = make('Pong')
    assert (env.obs_space.shape, env.obs_space.dtype, env.action_space.n) == ((4, 84, 84), 'uint8', 6)
    last = env.reset(0)
    for action in actions(6, 2, 5):
        obs = env.step(action).obs
        assert obs.dtype == torch.uint8 and obs.shape == (2, 4, 84, 84)
        assert torch.equal(obs[:, :3], last[:, 1:]) and not torch.equal(obs[:, 3], last[:, 3])
        last = obs
    env.close()


@pytest.mark.long
@pytest.mark.slow
def test_step_training_is_the_raw_game_with_clipped_rewards_and_an_end_for_each_life() -> None:
    """Qbert pays 25 for a cube and has 4 lives: in training a game has 4 ends; the last is the end of the game itself."""
    raw, clipped = make('Qbert', 1), make('Qbert', 1, training=True)
    assert torch.equal(raw.reset(3), clipped.reset(3))
    score, training_score, n_end = 0.0, 0.0, 0
    for action in actions(6, 1, 3000):
        want, got = raw.step(action), clipped.step(action)
        assert torch.equal(want.obs, got.obs) and torch.equal(want.reward, got.raw_reward)
        assert torch.equal(got.reward, want.reward.sign())
        score, training_score = score + want.reward.item(), training_score + got.raw_reward.item()
        over = want.terminated | want.truncated
        assert torch.equal(got.raw_end, over) and want.raw_reward is None and want.raw_end is None
        assert not got.truncated.any()
        if got.terminated.any():
            n_end += 1
            if not over.any():  # a lost life: the next episode continues from the final observation
                assert torch.equal(got.final_obs, got.obs) and want.final_obs is None
                assert got.final_index.tolist() == [0]
            else:
                assert torch.equal(got.final_obs, want.final_obs) and not torch.equal(got.final_obs, got.obs)
                break
    assert over.all()
    assert n_end == 4 and score == training_score >= 25
    raw.close()
    clipped.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ('kwargs', 'ends', 'clips'),
    [
        ({'episodic_life': False}, False, True),
        ({'clip_reward': False}, True, False),
        ({'episodic_life': False, 'clip_reward': False}, False, False),
    ],
)
def test_step_training_does_only_what_is_asked_for(kwargs: dict, ends: bool, clips: bool) -> None:
    env = make('Qbert', 2, training=True, kwargs=kwargs)
    env.reset(2)
    steps = [env.step(action) for action in actions(6, 2, 80)]
    lives = np.stack([step.info['lives'] for step in steps])
    over = torch.stack([step.terminated if step.raw_end is None else step.raw_end for step in steps]).numpy()
    lost = (np.diff(lives, axis=0) < 0) & ~over[1:]
    assert lost.any()
    assert (torch.stack([step.terminated for step in steps[1:]]).numpy()[lost] == ends).all()
    best = torch.stack([step.reward for step in steps]).max().item()
    assert best == 1 if clips else best >= 25
    assert (steps[0].raw_reward is None) == (not ends and not clips)
    env.close()


def lives_lost(env: VectorEnv, n_step: int) -> int:
    """The number of lives lost in `n_step` steps by a player that does nothing."""
    env.reset(0)
    lives = [5]
    lives += [int(env.step(torch.zeros(1, dtype=torch.int64)).info['lives'][0]) for _ in range(n_step)]
    env.close()
    return int((np.diff(lives) < 0).sum())


@pytest.mark.slow
@pytest.mark.parametrize('training', [False, True])
def test_step_fire_serves_the_ball_after_every_life_in_training_and_evaluation(training: bool) -> None:
    # a ball that nobody hits is gone 21 steps after it was served: two lives within 50 steps
    assert lives_lost(make('Breakout', 1, training), 50) == 2
    assert lives_lost(make('Breakout', 1, training, kwargs={'fire_reset': False}), 50) == 0


@pytest.mark.slow
def test_step_max_episode_steps_truncates_and_shows_the_true_final_obs() -> None:
    env = make('Pong', 2, max_episode_steps=10)
    last = env.reset(0)
    for t, action in enumerate(actions(6, 2, 10), 1):
        step = env.step(action)
        assert step.truncated.tolist() == [t % 10 == 0] * 2 and not step.terminated.any()
        if t % 10 == 0:
            assert step.final_index.tolist() == [0, 1] and step.final_obs.dtype == torch.uint8
            assert torch.equal(step.final_obs[:, :3], last[:, 1:])  # one frame further, not a new game
            assert not torch.equal(step.obs[:, :3], last[:, 1:])
        last = step.obs
    env.close()


@pytest.mark.long
def test_step_lives_and_games_that_end_together_have_their_own_final_obs() -> None:
    env = make('Breakout', 8, training=True)
    last, n_mixed = env.reset(0), 0
    for action in actions(4, 8, 125):
        step = env.step(action)
        if step.final_obs is not None:
            index = step.final_index
            assert index.tolist() == step.terminated.nonzero().flatten().tolist()
            assert torch.equal(step.final_obs[:, :3], last[index, 1:])  # one frame further in the same game
            goes_on = (step.final_obs == step.obs[index]).flatten(1).all(1)
            assert torch.equal(goes_on, ~step.raw_end[index])
            n_mixed += len(set(goes_on.tolist())) == 2
        last = step.obs
    assert n_mixed > 0
    env.close()


@pytest.mark.long
def test_step_life_count_that_falls_to_none_ends_nothing_before_the_game_does() -> None:
    """BankHeist counts the last life as 0; as in the published wrappers, only a fall to 1 or more ends an episode."""
    env = make('BankHeist', 8, training=True)
    env.reset(0)
    last, n_fall = np.full(8, 4), 0
    for action in actions(18, 8, 360):
        step = env.step(action)
        lives = step.info['lives']
        falls = torch.from_numpy((lives < last) & ~step.raw_end.numpy())
        assert torch.equal(step.terminated, step.raw_end | (falls & torch.from_numpy(lives > 0)))
        last, n_fall = lives, n_fall + int((falls & torch.from_numpy(lives == 0)).sum())
    assert n_fall > 0
    env.close()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.slow
def test_steps_of_two_groups_that_run_at_once_are_those_of_one_after_the_other() -> None:
    """Each group begins its step before the other's ends; a reset ends a step that was begun."""
    groups = [make('Pong', 1, kwargs={'num_threads': 1}) for _ in range(4)]
    both, alone = groups[:2], groups[2:]
    for seed, (one, other) in enumerate(zip(both, alone, strict=True)):
        assert torch.equal(one.reset(seed), other.reset(seed))
    for action in actions(6, 1, 8):
        for env in both:
            env.send(action)
        for one, other in zip(both, alone, strict=True):
            pairs = zip(one.env.step_wait()[:4], other.env.step(action.numpy())[:4], strict=True)
            assert all(np.array_equal(*pair) for pair in pairs)
    both[0].send(action)
    assert torch.equal(both[0].reset(5), alone[0].reset(5))
    for env in groups:
        env.close()


def test_make_vector_env_name_and_kwargs_reach_the_game() -> None:
    env = make('SpaceInvaders', 1)  # a name of two words
    assert env.action_space.n == 6
    env.close()
    env = make('Pong', 1, kwargs={'frame_stack': 2, 'screen_size': 42, 'full_action_space': True})
    assert env.obs_space.shape == (2, 42, 42) and env.action_space.n == 18
    env.close()


@pytest.mark.parametrize(
    ('kwargs', 'message'),
    [
        ({'frameskip': 4}, 'unknown key env.kwargs.frameskip: did you mean env.kwargs.frame_skip?'),
        ({'max_episode_steps': 4}, 'unknown key env.kwargs.max_episode_steps: it belongs at env.max_episode_steps.'),
        (
            {'noop_max': -1},
            'env.kwargs.noop_max is -1 (integer) but must be an integer >= 0; leave it out for 30, the default',
        ),
        ({'clip_reward': 1}, 'env.kwargs.clip_reward is 1 (integer) but must be true or false'),
    ],
)
def test_make_vector_env_kwargs_that_do_not_fit_are_config_errors(kwargs: dict, message: str) -> None:
    cfg = EnvConfig(id='atari', game='Pong', kwargs=kwargs)
    for call in (lambda: make_vector_env(cfg, 1), lambda: check_source(cfg)):
        with pytest.raises(ConfigError) as raised:
            call()
        assert str(raised.value).startswith(message)


def test_check_source_without_ale_py_finds_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A config can be read on a machine that cannot run it."""
    monkeypatch.setitem(sys.modules, 'ale_py', None)
    check_source({'id': 'atari', 'game': 'Pong'})  # raises nothing, unlike the first env
    with pytest.raises(MissingExtraError, match='needs the atari extra'):
        make_env({'id': 'atari', 'game': 'Pong'})
