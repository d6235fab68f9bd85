"""The lowest room, which needs nothing else of zoo: errors, registries, spaces, seeds, the data of each stage, moves between devices."""
