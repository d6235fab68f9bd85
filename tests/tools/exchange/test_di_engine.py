"""Networks of DI-engine 0.5.3's ppo act and value as recorded; `benchmarks/imports/make_di_engine.py` made them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from imports.check import compared

from zoo.tools.exchange.form import ModelFileError
from zoo.tools.exchange.load import import_policy

MODELS = Path(__file__).parent / 'models'


@pytest.mark.parametrize('name', ['di_discrete', 'di_box', 'di_apart'])
def test_checkpoint_acts_and_values_as_recorded(name: str) -> None:
    found = compared(MODELS / f'{name}.tar')
    assert found.action <= 1e-6 and found.value <= 1e-5


def test_other_networks_get_a_sentence(tmp_path: Path) -> None:
    torch.save({'model': {'encoder.main.0.weight': torch.zeros(2, 2)}, 'last_iter': 0}, tmp_path / 'm')
    with pytest.raises(ModelFileError, match='no stack of layers'):
        import_policy(tmp_path / 'm')
    torch.save({'model': [1], 'last_iter': 0}, tmp_path / 'm')
    with pytest.raises(ModelFileError, match='other entries than parameters'):
        import_policy(tmp_path / 'm')
