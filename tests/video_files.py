"""Reads videos back, with the ffmpeg of imageio-ffmpeg."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np


def read_video(path: str | Path) -> tuple[np.ndarray, float]:
    """The pictures of a video, [N, H, W, 3] u8, and its frames per second."""
    import imageio_ffmpeg

    words = ['-i', str(path), '-f', 'rawvideo', '-pix_fmt', 'rgb24', '-fps_mode', 'passthrough', '-']
    done = subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), '-nostdin', *words], stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    said = done.stderr.decode(errors='replace')
    size, fps = re.search(r'Video:.*?, (\d+)x(\d+)', said), re.search(r'([\d.]+) fps', said)
    assert size is not None and fps is not None, said
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, int(size[2]), int(size[1]), 3), float(fps[1])
