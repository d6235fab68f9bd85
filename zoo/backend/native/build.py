"""Compilation of the native executor: as an optional extension at installation, or in place from a checkout.

`python -m zoo.backend.native.build` (or this file as a script) rebuilds it in the folder of its sources.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SOURCES = ('native.c', 'plan.c', 'crew.c', 'ranks.c', 'module.c')
HEADERS = (
    'zoo_native.h',
    'internal.h',
    'kernels.inc',
    'vector.inc',
    'linear.inc',
    'distribution.inc',
    'loss.inc',
    'recurrent.inc',
    'network.inc',
    'update.inc',
)
# never -ffast-math: a NaN has to reach the norm of the gradient
FLAGS = (
    '-std=gnu11',
    '-O3',
    '-g0',
    '-fno-math-errno',
    '-fno-trapping-math',
    '-ffp-contract=fast',
    '-fvisibility=hidden',
)
POSIX: tuple[str, ...] = ()
if os.name == 'posix':
    POSIX = ('-pthread',)


def source_hash() -> int:
    """A hash of the sources that is compiled into the library, so that a library of other sources is detected."""
    return zlib.crc32(b''.join((FOLDER / name).read_bytes() for name in (*SOURCES, *HEADERS)))


def extension() -> Any:
    """The setuptools Extension; without a working compiler the installation continues without it.

    Paths are relative to the folder of setup.py. Nothing imports it: its one Python symbol is there for setuptools.
    """
    from setuptools import Extension  # type: ignore[import-untyped]

    return Extension(
        'zoo.backend.native._native',
        [f'zoo/backend/native/{name}' for name in SOURCES],
        depends=[f'zoo/backend/native/{name}' for name in HEADERS],
        extra_compile_args=[*FLAGS, *POSIX],
        extra_link_args=list(POSIX),
        libraries=['m'] if os.name == 'posix' else [],
        define_macros=[('ZOO_SOURCE', f'{source_hash()}u')],
        py_limited_api=True,
        optional=True,
    )


def build(folder: Path = FOLDER, extra: tuple[str, ...] = ()) -> Path:
    """Compiles the library into a folder with $CC, or the compiler that Python was built with; returns its path.

    Raises: RuntimeError with the compiler's message if it fails.
    """
    target = folder / f'_native{sysconfig.get_config_var("SHLIB_SUFFIX") or ".so"}'
    compiler = shlex.split(os.environ.get('CC') or sysconfig.get_config_var('CC') or 'cc')
    sources = [str(FOLDER / name) for name in SOURCES]
    partial = target.with_name(f'{target.name}.{os.getpid()}')  # a process that has the old file open keeps it
    command = [
        *(*compiler, *FLAGS, *POSIX, f'-DZOO_SOURCE={source_hash()}u', '-fPIC', '-shared', *extra),
        *(*sources, '-o', str(partial), '-lm'),
    ]
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise RuntimeError(f'no C compiler {compiler[0]!r} ({error}); install gcc or clang, or set CC') from None
    if result.returncode:
        raise RuntimeError(f'{shlex.join(command)} failed:\n{result.stderr}')
    partial.replace(target)
    return target


if __name__ == '__main__':
    try:
        built = build()
    except RuntimeError as error:
        sys.exit(f'{error}')
    # only now: if compiling fails, the old library stays
    for old in FOLDER.glob('_native*'):
        if old != built and old.suffix in ('.so', '.pyd', '.dylib', '.dll'):
            old.unlink()
    sys.stdout.write(f'{built}\n')
