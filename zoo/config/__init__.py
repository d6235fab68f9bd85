"""Sections of a config: typed fields, where they come from, what is wrong with them, values that follow the run."""
