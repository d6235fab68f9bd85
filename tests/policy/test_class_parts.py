"""Parts that are classes with options of their own train like the functions of the same formula, in every place."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from pydantic import Field

from tests.policy_envs import job_config
from zoo.config.components import make_part
from zoo.core.registry import PARTS
from zoo.pipeline import serial_pipeline

PLACES: dict[str, tuple[str, str]] = {
    'policy.learn.surrogate': ('learn', 'clip'),
    'policy.learn.value_loss': ('learn', 'mse'),
    'policy.learn.penalties': ('learn', 'kl'),
    'policy.learn.plasticity': ('learn', 'shrink_perturb'),
    'policy.learn.draw': ('learn', 'in_order'),
    'policy.collect.exploration': ('collect', 'temperature'),
    'policy.collect.estimator': ('collect', 'n_step'),
}


def class_of(path: str, name: str) -> type:
    """A class whose objects do what a registered function does with its default options."""
    registry = PARTS[path]

    @dataclass(frozen=True, kw_only=True)
    class Own:
        """The same, as a class."""

        unused: Annotated[float, Field(ge=0, description='nothing')] = 0.5

        def __call__(self, *args: Any) -> Any:
            return make_part(registry, name)(*args)

    return Own


def config(root: Path, section: str, key: str, spec: dict[str, Any]) -> dict[str, Any]:
    policy: dict[str, Any] = {'learn': {'executor': 'eager'}, 'collect': {}}
    policy[section][key] = [{**spec, 'weight': 0.5}] if key == 'penalties' else spec
    return job_config(root, 'CartPole-v1', max_env_step=128, policy=policy)


@pytest.mark.parametrize('path', PLACES)
def test_class_with_options_trains_like_the_function(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, (section, name) = PARTS[path], PLACES[path]
    assert name in registry
    monkeypatch.setitem(registry._items, 'own', class_of(path, name))
    monkeypatch.setitem(registry._places, 'own', 'tests')
    key = path.rpartition('.')[2]
    specs: list[dict[str, Any]] = [{'type': name}, {'type': 'own', 'unused': 0.25}]
    if key == 'plasticity':
        specs[0]['every'] = 1  # as it is of a part without such an option
    runs = [serial_pipeline(config(tmp_path / str(i), section, key, spec)) for i, spec in enumerate(specs)]
    known, own = (run.policy.state_dict() for run in runs)
    for parameter, x in known['model'].items():  # some known ones have kernels of their own, equal to rounding
        torch.testing.assert_close(own['model'][parameter], x, rtol=1e-3, atol=1e-5)


def test_registered_class_can_be_pickled_with_what_it_was_given() -> None:
    part = make_part(PARTS['policy.learn.value_loss'], {'type': 'hl_gauss', 'n_bin': 11})
    other = pickle.loads(pickle.dumps(part))
    assert other == part and hash(other) == hash(part) and dict(other.options)['n_bin'] == 11
