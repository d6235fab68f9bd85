"""The film in a report: found in a run folder, or a file that was named; it becomes part of the page."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import NamedTuple

from zoo.core.errors import UserError
from zoo.results.read import Run
from zoo.results.report_html import Html, html

KINDS = {
    '.mp4': ('video/mp4', b'ftyp', 4),
    '.webm': ('video/webm', b'\x1a\x45\xdf\xa3', 0),
    '.gif': ('image/gif', b'GIF8', 0),
}
"""By the end of a file's name: its type, the bytes that such a file has near its beginning, and where."""
MAX_BYTE = 32 << 20  # larger pages are refused by many mail servers, and slow on a phone


class Video(NamedTuple):
    """A film. kind: its type, as 'video/mp4'; data: its bytes."""

    kind: str
    data: bytes

    def tag(self, words: str) -> Html:
        """The element that shows it. Args: words: what is to be seen, for those who cannot see it."""
        source = f'data:{self.kind};base64,{base64.b64encode(self.data).decode()}'
        if self.kind.startswith('image/'):
            return html('<img src="$source" alt="$words">', source=source, words=words)
        return html(
            '<video src="$source" aria-label="$words" controls loop muted playsinline preload="auto"></video>',
            source=source,
            words=words,
        )


def read_video(path: Path) -> Video:
    """A film from a file. Raises: UserError if it is none that browsers show, or too large for a page."""
    if path.suffix.lower() not in KINDS:
        raise UserError(f'the video {path} must end in {", ".join(KINDS)}, which browsers show; convert it')
    try:
        n_byte = path.stat().st_size
        data = path.read_bytes() if n_byte <= MAX_BYTE else b''
    except OSError as error:
        raise UserError(f'the video {path} cannot be read ({error.strerror}); name another file') from error
    if n_byte > MAX_BYTE:
        raise UserError(
            f'the video {path} has {n_byte / 2**20:.0f} MB but a page takes {MAX_BYTE >> 20} MB; make a shorter one'
        )
    kind, mark, at = KINDS[path.suffix.lower()]
    if data[at : at + len(mark)] != mark:
        raise UserError(f'the video {path} is no {kind.rpartition("/")[2]} file; name another file')
    return Video(kind, data)


def newest_video(run: Run) -> Path | None:
    """The film of the highest env step in the folder `videos` of a run; None if there is none."""
    files = [path for path in sorted(run.path.glob('videos/*')) if _is_film(path)]
    return max(files, key=lambda path: (step_of(path) or 0, path.name), default=None)


def step_of(path: Path) -> int | None:
    """The env step in a name such as step_40670.mp4."""
    found = re.search(r'step_0*(\d+)', path.stem)
    return int(found[1]) if found else None


def _is_film(path: Path) -> bool:
    return path.suffix.lower() in KINDS and not path.name.startswith('.') and path.is_file()  # '.': being written
