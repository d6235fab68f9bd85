"""What a run writes its metrics to: the interface of a sink, and of those that write files into the run folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.core.files import is_in_place, open_without_link


class Sink:
    """Somewhere that the metrics of a run are written to: derive a class, or write one with the same three methods.

    A config names it, `logger.sinks: ['my_module:MySink']`, with options as `{type: 'my_module:MySink', host: here}`: the
    keyword-only parameters of its constructor. A resume makes a new one. If a method raises an error, the run gives one
    warning and continues: without the sink, or, after an OSError of `write`, with another try at the next line.

    Attributes, set before `open`: env_step: env step that the run continues from, 0 for a new run; set before `close`:
      has_failed: an error ended the run.
    """

    env_step: int = 0
    has_failed: bool = False

    def open(self, cfg: Any, run_dir: Path) -> None:
        """The run begins or continues. Args: cfg: its complete config, read-only, e.g. cfg.exp_name; run_dir: its folder."""

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        """One line of the log.

        Args: metrics: by name, 'eval/return_mean'; 'wall_s' is seconds since the run began, those before a resume
          included. NaN and infinity occur. A line of training metrics and one of an evaluation may have one env step.
        """

    def video(self, env_step: int, path: Path) -> None:
        """A video of one episode was written (logger.video_freq). A sink that shows videos overrides this.

        Args: path: of the file .mp4 in the run folder.
        """

    def close(self) -> None:
        """The run has ended, or stops for now; called once."""


class FileSink(Sink):
    """A sink that appends to a file in the run folder.

    Attributes: path: of the file; label: its name in warnings; goes_on: after an OSError the next line is tried again.
    """

    path: Path
    label: str
    goes_on: bool = True
    _stat: os.stat_result

    def is_in_place(self) -> bool:
        """Whether the open file is still at its path."""
        return is_in_place(self.path, self._stat)

    def reopen(self) -> None:
        """Begins the file anew, where it was removed or moved. Raises: OSError."""
        raise NotImplementedError


class LineFile:
    """Appends complete lines or nothing, so that a disk that is full for a while leaves no truncated line."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, 'ab', buffering=0, opener=open_without_link)
        self.stat = os.fstat(self._file.fileno())

    def append(self, line: str) -> None:
        """Writes a line; Raises: OSError, after which the file is as it was."""
        data = line.encode() + b'\n'
        end = os.fstat(self._file.fileno()).st_size
        if self._file.write(data) != len(data):
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, 'no room for a whole line')

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
