"""Env families: each builds a whole vector env for a game that the config names."""
