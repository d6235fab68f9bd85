"""Runs programs in forked processes that have imported torch and zoo: each saves one to two seconds of CPU time.

A server process imports both and forks for each program. The program has the same input, output and exit code as in a new
interpreter. Not for tests of when a module is imported, or of what an interpreter does before the program begins.
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
    """Runs a program like `subprocess.run([sys.executable, *args])`, args: [-P] -m MODULE ... or FILE ...; captures its text.

    Args: env: more environment variables. Of those that an interpreter reads when it starts, only PYTHONPATH has an effect.
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
    """The socket of this process's server; the server ends when this process ends."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        quiet = subprocess.DEVNULL
        command = [sys.executable, __file__, str(its.fileno())]
        process = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=quiet, stdout=quiet)
    atexit.register(lambda: (mine.close(), process.wait()))
    return mine


def _serve(server: socket.socket) -> tuple[list[str], str]:
    """Forks for each request. Returns only in the forked processes: the program's words and its current folder."""
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
    """Runs the program as an interpreter that was started with these words."""
    is_safe = words[0] == '-P'
    words = words[is_safe:]
    is_module = words[0] == '-m'
    given = [path for path in os.environ.get('PYTHONPATH', '').split(os.pathsep) if path and path not in sys.path]
    first = [] if is_safe else [folder if is_module else str(Path(folder, words[0]).parent)]
    sys.path[:1] = [*first, *given]  # replaces the folder of this file
    sys.argv = words[is_module:]
    if is_module:
        runpy.run_module(words[1], run_name='__main__', alter_sys=True)
    else:
        runpy.run_path(words[0], run_name='__main__')


def _leave(codes: list[int]) -> None:
    """Ends the process with the last code. A normal exit (without a code) first clears all modules, which takes 0.2 s."""
    sys.stdout.flush()
    sys.stderr.flush()
    if codes:
        os._exit(codes[-1])


if __name__ == '__main__':
    codes: list[int] = []
    atexit.register(_leave, codes)  # before all others, so that it is called last

    import torch  # noqa: F401

    import zoo.pipeline  # noqa: F401

    gc.freeze()  # otherwise each program ends with a garbage collection of all imported objects, which takes 0.4 s
    try:
        _run(*_serve(socket.socket(fileno=int(sys.argv[1]))))
        codes.append(0)
    except SystemExit as ended:
        codes.append(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
        raise
    except Exception:
        codes.append(1)
        raise
