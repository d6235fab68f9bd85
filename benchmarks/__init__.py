"""The benchmarks of zoo. A wheel installs them as `zoo_benchmarks`; `zoo bench` runs them.

The files are scripts: this folder has to be on the path, and they import each other as `report`, `speed_works`, ...
"""
