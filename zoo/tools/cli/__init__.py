"""The `zoo` command: a thin layer over the public functions. torch is imported only by the commands that need it."""

from zoo.tools.cli.command import main

__all__ = ['main']
