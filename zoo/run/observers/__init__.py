"""Observers of a run: what is told of its events. `zoo.run.build.RunBuilder` has their order."""
