"""Observers of a run: what is told of its events."""
