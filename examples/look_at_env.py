"""Checks an env before a run: breaks of the gymnasium interface, causes of slow learning, and the env's speed."""

from zoo.env import inspect_env

report = inspect_env(dict(id='MountainCarContinuous-v0', collector_env_num=8), n_step=500)
print(report.text())
assert not report.problems
assert report.facts['vectorization'] == 'sync'  # a step takes some microseconds, and a worker more
