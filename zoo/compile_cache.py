"""Programs for the CPU, each compiled once on a machine: a later run only loads what it finds on disk."""
from __future__ import annotations

import getpass
import hashlib
import os
import platform
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.compile_worker import CompilationError, Job, compile_in_child

FORMAT = 1  # of the files here; another one leaves all that is there alone
Run = Callable[[Any], Sequence[Tensor]]  # of a list or tuple of tensors


class BrokenFileError(RuntimeError):
    """A file of the cache is not as it was written."""


def find_or_compile(job: Job, compiler: str) -> Run:
    """A program of a list of tensors. compiler: the name of the C++ compiler.

    Raises: RuntimeError if it cannot be compiled.
    """
    path = cache_folder() / f'{_key(job, compiler)}.so'
    try:
        return _load(path)
    except (OSError, RuntimeError):  # not there; or cut short, or no library of this machine: then it is replaced
        pass
    with tempfile.TemporaryDirectory(prefix='zoo_', ignore_cleanup_errors=True) as folder:
        return _load(_keep(_compile(job, Path(folder)), path))


def cache_folder() -> Path:
    """A folder in the one where torch keeps compiled code; that one is found without an import of its compiler."""
    named = os.environ.get('TORCHINDUCTOR_CACHE_DIR')
    if not named:
        try:
            user = getpass.getuser()
        except (KeyError, ModuleNotFoundError, OSError):  # a user without a name, as in some containers
            user = f'uid_{os.getuid()}' if hasattr(os, 'getuid') else 'unknown_user'
        named = os.path.join(tempfile.gettempdir(), 'torchinductor_' + re.sub(r'[\\/:*?"<>|]', '_', user))
    return Path(named).absolute() / 'zoo'


def _compile(job: Job, folder: Path) -> Path:
    """A library in a folder, with its checksum at its end."""
    try:
        # the vector instructions of this CPU, untried: trying them takes 8 s
        path = compile_in_child(job._replace(options={**job.options, 'cpp.vec_isa_ok': True}), folder)
    except CompilationError:  # perhaps the C++ compiler is older than the CPU
        path = compile_in_child(job, folder)
    with open(path, 'ab') as file:
        file.write(_checksum(path.read_bytes(), _named_operations(path)))
    return path


def _keep(made: Path, path: Path) -> Path:
    """Moves a library into the cache, and returns its place; that is where it was if nothing can be written there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for suffix in ('.json', '.so'):
            if made.with_suffix(suffix).exists():
                _write(path.with_suffix(suffix), made.with_suffix(suffix).read_bytes())
    except OSError:
        return made
    return path


def _write(path: Path, data: bytes) -> None:
    """All of it or nothing; of two writers at once, the later one's."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, 'wb') as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _load(path: Path) -> Run:
    """Raises: OSError, BrokenFileError; RuntimeError if it is no library for this machine."""
    data, size = path.read_bytes(), hashlib.sha256().digest_size
    # what is cut short may still load, and end the process where it is called
    if data[-size:] != _checksum(data[:-size], _named_operations(path)):
        raise BrokenFileError(f'{path} is not as it was written')
    return torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1).run


def _named_operations(path: Path) -> bytes:
    path = path.with_suffix('.json')
    return path.read_bytes() if path.exists() else b''


def _checksum(*parts: bytes) -> bytes:
    return hashlib.sha256(b''.join(parts)).digest()


def _key(job: Job, compiler: str) -> str:
    """A hash of all that a library depends on."""
    settings = {name: value for name, value in os.environ.items()
                if name.startswith(('TORCHINDUCTOR_', 'AOT_INDUCTOR_', 'ATEN_')) and name != 'TORCHINDUCTOR_CACHE_DIR'}
    facts: list[Any] = [FORMAT, torch.__version__, torch.version.git_version, compiler, _machine(), job.code, job.forms,
                        sorted(job.options.items()), sorted(settings.items())]
    digest = hashlib.sha256()
    for name, x in job.constants.items():
        facts.append((name, x.shape, x.stride(), x.dtype))
        digest.update(x.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    digest.update(repr(facts).encode())
    return digest.hexdigest()


@lru_cache
def _machine() -> tuple[str, ...]:
    """What the C++ compiler's -march=native depends on."""
    cpuinfo = Path('/proc/cpuinfo')
    first = cpuinfo.read_text().split('\n\n', 1)[0].splitlines() if cpuinfo.exists() else []
    return (platform.system(), platform.machine(), torch.backends.cpu.get_cpu_capability(),
            *(line for line in first if line.startswith(('model name', 'flags', 'Features', 'CPU '))))
