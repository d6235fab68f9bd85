"""The native executor: gradient steps and acting of MLP actor-critics on a CPU, in C, without dependencies.

The C sources are compiled when the package is installed, where there is a compiler; see `bindings` and `build`.
"""

from zoo.backend.native.executor import NativeExecutor, level, missing, obstacle, unknown_parts

__all__ = ['NativeExecutor', 'level', 'missing', 'obstacle', 'unknown_parts']
