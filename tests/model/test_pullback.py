"""Outputs and gradients without a graph against autograd's, and the models that are left to autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from zoo.backend.trace import trace
from zoo.core.spaces import Box, Discrete, Space
from zoo.model.actor_critic import VAC, VACConfig
from zoo.model.encoder import MLP
from zoo.model.ppg import PPG, PPGConfig
from zoo.model.pullback import with_pullback
from zoo.rl_utils.optimizer import FlatAdam

N = 9
VECTOR = Box(np.full(3, -np.inf), np.full(3, np.inf))
SPACES = {'vector': VECTOR, 'index': Discrete(4), 'image': Box(np.zeros((8, 8, 3)), np.ones((8, 8, 3)))}
MODELS: dict[str, tuple[type, type, dict[str, Any]]] = {
    'separate': (VAC, VACConfig, {}),
    'one trunk': (VAC, VACConfig, {'shared_encoder': True}),
    **{arch: (PPG, PPGConfig, {'arch': arch}) for arch in ('dual', 'shared', 'detach')},
}
ACTIONS: dict[str, tuple[Space, bool]] = {
    'discrete': (Discrete(3), False),
    'box': (Box(np.full(2, -1.0), np.full(2, 1.0)), False),
    'box, std of the state': (Box(np.full(2, -1.0), np.full(2, 1.0)), True),
}
METHODS = ('compute_actor', 'compute_critic', 'compute_actor_critic', 'compute_aux')
CASES = [(name, method) for name in MODELS for method in METHODS if method != 'compute_aux' or MODELS[name][0] is PPG]


def make(
    name: str = 'separate',
    action: str = 'discrete',
    obs: str = 'vector',
    kind: Any = None,
    dtype: torch.dtype = torch.float64,
    **fields: Any,
) -> Any:
    """A model whose parameters are all away from 0, with gradients as a FlatAdam gives them."""
    torch.manual_seed(0)
    own, config, given = MODELS[name]
    space, state_dependent_std = ACTIONS[action]
    cfg = config(**{'hidden_sizes': [6, 5], 'state_dependent_std': state_dependent_std, **given, **fields})
    model = (kind or own)(cfg, SPACES[obs], space)
    model.update_normalizer(observations(obs))
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
    model.to(dtype)
    FlatAdam(model.named_parameters())
    return model


def observations(obs: str = 'vector', n: int = N, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if obs == 'index':
        return torch.randint(4, (n,), generator=generator)
    return torch.randn(n, *SPACES[obs].shape, generator=generator, dtype=dtype)


def tensors_of(output: Any) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else [x for part in output.values() for x in tensors_of(part)]


def slopes_of(output: Any) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    return [(x, torch.randn(x.shape, generator=generator, dtype=x.dtype)) for x in tensors_of(output)]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def assert_as_autograd(model: Any, method: str, obs: Tensor, without_graph: bool, **tolerance: float) -> None:
    want = getattr(model, method)(obs)
    slopes = [slope for _, slope in slopes_of(want)]
    parts = [(x, slope) for x, slope in zip(tensors_of(want), slopes, strict=True) if x.requires_grad]
    model.zero_grad(set_to_none=False)
    torch.autograd.backward([x for x, _ in parts], [slope for _, slope in parts])
    wanted = gradients(model)
    model.zero_grad(set_to_none=False)
    output, pull = with_pullback(model, method, obs)
    assert all(x.is_leaf == without_graph for x in tensors_of(output) if x.requires_grad)
    torch.testing.assert_close(tensors_of(output), tensors_of(want), **tolerance)
    pull([(x, slope) for x, slope in zip(tensors_of(output), slopes, strict=True) if x.requires_grad])
    torch.testing.assert_close(gradients(model), wanted, **tolerance)
    assert any(grad.any() for grad in wanted.values())


@pytest.mark.parametrize('action', ACTIONS)
@pytest.mark.parametrize('name, method', CASES)
def test_outputs_and_gradients_are_those_of_autograd(name, method, action):
    detached = name == 'detach' and method in ('compute_critic', 'compute_actor_critic')  # half the way
    assert_as_autograd(make(name, action), method, observations(), without_graph=not detached)


@pytest.mark.parametrize('activation', ['tanh', 'relu'])
@pytest.mark.parametrize('hidden_sizes', [[4], [6, 5], [2, 7, 5]], ids=len)
@pytest.mark.parametrize('obs, obs_norm', [('vector', False), ('vector', True), ('index', False)])
def test_any_layers_and_observations(activation, hidden_sizes, obs, obs_norm):
    model = make(obs=obs, activation=activation, hidden_sizes=hidden_sizes, obs_norm=obs_norm)
    if obs == 'index':
        model.float()
        FlatAdam(model.named_parameters())
        assert_as_autograd(model, 'compute_actor_critic', observations(obs), True, rtol=1e-4, atol=3e-6)
    else:
        assert_as_autograd(model, 'compute_actor_critic', observations(obs), without_graph=True)


@pytest.mark.parametrize('action', ACTIONS)
def test_float32_is_right_to_rounding(action):
    model = make(action=action, dtype=torch.float32, hidden_sizes=[64, 64])
    assert_as_autograd(
        model, 'compute_actor_critic', observations(n=256, dtype=torch.float32), True, rtol=1e-5, atol=1e-4
    )  # of gradients that are sums over 256 rows, up to 100


def test_bfloat16_is_left_to_autograd():
    assert_as_autograd(
        make(dtype=torch.bfloat16),
        'compute_actor_critic',
        observations(dtype=torch.bfloat16),
        without_graph=False,
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize('own, of_slopes', [(torch.float32, torch.float64), (torch.bfloat16, torch.float32)], ids=str)
def test_slopes_may_have_more_digits_than_the_model(own, of_slopes):
    model, obs, found = make(dtype=own), observations(dtype=own), []
    for dtype in (own, of_slopes):
        model.zero_grad(set_to_none=False)
        output, pull = with_pullback(model, 'compute_actor_critic', obs)
        pull([(x, slope.to(own).to(dtype)) for x, slope in slopes_of(output)])
        found.append(gradients(model))
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_std_beyond_its_bounds_gets_no_gradient():
    model = make(action='box')
    with torch.no_grad():
        model.policy_head.log_std.copy_(torch.tensor([2.5, 2.0]))  # the bound is 2, where torch's clamp passes it on
    assert_as_autograd(model, 'compute_actor', observations(), without_graph=True)
    grad = model.policy_head.log_std.grad
    assert grad[0] == 0 and grad[1] != 0


def test_std_beyond_its_bounds_takes_in_no_infinite_gradient():
    for action in ('box', 'box, std of the state'):
        model, obs = make(action=action), observations()
        log_std = model.policy_head.log_std if action == 'box' else model.policy_head.log_std_layer.bias
        with torch.no_grad():
            log_std[0] = 100.0
        output, pull = with_pullback(model, 'compute_actor', obs)
        slope = torch.zeros_like(output['sigma'])
        slope[:, 0] = torch.inf
        pull([(output['sigma'], slope)])
        assert not any(p.grad.any() for p in model.parameters())  # clamp passes nothing on, be it infinite


def test_gradients_are_made_where_there_are_none():
    model, obs = make(), observations()
    output, pull = with_pullback(model, 'compute_actor_critic', obs)
    pull(slopes_of(output))
    want = gradients(model)
    output, pull = with_pullback(model, 'compute_actor_critic', obs)
    model.zero_grad(set_to_none=True)  # as optimisers of torch do, between forward and backward pass
    pull(slopes_of(output))
    torch.testing.assert_close(gradients(model), want)


def test_gradients_add_up_until_they_are_set_to_zero():
    model, obs = make(), observations()
    for n_time in (1, 2):
        output, pull = with_pullback(model, 'compute_actor_critic', obs)
        pull(slopes_of(output))
        if n_time == 1:
            once = gradients(model)
    torch.testing.assert_close(gradients(model), {name: 2 * grad for name, grad in once.items()})


def test_losses_and_slopes_of_one_output_are_put_together():
    model, obs = make(action='box'), observations()
    output = model.compute_actor_critic(obs)
    mu, value = output['logit']['mu'], output['value']
    loss = mu.square().mean() * 3 + (2 * mu).sum() + (value * 5).sum() + value.exp().mean() * 0.5
    want = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    output, pull = with_pullback(model, 'compute_actor_critic', obs)
    mu, value = output['logit']['mu'], output['value']
    pull(
        [
            (mu.square().mean(), 3.0),
            (mu, torch.full_like(mu, 2)),
            (value, torch.full_like(value, 1)),
            (value, torch.full_like(value, 4)),
            (value.exp().mean(), torch.tensor(0.5)),
        ]
    )
    for p, grad in zip(model.parameters(), want, strict=True):
        torch.testing.assert_close(p.grad, torch.zeros_like(p) if grad is None else grad)


def test_frozen_parameters_are_left_alone():
    model, obs = make(), observations()
    model.actor_encoder.requires_grad_(False)
    assert_as_autograd(model, 'compute_actor_critic', obs, without_graph=True)
    assert not any(p.grad.any() for p in model.actor_encoder.parameters())
    assert all(p.grad.any() for p in model.critic_encoder.parameters())


class OwnActor(VAC):
    def compute_actor(self, obs: Tensor) -> Tensor:
        return 2 * super().compute_actor(obs)


class OwnHead(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class OwnTrunk(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


def own_method(model: Any) -> Any:
    return make(kind=OwnActor)


def own_head(model: Any) -> Any:
    model.policy_head.__class__ = OwnHead
    return model


def own_layer_in_a_head(model: Any) -> Any:
    model.value_head.layer.__class__ = OwnHead
    return model


def own_trunk(model: Any) -> Any:
    model.actor_encoder.__class__ = OwnTrunk
    return model


def method_of_the_instance(model: Any) -> Any:
    model.compute_actor = lambda obs: model.policy_head(model.actor_encoder(obs)).tanh()
    return model


def hooked_trunk(model: Any) -> Any:
    model.actor_encoder.register_forward_hook(lambda module, args, output: output * 2)
    return model


def hooked_layer(model: Any) -> Any:
    model.value_head.layer.register_full_backward_hook(lambda module, grads, _: (grads[0] * 2,))
    return model


def hooked_parameter(model: Any) -> Any:
    model.actor_encoder.layers[0].weight.register_hook(lambda grad: grad * 2)
    return model


@pytest.mark.parametrize(
    'change, method',
    [
        (own_method, 'compute_actor'),
        (own_head, 'compute_actor'),
        (own_layer_in_a_head, 'compute_critic'),
        (own_trunk, 'compute_actor'),
        (method_of_the_instance, 'compute_actor'),
        (hooked_trunk, 'compute_actor'),
        (hooked_layer, 'compute_critic'),
        (hooked_parameter, 'compute_actor'),
    ],
)
def test_what_was_changed_is_left_to_autograd(change, method):
    model, obs = make(), observations()
    output, pull = with_pullback(model, method, obs)
    pull(slopes_of(output))
    before = gradients(model)
    model = change(model)
    assert_as_autograd(model, method, obs, without_graph=False)
    assert any(not torch.equal(grad, before[name]) for name, grad in gradients(model).items())


class OwnFeature(PPG):
    def _critic_feature(self, x: Tensor, feature: Tensor) -> Tensor:
        return 2 * super()._critic_feature(x, feature)


class OwnInput(VAC):
    def input(self, obs: Tensor) -> Tensor:
        return 2 * obs


def forward_of_the_instance(module: Any) -> None:
    forward = module.forward
    module.forward = lambda x: 2 * forward(x)


def double_gradient(p: Tensor) -> None:
    p.grad *= 2


OTHERS: dict[str, Any] = {
    'layer parametrized': lambda m: parametrizations.weight_norm(m.actor_encoder.layers[0]),
    'head parametrized': lambda m: parametrizations.weight_norm(m.policy_head),
    'layer without bias': lambda m: m.actor_encoder.layers[0].register_parameter('bias', None),
    'policy head without bias': lambda m: m.policy_head.register_parameter('bias', None),
    'value head without bias': lambda m: m.value_head.layer.register_parameter('bias', None),
    'trained input': lambda m: setattr(m, 'input', nn.Linear(3, 3)),
    'deep input': lambda m: setattr(m, 'input', MLP(3, [3], 'tanh')),
    'linear encoder': lambda m: setattr(m, 'actor_encoder', nn.Linear(3, 5)),
    'deep value head': lambda m: setattr(m.value_head, 'layer', nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 1))),
    'bare value head': lambda m: setattr(m, 'value_head', nn.Linear(5, 1)),
    'forward of a trunk': lambda m: forward_of_the_instance(m.actor_encoder),
    'forward of a layer': lambda m: forward_of_the_instance(m.value_head.layer),
    'hook on a gradient': lambda m: m.policy_head.weight.register_post_accumulate_grad_hook(double_gradient),
}


@pytest.mark.parametrize('part', OTHERS)
def test_other_parts_are_left_to_autograd(part):
    model = make()
    OTHERS[part](model)
    FlatAdam(model.double().named_parameters())
    assert_as_autograd(model, 'compute_actor_critic', observations(), without_graph=False)


@pytest.mark.parametrize('kind, name', [(OwnFeature, 'dual'), (OwnInput, 'separate')])
def test_what_our_methods_call_may_be_overridden(kind, name):
    assert_as_autograd(make(name, kind=kind), 'compute_actor_critic', observations(), without_graph=False)


@pytest.mark.parametrize('method', METHODS)
def test_one_trunk_of_which_one_name_was_given_another_is_left_to_autograd(method):
    model = make('shared')
    model.actor_encoder = MLP(3, [6, 5], 'relu').double()
    FlatAdam(model.named_parameters())
    assert_as_autograd(model, method, observations(), without_graph=False)


def test_hooks_on_all_modules_are_called():
    model = make()
    with nn.modules.module.register_module_forward_hook(
        lambda module, args, output: 2 * output if isinstance(module, MLP) else None
    ):
        assert_as_autograd(model, 'compute_actor_critic', observations(), without_graph=False)


def test_images_and_other_shapes_are_left_to_autograd():
    model = make(obs='image', dtype=torch.float32)
    assert not with_pullback(model, 'compute_actor', observations('image', dtype=torch.float32))[0].is_leaf
    assert_as_autograd(make(), 'compute_actor_critic', observations(n=12).view(3, 4, 3), without_graph=False)


def test_a_trace_holds_the_operations_of_torch():
    model, obs = make(dtype=torch.float32), observations(dtype=torch.float32)

    def step(*tensors: Tensor) -> list[Tensor]:
        output, pull = with_pullback(model, 'compute_actor_critic', tensors[0])
        return [output['logit'], output['value']]

    graph, _ = trace(step, [obs])
    names = {str(node.target) for node in graph.graph.nodes}
    assert 'aten.tanh.default' in names and 'aten.sigmoid_.default' not in names
