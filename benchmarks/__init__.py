"""The benchmarks of zoo. A wheel installs them as `zoo_benchmarks`; `zoo bench` runs them.

The files are scripts: they import each other as `report`, `speed_works`, ..., with this folder on the path.
"""
