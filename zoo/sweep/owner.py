"""Which process works on a trial, and whether it still lives: it may be on another machine."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

BEAT_S = 15.0  # seconds between two signs of life
LOST_S = 300.0  # seconds without one after which a process of another host counts as lost


def this_process() -> dict[str, Any]:
    """The host, pid and start time of this process, which no other process shares."""
    return {'host': socket.gethostname(), 'pid': os.getpid(), 'start': _start_of(os.getpid())}


@contextmanager
def beating(folder: Path) -> Iterator[None]:
    """Gives signs of life while the context lasts: a thread sets the time of a file of this process."""
    folder.mkdir(parents=True, exist_ok=True)
    file, end = _file(folder, this_process()), threading.Event()
    file.touch()

    def beat() -> None:
        while not end.wait(BEAT_S):
            with suppress(OSError):  # a disk that is away for a while
                file.touch()

    thread = threading.Thread(target=beat, name='signs of life', daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        with suppress(OSError):
            file.unlink()
            folder.rmdir()  # if it is empty


def is_lost(owner: Mapping[str, Any], folder: Path) -> bool:
    """Whether the process has ended: on this host the system knows, of another one its file is LOST_S old or gone.

    The file's age is counted by the clock of the disk that holds it, which all hosts share.
    """
    if owner['host'] == socket.gethostname():
        return _start_of(owner['pid']) != owner['start']
    now = folder / f'now-{socket.gethostname()}-{os.getpid()}'
    try:
        folder.mkdir(parents=True, exist_ok=True)
        now.touch()
        return now.stat().st_mtime - _file(folder, owner).stat().st_mtime > LOST_S
    except FileNotFoundError:
        return True
    finally:
        with suppress(OSError):
            now.unlink(missing_ok=True)


def _file(folder: Path, owner: Mapping[str, Any]) -> Path:
    return (
        folder / f'{owner["host"]}-{owner["pid"]}-{owner["start"].replace("/", "_").replace(" ", "_").replace(":", "")}'
    )


def _start_of(pid: int) -> str:
    """When a process of this host started, as a text to compare; '' if it has ended, or waits for its parent to see that."""
    stat = Path(f'/proc/{pid}/stat')
    if stat.parent.parent.joinpath('self').exists():  # Linux
        try:
            state, *rest = stat.read_text().rpartition(')')[2].split()
            boot = Path('/proc/sys/kernel/random/boot_id').read_text().strip()
        except OSError:
            return ''
        return '' if state in 'ZX' else f'{boot}/{rest[18]}'  # field 22 of proc(5), in ticks since boot
    words = ['ps', '-o', 'lstart=', '-p', str(pid)]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
