"""The env family 'atari': Atari 2600 games by ale-py's own vector env, with the settings of the published results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from pydantic import Field

from zoo.config.section import Section
from zoo.core.registry import ENV_REGISTRY
from zoo.env.errors import EnvError, Place
from zoo.env.families.family import ActionCheck, EnvRequest, env_family, import_extra
from zoo.env.infos import RAW, RAW_END, RAW_REWARD

EXTRA = 'atari'  # ale-py; its licence is GPL-2, so it is installed on request only
MAX_FRAMES = 108_000  # of one episode, half an hour at 60 frames a second


class AtariOptions(Section):
    """env.kwargs of the family 'atari'."""

    frame_skip: int = Field(
        4, ge=1, description='frames for which an action is held; the image is the maximum of the last two'
    )
    frame_stack: int = Field(4, ge=1, le=64, description='images in an observation, the newest last')
    screen_size: int = Field(84, ge=8, le=1024, description='pixels in width and height')
    noop_max: int = Field(
        30, ge=0, description='frames without action at the start of a game, at most; drawn at random'
    )
    repeat_action_probability: float = Field(
        0.0, ge=0, le=1, description='probability of repeating the previous action (sticky actions); 0.25 is usual'
    )
    fire_reset: bool = Field(True, description='press FIRE when a game starts and after a lost life')
    full_action_space: bool = Field(False, description='all 18 actions, also those without effect in the game')
    episodic_life: bool = Field(True, description='in training, a lost life ends the episode')
    clip_reward: bool = Field(True, description='in training, replace rewards by their sign')
    num_threads: int = Field(0, ge=0, description="threads of ale-py; 0: ale-py's default")


class AtariVectorEnv(gymnasium.vector.VectorEnv):
    """ale-py's vector env with lives and rewards as in published results.

    ale-py's own episodic_life restarts the whole game at a lost life, so that a policy would see only the first life.
    Here the game continues: the lost life is a terminal state, and the next episode starts from its final observation.
    Where the game waits for FIRE after a lost life, FIRE replaces the next action, in training and in evaluation;
    otherwise a greedy policy might wait until the time limit.
    """

    steps_async = True  # ale-py has threads of its own

    def __init__(
        self, env: Any, name: str, fire: int | None, episodic_life: bool, clip_reward: bool, screen: Any = None
    ) -> None:
        """
        Args:
          env: an ale_py AtariVectorEnv without episodic_life and reward_clipping, in same-step mode.
          fire: the index of the action FIRE; None to leave it to the policy.
          screen: a second env like `env` that plays the same games for `render`, with the screen in colours as observations.
        """
        self._env = env
        self._fire = fire
        self._screen = screen
        self._picture: np.ndarray | None = None
        self._episodic_life = episodic_life
        self._clip_reward = clip_reward
        self.num_envs: int = env.num_envs
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.metadata = {**env.metadata, RAW: episodic_life or clip_reward}
        self._name = name
        self._check = ActionCheck(name, env.single_action_space, env.num_envs)
        self._lives: np.ndarray | None = None
        self._n_step = 0
        self._sent: np.ndarray | None = None  # the actions of a step that was begun and not ended

    def reset(
        self, *, seed: int | list[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        if self._sent is not None:
            self.step_wait()
        kwargs: dict[str, Any] = {'seed': seed, 'options': options}
        if seed is not None:
            kwargs['seed'] = np.asarray(seed)
        obs, info = self._env.reset(**kwargs)
        if self._screen is not None:
            self._picture = self._screen.reset(**kwargs)[0][:, -1]
        self._lives = info['lives']
        self._fell = np.zeros(self.num_envs, dtype=bool)
        self._n_step = 0
        return obs, info

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: np.ndarray) -> None:
        """Begins a step in ale-py's threads; `step_wait` ends it."""
        if self._lives is None:
            raise gymnasium.error.ResetNeeded('step was called before the first reset; call reset first')
        self._n_step += 1
        self._check(actions, self._n_step)  # an invalid action would make ale-py wait without end
        if self._fire is not None and np.count_nonzero(self._fell):
            actions = np.where(self._fell, self._fire, actions)
        self._env.send(actions)
        self._sent = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Ends a step that `step_async` began; returns its results."""
        actions = self._sent
        if actions is None or self._lives is None:
            raise gymnasium.error.NoAsyncCallError(
                'step_wait was called before step_async; call step_async first', 'step'
            )
        self._sent = None
        obs, reward, terminated, truncated, info = self._env.recv()
        over = terminated | truncated
        if self._screen is not None:
            info = {**info, **self._draw(actions, reward, over)}
        self._fell = ~over & (info['lives'] < self._lives)
        self._lives = info['lives']
        if self.metadata[RAW]:
            info = {**info, RAW_REWARD: reward, RAW_END: over}
        # as in published results, 0 lives do not end an episode: some games show 0 lives for a while before they are over
        lost = self._fell & (self._lives > 0)
        if self._episodic_life and np.count_nonzero(lost):
            final = obs.copy()
            if np.count_nonzero(over):
                final[over] = info['final_obs'][over]
            info = {**info, 'final_obs': final}
            terminated = terminated | lost
        if self._clip_reward:
            reward = np.sign(reward)
        return obs, reward, terminated, truncated, info

    def render(self) -> Any:
        """The screens of the games, [B, 210, 160, 3] of bytes, as they are after the last step and its resets."""
        return self._picture

    def close_extras(self, **kwargs: Any) -> None:
        self._env.close()
        if self._screen is not None:
            self._screen.close()

    def _draw(self, actions: np.ndarray, reward: np.ndarray, over: np.ndarray) -> dict[str, Any]:
        """Takes the same step with the screen in colours. Returns: an info entry with the screens of games that are over."""
        picture, reward_seen, terminated, truncated, info = self._screen.step(actions)
        if not np.array_equal(reward, reward_seen) or not np.array_equal(over, terminated | truncated):
            raise EnvError(f'{Place(self._name, self._n_step).of(None)}: the screen shows another game; report this.')
        self._picture = picture[:, -1]
        if over.any():
            return {'final_frame': info['final_obs'][:, -1]}
        return {}


def atari_games() -> list[str]:
    """The games whose ROMs ale-py has, as in its gymnasium ids: 'Pong', 'SpaceInvaders'."""
    roms = import_extra('ale_py', EXTRA, 'atari').roms
    return sorted(''.join(part.capitalize() for part in rom.split('_')) for rom in roms.get_all_rom_ids())


@ENV_REGISTRY.register('atari')
@env_family(
    games=atari_games,
    options=AtariOptions,
    summary='The games of the Atari 2600, with the usual wrappers; env.game names one, e.g. Pong.',
)
def make_atari(request: EnvRequest, options: AtariOptions) -> AtariVectorEnv:
    """`request.n_env` games with gray images [frame_stack, screen_size, screen_size] of bytes as observations.

    Source: Mnih et al. 2015 (doi:10.1038/nature14236), methods; no sticky actions as in Schulman et al. 2017
      (arXiv:1707.06347).
    """
    ale_py = import_extra('ale_py', EXTRA, request.name)
    vector_env = import_extra('ale_py.vector_env', EXTRA, request.name)
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no greeting on stderr
    max_frames = MAX_FRAMES
    if request.max_episode_steps is not None:
        max_frames = request.max_episode_steps * options.frame_skip
    size = options.screen_size
    rom = next(rom for rom in ale_py.roms.get_all_rom_ids() if rom.replace('_', '') == request.game.lower())
    make = partial(
        vector_env.AtariVectorEnv,
        rom,
        request.n_env,
        frameskip=options.frame_skip,
        noop_max=options.noop_max,
        repeat_action_probability=options.repeat_action_probability,
        use_fire_reset=options.fire_reset,
        full_action_space=options.full_action_space,
        max_num_frames_per_episode=max_frames,
        num_threads=options.num_threads,
        episodic_life=False,
        reward_clipping=False,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    env = make(stack_num=options.frame_stack, img_height=size, img_width=size)
    screen = None
    if request.render:
        screen = _screen(ale_py, rom, make)
    actions = list(env.ale.get_action_set())
    fire = None
    if options.fire_reset and ale_py.Action.FIRE in actions:
        fire = actions.index(ale_py.Action.FIRE)
    of_training = options.episodic_life and request.training, options.clip_reward and request.training
    vector = AtariVectorEnv(env, request.name, fire, *of_training, screen)
    vector.metadata['render_fps'] = 60 / options.frame_skip
    return vector


def _screen(ale_py: ModuleType, rom: str, make: Callable[..., Any]) -> Any:
    """The same games with the whole screen in colours as observations."""
    ale = ale_py.ALEInterface()
    ale.loadROM(ale_py.roms.get_rom_path(rom))
    height, width = ale.getScreenDims()
    return make(stack_num=1, grayscale=False, img_height=height, img_width=width)
