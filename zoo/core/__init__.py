"""Foundations, which import nothing else of zoo: errors, registries, spaces, seeds, data types, transfers between devices."""

VERSION = '0.1.0'  # of the package: read here by setup.py, and written into every checkpoint
