"""Statistics of an update, against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch

from zoo.policy.metrics import explained_variance

# returns 1, 3, 5 have variance 8/3; errors 0, 1, -1 have 2/3: 1 - 1/4
RETURN, VALUE = [1.0, 3.0, 5.0], [1.0, 2.0, 6.0]


def test_explained_variance_by_hand() -> None:
    batch = {'return_': torch.tensor(RETURN), 'value': torch.tensor(VALUE)}
    assert explained_variance(batch).item() == pytest.approx(0.75)


@pytest.mark.parametrize('other', [1e6, float('nan'), float('inf')])
def test_explained_variance_is_of_the_rows_with_a_weight(other: float) -> None:
    batch = {
        'return_': torch.tensor([*RETURN, other]),
        'value': torch.tensor([*VALUE, other]),
        'weight': torch.tensor([4 / 3, 4 / 3, 4 / 3, 0]),
    }
    assert explained_variance(batch).item() == pytest.approx(0.75)
