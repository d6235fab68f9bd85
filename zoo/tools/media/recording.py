"""Recording of a policy that plays one env that is drawn: pictures, videos, also during training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from zoo.config.section import ConfigError
from zoo.core.data import Obs, Timestep
from zoo.core.errors import UserError, need, show_error
from zoo.core.registry import TOOL_REGISTRY
from zoo.core.seeding import stream
from zoo.env import AnyVectorEnv, EnvKwargsError, UnsupportedEnvError
from zoo.env.errors import SeveralAgentsError
from zoo.env.make import env_name
from zoo.env.settings import AT_END, EnvSettings
from zoo.policy.base import Policy
from zoo.run.base_config import JobConfig
from zoo.run.observers.base import Observer, RunView
from zoo.run.roster import ONE_LEARNER, Roster
from zoo.tools.media.film import DO, Camera, make_filmed_env
from zoo.tools.media.video import VideoFile, with_line
from zoo.worker.evaluation_env import config_of, evaluation_env
from zoo.worker.evaluator import EpisodeCallback, Evaluation, Player, Playing, check_arguments, with_player

FPS = 30.0  # of envs that declare none


class Recording(NamedTuple):
    """A recording: its episodes, the number of pictures (length + 1 for each episode), and frames per second."""

    evaluation: Evaluation
    n_frame: int
    fps: float


def record(
    policy: Playing,
    env: Any,
    n_episode: int = 1,
    seed: int | np.random.SeedSequence = 0,
    *,
    on_frame: Callable[[np.ndarray, float], object],
    overlay: bool = False,
    deterministic: bool | None = None,
    max_step: int | None = None,
    env_step: int | None = None,
    stop: Callable[[], bool] = lambda: False,
    callback: EpisodeCallback | None = None,
    caption: Callable[[int], str] | None = None,
) -> Recording | None:
    """Plays whole episodes in one env, one after the other, and passes the picture of every state to `on_frame`.

    The episodes are those of `evaluate` with the same seed and env.evaluator_env_num=1.

    Args:
      env: as for `evaluate`, but not a vector env; it must draw: render() as 'rgb_array', or a family that has pictures
        (atari, procgen, most of envpool).
      seed: as for `evaluate`, or the seed sequence that `evaluate` derives from it.
      on_frame: called with each picture, [H, W, 3] u8, and the env's frames per second (30 if it declares none).
      overlay: adds below each picture a line with the step, the return so far and the last action; needs the extra video.
      caption: the line that is added below each picture of an episode, by its number from 0, in place of that.
      env_step: env step of the run, for env.schedule; None: the end of the run.
      stop: called before each step; true ends the recording.   deterministic, max_step, callback: as for `evaluate`.
    Returns: the recording; None if `stop` returned true before all episodes had ended.
    Raises: as `evaluate`; UnsupportedEnvError or MissingExtraError if the env cannot be drawn.
    """
    if isinstance(seed, np.random.SeedSequence):
        number = 0
    else:
        number = seed
    check_arguments(n_episode, number, deterministic, max_step, callback)
    if isinstance(seed, np.random.SeedSequence):
        sequence = seed
    else:
        sequence = stream(seed, 'evaluate')

    def play(player: Player) -> Recording | None:
        options = player.policy.cfg.eval
        draws_none = options.deterministic
        if deterministic is not None:
            draws_none = deterministic
        limit = options.max_episode_steps
        if max_step is not None:
            limit = max_step
        stage, seated = player.seated(env)
        with _stage(seated, stage, env_step) as (vector, camera):
            fps = camera.fps or FPS
            filmed: Any = _Filmed(vector, camera, lambda image: on_frame(image, fps), overlay, caption)
            evaluator = seated.evaluator(filmed, n_episode, limit, draws_none, quiet=True)
            evaluation = evaluator.evaluate(sequence, stop, callback)
            if evaluation is None:
                return None
            return Recording(evaluation, filmed.n_frame, fps)

    return with_player(policy, play)


def record_video(
    policy: Playing,
    env: Any,
    path: str | Path,
    n_episode: int = 1,
    seed: int | np.random.SeedSequence = 0,
    *,
    fps: float | None = None,
    **options: Any,
) -> Recording | None:
    """Records episodes of a policy as a video, in a file .mp4 or .gif; needs the extra video.

    Args: fps: frames per second; None: the env's, else 30; all others: as for `record`.
    Returns: the recording; None if `stop` returned true. Then there is no file, as after an error.
    Raises: as `record`; UserError or VideoError if the file cannot be written.
    """
    with VideoFile(path, fps) as video:
        recording = record(policy, env, n_episode, seed, on_frame=video.add, **options)
        if recording is None:
            video.discard()
            return None
    return recording._replace(fps=video.fps or recording.fps)


def check_drawable(env: Any, policy: Policy | None = None) -> None:
    """Creates an env and draws it after a reset. Raises: UnsupportedEnvError or MissingExtraError if it gives no picture."""
    player = None
    if policy is not None:
        player = Player(policy)
    with _stage(player, env, 0) as (vector, camera):
        vector.reset(0)
        camera.now()


@contextmanager
def _stage(player: Player | None, env: Any, env_step: int | None) -> Iterator[tuple[AnyVectorEnv, Camera]]:
    """Yields one env that can be drawn, and its camera; closes the env at the end."""
    if isinstance(env, AnyVectorEnv | gymnasium.vector.VectorEnv):
        raise UserError('env is a vector env, of which no single one is drawn; give a config, an id, or what makes one')
    cfg = env
    device = 'cpu'
    at = AT_END
    if player is not None:
        cfg = config_of(env, player.policy)
        device = str(player.policy.device)
        at = player.policy.run.max_env_step or AT_END
    camera = Camera(env_name(cfg))
    try:
        vector = make_filmed_env(cfg, camera, device)
    except EnvKwargsError as error:
        if "'render_mode'" not in str(error):
            raise
        raise UnsupportedEnvError(f'env {env_name(cfg)!r} takes no argument render_mode; {DO}.') from error
    with closing(vector):
        if player is not None:
            player.refuse_other_spaces(vector)
        EnvSettings(cfg).apply([vector], at if env_step is None else env_step)
        yield vector, camera


class _Filmed:
    """Wrapper of one env that shows each state once: the first of an episode before its first step, others when reached."""

    def __init__(
        self,
        env: AnyVectorEnv,
        camera: Camera,
        show: Callable[[np.ndarray], object],
        overlay: bool,
        caption: Callable[[int], str] | None = None,
    ) -> None:
        self._env = env
        self._camera = camera
        self._show = show
        self._overlay = overlay
        self._caption = caption
        self._episode = -1
        self._resets_alone = env.autoreset == 'next_step'
        self.n_frame = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, seed: np.random.SeedSequence) -> Obs:
        self._begins = True
        self._is_over = False
        return self._env.reset(seed)

    def step(self, action: Any) -> Timestep:
        if self._begins:
            self._n_step = 0
            self._return = 0.0
            self._episode += 1
            self._take(self._camera.now())
        timestep = self._env.step(action)
        if self._is_over:  # a step that is only a reset
            self._begins = True
            self._is_over = False
            return timestep
        self._n_step += 1
        self._return = self._return + float(timestep.reward[0])
        self._take(self._camera.reached(), action)
        ended = bool((timestep.terminated | timestep.truncated).any())
        self._begins = ended and not self._resets_alone
        self._is_over = ended and self._resets_alone
        return timestep

    def _take(self, image: np.ndarray | None, action: Any = None) -> None:
        if image is None:
            return
        self.n_frame += 1
        if self._caption is not None:
            image = with_line(image, self._caption(self._episode))
        elif self._overlay:
            if action is None:
                did = ''
            else:
                did = f'   action {action_text(action)}'
            image = with_line(image, f'step {self._n_step}   return {self._return:.2f}{did}')
        self._show(image)


def action_text(action: Any) -> str:
    """Returns the action of a vector of one env as readable text: '1', '[0.31 -0.5]', 'a 1, b [0 1]'."""
    if isinstance(action, dict):
        return ', '.join(f'{name} {action_text(part)}' for name, part in action.items())
    if isinstance(action, tuple):
        return ', '.join(map(action_text, action))
    text = np.array2string(np.asarray(action)[0], precision=2, suppress_small=True, threshold=6, max_line_width=1000)
    return ' '.join(text.split())


FOLDER = 'videos'  # in the run folder
logger = logging.getLogger(__name__)


@TOOL_REGISTRY.register('videos')
class Videos(Observer):
    """Records one episode after every logger.video_freq-th evaluation, to videos/step_<env step>.mp4 in the run folder.

    The episode is played in a separate env with the seed of the evaluation, so that nothing else in the run changes.
    Args: cfg: of the whole run; roster: of its learners.
    Attributes: show: called with the env step and path of each video; a run sets it to `Logger.video`.
    Raises: ConfigError if no video can be written: the extra is not installed, the env draws nothing.
    """

    def __init__(self, cfg: JobConfig, roster: Roster = ONE_LEARNER) -> None:
        self._roster = roster
        self._freq = cfg.logger.video_freq
        self._seed = cfg.seed
        self._n = 0
        self._env = evaluation_env(cfg)
        self.show: Callable[[int, Path], object] = lambda env_step, path: None
        try:
            need('imageio_ffmpeg', 'video', f'logger.video_freq={self._freq}')
            check_drawable(roster.env(self._env))
        except SeveralAgentsError:  # the run begins again with the roster for several agents
            raise
        except UserError as error:
            said = f'no video can be made: {str(error).rstrip(".")}'
            raise ConfigError(f'logger.video_freq is {self._freq} but {said}; or leave it 0.') from error

    def continue_at(self, job: RunView) -> None:
        """Counts the evaluations before a run was continued: one for each eval_freq env steps, at most one for each round."""
        self._n = min(job.env_step // job.cfg.policy.eval.eval_freq, job.n_iteration)

    def after_evaluation(self, job: RunView, evaluation: Evaluation) -> None:
        """Records a video if one is due. A failure is a warning, and training continues."""
        self._n += 1
        with job.timer.part('evaluate'):
            if self._n % self._freq == 0:
                self._record(job, job.env_step)

    def _record(self, job: RunView, env_step: int) -> None:
        path = job.run_dir / FOLDER / f'step_{env_step}.mp4'
        seed = stream(self._seed, 'evaluate', env_step)
        try:
            path.parent.mkdir(exist_ok=True)
            player = self._roster.player({name: learner.policy for name, learner in job.parts.learners.items()})
            found = record_video(player, self._env, path, 1, seed, env_step=env_step, stop=job.stop_requested)
            if found is not None:  # else the run is asked to stop
                return_ = found.evaluation.returns[0]
                length = found.evaluation.lengths[0]
                logger.info('video of env step %d: return %.2f, length %d: %s', env_step, return_, length, path)
                self.show(env_step, path)
        except Exception as error:  # an env may fail in any way
            logger.warning('no video of env step %d: %s; training continues', env_step, show_error(error, 300))
