"""A gradient step as data: its numbers and the parts of its loss."""

from __future__ import annotations

from zoo.backend.step import LossSpec, StepNumbers


def test_step_numbers_are_those_of_their_flat_list() -> None:
    numbers = StepNumbers(0.1, 0.02, 0.7, 2.5, None, 0.5, (0.3, 0.0))
    assert numbers.flat() == [0.1, 0.02, 0.7, 2.5, None, 0.5, 0.3, 0.0]
    assert StepNumbers.from_flat(numbers.flat()) == numbers


def test_a_loss_is_hashed_by_its_parts() -> None:
    assert hash(LossSpec()) == hash(LossSpec()) and LossSpec() != LossSpec(measure_kl=True)
