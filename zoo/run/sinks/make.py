"""Makes the sinks that the config of a run names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from zoo.config.messages import shown
from zoo.config.parts import part_object, section_of
from zoo.config.section import ConfigError
from zoo.core.registry import SINK_REGISTRY
from zoo.run.sinks.base import FileSink


def make_sinks(specs: Sequence[Any], tensorboard: bool) -> list[Any]:
    """The sinks of a run, not open yet: first metrics.jsonl, which every run has and others read.

    Args: specs: `logger.sinks`; tensorboard: `logger.tensorboard`, which adds that sink.
    Raises: ConfigError if a library is not installed, a name is no class of a sink, or is named twice.
    """
    names = [section_of(SINK_REGISTRY, spec, 'logger.sinks').type for spec in specs]
    for name, n in Counter(names).items():
        if n > 1 and name in SINK_REGISTRY:
            raise ConfigError(
                f'logger.sinks names {name!r} {n} times but a run has one of a kind; leave out the others.'
            )
    first = ['jsonl', *(['tensorboard'] if tensorboard or 'tensorboard' in names else [])]
    rest = [spec for spec, name in zip(specs, names, strict=True) if name not in first]
    sinks = [_make(spec) for spec in [*first, *rest]]
    return sorted(sinks, key=lambda sink: not isinstance(sink, FileSink))  # one that cannot be opened ends the run


def _make(spec: Any) -> Any:
    section = section_of(SINK_REGISTRY, spec, 'logger.sinks')
    sink = part_object(SINK_REGISTRY, section, 'logger.sinks')
    missing = [method for method in ('open', 'write', 'close') if not callable(getattr(sink, method, None))]
    if missing:
        raise ConfigError(
            f'logger.sinks names {section.type!r}, whose objects are {shown(sink)} without {", ".join(missing)}; name a '
            'class with open(cfg, run_dir), write(env_step, metrics) and close(), see zoo.Sink.'
        )
    return sink
