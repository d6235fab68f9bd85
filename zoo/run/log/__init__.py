"""The log of a run: metrics to sinks, progress to the console."""

from zoo.core.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        'CsvSink': 'zoo.run.log.sinks',
        'FileSink': 'zoo.run.log.sinks',
        'JsonlSink': 'zoo.run.log.sinks',
        'MlflowSink': 'zoo.run.log.trackers',
        'Sink': 'zoo.run.log.sinks',
        'TensorBoardSink': 'zoo.run.log.tensorboard',
        'WandbSink': 'zoo.run.log.trackers',
        'make_sinks': 'zoo.run.log.sinks',
    },
)
