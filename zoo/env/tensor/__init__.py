"""Envs written as tensor programs: B of them step at once, on the device of the policy."""
