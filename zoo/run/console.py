"""The progress of a run on the console: a live line on a terminal or in a notebook, or plain ones."""

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


class NotebookConsole:
    """Redraws one line in the output of a notebook's cell, by IPython alone: no widgets."""

    def __init__(self, exp_name: str, freq: float) -> None:
        from IPython.display import display

        self._exp_name, self._freq = exp_name, freq
        self._next, self._pending = -math.inf, ''
        # each later text replaces this one, wherever the cell has been scrolled to
        self._line = display(self._data(''), raw=True, display_id=True)

    def show(self, env_step: int, text: str) -> None:
        self._pending = text
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._freq
            self._draw()

    def close(self) -> None:
        self._draw()

    def _draw(self) -> None:
        pending, self._pending = self._pending, ''
        if pending:
            self._line.update(self._data(pending), raw=True)

    def _data(self, text: str) -> dict[str, str]:
        return {'text/plain': f'{self._exp_name}  {text}'}


def in_notebook() -> bool:
    """Whether this process is a kernel of Jupyter, VS Code, Colab, ...: a cell's output can be replaced there."""
    ipython = sys.modules.get('IPython')  # a kernel has imported it
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, 'kernel', None) is not None


def make_console(
    kind: Literal['auto', 'live', 'plain', 'off'], freq: float | None, exp_name: str, max_env_step: int
) -> Console | None:
    """The console of `logger.console`, with `freq` seconds between updates, None: 0.5 for live, 5 for plain."""
    if kind in ('auto', 'live') and in_notebook():
        return NotebookConsole(exp_name, freq or 0.5)
    if kind == 'auto':
        kind = 'live' if sys.stderr.isatty() else 'plain'
    if kind == 'live':
        return LiveConsole(exp_name, max_env_step, freq or 0.5)
    return PlainConsole(exp_name, freq or 5.0) if kind == 'plain' else None
