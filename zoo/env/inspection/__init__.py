"""Checks of envs before a run, and reports about them."""
