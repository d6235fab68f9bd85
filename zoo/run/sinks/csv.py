"""progress.csv: the lines of metrics.jsonl as a table with one header, for spreadsheets and pandas."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zoo.core.files import open_without_link, whole_file
from zoo.core.registry import SINK_REGISTRY
from zoo.run.sinks.base import FileSink, LineFile


@SINK_REGISTRY.register('csv')
class CsvSink(FileSink):
    """progress.csv in the run folder: one row for each line of the log, a column for each metric that any line has.

    A cell is empty where a line lacks the metric, and 'nan' where it was NaN or infinite. The file is made of
    metrics.jsonl when the run begins or continues, and again when a metric first appears: so it has the lines from before
    it was asked for too, and a resume cuts it where it cuts that one.
    """

    label = 'progress.csv'

    def open(self, cfg: Any, run_dir: Path) -> None:
        self.path, self._source = run_dir / 'progress.csv', run_dir / 'metrics.jsonl'
        for file in run_dir.glob('progress.csv.*.tmp'):  # of a process that was killed while it wrote
            file.unlink()
        self._make()

    def write(self, env_step: int, metrics: Mapping[str, float]) -> None:
        row = {'env_step': env_step, **metrics}
        if row.keys() <= self._columns.keys():
            self._lines.append(_line(row.get(name, '') for name in self._columns))
        else:
            self._lines.close()
            self._make()

    def reopen(self) -> None:
        self._lines.close()
        self._make()

    def close(self) -> None:
        self._lines.close()

    def _make(self) -> None:
        """Writes the file anew from metrics.jsonl, which has the newest line already."""
        self._columns = {'env_step': None, 'wall_s': None}  # an ordered set
        for row in self._rows():
            self._columns |= dict.fromkeys(row)
        try:
            with whole_file(self.path) as file:
                file.write(_line(self._columns).encode() + b'\n')
                for row in self._rows():
                    file.write(_line(row.get(name, '') for name in self._columns).encode() + b'\n')
        except OSError:
            self._columns = {}  # the next line tries it again
            raise
        finally:
            self._lines = LineFile(self.path)
            self._stat = self._lines.stat

    def _rows(self) -> Iterator[dict[str, Any]]:
        if self._source.exists():
            with open(self._source, 'rb', opener=open_without_link) as file:
                for line in file:
                    with suppress(ValueError):  # a line that somebody else wrote
                        yield dict(json.loads(line))


def _line(cells: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator='').writerow('nan' if _is_lost(cell) else cell for cell in cells)
    return text.getvalue()


def _is_lost(cell: Any) -> bool:
    """Whether a metric was NaN or infinite, which metrics.jsonl has as null."""
    return cell is None or isinstance(cell, float) and not math.isfinite(cell)
