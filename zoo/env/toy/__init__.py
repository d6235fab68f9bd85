"""Small fast envs with known answers, for tests and for proofs that a policy can do something."""
