"""Closing of envs that may raise or hang."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from zoo.core.errors import show_error

logger = logging.getLogger(__name__)
MIN_CLOSE_S = 1.0  # seconds that each env has to close, even after the time for all is over


def close_in_time(closes: Mapping[str, Callable[[], object]], timeout: float, level: int = logging.WARNING) -> None:
    """Calls functions that close envs, one after the other, and warns of those that raise or hang.

    Each function runs in a thread of its own. A thread that takes too long is abandoned, and ends with the process.
    Args: closes: the functions, by the words for their envs; timeout: seconds for all of them together; level: of the log.
    """
    deadline = time.monotonic() + timeout
    failed: dict[str, list[str]] = {}  # the places, by what they failed with
    for place, close in closes.items():
        raised: list[BaseException] = []
        thread = threading.Thread(target=_close, args=(close, raised), name=f'close {place}', daemon=True)
        thread.start()
        seconds = max(deadline - time.monotonic(), MIN_CLOSE_S)
        thread.join(seconds)
        if thread.is_alive():
            failed.setdefault(f'close has not returned after {seconds:.3g} s and is left alone', []).append(place)
        elif raised:
            failed.setdefault(f'close raised {show_error(raised[0])}', []).append(place)
    for failure, places in failed.items():
        logger.log(level, '%s', close_sentence(places[0], failure, len(places)))


def close_sentence(place: str, failure: str, n_env: int) -> str:
    """A sentence about envs whose close fails in the same way. place: of the first; n_env: how many."""
    others = ''
    if n_env > 1:
        others = f' and {n_env - 1} more'
    return f'{place}{others}: {failure}; fix the env'


def _close(close: Callable[[], object], raised: list[BaseException]) -> None:
    try:
        close()
    except BaseException as error:  # also SystemExit, which in a thread ends nothing
        raised.append(error)
