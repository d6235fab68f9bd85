"""Configs of DI-engine, stable-baselines3 (rl-zoo3), CleanRL and RLlib, translated into zoo's."""

from zoo.config.foreign.conversion import Conversion
from zoo.config.foreign.convert import SOURCES, convert

__all__ = ['SOURCES', 'Conversion', 'convert']
