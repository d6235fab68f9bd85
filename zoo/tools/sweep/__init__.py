"""Sweeps: many runs of one config with sampled values, compared by their returns; several processes can share a sweep."""

from zoo.tools.sweep.study import SweepResult as SweepResult
from zoo.tools.sweep.sweep import sweep as sweep
