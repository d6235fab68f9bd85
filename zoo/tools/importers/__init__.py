"""Importers: translate configs of DI-engine, stable-baselines3 (rl-zoo3), CleanRL and RLlib into zoo's."""

from zoo.tools.importers.conversion import Conversion
from zoo.tools.importers.convert import SOURCES, convert

__all__ = ['SOURCES', 'Conversion', 'convert']
