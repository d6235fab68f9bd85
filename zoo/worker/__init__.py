"""What turns envs, a policy and a buffer into a round of training: collector, learner, evaluator."""
