"""Recording: in every kind of env, the pictures belong to the episodes whose returns are reported; they come one by one."""

from __future__ import annotations

import importlib.util
from typing import Any

import gymnasium
import numpy as np
import pytest

from tests.film_envs import SEEN, LineEnv, position
from tests.policy_envs import make_policy
from zoo.core.errors import UserError
from zoo.env import EnvConfig, UnsupportedEnvError, make_vector_env
from zoo.policy.base import Policy
from zoo.tools.media import recording as recording_module
from zoo.tools.media.recording import Recording, action_text, check_drawable, record
from zoo.tools.media.video import with_line
from zoo.worker.evaluator import evaluate

LINE = 'tests.film_envs:LineEnv'
VECTOR = 'tests.film_envs:line_vector'


def policy_of(env: dict[str, Any]) -> Policy:
    vector = make_vector_env(EnvConfig(**env), 1)
    try:
        return make_policy(vector.obs_space, vector.action_space, enable_field=['eval'])
    finally:
        vector.close()


def film(env: Any, policy: Policy, n_episode: int, **options: Any) -> tuple[Recording, list[np.ndarray]]:
    """Records episodes; returns the recording and copies of its pictures."""
    pictures: list[np.ndarray] = []
    recording = record(policy, env, n_episode, 3, on_frame=lambda image, fps: pictures.append(image.copy()), **options)
    assert recording is not None
    return recording, pictures


@pytest.mark.parametrize(
    'env, deterministic',
    [
        (dict(id=LINE, autoreset='same_step'), True),
        (dict(id=LINE, autoreset='same_step'), False),
        (dict(id=LINE, autoreset='next_step'), True),
        (dict(id=LINE, autoreset='disabled'), False),
        (dict(id=LINE, vectorization='async'), True),
        (dict(id=LINE, max_episode_steps=4), False),
        (dict(id=VECTOR), True),
        (dict(id=VECTOR, kwargs=dict(mode='DISABLED')), False),
    ],
    ids=str,
)
def test_pictures_are_those_of_the_states_of_evaluate(env: dict[str, Any], deterministic: bool) -> None:
    """Oracle: `evaluate` plays first and gives the positions of all states; the pictures must show the same, in order."""
    env = {**env, 'action_mask': 'off'}  # no extra reset to look for a mask
    policy = policy_of(env)
    SEEN.clear()
    alone = {**env, 'evaluator_env_num': 1, 'vectorization': 'sync' if 'vectorization' in env else 'auto'}
    evaluation = evaluate(policy, alone, 3, 3, deterministic=deterministic)
    states = SEEN[: sum(evaluation.lengths) + 3]
    recording, pictures = film(env, policy, 3, deterministic=deterministic)
    assert recording.evaluation == evaluation and recording.fps == 12.0
    assert recording.n_frame == len(pictures) == sum(evaluation.lengths) + 3
    found = [position(picture) for picture in pictures]
    assert [x for x, _ in found] == states
    starts = [i for i, (_, begins) in enumerate(found) if begins]
    assert starts == [0, evaluation.lengths[0] + 1, sum(evaluation.lengths[:2]) + 2]


def test_last_picture_is_left_out_where_a_vector_resets_in_the_same_step() -> None:
    env = dict(id=VECTOR, kwargs=dict(mode='SAME_STEP'))
    recording, pictures = film(env, policy_of(env), 2)
    assert len(pictures) == sum(recording.evaluation.lengths)
    assert [begins for _, begins in map(position, pictures)].count(True) == 2


@pytest.mark.parametrize(
    ('action', 'text'),
    [
        (np.array([3]), '3'),
        (np.array([[0.314, -0.5]], np.float32), '[ 0.31 -0.5 ]'),
        (np.ones((1, 2, 2)), '[[1. 1.] [1. 1.]]'),
        ((np.array([1]), {'hand': np.array([[0, 2]])}), '1, hand [0 2]'),
    ],
    ids=['choice', 'numbers', 'matrix', 'parts'],
)
def test_action_of_one_env_is_shown_in_few_characters(action: Any, text: str) -> None:
    assert action_text(action) == text


@pytest.mark.parametrize('shape', [(400, 20, 3), (1, 1, 3), (84, 84, 3)], ids=str)
def test_line_below_a_picture_of_any_shape_can_be_read(shape: tuple[int, int, int]) -> None:
    pytest.importorskip('pygame')
    found = with_line(np.full(shape, 9, np.uint8), 'a\0\ud800b')
    assert found.shape[1] >= 320 and len(np.unique(found[-20:])) > 2


def test_overlay_is_a_line_below_the_picture_about_the_step_that_led_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip('pygame')
    texts: list[str] = []

    def taken(image: np.ndarray, text: str) -> np.ndarray:
        texts.append(text)
        return with_line(image, text)

    monkeypatch.setattr(recording_module, 'with_line', taken)
    env = dict(id=LINE)
    recording, pictures = film(env, policy_of(env), 2, overlay=True)
    _, plain = film(env, policy_of(env), 2)
    height, width, _ = np.shape(plain[0])
    times = -(-320 // max(height, width))
    for picture, small in zip(pictures, plain, strict=True):
        assert np.array_equal(picture[: height * times : times, ::times], small)
        assert picture.shape[0] > height * times and len(np.unique(picture[height * times :])) > 2  # letters
    lengths, returns = recording.evaluation.lengths, recording.evaluation.returns
    assert texts[0] == texts[lengths[0] + 1] == 'step 0   return 0.00'
    assert texts[lengths[0]].startswith(f'step {lengths[0]}   return {returns[0]:.2f}   action ')
    assert texts[-1].startswith(f'step {lengths[1]}   return {returns[1]:.2f}   action ')


def test_episodes_that_are_cut_off_start_again_with_their_first_picture() -> None:
    env = dict(id=LINE)
    recording, pictures = film(env, policy_of(env), 3, max_step=2)
    assert recording.evaluation.lengths == [2, 2, 2] and recording.evaluation.n_cut == 3
    assert [begins for _, begins in map(position, pictures)] == [True, False, False] * 3


def test_stop_ends_it_without_a_result() -> None:
    seen: list[np.ndarray] = []
    options = dict(on_frame=lambda image, fps: seen.append(image), stop=lambda: len(seen) > 2)
    assert record(policy_of(dict(id=LINE)), dict(id=LINE), **options) is None
    assert len(seen) == 3  # the first state and the states after two steps


def test_schedule_and_env_given_as_an_object_are_used() -> None:
    policy = policy_of(dict(id=LINE))
    scheduled = dict(id=LINE, schedule={'_size': {'start': 1, 'end': 5, 'over': 100}})
    for env_step, width in ((0, 11), (50, 33), (None, 55)):
        _, pictures = film(scheduled, policy, 1, env_step=env_step)
        assert pictures[0].shape == (3 * width // 11, width, 3)
    env = LineEnv(render_mode='rgb_array')
    _, pictures = film(env, policy, 1)
    assert position(pictures[0])[1]


@pytest.mark.parametrize(('name', 'fps'), [('OldLineEnv', 7), ('OldPlainLineEnv', 30)])  # 30 where none is given
def test_env_of_old_gym_is_filmed_by_its_render(name: str, fps: float) -> None:
    section = dict(id=f'tests.film_envs:{name}')
    seen: list[tuple[np.ndarray, float | None]] = []
    record(policy_of(section), section, on_frame=lambda image, rate: seen.append((image, rate)))
    positions = [position(image) for image, _ in seen]
    states = SEEN[-len(seen) - 1 : -1]  # the newest state is that of the reset after the episode
    assert positions == [(x, i == 0) for i, x in enumerate(states)] and len(seen) > 3
    assert {rate for _, rate in seen} == {fps}


def test_error_of_an_env_that_cannot_be_made_at_all_passes_through() -> None:
    with pytest.raises(ValueError, match='a fault of its own'):
        check_drawable(EnvConfig(id='tests.film_envs:broken_env'))


FILMS = 'tests.film_envs'
GIVE = "give it render_mode='rgb_array' and a method render()"


@pytest.mark.parametrize(
    ('env', 'words'),
    [
        (dict(id='tests.film_envs:TextEnv'), 'it has the render modes ansi, wanted rgb_array'),
        (
            dict(id='any_space'),
            "env 'any_space' cannot be drawn: it has no render(); zoo eval plays it without pictures.",
        ),
        *(
            (dict(id=env_id), 'it has the render modes (none), wanted rgb_array; use one that has it.')
            for env_id in (f'{FILMS}:RefusingEnv', f'{FILMS}:FilmRefusing-v0', f'{FILMS}:refusing_env')
        ),
        *(
            (dict(id=f'{FILMS}:{name}'), 'it has the render modes logs, wanted rgb_array; use one that has it.')
            for name in ('LogsEnv', 'FilmLogs-v0', 'logs_env', 'logs_without_picture', 'warning_env')
        ),
        (dict(id=f'{FILMS}:OldTextEnv'), 'it has the render modes ansi, wanted rgb_array'),
        (dict(id=f'{FILMS}:OldBlindEnv'), f'it has no render(); {GIVE}'),
        (dict(id='tests.film_envs:BlindEnv'), f'it has no render(); {GIVE}'),
        (dict(id=LINE, kwargs=dict(what='none')), 'its render() returned NoneType, wanted an image'),
        (dict(id=LINE, kwargs=dict(what='float32')), r'its render() returned float32 [3, 11, 3], wanted an image'),
        (
            dict(id='torch', game='CartPole-v1'),
            'is a tensor program, which draws nothing; name an env that does: env.id=C',
        ),
    ],
)
def test_env_without_pictures_is_refused_in_one_sentence(env: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedEnvError) as error:
        check_drawable(EnvConfig(**env))
    assert words in str(error.value) and '\n' not in str(error.value)


def test_what_render_raises_passes_through_with_its_place() -> None:
    with pytest.raises(KeyError, match='no brush') as error:
        check_drawable(EnvConfig(id=LINE, kwargs=dict(what='error')))
    assert error.value.env_place[0] == f'env {LINE!r}, in render()'  # type: ignore[attr-defined]


def test_vector_env_that_exists_is_refused() -> None:
    env = gymnasium.vector.SyncVectorEnv([LineEnv])
    with pytest.raises(UserError, match='env is a vector env, of which no single one is drawn'):
        record(policy_of(dict(id=LINE)), env, on_frame=lambda image, fps: None)
    env.close()


STICKY = dict(repeat_action_probability=0.25)
FAMILIES = {
    'cartpole': (dict(id='CartPole-v1'), 'pygame', (400, 600, 3), 50),
    'lunarlander': (dict(id='LunarLander-v3'), 'Box2D', (400, 600, 3), 50),
    'breakout': (dict(id='atari', game='Breakout', kwargs=STICKY), 'ale_py', (210, 160, 3), 15),
    'pong': (dict(id='envpool', game='Pong-v5'), 'envpool', (210, 160, 3), 15),
    'minigrid': (dict(id='envpool', game='MiniGrid-DoorKey-6x6-v0'), 'envpool', (192, 192, 3), 10),
    'coinrun': (dict(id='procgen', game='coinrun'), 'PyQt5', (64, 64, 3), 15),
}


@pytest.mark.soak
@pytest.mark.parametrize('name', FAMILIES)
def test_known_envs_give_their_real_pictures_and_the_returns_of_evaluate(name: str) -> None:
    env, module, shape, fps = FAMILIES[name]
    for name_of_module in (module, 'envpool') if env['id'] == 'procgen' else (module,):
        if importlib.util.find_spec(name_of_module) is None:
            pytest.skip(f'{name_of_module} is not installed')
    policy = policy_of(env)
    options = dict(deterministic=False, max_step=150)
    recording, pictures = film(env, policy, 2, **options)
    evaluation = evaluate(policy, {**env, 'evaluator_env_num': 1}, 2, 3, **options)
    assert recording.evaluation.returns == evaluation.returns and recording.evaluation.lengths == evaluation.lengths
    assert recording.n_frame == len(pictures) == sum(evaluation.lengths) + 2
    assert recording.fps == fps and {picture.shape for picture in pictures} == {shape}
    colors = [picture.reshape(-1, 3) for picture in pictures]
    if name != 'cartpole':  # CartPole is black and white, except for the pole
        assert any((picture[:, 0] != picture[:, 1]).any() for picture in colors)
    n_change = sum(not np.array_equal(a, b) for a, b in zip(pictures[:-1], pictures[1:], strict=True))
    assert n_change > len(pictures) / 4


@pytest.mark.long
@pytest.mark.slow
def test_procgen_shows_what_the_policy_sees() -> None:
    pytest.importorskip('envpool')
    pytest.importorskip('PyQt5')
    env = dict(id='procgen', game='coinrun')
    policy, seen = policy_of(env), []
    forward = policy._forward_eval
    policy._forward_eval = lambda obs, state: seen.append(obs[0].clone()) or forward(obs, state)
    _, pictures = film(env, policy, 1, max_step=60)
    assert 10 < len(seen) <= len(pictures)
    for picture, obs in zip(pictures, seen, strict=False):  # the last picture may be of a state that no action follows
        assert np.array_equal(picture, obs.permute(1, 2, 0).numpy())


@pytest.mark.long
def test_mujoco_is_drawn_without_a_display_by_the_camera_that_follows() -> None:
    pytest.importorskip('mujoco')
    env = dict(id='HalfCheetah-v5', max_episode_steps=20)
    policy = policy_of(env)
    try:
        recording, pictures = film(env, policy, 1)
    except UnsupportedEnvError as error:
        pytest.skip(str(error))  # this machine has neither EGL nor OSMesa; the error names both
    assert recording.evaluation.returns == evaluate(policy, env, 1, 3).returns
    assert len(pictures) == 21 and pictures[0].shape == (480, 480, 3) and np.ptp(pictures[0]) > 100
    assert not np.array_equal(pictures[0], pictures[-1])


def test_envpool_mujoco_is_refused_since_it_may_end_the_process() -> None:
    pytest.importorskip('envpool')
    with pytest.raises(UnsupportedEnvError, match='e.g. env.id=HalfCheetah-v5'):
        check_drawable(EnvConfig(id='envpool', game='HalfCheetah-v4'))
