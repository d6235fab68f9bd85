"""Closes envs: code of somebody else, at a time when the result of the run is there and must not be lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from zoo.core.errors import show_error

EACH_S = 1.0  # seconds that an env has at least, however long the others took

logger = logging.getLogger(__name__)


def close_in_time(closes: Mapping[str, Callable[[], object]], timeout: float) -> None:
    """Call what closes envs, one after the other; one that raises or hangs is a warning that names its place.

    Each runs in a thread, which is left alone if it takes longer: it ends with the process.
    Args: closes: by the words for the place of each env; timeout: seconds for all of them together.
    """
    deadline = time.monotonic() + timeout
    for place, close in closes.items():
        thread = threading.Thread(target=_close, args=(place, close), name=f'close {place}', daemon=True)
        thread.start()
        seconds = max(deadline - time.monotonic(), EACH_S)
        thread.join(seconds)
        if thread.is_alive():
            logger.warning('%s: close has not returned after %.3g s and is left alone; mend the env', place, seconds)


def _close(place: str, close: Callable[[], object]) -> None:
    try:
        close()
    except BaseException as error:  # in a thread, even SystemExit ends nothing
        logger.warning('%s: close raised %s', place, show_error(error))
