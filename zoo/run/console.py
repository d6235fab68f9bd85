"""The progress of a run on the console: a live line, or plain ones."""

from __future__ import annotations

import math
import sys
import time
from typing import Literal, Protocol


class Console(Protocol):
    """Shows how far a run is; may raise OSError."""

    def show(self, env_step: int, text: str) -> None: ...

    def close(self) -> None: ...


class PlainConsole:
    """Prints a line on stderr every `freq` seconds, and one at the end."""

    def __init__(self, exp_name: str, freq: float) -> None:
        self._exp_name, self._freq = exp_name, freq
        self._next, self._pending = -math.inf, ''

    def show(self, env_step: int, text: str) -> None:
        self._pending = f'{self._exp_name}  {text}\n'
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._freq
            self._print()

    def close(self) -> None:
        self._print()

    def _print(self) -> None:
        pending, self._pending = self._pending, ''
        sys.stderr.write(pending)
        sys.stderr.flush()


class LiveConsole:
    """Redraws one line on stderr; leaves stdout unchanged."""

    def __init__(self, exp_name: str, max_env_step: int, freq: float) -> None:
        from rich.console import Console as RichConsole
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        console = RichConsole(stderr=True)
        name, text = (
            TextColumn(f'{{task.{field}}}', markup=False, table_column=Column(no_wrap=True))
            for field in ('description', 'fields[text]')
        )
        columns = [name, *([BarColumn(16)] if console.width >= 120 else []), text]
        self._progress = Progress(*columns, console=console, auto_refresh=False, redirect_stdout=False)
        self._task = self._progress.add_task(exp_name, total=max_env_step, text='')
        self._freq, self._next = freq, -math.inf
        self._progress.start()
        console.show_cursor(True)  # rich hides the cursor, and a killed run could not restore it

    def show(self, env_step: int, text: str) -> None:
        self._progress.update(self._task, completed=env_step, text=text)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._freq
            self._progress.refresh()

    def close(self) -> None:
        self._progress.stop()


def make_console(
    kind: Literal['auto', 'live', 'plain', 'off'], freq: float | None, exp_name: str, max_env_step: int
) -> Console | None:
    """The console of `logger.console`, with `freq` seconds between updates, None: 0.5 for live, 5 for plain."""
    if kind == 'auto':
        kind = 'live' if sys.stderr.isatty() else 'plain'
    if kind == 'live':
        return LiveConsole(exp_name, max_env_step, freq or 0.5)
    return PlainConsole(exp_name, freq or 5.0) if kind == 'plain' else None
