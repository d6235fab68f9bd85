"""What sinks that write to an experiment tracker share: its library, its run's id in the run folder, the config as text."""

from __future__ import annotations

import importlib
import json
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from zoo.config.section import ConfigError, join_path
from zoo.config.yaml_text import storable
from zoo.core.extras import missing_extra
from zoo.core.files import open_without_link, whole_file
from zoo.run.sinks.base import Sink

logger = logging.getLogger(__name__)

_ID = re.compile(r'[A-Za-z0-9][A-Za-z0-9_-]{0,63}')
_MAX_ID_FILE = 1_000  # bytes


class Tracker(Sink):
    """A sink that writes to the run of an experiment tracker, whose id is kept in the run folder: a resume finds it.

    Attributes: name: registered name, also of the extra that installs its library.
    """

    name: str

    def open(self, cfg: Any, run_dir: Path) -> None:
        self._file = run_dir / f'{self.name}_run.json'
        self._best = run_dir / 'checkpoints' / 'best.safetensors'

    def remembered_id(self) -> str | None:
        """The id of the tracker's run that this run folder was tracked as so far; None for a new one."""
        with suppress(OSError, ValueError, LookupError, TypeError):
            with open(self._file, 'rb', opener=open_without_link) as file:
                found = json.loads(file.read(_MAX_ID_FILE))['id']
            if _ID.fullmatch(found):
                return str(found)
            logger.warning('%s has no id of a run; the tracker gets a new run', self._file)
        return None

    def remember_id(self, run_id: str) -> None:
        """Keeps the id for a resume."""
        with whole_file(self._file) as file:
            file.write(json.dumps({'id': run_id}).encode())


def library(module: str, needs: str, extra: str) -> Any:
    """A tracker's module. Raises: ConfigError that names the extra if it is not installed."""
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        if error.name is None or error.name.partition('.')[0] != module.partition('.')[0]:
            raise
        found = None
    if not hasattr(found, needs):  # a folder of that name, such as W&B's own output, is imported as an empty module
        raise ConfigError(f'{missing_extra(f"logger.sinks names {extra!r}, which", extra)}, or leave it out.')
    return found


def flat(config: Any, path: str = '') -> Iterator[tuple[str, str]]:
    """Every value of a config by its dotted path, as text."""
    config = config if path else storable(config)
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from flat(value, join_path(path, key))
        else:
            yield join_path(path, key), str(value)
