"""Whether the folder that is named for a run holds a run of the same config, which then continues."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zoo.config.section import Config, differing_keys, has_key, value_at
from zoo.config.yaml_text import config_of_yaml, storable, value_text
from zoo.core.errors import UserError
from zoo.run.config import explain_config, resolve_config
from zoo.run.config_check import without_derived_values
from zoo.run.run_dir import newest_in

MAX_SHOWN = 3  # keys of a message
LENGTH = 'max_env_step'
FREE = (
    'stop',
    'policy.eval.stop_value',
    'init_from_keys',
    'logger',
    'checkpoint',
    'cluster',
    'policy.device',
    'policy.n_thread',
    'policy.learn.compile',
    'policy.learn.executor',
    'keep_freed_memory',
    'env.check',
    'env.evaluator_env_num',
    'env.max_restarts',
    'env.on_error',
    'env.step_timeout',
    'env.vectorization',
)
"""Keys and sections that a run may change when it continues: when it ends, where and how it is computed, what it writes, and
what becomes of faults."""
OWN_CODE = re.compile(r'(?:.*[/\\])?([^/\\]+\.py:\w+)')


def refuse_other_configs(source: Any, overrides: Sequence[Sequence[str]], folders: Sequence[Path | None]) -> None:
    """`refuse_other_config` for several runs of a source.

    Args: overrides: of each run; folders: of each run, None for a new one.
    """
    for texts, folder in zip(overrides, folders, strict=True):
        if folder is not None:
            refuse_other_config(resolve_config(source, texts), source, texts, folder)


def refuse_other_config(cfg: Config, source: Any, texts: Sequence[str], folder: Path) -> None:
    """Raises: UserError if a folder has a run of another config than the one that is to be trained in it.

    A longer max_env_step, no init_from, and what FREE lists, may differ. A run that has saved nothing yet begins anew.
    Args: cfg: what source and texts, its overrides, give; they say which keys the user gave.
    """
    if newest_in(folder) is None or not (folder / 'config.yaml').is_file():
        return  # nothing that could be continued
    was, now = config_of_yaml(folder / 'config.yaml'), storable(cfg)
    found = list(_other_keys(was, now, source, texts))
    wholes = tuple(f'{key}.' for key in found if not _are_sections(was, now, key))  # a number in place of a schedule
    if keys := [key for key in found if not key.startswith(wholes)]:
        pairs = ', '.join(f'{key}={_text(was, key)}, not {_text(now, key)}' for key in keys[:MAX_SHOWN])
        more = f' and {len(keys) - MAX_SHOWN} more' if len(keys) > MAX_SHOWN else ''
        raise UserError(
            f'the run in {folder} has {pairs}{more}; name another --run-dir, or give the values that it has, to continue it '
            f'(zoo train --resume {shlex.quote(str(folder))} KEY=VALUE continues it with other values, in Python '
            f'resume={str(folder)!r})'
        )


def _other_keys(was: dict[str, Any], now: dict[str, Any], source: Any, texts: Sequence[str]) -> Iterator[str]:
    """The keys that differ, in the order of the config of the run."""
    given: set[str] | None = None
    for key in differing_keys([without_derived_values(was), without_derived_values(now)]):
        if any(key == free or key.startswith(f'{free}.') for free in FREE) or _is_same(was, now, key):
            continue
        if not has_key(was, key):  # also a key that the version of zoo which trained it did not know
            given = _given(source, texts) if given is None else given
            if not any(key == one or key.startswith(f'{one}.') for one in given):
                continue
        yield key


def _is_same(was: dict[str, Any], now: dict[str, Any], key: str) -> bool:
    """Whether a run continues all the same: it is to be longer, or the value is written in another way."""
    if not has_key(was, key) or not has_key(now, key):
        return False
    before, after = value_at(was, key), value_at(now, key)
    if key == LENGTH:
        return isinstance(before, int) and before <= after
    if key == 'init_from':
        return after is None or (isinstance(before, str) and os.path.abspath(before) == os.path.abspath(after))
    files = [OWN_CODE.fullmatch(value) if isinstance(value, str) else None for value in (before, after)]
    if files[0] and files[1]:  # the folder of a project may have been moved
        return files[0][1] == files[1][1]
    return bool(before == after)  # such as the length of a schedule, which is derived in one of the two


def _are_sections(was: dict[str, Any], now: dict[str, Any], key: str) -> bool:
    return all(has_key(each, key) and isinstance(value_at(each, key), dict) for each in (was, now))


def _given(source: Any, texts: Sequence[str]) -> set[str]:
    """The keys that the config or an override gives."""
    return {row.key for row in explain_config(source, texts) if row.origin not in ('default', 'derived')}


def _text(config: Mapping[str, Any], key: str) -> str:
    return value_text(value_at(config, key)) if has_key(config, key) else 'nothing'
