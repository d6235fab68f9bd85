"""Observers: objects that a run tells of its events. `zoo.run.build.RunBuilder` sets their order."""
