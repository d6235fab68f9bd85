"""Sweeps: many runs of one config with sampled values, judged by their returns; several processes share one."""

from zoo.tools.sweep.study import SweepResult as SweepResult
from zoo.tools.sweep.sweep import sweep as sweep
