"""Finished and running runs as data: reading, plots, comparisons, reports."""
