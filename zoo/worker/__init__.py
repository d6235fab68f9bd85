"""Collector, learner and evaluator: they turn envs, a policy and a buffer into a round of training."""
