"""Readers of other libraries' configs, for `load_config`: DI-engine's are translated, for other files it is said how to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from zoo.config.source import ConfigReader
from zoo.core.registry import CONFIG_READER_REGISTRY
from zoo.tools.importers.convert import (
    check_pair,
    how_to_convert,
    needs_di_engine,
    pair_of,
    run_without_imports,
    translated,
)
from zoo.tools.importers.di_engine import is_main_config


@CONFIG_READER_REGISTRY.register('di_engine')
class DIEngineReader(ConfigReader):
    """Translates DI-engine's pair (main_config, create_config), or its main_config alone."""

    def of_object(self, config: object) -> dict[str, Any] | None:
        if not isinstance(config, dict):
            return translated(*check_pair(config))
        if is_main_config(config):
            return translated(config)
        return None

    def of_module(self, variables: Mapping[str, Any]) -> dict[str, Any] | None:
        pair = pair_of(variables)
        if pair is None:
            return None
        return translated(*pair)

    def is_missing(self, error: BaseException | None) -> bool:
        return needs_di_engine(error)

    def run_without_library(self, path: Path) -> ModuleType:
        return run_without_imports(path)


@CONFIG_READER_REGISTRY.register('convertible_files')
class ConvertibleFiles(ConfigReader):
    """Names the command that converts a file of CleanRL, rl-zoo3 or RLlib."""

    def how_to_convert(self, path: Path, shown: str) -> str:
        return how_to_convert(path, shown)
