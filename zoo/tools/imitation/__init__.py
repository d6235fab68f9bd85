"""Imitation learning before a run: recording of demonstrations, behaviour cloning."""
