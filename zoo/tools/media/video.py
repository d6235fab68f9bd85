"""Output of pictures: video files (.mp4, .gif) by the ffmpeg of the package imageio-ffmpeg, and a window of pygame."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from zoo.core.errors import RunError, UserError, need
from zoo.core.registry import TOOL_REGISTRY
from zoo.core.streams import visible
from zoo.tools.media.film import has_display

MIN_SIZE = 320  # pixels of the longer side; smaller pictures are enlarged by a whole number
MIN_TEXT = 14  # height in pixels of the text below a picture
STRIP = 22, 24, 28  # background colour of this text
MAX_FPS = {'.mp4': 240, '.gif': 50}  # viewers slow down GIFs that are faster
# a palette for each picture
GIF_COLORS = 'split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1:dither=none'
CODECS = {
    # browsers play yuv420p; faststart: the index comes first, so that playback starts at once
    '.mp4': ['-c:v', 'libx264', '-preset', 'veryfast', '-crf', '20', '-pix_fmt', 'yuv420p', '-movflags', '+faststart'],
    '.gif': ['-filter_complex', GIF_COLORS, '-loop', '0'],
}
PREVIEW = 'fps=10,scale=256:256:force_original_aspect_ratio=decrease:flags=area'
PREVIEW_S = 15


class VideoError(RunError):
    """A video cannot be written: a full disk, or ffmpeg failed."""


class VideoFile:
    """A video that is written picture by picture; the file appears when the context ends without an error.

    Args: path: a file .mp4 or .gif; fps: frames per second; None: those of the first `add`, at most MAX_FPS.
    Attributes: fps: frames per second, once there is a picture.
    Raises: UserError if the path has another suffix, its folder is missing or the extra video is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], fps: float | None = None, what: str = 'a video') -> None:
        self.path = Path(path)
        check_video(self.path, fps, what)
        self.fps = fps
        self._partial = self.path.with_name(f'.{self.path.name}.{os.getpid()}.tmp')
        self._process: Any = None  # ffmpeg, once there is a picture
        self._shape: tuple[int, ...] | None = None
        self._is_discarded = False

    def add(self, image: np.ndarray, fps: float) -> None:
        """Appends a picture, [H, W, 3] u8; all pictures have one size. Args: fps: of the video, if none was given before.

        Raises: UserError for another size than before; VideoError.
        """
        if self._process is None:
            self._begin(image.shape, fps)
        elif image.shape != self._shape:
            new_height, new_width, *_ = image.shape
            height, width, *_ = self._shape or (0, 0)
            raise UserError(
                f'a picture of {new_width}x{new_height} pixels came after one of {width}x{height}, but all of a video have '
                'one size; make render() of the env return one size'
            )
        try:
            self._process.stdin.write(_fitted(image).tobytes())
        except OSError as error:
            self._fail(error)

    def discard(self) -> None:
        """Makes the context end without a file."""
        self._is_discarded = True

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None and not self._is_discarded:
                self._finish()
        finally:
            if self._process is not None:
                self._process.kill()  # does nothing if it has ended
                with suppress(OSError):
                    self._process.stdin.close()
                self._process.wait()
                self._said.close()
            with suppress(OSError):
                self._partial.unlink(missing_ok=True)

    def _begin(self, shape: tuple[int, ...], fps: float) -> None:
        self._shape = shape
        suffix = self.path.suffix.lower()
        if self.fps is None:
            self.fps = min(fps, MAX_FPS[suffix])
        height, width, _ = _fitted(np.zeros(shape, np.uint8)).shape
        words = f'-f rawvideo -pix_fmt rgb24 -s {width}x{height} -r {self.fps:.9g} -i pipe:0 -an'.split()
        words += [*CODECS[suffix], '-threads', '2', '-fflags', '+bitexact', '-f', suffix[1:], str(self._partial)]
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [*_ffmpeg(), '-y', *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            start_new_session=True,  # Ctrl-C reaches only this process, which then removes the file
        )

    def _finish(self) -> None:
        """Completes the video and renames it to its path. Raises: VideoError."""
        if self._process is None:
            raise VideoError(f'{self.path} has no picture; nothing is written')
        try:
            self._process.stdin.close()
        except OSError as error:
            self._fail(error)
        if self._process.wait() or not self._partial.exists():
            self._fail(None)
        try:
            os.replace(self._partial, self.path)
        except OSError as error:
            raise VideoError(f'{self.path} cannot be written ({error.strerror}); name another file') from error

    def _fail(self, cause: OSError | None) -> None:
        """Raises VideoError with the last line of ffmpeg's output."""
        self._process.wait()
        self._said.seek(0)
        lines = self._said.read().decode(errors='replace').split('\n')
        said = next((line.strip() for line in reversed(lines) if line.strip()), f'exit code {self._process.returncode}')
        raise VideoError(f'{self.path} cannot be written (ffmpeg: {said[-200:]}); name another file') from cause


def check_video(path: str | os.PathLike[str], fps: float | None = None, what: str = 'a video') -> None:
    """Checks that `path` can become a video. Raises: UserError: other suffix, no folder, fps out of range, no ffmpeg."""
    path = Path(path)
    if path.suffix.lower() not in MAX_FPS:
        raise UserError(f'{path} must end in {" or ".join(MAX_FPS)}; name the file so')
    most = MAX_FPS[path.suffix.lower()]
    if fps is not None and not 0 < fps <= most:
        raise UserError(f'fps is {fps:g} but must be more than 0 and at most {most} for a {path.suffix} file')
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UserError(f'{path} is to be written but there is no folder {path.parent}; make it first')
    if path.is_dir() or not os.access(folder, os.W_OK):
        raise UserError(
            f'{path} cannot be written ({"it is a folder" if path.is_dir() else "no permission"}); name another file'
        )
    need('imageio_ffmpeg', 'video', what)


def write_video(path: str | os.PathLike[str], frames: Iterable[np.ndarray], fps: float) -> int:
    """Writes pictures [H, W, 3] u8 as a video; returns their number. Raises: UserError, VideoError; then no file is left."""
    n_frame = 0
    with VideoFile(path, fps) as video:
        for n_frame, image in enumerate(frames, start=1):  # noqa: B007
            video.add(image, fps)
    return n_frame


@TOOL_REGISTRY.register('video_preview')
def preview(path: str | os.PathLike[str]) -> bytes:
    """Returns the first PREVIEW_S seconds of a video as a small GIF, for pages that show images. Raises: VideoError."""
    words = ['-t', str(PREVIEW_S), '-i', str(path), '-filter_complex', f'{PREVIEW},{GIF_COLORS}', '-f', 'gif', 'pipe:1']
    done = subprocess.run([*_ffmpeg(), *words], stdin=subprocess.DEVNULL, capture_output=True, start_new_session=True)
    if done.returncode or not done.stdout:
        raise VideoError(f'{path} cannot be read (ffmpeg: {done.stderr.decode(errors="replace").strip()[-200:]})')
    return done.stdout


def _ffmpeg() -> list[str]:
    """Returns the path of ffmpeg and the options of every call."""
    import imageio_ffmpeg  # type: ignore[import-untyped]

    return [imageio_ffmpeg.get_ffmpeg_exe(), '-loglevel', 'error', '-nostdin']


def with_line(image: np.ndarray, text: str) -> np.ndarray:
    """Adds a line of text below a picture; enlarges a tiny picture, cuts off a long text. Raises: UserError without pygame."""
    need('pygame', 'video', 'text below pictures')
    os.environ.setdefault('PYGAME_HIDE_SUPPORT_PROMPT', '1')
    import pygame

    pygame.font.init()
    image = _enlarged(image)
    image = np.pad(image, ((0, 0), (0, max(0, MIN_SIZE - image.shape[1])), (0, 0)))
    size = max(MIN_TEXT, image.shape[1] // 30)
    strip = pygame.Surface((image.shape[1], 2 * size))
    strip.fill(STRIP)
    letters = pygame.font.Font(None, size + size // 3).render(visible(text), True, (255, 255, 255), STRIP)
    strip.blit(letters, (size // 2, size // 2))
    return np.concatenate((image, pygame.surfarray.array3d(strip).swapaxes(0, 1)))


def _enlarged(image: np.ndarray) -> np.ndarray:
    times = max(1, math.ceil(MIN_SIZE / max(image.shape[:2])))
    if times > 1:
        return image.repeat(times, axis=0).repeat(times, axis=1)
    return image


def _fitted(image: np.ndarray) -> np.ndarray:
    """Returns a picture of a size for video: enlarged if it is tiny, both sides even."""
    image = _enlarged(image)
    height, width, _ = image.shape
    if height % 2 or width % 2:
        image = np.pad(image, ((0, height % 2), (0, width % 2), (0, 0)), mode='edge')
    return image


MIN_WINDOW = 480  # pixels of the longer side; smaller pictures are enlarged by a whole number
POLL_PER_S = 20  # checks of the keyboard per second while paused


class Window:
    """A window that shows pictures one after the other. Space pauses; Escape, Q and closing the window end it.

    Args: title: of the window; fps: pictures per second; None: those of each `show`; stop: called during a pause, true ends it.
    Attributes: is_closed: the user has closed the window.
    Raises: UserError if there is no display or the extra video is not installed.
    """

    def __init__(self, title: str, fps: float | None = None, stop: Callable[[], bool] = lambda: False) -> None:
        need('pygame', 'video', 'zoo play')
        os.environ.setdefault('PYGAME_HIDE_SUPPORT_PROMPT', '1')
        driver = os.environ.get('SDL_VIDEODRIVER')
        if driver is None and not has_display():
            raise _no_display()
        import pygame

        self._pygame = pygame
        self._title = title
        self._fps = fps
        self._stop = stop
        try:
            pygame.display.init()
        except pygame.error as error:
            raise _no_display() from error
        if driver is None and pygame.display.get_driver() in ('dummy', 'offscreen'):
            pygame.display.quit()
            raise _no_display()
        self._clock = pygame.time.Clock()
        self._surface: pygame.Surface | None = None
        self._is_paused = False
        self.is_closed = False

    def show(self, image: np.ndarray, fps: float) -> None:
        """Shows a picture, [H, W, 3] u8, until it is time for the next one."""
        pygame = self._pygame
        height, width, _ = image.shape
        times = max(1, math.ceil(MIN_WINDOW / max(height, width)))
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
        """Closes the window; may be called again."""
        self.is_closed = True
        self._pygame.display.quit()

    def _look(self) -> None:
        """Handles the events of keyboard and window."""
        pygame = self._pygame
        for event in pygame.event.get():
            is_key = event.type == pygame.KEYDOWN
            if event.type == pygame.QUIT or is_key and event.key in (pygame.K_ESCAPE, pygame.K_q):
                self.is_closed = True
            elif is_key and event.key == pygame.K_SPACE:
                self._is_paused = not self._is_paused


def _no_display() -> UserError:
    return UserError('zoo play opens a window, but there is no display here; write a video: zoo video RUN -o FILE.mp4')
