"""Which class of the registry runs a config: its section `pipeline`."""

from __future__ import annotations

from zoo.config.parts import section_of
from zoo.config.section import Config, ConfigError
from zoo.core.registry import PIPELINE_REGISTRY
from zoo.run.job import SerialJob


def job_class(cfg: Config) -> type[SerialJob]:
    """The class that the section `pipeline` names. Raises: ConfigError if it is no run."""
    name = section_of(PIPELINE_REGISTRY, cfg.pipeline, 'pipeline').type
    found = PIPELINE_REGISTRY.get(name)
    if not (isinstance(found, type) and issubclass(found, SerialJob)):
        where = PIPELINE_REGISTRY.where(name)
        raise ConfigError(f'pipeline {name!r} of {where} is no class derived from zoo.SerialJob; derive it from that.')
    return found
