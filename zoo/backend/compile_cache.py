"""Programs for the CPU, each compiled once on a machine: a later run only loads what it finds on disk."""

from __future__ import annotations

import getpass
import hashlib
import os
import platform
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.backend.compile_worker import CompilationError, Job, compile_in_child, scratch_root

FORMAT = 2  # of the files here; another one leaves all that is there alone
Run = Callable[[Any], Sequence[Tensor]]  # of a list or tuple of tensors


class BrokenFileError(RuntimeError):
    """A file of the cache is not as it was written."""


def find_or_compile(job: Job, compiler: str) -> Run:
    """A program of a list of tensors. compiler: the name of the C++ compiler.

    Raises: RuntimeError if it cannot be compiled; OSError if there is no room for it.
    """
    cache, key = cache_folder(), _key(job, compiler)
    for path in sorted(cache.glob(f'{key}.*.so')) if _is_ours(cache) else ():
        try:
            return _load(path)
        except (OSError, RuntimeError):  # cut short, or no library of this machine: then it is replaced
            with suppress(OSError):
                path.unlink()
    with tempfile.TemporaryDirectory(prefix='zoo_', dir=scratch_root(), ignore_cleanup_errors=True) as folder:
        return _load(_keep(_compile(job, Path(folder)), cache, key))


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
    """A library in a folder."""
    try:
        # the vector instructions of this CPU, untried: trying them takes 8 s
        return compile_in_child(job._replace(options={**job.options, 'cpp.vec_isa_ok': True}), folder)
    except CompilationError:  # perhaps the C++ compiler is older than the CPU
        return compile_in_child(job, folder)


def _keep(made: Path, cache: Path, key: str) -> Path:
    """Copies a library into the cache, its checksum in its name; returns its place, which is still the old one if
    nothing can be written there."""
    path = cache / f'{key}.{_checksum(made)}.so'
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(cache):
            raise PermissionError(f'{cache} may be written by others')
        for suffix in ('.json', '.so'):
            if made.with_suffix(suffix).exists():
                _write(path.with_suffix(suffix), made.with_suffix(suffix).read_bytes())
    except OSError:
        path = made.with_name(path.name)
        for suffix in ('.json', '.so'):
            if made.with_suffix(suffix).exists():
                made.with_suffix(suffix).rename(path.with_suffix(suffix))
    return path


def _is_ours(path: Path) -> bool:
    """Whether nobody else can have written what is there: a library is run as it is found."""
    try:
        info = path.stat()
    except OSError:
        return False
    return not hasattr(os, 'getuid') or (info.st_uid == os.getuid() and not info.st_mode & 0o022)


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
    # what is cut short may still load, and end the process where it is called
    if not _is_ours(path) or path.name.split('.')[-2] != _checksum(path):
        raise BrokenFileError(f'{path} is not as it was written')
    return torch._C._aoti.AOTIModelContainerRunnerCpu(str(path), 1).run


def _checksum(path: Path) -> str:
    """Of a library, and of the list of the operations that it calls by their names, if there is one."""
    names = path.with_suffix('.json')
    return hashlib.sha256(path.read_bytes() + (names.read_bytes() if names.exists() else b'')).hexdigest()[:32]


def _key(job: Job, compiler: str) -> str:
    """A hash of all that a library depends on."""
    settings = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(('TORCHINDUCTOR_', 'AOT_INDUCTOR_', 'ATEN_')) and name != 'TORCHINDUCTOR_CACHE_DIR'
    }
    facts: list[Any] = [
        FORMAT,
        torch.__version__,
        torch.version.git_version,
        compiler,
        _machine(),
        job.code,
        job.forms,
        sorted(job.options.items()),
        sorted(settings.items()),
    ]
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
    return (
        platform.system(),
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
        *(line for line in first if line.startswith(('model name', 'flags', 'Features', 'CPU '))),
    )
