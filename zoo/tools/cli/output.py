"""Output functions that several commands share, and the rows of their tables of arguments."""

from __future__ import annotations

import argparse
import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from zoo.core.streams import write_line

BEST = Path('checkpoints') / 'best.safetensors'
Argument = tuple[tuple[str, ...], dict[str, Any]]
"""The words and options of one `ArgumentParser.add_argument`."""


def argument(*words: str, **options: Any) -> Argument:
    """A row of a table of arguments."""
    return words, options


def print_json(value: dict[str, Any]) -> None:
    """Prints one JSON object on stdout; NaN and infinity become null, since JSON has neither."""
    write_line(json.dumps(json.loads(json.dumps(value, default=str), parse_constant=lambda name: None)))


def show(args: argparse.Namespace, data: dict[str, Any], text: str) -> None:
    """Prints the result of a command on stdout: as text, or with --json as one JSON object."""
    print_json(data) if args.json else write_line(text)


def has_better(run_dir: Path, best: float | None, last: float | None) -> bool:
    """Whether a run keeps a policy of a better evaluation than the last one. Args: best, last: returns of evaluations."""
    return best is not None and last is not None and best > last and (run_dir / BEST).exists()


def in_brackets(words: str) -> str:
    """' (words)', or '' without words."""
    if words:
        return f' ({words})'
    return ''


def watch_calls_of(args: argparse.Namespace, step_timeout: float) -> AbstractContextManager[None]:
    """Returns a context in which calls of an env end after step_timeout seconds."""
    from zoo.worker.env_watch import EnvWatch, watch_calls

    EnvWatch.owns_process = args.owns_process
    return watch_calls(step_timeout)
