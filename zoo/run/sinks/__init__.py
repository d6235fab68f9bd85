"""Sinks: what the metrics of a run are written to."""

from zoo.run.sinks.base import FileSink, Sink
from zoo.run.sinks.csv import CsvSink
from zoo.run.sinks.jsonl import JsonlSink
from zoo.run.sinks.make import make_sinks
from zoo.run.sinks.mlflow import MlflowSink
from zoo.run.sinks.tensorboard import TensorBoardSink
from zoo.run.sinks.wandb import WandbSink

__all__ = ['CsvSink', 'FileSink', 'JsonlSink', 'MlflowSink', 'Sink', 'TensorBoardSink', 'WandbSink', 'make_sinks']
