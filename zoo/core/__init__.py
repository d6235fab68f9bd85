"""Foundations, which import nothing else of zoo: errors, registries, spaces, seeds, data types, transfers between devices."""
