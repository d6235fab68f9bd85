"""TensorBoard's event files, in the folder tb of a run."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from zoo.core.registry import SINK_REGISTRY, tool
from zoo.run.base_config import JobConfig
from zoo.run.log.sinks import FileSink

logger = logging.getLogger(__name__)
_FLUSH_S = 10.0  # tensorboardX syncs the disk at every flush: some milliseconds


@SINK_REGISTRY.register('tensorboard')
class TensorBoardSink(FileSink):
    """Scalars for TensorBoard in the folder tb of the run; the same as `logger.tensorboard: true`.

    It avoids SummaryWriter, whose thread ends when the disk is full; later calls would wait for it for ever.
    """

    label = 'TensorBoard files'
    goes_on = False  # after a truncated record all later ones are unreadable
    _flushed: float

    def open(self, cfg: JobConfig, run_dir: Path) -> None:
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary

        self._event, self._summary = Event, Summary
        self._folder, self._suffix = run_dir / 'tb', f'.{self.env_step}.{os.getpid()}'
        self._open()
        if self.env_step:  # TensorBoard then hides later steps of earlier files
            log = SessionLog(status=SessionLog.START)
            self._writer.write_event(Event(wall_time=time.time(), step=self.env_step + 1, session_log=log))

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        # TensorBoard has the time of each event itself
        scalars = [self._summary.Value(tag=x, simple_value=metrics[x]) for x in metrics if x != 'wall_s']
        summary = self._summary(value=scalars)
        self._writer.write_event(self._event(wall_time=time.time(), step=env_step, summary=summary))
        if time.monotonic() - self._flushed > _FLUSH_S:
            self._writer.flush()
            self._flushed = time.monotonic()

    def video(self, env_step: int, path: Path) -> None:
        """Writes the first seconds as a small animated image, because TensorBoard shows no videos."""
        gif = tool('video_preview')(path)
        width, height = (int.from_bytes(gif[at : at + 2], 'little') for at in (6, 8))
        image = self._summary.Image(width=width, height=height, colorspace=3, encoded_image_string=gif)
        summary = self._summary(value=[self._summary.Value(tag='eval/video', image=image)])
        self._writer.write_event(self._event(wall_time=time.time(), step=env_step, summary=summary))

    def reopen(self) -> None:
        old = self._writer
        self._open()
        with suppress(OSError):
            old.close()

    def close(self) -> None:
        self._writer.close()

    def _open(self) -> None:
        from tensorboardX.event_file_writer import EventsWriter

        self._folder.mkdir(exist_ok=True)
        _tell_wandb(self._folder)
        self._writer = EventsWriter(str(self._folder / 'events'), self._suffix)
        self.path = max(self._folder.glob(f'events*{self._suffix}'))  # its name begins with the time
        self._stat = os.stat(self.path)
        self._flushed = time.monotonic()


def _tell_wandb(folder: Path) -> None:
    """Makes a W&B run that the user began with wandb.init(sync_tensorboard=True) read the event files of this folder.

    W&B finds such folders by replacing the class of SummaryWriter's files, which zoo does not use.
    """
    run = getattr(sys.modules.get('wandb'), 'run', None)
    if run is None or not getattr(run.settings, 'sync_tensorboard', False):
        return
    try:
        run._tensorboard_callback(str(folder), save=True, root_logdir='')
    except Exception as error:  # of another version of W&B
        logger.warning(
            'the W&B run does not get the TensorBoard files (%s); use logger.sinks: [wandb]',
            ' '.join(str(error).split()),
        )
