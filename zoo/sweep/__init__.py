"""Sweeps: many runs of one config with sampled values, judged by their returns; several processes share one."""

from zoo.sweep.study import SweepResult as SweepResult
from zoo.sweep.sweep import sweep as sweep
