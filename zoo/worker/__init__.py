"""Collector and evaluator of a policy in envs, the reader of the envs' own numbers, and the watch on env calls."""
