"""Targets and loss of Q-learning, by hand."""

from __future__ import annotations

import pytest
import torch

from zoo.rl_utils import q_error, q_target, quantile_error


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
    for shape in ((4, 3), ()):
        value = torch.zeros(shape)
        with pytest.raises(ValueError, match=r"value has shape .* but reward \(2,\); give value as \(2, 'A'\)"):
            q_target(torch.zeros(2), torch.zeros(2), value, value)


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


@pytest.mark.parametrize(
    ('delta', 'loss', 'slope'),
    [
        # theta 0 and 1 at the levels 1/4 and 3/4, targets 1/2 and 3: differences .5, 3 and -.5, 2
        # delta 1: huber .125, 2.5 and .125, 1.5. Row 1: (.25 * .125 + .25 * 2.5) / 2; row 2: (.25 * .125 + .75 * 1.5) / 2
        (1.0, 0.328125 + 0.578125, [-(0.25 * 0.5 + 0.25) / 2, -(-0.25 * 0.5 + 0.75) / 2]),
        # delta 2: huber / 2 is .0625, 2 and .0625, 1
        (
            2.0,
            (0.25 * 0.0625 + 0.25 * 2 + 0.25 * 0.0625 + 0.75) / 2,
            [-(0.25 * 0.25 + 0.25) / 2, -(-0.25 * 0.25 + 0.75) / 2],
        ),
        # absolute: .5, 3 and .5, 2
        (None, (0.25 * 3.5 + 0.25 * 0.5 + 0.75 * 2) / 2, [-0.25, -(-0.25 + 0.75) / 2]),
    ],
)
def test_quantile_error_by_hand(delta: float | None, loss: float, slope: list[float]) -> None:
    theta = torch.tensor([[0.0, 1.0], [7.0, 7.0]], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([[0.5, 3.0], [torch.inf, 0.0]], dtype=torch.float64)
    weight = torch.tensor([2.0, 0.0], dtype=torch.float64)
    found = quantile_error(theta, target, weight, delta)
    (gradient,) = torch.autograd.grad(found, theta)
    assert found.item() == pytest.approx(loss, abs=1e-15)  # 2 * loss / 2 rows; the row of weight 0 counts nothing
    assert gradient.tolist() == [pytest.approx(slope, abs=1e-15), [0.0, 0.0]]


def test_quantile_error_is_least_at_the_quantiles_of_the_targets() -> None:
    target = torch.linspace(0, 1, 401, dtype=torch.float64).unsqueeze(0)  # levels 1/4 and 3/4 of a uniform distribution

    def loss(*theta: float) -> float:
        return quantile_error(torch.tensor([theta], dtype=torch.float64), target).item()

    least = loss(0.25, 0.75)
    assert all(loss(0.25 + a, 0.75 + b) > least for a, b in ((0.02, 0), (-0.02, 0), (0, 0.02), (0, -0.02)))


def test_quantile_error_refuses_other_shapes() -> None:
    with pytest.raises(
        ValueError, match=r'theta has shape \(2, 3\) and target \(1, 3\); give both as \[N, quantiles\]'
    ):
        quantile_error(torch.zeros(2, 3), torch.zeros(1, 3))
    with pytest.raises(ValueError, match=r'huber_delta is -1.0 but must be above 0; give None for the absolute error'):
        quantile_error(torch.zeros(1, 3), torch.zeros(1, 3), None, -1.0)
