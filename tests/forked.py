"""Programs in processes of their own that begin with torch and zoo imported: one to two seconds less of CPU time each.

A server that has them imported forks for each program. What the program reads, prints and exits with is as in a new
interpreter. Not for tests of what is imported when, or of what an interpreter does before the program begins.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SIZE = 1 << 20  # bytes of a message at most


def run_python(*args: object, cwd: str | os.PathLike[str] | None = None, timeout: float = 240.0, **env: str) -> Done:
    """As `subprocess.run([sys.executable, *args])` with captured text, for args '-m', MODULE, ... or FILE, ..., after '-P' or not.

    Args: env: more variables of the environment; of those that an interpreter reads when it starts, PYTHONPATH alone counts.
    Raises: subprocess.TimeoutExpired, after the program was killed.
    """
    words, server = list(map(str, args)), _server()
    folder = os.path.abspath(os.fspath(cwd or '.'))
    with tempfile.TemporaryFile('w+') as out, tempfile.TemporaryFile('w+') as err:
        request = json.dumps({'words': words, 'cwd': folder, 'env': dict(os.environ) | env}).encode()
        socket.send_fds(server, [request], [out.fileno(), err.fileno()])
        pid = int(server.recv(SIZE))
        server.settimeout(timeout)
        try:
            code = int(server.recv(SIZE))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            server.settimeout(None)
            server.recv(SIZE)
            raise subprocess.TimeoutExpired(words, timeout) from None
        finally:
            server.settimeout(None)
        for file in (out, err):
            file.seek(0)
        return Done([sys.executable, *words], code, out.read(), err.read())


Done = subprocess.CompletedProcess[str]


@cache
def _server() -> socket.socket:
    """The server of this process, which ends with it."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        quiet = subprocess.DEVNULL
        command = [sys.executable, __file__, str(its.fileno())]
        process = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=quiet, stdout=quiet)
    atexit.register(lambda: (mine.close(), process.wait()))
    return mine


def _serve(server: socket.socket) -> tuple[list[str], str]:
    """Forks for each request; returns in the new processes alone, with words and folder."""
    while True:
        message, fds, _, _ = socket.recv_fds(server, SIZE, 2)
        if not message:
            sys.exit()
        pid = os.fork()
        if pid == 0:
            break
        for fd in fds:
            os.close(fd)
        server.send(str(pid).encode())
        server.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
    server.close()
    for fd, standard in zip(fds, (1, 2), strict=True):
        os.dup2(fd, standard)
        os.close(fd)
    request = json.loads(message)
    os.environ.clear()
    os.environ.update(request['env'])
    os.chdir(request['cwd'])
    return request['words'], request['cwd']


def _run(words: list[str], folder: str) -> None:
    """The program, as an interpreter that was started with these words runs it."""
    is_safe = words[0] == '-P'
    words = words[is_safe:]
    is_module = words[0] == '-m'
    given = [path for path in os.environ.get('PYTHONPATH', '').split(os.pathsep) if path and path not in sys.path]
    first = [] if is_safe else [folder if is_module else str(Path(folder, words[0]).parent)]
    sys.path[:1] = [*first, *given]  # in place of the folder of this file
    sys.argv = words[is_module:]
    if is_module:
        runpy.run_module(words[1], run_name='__main__', alter_sys=True)
    else:
        runpy.run_path(words[0], run_name='__main__')


def _leave(codes: list[int]) -> None:
    """Ends the process, unless a signal does: the interpreter would clear all modules first, which takes 0.2 s."""
    sys.stdout.flush()
    sys.stderr.flush()
    if codes:
        os._exit(codes[-1])


if __name__ == '__main__':
    codes: list[int] = []
    atexit.register(_leave, codes)  # before all others, so that it is called last

    import torch  # noqa: F401

    import zoo.pipeline  # noqa: F401

    gc.freeze()  # else each program ends with a search for garbage among all that was imported, which takes 0.4 s
    try:
        _run(*_serve(socket.socket(fileno=int(sys.argv[1]))))
        codes.append(0)
    except SystemExit as ended:
        codes.append(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
        raise
    except Exception:
        codes.append(1)
        raise
