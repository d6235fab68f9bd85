"""Temporary levels of loggers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def log_levels(levels: Mapping[str, int]) -> Iterator[None]:
    """Sets the levels of loggers, by name, while the context lasts."""
    before = {logging.getLogger(name): logging.getLogger(name).level for name in levels}
    try:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        yield
    finally:
        for logger, level in before.items():
            logger.setLevel(level)
