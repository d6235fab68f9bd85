"""An env that can draw itself, and a video of a policy that was trained in it. It needs the extra video."""

import gymnasium
import numpy as np

from zoo import record_video, serial_pipeline


class Catch(gymnasium.Env):
    """Catch the ball: a paddle of 3 places at the bottom of a field of 8 x 8, a ball that falls."""

    metadata = {'render_modes': ['rgb_array'], 'render_fps': 8}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (3,))
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, render_mode=None):  # zoo gives 'rgb_array' where it draws
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.paddle, self.ball, self.height = 4, int(self.np_random.integers(8)), 7
        return self._obs(), {}

    def step(self, action):
        self.paddle = int(np.clip(self.paddle + action - 1, 1, 6))
        self.height -= 1
        is_over = self.height == 0
        is_caught = is_over and abs(self.ball - self.paddle) <= 1
        return self._obs(), float(is_caught), is_over, False, {'is_success': is_caught}

    def render(self):
        """The present state, as an image [H, W, 3] of bytes; small ones are enlarged."""
        picture = np.zeros((8, 8, 3), np.uint8)
        picture[7, self.paddle - 1 : self.paddle + 2] = 60, 120, 220
        picture[7 - self.height, self.ball] = 255, 200, 60
        return picture

    def _obs(self):
        return np.array([self.paddle, self.ball, self.height], np.float32) / 4 - 1


config = dict(
    exp_name='catch',
    max_env_step=20_000,
    env=dict(id=Catch),
    policy=dict(type='ppo', learn=dict(learning_rate=1e-3), eval=dict(eval_freq=5_000)),
    logger=dict(video_freq=2),  # videos/step_<n>.mp4 in the run folder, after every second evaluation
)

if __name__ == '__main__':
    result = serial_pipeline(config)
    recording = record_video(result.policy, config['env'], 'catch.mp4', n_episode=5, seed=1)
    print(f'catch.mp4: {recording.n_frame} frames, returns {recording.evaluation.returns}')
