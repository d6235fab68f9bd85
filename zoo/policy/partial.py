"""Takes over the parameters of another network that fit, and says which did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import nn

from zoo.core.errors import UserError


class PartialLoad(NamedTuple):
    """What became of a state that was loaded in part; names of parameters and statistics."""

    loaded: list[str]
    misfits: list[str]  # 'name: [64, 4] in the state, [64, 6] here'
    missing: list[str]  # asked for, but the state has none
    unused: list[str]  # of the state, which this policy lacks or which were not asked for

    def text(self) -> str:
        """A line for each kind."""
        kinds = (('loaded', self.loaded), ('of another shape', self.misfits), ('not in the state', self.missing))
        return '\n'.join(f'{kind}: {_some(names)}' for kind, names in (*kinds, ('not used', self.unused)) if names)


@torch.no_grad()
def load_partly(model: nn.Module, normalizers: nn.Module, state: Mapping[str, Any], only: Sequence[str]) -> PartialLoad:
    """Copies the entries of 'model' and 'normalizer' in, whose names match one of the patterns `only` and which fit.

    Raises: UserError if none does.
    """
    report = PartialLoad([], [], [], [])
    for module, key in ((model, 'model'), (normalizers, 'normalizer')):
        own, given = module.state_dict(), state.get(key, {})
        for name, value in own.items():
            _take(name, value, given, only, report)
        report.unused.extend(
            name for name in given if name not in own or not any(fnmatchcase(name, each) for each in only)
        )
    if not report.loaded:
        names = ', '.join(only)
        raise UserError(
            f'nothing of the state fits this policy (asked for: {names}): {report.text()}; give names that it has'
        )
    return report


def _take(name: str, value: torch.Tensor, given: Mapping[str, Any], only: Sequence[str], report: PartialLoad) -> None:
    if not any(fnmatchcase(name, each) for each in only):
        return
    found = given.get(name)
    if found is None:
        report.missing.append(name)
    elif not isinstance(found, torch.Tensor) or found.shape != value.shape:
        shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        report.misfits.append(f'{name}: {shape} in the state, {list(value.shape)} here')
    else:
        value.copy_(found)
        report.loaded.append(name)


def _some(names: list[str]) -> str:
    return ', '.join(names[:8]) + (f' and {len(names) - 8} more' if len(names) > 8 else '')
