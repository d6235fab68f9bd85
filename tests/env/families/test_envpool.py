"""Real pools of envpool, compared with gymnasium's envs of the same name or with a pool that is called directly."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from zoo.core.spaces import Box, Discrete, MultiDiscrete
from zoo.env import EnvConfig, EnvKwargsError, UnsupportedEnvError, VectorEnv, make_vector_env

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec('envpool') is None, reason='the extra envpool is not installed'
)


def make(game: str, n_env: int = 3, training: bool = False, **fields: Any) -> VectorEnv:
    return make_vector_env(EnvConfig(id='envpool', game=game, **fields), n_env, training=training)


def some_actions(env: VectorEnv, n_step: int) -> list[torch.Tensor]:
    rng, space = torch.Generator().manual_seed(0), env.action_space
    if isinstance(space, Discrete):
        return list(torch.randint(space.n, (n_step, env.n_env), generator=rng))
    return list(torch.randn(n_step, env.n_env, *space.shape, generator=rng))


@pytest.mark.slow
def test_reset_again_and_again_leaves_no_threads() -> None:
    env = make('CartPole-v1')
    env.reset(0)
    n_thread = len(os.listdir('/proc/self/task'))
    for seed in range(5):
        env.reset(seed)
    assert len(os.listdir('/proc/self/task')) == n_thread
    env.close()
    assert len(os.listdir('/proc/self/task')) < n_thread


def test_step_cartpole_truncated_row_shows_the_true_final_obs_and_the_next_only_resets() -> None:
    """The oracle of each step is gymnasium's CartPole, set to the state before this step."""
    env = make('CartPole-v1', 2, max_episode_steps=5)
    reference: Any = gymnasium.make('CartPole-v1').unwrapped
    last = env.reset(0)
    for t, action in enumerate(some_actions(env, 12), 1):
        step = env.step(action)
        is_reset = t % 6 == 0
        assert step.is_reset.tolist() == [is_reset] * 2
        assert step.truncated.tolist() == [t % 6 == 5] * 2 and not step.terminated.any()
        assert step.final_obs is None and step.reward.tolist() == [0.0 if is_reset else 1.0] * 2
        if is_reset:
            assert step.obs.abs().max() <= 0.05  # where CartPole's episodes begin
        else:
            for b in range(2):
                reference.reset()
                reference.state = last[b].numpy().astype(np.float64)
                want = reference.step(int(action[b]))[0]
                np.testing.assert_allclose(step.obs[b].numpy(), want, atol=1e-6)  # f32, rounded once on either side
        last = step.obs


def test_step_terminal_state_is_not_truncated() -> None:
    env = make('CartPole-v1', 1)
    env.reset(0)
    for _ in range(20):
        step = env.step(torch.tensor([1]))  # pushed to one side, the pole falls within 12 steps
        if step.terminated.any():
            break
    assert step.terminated.tolist() == [True] and step.truncated.tolist() == [False]
    assert step.obs[0, 2].abs() > 12 * 2 * np.pi / 360  # the angle at which an episode ends


@pytest.mark.parametrize(('mode', 'action', 'sent'), [('clip', 5.0, 1.0), ('clip', -0.25, -0.25), ('rescale', -9, -1)])
def test_step_mujoco_actions_are_mapped_to_their_bounds(mode: str, action: float, sent: float) -> None:
    env, plain = make('HalfCheetah-v4', 2, action_mode=mode), make('HalfCheetah-v4', 2)
    assert torch.equal(env.reset(0), plain.reset(0))
    got, want = env.step(torch.full((2, 6), float(action))), plain.step(torch.full((2, 6), float(sent)))
    assert torch.equal(got.obs, want.obs) and got.obs.dtype == got.reward.dtype == torch.float32
    assert torch.equal(got.reward, want.reward)


def test_step_before_the_first_reset_raises() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded):
        make('CartPole-v1', 1).step(torch.tensor([0]))


# --- Atari, whose options change rewards and ends


@pytest.mark.long
def test_step_atari_options_hold_in_training_only_and_leave_the_score_whole() -> None:
    """Four envs for 600 steps; each must have the rewards of the raw pool until it loses its first life."""
    kwargs = {'episodic_life': True, 'reward_clip': True}
    env, raw = make('Qbert-v5', 4, True, kwargs=kwargs), make('Qbert-v5', 4, kwargs=kwargs)
    assert torch.equal(env.reset(0), raw.reset(0))
    alike = torch.ones(4, dtype=torch.bool)
    score, n_raw, n_end, n_game = 0.0, 0, 0, 0
    for action in some_actions(env, 600):
        step, want = env.step(action), raw.step(action)
        assert want.raw_reward is None and want.raw_end is None
        assert torch.equal(step.reward, step.raw_reward.sign())
        assert torch.equal(step.raw_reward[alike], want.reward[alike])
        score += step.raw_reward.sum().item()
        alike &= ~step.terminated
        n_end, n_game = n_end + int(step.terminated.sum()), n_game + int(step.raw_end.sum())
        assert not (step.raw_end & ~(step.terminated | step.truncated)).any()
        n_raw += int(want.terminated.sum())
    assert score >= 100 and n_raw > 0
    assert 0 < 3 * n_game < n_end  # Qbert has four lives


@pytest.mark.long
def test_step_atari_without_options_is_the_raw_game_in_training_too() -> None:
    env = make('Qbert-v5', 4, True)
    env.reset(0)
    steps = [env.step(action) for action in some_actions(env, 100)]
    assert steps[0].raw_reward is None
    assert torch.stack([step.reward for step in steps]).max() >= 25


# --- spaces


def test_make_vector_env_image_and_index_observations_keep_their_kind() -> None:
    image, index = make('CarRacing-v3', 1), make('FrozenLake-v1', 1)
    assert image.obs_space.shape == (96, 96, 3) and image.reset(0).dtype == torch.uint8
    assert index.obs_space == Discrete(16) and index.reset(0).tolist() == [0]


def test_make_vector_env_lower_bound_of_the_smallest_float_is_none() -> None:
    """For LunarLander envpool gives the bounds 1.2e-38 to 3.4e38, but the first observations have negative numbers."""
    env = make('LunarLander-v3', 8)
    assert env.obs_space == Box(np.full(8, -np.inf), np.full(8, np.inf), 'float32')
    assert (env.reset(0) < 0).any()


@pytest.mark.slow
def test_make_vector_env_dict_of_vectors_becomes_one_vector() -> None:
    import envpool

    env = make('CheetahRun-v1', 2)
    seeds = [int(child.generate_state(1)[0]) >> 1 for child in np.random.SeedSequence(0).spawn(2)]
    obs, _ = envpool.make_gymnasium('CheetahRun-v1', num_envs=2, seed=seeds).reset()
    want = np.concatenate([obs['position'], obs['velocity']], axis=1).astype(np.float32)  # 8 and 9 numbers
    assert env.obs_space.shape == (17,) and np.array_equal(env.reset(0).numpy(), want)


def test_make_vector_env_dict_that_is_not_only_vectors_stays_a_dict() -> None:
    """The oracle is the arrays of a pool that is called directly."""
    import envpool

    env = make('Maze-v0', 2)
    seeds = [int(child.generate_state(1)[0]) >> 1 for child in np.random.SeedSequence(0).spawn(2)]
    want, _ = envpool.make_gymnasium('Maze-v0', num_envs=2, seed=seeds).reset()
    obs = env.reset(0)
    assert torch.equal(obs['agent_position']['row'], torch.from_numpy(want['agent_position']['row']).long())
    assert torch.equal(obs['walls'], torch.from_numpy(want['walls']).bool()) and obs['walls'].dtype == torch.bool
    assert torch.equal(obs['action_mask'], torch.from_numpy(want['action_mask']).bool())


def test_step_legal_actions_of_a_masked_game_are_those_that_move() -> None:
    """In 2048 an action is legal if the board changes under it."""
    env = make('Game2048-v1', 2)
    obs = env.reset(0)
    for _ in range(30):
        legal = obs['action_mask'].clone()
        assert legal.any(1).all()
        step = env.step(legal.int().argmax(1))
        assert (step.obs['board'] != obs['board']).flatten(1).any(1).logical_or(step.terminated).all()
        obs = {name: x.clone() for name, x in step.obs.items()}


def test_make_vector_env_box_of_integers_as_actions_is_a_multi_discrete() -> None:
    """Cleaner: 3 agents with 4 directions each, which envpool has as a Box from 0 to 3 and a mask of [3, 4]."""
    env = make('Cleaner-v0', 2)
    assert env.action_space == MultiDiscrete((4, 4, 4), (0, 0, 0), (3,))
    obs = env.reset(0)
    assert obs['action_mask'].shape == (2, 12)
    before = obs['agents_locations'].clone()
    choice = obs['action_mask'].view(2, 3, 4).int().argmax(2)  # the first legal direction of each agent
    after = env.step(choice).obs['agents_locations']
    assert ((after - before).abs().sum(2) == 1).all()  # each agent went one field


def test_make_vector_env_mask_of_whole_actions_is_an_entry_where_masks_are_off() -> None:
    """BinPack's mask [40, 20] is for pairs of choices, which are not independent."""
    assert make('BinPack-v2', action_mask='off').obs_space.spaces['action_mask'].shape == (40, 20)


@pytest.mark.parametrize(
    ('game', 'fields', 'message'),
    [
        ('BinPack-v2', {}, "the entry 'action_mask' .* wanted 60 zeros and ones.*mask=off"),
        ('Chess-v1', {}, "env 'envpool/Chess-v1' has 2 players but zoo trains one"),
        (
            'CartPole-v1',
            {'max_episode_steps': 2**31},
            'max_episode_steps is 2147483648 but .* counts to 2147483647; use',
        ),
    ],
)
def test_make_vector_env_what_cannot_be_trained_on_is_refused(game: str, fields: dict, message: str) -> None:
    with pytest.raises(UnsupportedEnvError, match=message):
        make(game, **fields)


# --- names and options


TAKES = "^env.kwargs has '{}' but envpool/{} takes"
DOOR = 'MiniGrid-DoorKey-6x6-v0'


BELOW = {
    'num_threads': -1,
    'stack_num': 0,
    'frame_skip': 0,
    'noop_max': 0,
    'img_height': 0,
    'img_width': 0,
    'repeat_action_probability': -0.1,
}
LEAST = {key: value + (0.1 if key == 'repeat_action_probability' else 1) for key, value in BELOW.items()}
ABOVE = {
    'num_threads': 2**31 - 1,
    'stack_num': 1000,
    'frame_skip': 2**31 - 1,
    'noop_max': 2**31 - 1,
    'img_height': 2**20,
    'img_width': 2**31,
    'repeat_action_probability': 1.01,
    'mode': 2**31,
    'difficulty': -(2**31) - 1,
}


# Pong is slow to make, so options of any task are those of CartPole
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ('Pong-v5', {'noopmax': 3}, TAKES.format('noopmax', 'Pong-v5') + ' num_threads, .*noop_max.*; correct the name'),
    (
        'Pong-v5',
        {'img_height': 0},
        'img_height is 0 but .*Pong-v5 takes 1 to 1024; correct it, or leave it out for 84.$',
    ),
    ('CartPole-v1', {'max_episode_steps': 3}, 'env.kwargs has .* does not take; set env.max_episode_steps'),
    ('Pong-v5', {'noop_max': '3'}, "env.kwargs.noop_max is '3' but envpool/Pong-v5 takes int, such as 30; correct it."),
    ('Pong-v5', {'gray_scale': 1}, 'env.kwargs.gray_scale is 1 but envpool/Pong-v5 takes bool, such as True'),
    # names that zoo or envpool use for their own arguments
    *(
        ('CartPole-v1', {key: 'breakout'}, TAKES.format(key, 'CartPole-v1') + ' num_threads, .*; corr')
        for key in ('task', 'name', 'envpool', 'extra', 'request', 'options', 'task_id', 'env_name', 'num_envs')
    ),
    # options that would make it another game
    *(
        (game, {key: 'other'}, TAKES.format(key, game))
        for game, key in (
            ('CheetahRun-v1', 'task_name'),
            ('StarpilotEasy-v0', 'env_name'),
            ('StarpilotEasy-v0', 'distribution_mode'),
            (DOOR, 'env_name'),
        )
    ),
    # sizes below those that fit, a view that is not 7 cells wide, a mission without room: each ended the process
    *(
        (DOOR, {key: value}, TAKES.format(key, DOOR) + ' num_threads, thread_affinity_offset; ')
        for key, value in (
            ('size', 3),
            ('agent_view_size', 3),
            ('mission_bytes', 1),
            ('action_max', 1000),
            ('num_crossings', -1),
            ('obstacle_type', 'stone'),
            ('agent_start_dir', -1),
        )
    ),
    # out of range: refused before a pool is made
    *(
        (
            game,
            {key: value},
            f'^env.kwargs.{key} is {value} but envpool/{game} takes .*correct it, or leave it out for ',
        )
        for game, key, value in (
            *(('Pong-v5', *item) for item in (*BELOW.items(), *ABOVE.items(), ('repeat_action_probability', np.nan))),
            ('StarpilotEasy-v0', 'num_levels', -1),
            ('StarpilotEasy-v0', 'start_level', -1),
            ('HalfCheetah-v4', 'frame_skip', 0),
            ('HalfCheetah-v4', 'frame_stack', 0),
            ('CartPole-v1', 'num_threads', -1),
            ('HalfCheetah-v4', 'ctrl_cost_weight', np.nan),
        )
    ),
    # only envpool can judge these
    *(
        (game, kwargs, rf'env.kwargs is {{.*}} but envpool cannot make envpool/{game} with it \({said}')
        for game, kwargs, said in (
            ('Pong-v5', {'mode': 7}, 'Invalid game mode requested'),
            ('HalfCheetah-v4', {'xml_file': 'none.xml'}, 'ParseXML: Error opening file .*none.xml.*'),
            ('VizdoomCustom-v1', {'cfg_path': '/none.cfg', 'wad_path': ''}, 'File "/none.cfg .* does not exist.'),
        )
    ),
    ('VizdoomCustom-v1', {}, "env.kwargs lacks 'cfg_path', 'wad_path', which envpool/VizdoomCustom-v1"),
]


@pytest.mark.parametrize(
    ('game', 'kwargs', 'message'),
    [
        pytest.param(*row, marks=[pytest.mark.slow] * (row[0] == 'Pong-v5' and row not in REFUSED[:5]))
        for row in REFUSED
    ],
)
def test_make_vector_env_options_that_do_not_fit_are_refused(game: str, kwargs: dict, message: str) -> None:
    with pytest.raises(EnvKwargsError, match=message):
        make(game, kwargs=kwargs).reset(0)


@pytest.mark.long
def test_make_vector_env_least_options_make_a_pool_that_runs() -> None:
    for side in ('img_height', 'img_width'):  # a single pixel would be no image
        env = make('Pong-v5', 2, kwargs={**LEAST, side: 9})
        shape = (2, 1, 9, 1) if side == 'img_height' else (2, 1, 1, 9)
        assert env.reset(0).shape == shape and env.step(torch.tensor([0, 1])).obs.shape == shape
    assert make(DOOR, kwargs={'num_threads': 1}).reset(0).shape == (3, 984)


@pytest.mark.slow
def test_make_vector_env_options_reach_the_pool() -> None:
    assert make('Pong-v5', 1, kwargs={'stack_num': 2, 'img_height': 42}).obs_space.shape == (2, 42, 84)
