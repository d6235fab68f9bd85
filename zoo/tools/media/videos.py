"""Videos of the policy while a run trains it: logger.video_freq."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.config.section import ConfigError
from zoo.core.errors import UserError, show_error
from zoo.core.seeding import stream
from zoo.run.base_config import JobConfig
from zoo.tools.media.recording import check_drawable, record_video

if TYPE_CHECKING:
    from zoo.run.observers.base import RunView


logger = logging.getLogger(__name__)


FOLDER = 'videos'  # in the run folder


class Videos:
    """One episode on video after every `freq`-th evaluation, in videos/step_<env step>.mp4 of the run folder.

    It is played in an env of its own, with the seed of the evaluation, so that nothing else of the run changes.
    Args: cfg: of the whole run.
    Raises: ConfigError if no video can be written: the extra is not installed, the env draws nothing.
    """

    def __init__(self, cfg: JobConfig) -> None:
        from zoo.core.errors import need
        from zoo.worker.evaluation_env import evaluation_env

        self._freq, self._seed, self._n = cfg.logger.video_freq, cfg.seed, 0
        self._env = evaluation_env(cfg)
        try:
            need('imageio_ffmpeg', 'video', f'logger.video_freq={self._freq}')
            check_drawable(self._env)
        except UserError as error:
            said = str(error).rstrip('.')
            raise ConfigError(
                f'logger.video_freq is {self._freq} but no video can be made: {said}; or leave it 0.'
            ) from error

    def continue_at(self, job: RunView) -> None:
        """Counts the evaluations that a run had before it was continued: one where it passed eval_freq, at most one a round."""
        self._n = min(job.env_step // job.cfg.policy.eval.eval_freq, job.n_iteration)

    def after_evaluation(self, job: RunView, log: Any) -> Path | None:
        """Writes a video if one is due; what fails is a warning, and training continues.

        Args: log: the run's `Logger`, whose sinks get the video.
        Returns: the file, None if there is none.
        """
        self._n += 1
        if self._n % self._freq:
            return None
        path = job.run_dir / FOLDER / f'step_{job.env_step}.mp4'
        seed = stream(self._seed, 'evaluate', job.env_step)
        try:
            path.parent.mkdir(exist_ok=True)
            found = record_video(
                job.policy, self._env, path, 1, seed, env_step=job.env_step, stop=lambda: job.stop_requested()
            )
            if found is None:  # the run is asked to stop
                return None
            return_, length = found.evaluation.returns[0], found.evaluation.lengths[0]
            logger.info('video of env step %d: return %.2f, length %d: %s', job.env_step, return_, length, path)
            log.video(job.env_step, path)
        except Exception as error:  # an env may fail in any way
            logger.warning('no video of env step %d: %s; training continues', job.env_step, show_error(error, 300))
            return None
        return path
