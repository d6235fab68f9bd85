"""The registered optimisers: options from a config; Muon by hand and against torch's; the choice of hidden matrices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.rl_utils.matrix_net import PATH, make_net, optimizer_of
from tests.rl_utils.small_net import CLOSE, loss_of, parameters, train
from zoo.config.components import checked_spec
from zoo.config.section import ConfigError
from zoo.core.registry import OPTIMIZER_REGISTRY
from zoo.core.spaces import Box, Discrete
from zoo.model import VAC, VACConfig
from zoo.rl_utils.optimizer import FlatAdam, FlatOptimizer
from zoo.rl_utils.optimizers import COEFFICIENTS, Matrix, MuonRule, MuonScale, hidden_matrices, orthogonalized
from zoo.rl_utils.update_rules import AdamRule, RMSpropRule, SGDRule


@pytest.mark.parametrize(
    'spec, rule',
    [
        ('adam', AdamRule(eps=1e-4)),
        ({'type': 'adam', 'betas': [0.8, 0.9], 'eps': 1e-3}, AdamRule((0.8, 0.9), 1e-3)),
        ('adamw', AdamRule(eps=1e-4, weight_decay=0.01)),
        ({'type': 'adamw', 'weight_decay': 0.1}, AdamRule((0.9, 0.999), 1e-4, 0.1)),
        ({'type': 'rmsprop', 'momentum': 0.5}, RMSpropRule(0.99, 1e-4, 0.5)),
        ({'type': 'sgd', 'momentum': 0.5, 'nesterov': True}, SGDRule(0.5, True)),
        # 3 * 8 + 8 numbers come before the first matrix; 6 * 8 + 6 between the two starts
        ({'type': 'muon'}, MuonRule((Matrix(32, 6, 8), Matrix(86, 8, 6)), adam=AdamRule(eps=1e-4))),
    ],
)
def test_options_make_the_rule_and_null_is_the_epsilon_of_the_policy(spec: Any, rule: Any) -> None:
    assert optimizer_of(spec, make_net(), 1e-4).rule == rule


def test_only_adam_is_the_class_that_c_knows() -> None:
    kinds = {name: type(optimizer_of(name, make_net())) for name in OPTIMIZER_REGISTRY.names()}
    assert {name for name, kind in kinds.items() if kind is FlatAdam} == {'adam'}
    assert optimizer_of('adam', make_net(), 1e-3).rates == (1e-3, 0.9, 0.999, 1e-3)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    'spec, sentence',
    [
        ('adma', "unknown optimizer 'adma': did you mean 'adam' or 'adamw'?"),
        ({'type': 'sgd', 'nesterovv': True}, f'unknown key {PATH}.nesterovv: did you mean {PATH}.nesterov?'),
        ({'type': 'adam', 'betas': [0.9, 1.0]}, r'betas is \[0.9, 1.0\] \(list\) but must be \[a number >= 0 and < 1'),
        ({'type': 'adam', 'weight_decay': 0.1}, f'unknown key {PATH}.weight_decay'),
        ({'type': 'rmsprop', 'eps': 0}, rf'{PATH}.eps is 0 \(integer\) but must be a number > 0 or null'),
    ],
)
def test_option_out_of_range_or_of_another_optimizer_is_refused(spec: Any, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace('?', r'\?')):
        checked_spec(OPTIMIZER_REGISTRY, spec, PATH)


# ---- Muon


@pytest.mark.parametrize(
    ('name', 'share'),
    [
        ('adam', 1 / (1 + 1)),  # g / (|g| + eps) in the first step
        ('adamw', 1 / (1 + 1)),
        ('muon', 1 / (1 + 1)),
        ('rmsprop', 1 / (0.1 + 1)),  # the mean of g^2 is .01 g^2
    ],
)
def test_epsilon_is_1e_5_where_none_is_given(name: str, share: float) -> None:
    bias = nn.Parameter(torch.zeros(1))
    optimizer = OPTIMIZER_REGISTRY.get(name)([('bias', bias)])
    optimizer.lr = 0.1
    optimizer.grad.fill_(1e-5)
    optimizer.step()
    assert bias.item() == pytest.approx(-0.1 * share)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize('shape', [(8, 8), (6, 8), (8, 6), (2, 5, 3), (1, 4)])
def test_orthogonalized_moves_singular_values_alone(shape: tuple[int, ...]) -> None:
    """The polynomial maps each singular value five times; singular vectors stay. Reference: a singular value decomposition."""
    x = random(*shape).double()
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    s = s / s.norm(dim=-1, keepdim=True)  # the Frobenius norm
    a, b, c = COEFFICIENTS
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    torch.testing.assert_close(orthogonalized(x), u @ torch.diag_embed(s) @ v)
    assert (s.max() < 1.25) and (s.min() > 0.3)
    assert not orthogonalized(torch.zeros(shape)).any()


@pytest.mark.slow
@pytest.mark.parametrize('scale, nesterov', [('rms', True), ('spectral', False)])
def test_forty_steps_equal_torch_muon_and_torch_adam(
    scale: MuonScale, nesterov: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both run their iterations in float32; in bfloat16 the two runs would diverge within about ten steps."""
    monkeypatch.setattr(Tensor, 'bfloat16', lambda x: x.clone())
    net, other = make_net(), make_net()
    named = list(net.named_parameters())
    matrices = hidden_matrices(named)
    assert list(matrices) == ['2.weight', '4.weight']
    rule = MuonRule(tuple(matrices.values()), 0.9, nesterov, scale=scale, weight_decay=0.1, adam=AdamRule(eps=1e-3))
    train(net, FlatOptimizer(named, rule, 1e-3), range(40), 0.5)
    hidden = [p for name, p in other.named_parameters() if name in matrices]
    rest = [p for name, p in other.named_parameters() if name not in matrices]
    adjust = {'rms': 'match_rms_adamw', 'spectral': 'original'}[scale]
    references = [
        torch.optim.Muon(hidden, 1e-3, weight_decay=0.1, momentum=0.9, nesterov=nesterov, adjust_lr_fn=adjust),
        torch.optim.Adam(rest, 1e-3, eps=1e-3),
    ]
    for step in range(40):
        other.zero_grad()
        loss_of(other, step).backward()
        nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        for reference in references:
            reference.step()
    torch.testing.assert_close(parameters(net), parameters(other), rtol=0, atol=1e-6)


def test_first_step_by_hand() -> None:
    """A 2 x 2 matrix with gradient 3 I moves along s I, where s is the polynomial's image of 1 / sqrt(2); Adam moves biases."""
    rule = MuonRule((Matrix(0, 2, 2),), scale='spectral', adam=AdamRule(eps=1.0), adam_ratio=0.5)
    p = nn.Parameter(torch.zeros(2, 2))
    bias = nn.Parameter(torch.zeros(1))
    optimizer = FlatOptimizer([('p', p), ('bias', bias)], rule, lr=0.1)
    optimizer.grad.copy_(torch.tensor([3.0, 0.0, 0.0, 3.0, 2.0]))
    optimizer.step()
    s = 0.5**0.5
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    torch.testing.assert_close(p.detach(), -0.1 * s * torch.eye(2))
    assert bias.item() == pytest.approx(-0.05 * 2 / (2 + 1))  # half the rate, g / (|g| + eps)


def test_without_hidden_matrices_it_is_adam() -> None:
    found = []
    for rule in (MuonRule((), adam=AdamRule()), AdamRule()):
        net = make_net()
        train(net, FlatOptimizer(net.named_parameters(), rule, 0.01), range(5))
        found.append(parameters(net))
    torch.testing.assert_close(*found, **CLOSE)


def model_of(obs_space: Box, n_action: int, **fields: object) -> VAC:
    return VAC(VACConfig(**fields), obs_space, Discrete(n_action))  # type: ignore[arg-type]


def box(*shape: int) -> Box:
    return Box(-torch.ones(shape).numpy(), torch.ones(shape).numpy())


def images() -> Box:
    zeros = torch.zeros(4, 84, 84, dtype=torch.uint8).numpy()
    return Box(zeros, zeros + 255)


SECOND = [f'{side}_encoder.layers.1.weight' for side in ('actor', 'critic')]


@pytest.mark.parametrize(
    'model, hidden',
    [
        # as many actions as observations: the actor's head has the shape to feed the critic's first layer, but it is a head
        (lambda: model_of(box(4), 4, hidden_sizes=[64, 64]), SECOND),
        # as many observations as units: the actor's last layer has the shape to feed the critic's first layer
        (lambda: model_of(box(64), 4, hidden_sizes=[64, 64]), SECOND),
        (lambda: model_of(box(4), 2, hidden_sizes=[32]), []),
        (
            lambda: model_of(images(), 2, shared_encoder='both'),
            [f'actor_encoder.{name}.weight' for name in ('convs.1', 'convs.2', 'dense')],
        ),
    ],
    ids=['two hidden layers', 'as wide as the observation', 'one hidden layer', 'images'],
)
def test_hidden_matrices_of_a_model(model, hidden) -> None:
    named = list(model().named_parameters())
    found = hidden_matrices(named)
    assert list(found) == hidden
    flat = torch.cat([p.detach().flatten() for _, p in named])
    for name, (start, n_row, n_column) in found.items():
        p = dict(named)[name].detach()
        assert torch.equal(flat[start : start + n_row * n_column].view(n_row, n_column), p.flatten(1))


def test_a_model_without_hidden_matrices_is_warned_of_once_but_not_heads_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hidden_matrices(model_of(box(4), 2, hidden_sizes=[64, 64]).named_parameters())
    # for example a critic's own optimiser, where the encoder is the actor's
    assert hidden_matrices([('value_head.layer.weight', torch.zeros(1, 8))]) == {} and not caplog.records
    hidden_matrices(model_of(box(4), 2, hidden_sizes=[32]).named_parameters())
    assert ['all parameters move by Adam' in record.getMessage() for record in caplog.records] == [True]


def test_frozen_layers_feed_the_others_and_have_no_place() -> None:
    """The first layer is frozen: it still feeds the second, and the buffer begins with the second."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    net[0].requires_grad_(False)
    assert hidden_matrices(net.named_parameters()) == {'1.weight': Matrix(0, 8, 8), '2.weight': Matrix(72, 8, 8)}
    net[1].requires_grad_(False)
    assert hidden_matrices(net.named_parameters()) == {'2.weight': Matrix(0, 8, 8)}


def test_hidden_matrices_are_neither_frozen_nor_heads() -> None:
    names = ('encoder.0.weight', 'encoder.1.weight', 'encoder.2.weight', 'policy_head.0.weight', 'policy_head.1.weight')
    named = [(name, torch.zeros(8, 8, requires_grad=name != 'encoder.1.weight')) for name in names]
    # the first is an input layer, encoder.1 is frozen, the heads are no hidden layers though they are as wide
    assert list(hidden_matrices(named)) == ['encoder.2.weight']


def test_output_layer_as_wide_as_its_input_is_no_hidden_matrix() -> None:
    net = nn.Sequential(
        nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8)
    )  # the last one could feed itself, or the second
    assert list(hidden_matrices(net.named_parameters())) == ['1.weight']


@pytest.mark.parametrize('conv', [nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_filters_of_a_hidden_convolution_are_the_rows_of_a_matrix(conv: Any) -> None:
    net = nn.Sequential(conv(2, 4, 3), conv(4, 5, 3), conv(5, 3, 3))
    n = net[0].weight.numel() + 4  # the second layer begins after the weights and biases of the first
    assert hidden_matrices(net.named_parameters()) == {'1.weight': Matrix(n, 5, net[1].weight[0].numel())}
