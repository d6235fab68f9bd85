"""The window of `zoo play`, with SDL's driver 'dummy': it shows pictures, keys close and pause it, it needs a display."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from zoo.core.errors import UserError
from zoo.tools.media.video import Window

pygame = pytest.importorskip('pygame')

FRAME = np.zeros((2, 4, 3), np.uint8)
FRAME[1, 3] = 10, 20, 30


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> Iterator[Window]:
    monkeypatch.setenv('SDL_VIDEODRIVER', 'dummy')
    made = Window('line', 1000.0)
    yield made
    made.close()


def press(key: int) -> None:
    pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=key))


def test_picture_is_shown_enlarged_by_a_whole_number(window: Window) -> None:
    """A picture 4 pixels wide in a window of 480: each pixel is 120 x 120."""
    window.show(FRAME, 30.0)
    screen: Any = pygame.display.get_surface()
    assert screen.get_size() == (480, 240) and pygame.display.get_caption()[0] == 'line'
    assert screen.get_at((479, 239))[:3] == (10, 20, 30) and screen.get_at((359, 239))[:3] == (0, 0, 0)


@pytest.mark.parametrize('key', [pygame.K_ESCAPE, pygame.K_q])
def test_keys_close_it(window: Window, key: int) -> None:
    window.show(FRAME, 30.0)
    assert not window.is_closed
    press(key)
    window.show(FRAME, 30.0)
    assert window.is_closed


def test_space_pauses_until_it_is_pressed_again_or_the_window_closes(window: Window) -> None:
    window.show(FRAME, 30.0)
    looks = []
    read = pygame.event.get

    def look() -> list[Any]:
        looks.append(1)
        if len(looks) == 5:
            press(pygame.K_SPACE)
        return read()

    pygame.event.get = look
    try:
        press(pygame.K_SPACE)
        window.show(FRAME, 30.0)
        assert len(looks) == 5 and not window.is_closed
    finally:
        pygame.event.get = read


def test_without_a_display_it_names_zoo_video(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('SDL_VIDEODRIVER', 'DISPLAY', 'WAYLAND_DISPLAY'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr('sys.platform', 'linux')
    with pytest.raises(UserError, match='there is no display here; write a video: zoo video RUN -o FILE.mp4'):
        Window('line')
    monkeypatch.setenv('DISPLAY', ':987')  # no server answers there
    with pytest.raises(UserError, match='there is no display here'):
        Window('line')


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    with pytest.raises(UserError, match=r"zoo play needs pygame, .* pip install '\.\[video\]'"):
        Window('line')
