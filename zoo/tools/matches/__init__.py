"""Matches between runs, snapshots and heuristics in a game; their results in numbers and as a film."""
