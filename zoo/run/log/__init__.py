"""The log of a run: metrics to sinks, progress to the console."""

from zoo.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'zoo.run.log.sinks': 'CsvSink FileSink JsonlSink Sink TensorBoardSink make_sinks',
        'zoo.run.log.trackers': 'MlflowSink WandbSink',
    },
)
