"""metrics.jsonl: one JSON object for each line of the log. Every run has it, and a resume continues it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.core.files import open_without_link
from zoo.core.registry import SINK_REGISTRY
from zoo.run.sinks.base import FileSink, LineFile


@SINK_REGISTRY.register('jsonl')
class JsonlSink(FileSink):
    """metrics.jsonl in the run folder, one JSON object a line: always written, named or not.

    NaN and infinity become null: JSON has neither. A resume removes lines after the env step that it continues from.
    Attributes: wall_s: of the last line that `open` found and kept, else 0.
    """

    label = 'metrics.jsonl'

    def open(self, cfg: Any, run_dir: Path) -> None:
        self.path = run_dir / 'metrics.jsonl'
        self.wall_s = _cut_log(self.path, self.env_step)
        self._open()

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._lines.append(json.dumps({'env_step': env_step, **finite}))

    def reopen(self) -> None:
        old = self._lines
        self._open()
        old.close()

    def close(self) -> None:
        self._lines.close()

    def _open(self) -> None:
        self._lines = LineFile(self.path)
        self._stat = self._lines.stat


def _cut_log(path: Path, env_step: int) -> float:
    """Removes all lines after env_step, and a truncated one; returns wall_s of the last line that is kept."""
    if not path.exists():
        return 0.0
    wall_s, end = 0.0, 0
    with open(path, 'r+b', opener=open_without_link) as file:
        for line in file:
            try:
                row = json.loads(line)
                if row['env_step'] > env_step or not line.endswith(b'\n'):
                    break
                wall_s = float(row['wall_s'])
            except (ValueError, LookupError, TypeError):
                break
            end += len(line)
        file.truncate(end)
    return wall_s
