"""The version of the package: read here by setup.py, and written into every checkpoint."""

VERSION = '0.1.0'
