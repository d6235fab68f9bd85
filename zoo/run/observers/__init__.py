"""Observers of a run: what is told of its events. `zoo.run.build.make_observers` has their order."""
