"""Populations: many runs that learn from each other, by selection, copies and mutations; their lineage is on disk."""
