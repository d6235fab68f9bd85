"""A window that shows pictures as they come, with pygame."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from zoo.core.errors import UserError
from zoo.core.extras import need
from zoo.env.film import has_display

MIN_SIZE = 480  # pixels of the longer side; smaller pictures are enlarged by a whole number
POLL_PER_S = 20  # looks at the keyboard while it is paused


class Window:
    """Shows one picture after the other; space pauses, Escape, Q and closing the window end it.

    Args: title: of the window; fps: pictures per second; None: as each picture says; stop: asked while it is paused.
    Attributes: is_closed: the user has closed it.
    Raises: UserError if there is no display or the extra video is not installed.
    """

    def __init__(self, title: str, fps: float | None = None, stop: Callable[[], bool] = lambda: False) -> None:
        need('pygame', 'video', 'zoo play')
        os.environ.setdefault('PYGAME_HIDE_SUPPORT_PROMPT', '1')
        driver = os.environ.get('SDL_VIDEODRIVER')
        if driver is None and not has_display():
            raise _no_display()
        import pygame

        self._pygame, self._title, self._fps, self._stop = pygame, title, fps, stop
        try:
            pygame.display.init()
        except pygame.error as error:
            raise _no_display() from error
        if driver is None and pygame.display.get_driver() in ('dummy', 'offscreen'):
            pygame.display.quit()
            raise _no_display()
        self._clock = pygame.time.Clock()
        self._surface: Any = None
        self._is_paused = False
        self.is_closed = False

    def show(self, image: np.ndarray, fps: float) -> None:
        """Shows a picture, [H, W, 3] of bytes, until it is time for the next one."""
        pygame = self._pygame
        height, width, _ = image.shape
        times = max(1, math.ceil(MIN_SIZE / max(height, width)))
        size = width * times, height * times
        if self._surface is None or self._surface.get_size() != size:
            self._surface = pygame.display.set_mode(size)
            pygame.display.set_caption(self._title)
        picture = pygame.image.frombuffer(np.ascontiguousarray(image).tobytes(), (width, height), 'RGB')
        self._surface.blit(pygame.transform.scale(picture, size), (0, 0))
        pygame.display.flip()
        self._look()
        while self._is_paused and not self.is_closed and not self._stop():
            self._clock.tick(POLL_PER_S)
            self._look()
        self._clock.tick(self._fps or fps)

    def close(self) -> None:
        """Closes it; may be called again."""
        self.is_closed = True
        self._pygame.display.quit()

    def _look(self) -> None:
        """Reads what the user did."""
        pygame = self._pygame
        for event in pygame.event.get():
            is_key = event.type == pygame.KEYDOWN
            if event.type == pygame.QUIT or is_key and event.key in (pygame.K_ESCAPE, pygame.K_q):
                self.is_closed = True
            elif is_key and event.key == pygame.K_SPACE:
                self._is_paused = not self._is_paused


def _no_display() -> UserError:
    return UserError('zoo play opens a window, but there is no display here; write a video: zoo video RUN -o FILE.mp4')
