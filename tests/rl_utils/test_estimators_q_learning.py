"""Targets and loss of Q-learning, by hand."""

from __future__ import annotations

import pytest
import torch

from zoo.rl_utils import q_error, q_target


def test_double_target_takes_the_argmax_of_the_choosing_network() -> None:
    value, choice = torch.tensor([[10.0, 20.0]]), torch.tensor([[5.0, 3.0]])
    assert q_target(torch.ones(1), torch.tensor([0.5]), value, choice).item() == 6
    assert q_target(torch.ones(1), torch.tensor([0.5]), value, value).item() == 11


def test_target_of_a_terminal_state_that_allows_no_action_is_the_reward() -> None:
    nothing = torch.full((1, 2), -torch.inf)
    assert q_target(torch.ones(1), torch.zeros(1), nothing, nothing).item() == 1


def test_error_of_two_rows_by_hand() -> None:
    q = torch.tensor([[1.0, 9.0], [9.0, 2.0], [9.0, 9.0]], requires_grad=True)
    action, target = torch.tensor([0, 1, 0]), torch.tensor([1.5, 5.0, -40.0], requires_grad=True)
    loss, taken = q_error(q, action, target, torch.tensor([1.0, 2.0, 0.0]), huber_delta=1.0)
    # errors -.5, -3: .5^2 / 2 and 3 - .5, weights 1 and 2, over three rows; the third has no weight
    assert loss.item() == pytest.approx((0.125 + 2 * 2.5) / 3)
    assert taken.tolist() == [1.0, 2.0, -40.0]
    loss.backward()
    assert q.grad is not None and target.grad is None
    torch.testing.assert_close(q.grad, torch.tensor([[-0.5 / 3, 0.0], [0.0, -2 / 3], [0.0, 0.0]]))


def test_error_without_delta_is_half_the_square() -> None:
    loss, _ = q_error(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 0]), torch.tensor([4.0, 2.0]), None, None)
    assert loss.item() == pytest.approx(4.5 / 2)


@pytest.mark.parametrize(
    ('shapes', 'message'),
    [
        (((2, 3), (2, 1), (2,), (2,)), r'q has shape \(2, 3\) but action \(2, 1\); give q as \(2, 1, .A.\)'),
        (((2, 3), (2,), (2, 1), (2,)), r'target has shape \(2, 1\)'),
        (((), (), (), ()), r'q has shape \(\) but action \(\)'),
        (((2, 3), (2,), (2,), (1,)), r'weight has shape \(1,\)'),
        (((0, 3), (0,), (0,), (0,)), r'q has shape .0, 3. and so no elements'),
    ],
)
def test_shapes_that_would_broadcast_are_refused(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    q, action, target, weight = (torch.zeros(shape) for shape in shapes)
    with pytest.raises(ValueError, match=message):
        q_error(q, action.long(), target, weight)


def test_delta_of_zero_and_targets_of_unlike_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match='huber_delta is 0.0 but must be above 0; give None'):
        q_error(torch.zeros(1, 2), torch.tensor([0]), torch.zeros(1), huber_delta=0.0)
    with pytest.raises(ValueError, match='discount has shape'):
        q_target(torch.zeros(2), torch.zeros(2, 1), torch.zeros(2, 3), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r'choice has shape \(2, 2\) but value \(2, 3\)'):
        q_target(torch.zeros(2), torch.zeros(2), torch.zeros(2, 3), torch.zeros(2, 2))


@pytest.mark.parametrize('target', [float('nan'), float('-inf')])
def test_row_without_weight_may_have_any_target(target: float) -> None:
    q = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    loss, _ = q_error(q, torch.tensor([0, 1]), torch.tensor([2.0, target]), torch.tensor([1.0, 0.0]), 1.0)
    loss.backward()
    assert loss.item() == 0.25 and q.grad is not None
    torch.testing.assert_close(q.grad, torch.tensor([[-0.5, 0.0], [0.0, 0.0]]))


def test_half_precision_does_not_overflow() -> None:
    loss, _ = q_error(torch.tensor([[300.0]]).half(), torch.tensor([0]), torch.tensor([-300.0]).half())
    assert loss.item() == 180_000
