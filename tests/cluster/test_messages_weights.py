"""Weights as one vector of bytes: values arrive unchanged, at aligned offsets; the digest tells layouts apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import zoo.cluster.messages as weights_module
from zoo.cluster.messages import WeightLayout, place, placements


def tensors(fill: float) -> dict[str, torch.Tensor]:
    return {
        'flag': torch.full((3,), fill > 0),
        'weight': torch.full((2, 3), fill),
        'count': torch.tensor(int(fill)),
        'half': torch.full((5,), fill, dtype=torch.bfloat16),
        'none': torch.empty(0),
        'wide': torch.full((2,), fill, dtype=torch.float64),
    }


def test_values_arrive_in_place_bit_for_bit() -> None:
    here, there = tensors(3.0), tensors(0.0)
    here['weight'][1, 2] = torch.nan
    there_before = dict(there)
    WeightLayout(there).unpack(WeightLayout(here).pack())
    for name, x in here.items():
        assert there[name] is there_before[name]
        assert torch.equal(there[name].flatten().view(torch.uint8), x.flatten().view(torch.uint8)), name


def test_the_vector_is_aligned_and_as_long_as_it_says() -> None:
    layout = WeightLayout(tensors(1.0))
    # bytes: count 8, wide 16, none 0, weight 24, half 10, padded to 16, flag 3, padded to 8; sum 72
    assert layout.n_byte == len(layout.pack()) == 72
    assert layout.pack()[58:].tolist() == [0] * 6 + [1] * 3 + [0] * 5  # half ends at 58, flag is at 64 .. 66


def test_pack_reads_live_memory() -> None:
    here, there = tensors(1.0), tensors(1.0)
    layout = WeightLayout(here)
    here['weight'].fill_(7.0)
    WeightLayout(there).unpack(layout.pack())
    assert there['weight'][0, 0] == 7.0


def test_the_order_of_names_has_no_meaning_and_shapes_and_dtypes_have() -> None:
    here = tensors(1.0)
    digest = WeightLayout(here).digest
    assert WeightLayout(dict(reversed(here.items()))).digest == digest
    for other in (torch.zeros(3, 2), torch.zeros(2, 3, dtype=torch.float64)):
        assert WeightLayout(here | {'weight': other}).digest != digest
    assert WeightLayout({f'{name}_': x for name, x in here.items()}).digest != digest


@pytest.mark.parametrize('n', [8, 100_000])
def test_memory_that_may_not_be_written_is_read(n: int) -> None:
    x = torch.arange(n, dtype=torch.float32)
    flat = WeightLayout({'x': x}).pack()
    flat.flags.writeable = False  # engines give it read-only
    there = torch.zeros(n)
    WeightLayout({'x': there}).unpack(flat)
    assert torch.equal(there, x)


def test_a_vector_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match='weights of 64 bytes were sent but this policy acts with 72'):
        WeightLayout(tensors(1.0)).unpack(np.zeros(64, np.uint8))


def test_tensors_are_placed_as_others_lie_and_keep_their_values() -> None:
    flat = torch.arange(40.0)
    here = {'bias': flat[1:4], 'weight': flat[5:11].view(2, 3), 'columns': flat[16:28].view(4, 3).t(), 'count': flat[2]}
    there = {name: (x + 100).contiguous() for name, x in here.items()}
    values, layers = {name: x.clone() for name, x in there.items()}, dict(there)
    place(there, placements(here))
    offsets = [where.offset for where in placements(there).values()]
    assert offsets == [4, 20, 0, 8]  # torch's memory begins at a multiple of 64
    assert all(
        there[name].stride() == x.stride() and torch.equal(there[name], values[name]) for name, x in here.items()
    )
    assert all(there[name] is layers[name] for name in here)  # the tensor objects are the same: layers still hold them


def test_the_digest_has_the_version_since_other_code_may_give_weights_another_meaning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = WeightLayout(tensors(1.0)).digest
    monkeypatch.setattr(weights_module, 'VERSION', '0.0.1')
    assert WeightLayout(tensors(1.0)).digest != before
