"""Plasticity, changes of parameters between updates: numbers worked by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from zoo.config.components import make_component, options_of, summary_of
from zoo.core.errors import UserError
from zoo.core.registry import PLASTICITY_REGISTRY
from zoo.policy.options.plasticity import Plasticity
from zoo.rl_utils.optimizer import FlatAdam

NAMES = PLASTICITY_REGISTRY.names()


def change(name: str, named: dict[str, Tensor], initial: dict[str, Tensor], seed: int = 0, **options) -> None:
    generator = torch.Generator().manual_seed(seed)
    make_component(PLASTICITY_REGISTRY, {'type': name, **options})(named, initial, generator)


def network() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the current and initial parameters of an encoder and two heads: all 2 now, all 1 initially."""
    names = {'actor_encoder.layers.0.weight': (300, 100), 'actor_encoder.layers.0.bias': (300,)}
    names |= {'policy_head.weight': (2, 300), 'value_head.layer.weight': (1, 300), 'value_head.layer.bias': (1,)}
    return {k: torch.full(s, 2.0) for k, s in names.items()}, {k: torch.ones(s) for k, s in names.items()}


def test_shrink_perturb_by_hand():
    named, initial = network()
    initial = {name: 3 * x for name, x in initial.items()}
    change('shrink_perturb', named, initial, shrink=0.5, perturb=0.1)
    x = named['actor_encoder.layers.0.weight']  # .5 * 2 + .1 * 3 * noise, 30,000 numbers
    assert x.mean().item() == pytest.approx(1.0, abs=0.01) and x.std().item() == pytest.approx(0.3, rel=0.02)
    assert (named['actor_encoder.layers.0.bias'] == 2).all()


def test_shrink_perturb_without_noise_only_shrinks():
    named, initial = network()
    change('shrink_perturb', named, initial, shrink=0.5, perturb=0.0)
    assert (named['policy_head.weight'] == 1).all()


def test_l2_init_by_hand():
    named, initial = network()
    change('l2_init', named, initial, strength=0.25)  # a quarter of the way from 2 to 1
    assert all((x == 1.75).all() for x in named.values())


def test_reset_last_resets_the_heads_alone():
    named, initial = network()
    change('reset_last', named, initial)
    assert {name for name, x in named.items() if (x == 1).all()} == {n for n in named if '_head.' in n}
    assert (named['actor_encoder.layers.0.weight'] == 2).all()


def test_reset_last_resets_what_it_is_told():
    named, initial = network()
    change('reset_last', named, initial, layers=['value_head', 'layers.0.bias'])
    assert {n for n, x in named.items() if (x == 2).all()} == {'actor_encoder.layers.0.weight', 'policy_head.weight'}


def test_reset_last_of_a_name_that_no_parameter_has_is_refused():
    with pytest.raises(
        UserError, match="no parameter has one of 'vhead' in its name; the parameters are actor_encoder"
    ):
        change('reset_last', *network(), layers=['vhead'])


def test_a_model_without_the_layers_to_be_reset_is_found_before_the_run():
    def problems(spec):
        model = nn.ModuleDict({'policy_head': nn.Linear(3, 2)})
        return ''.join(Plasticity().problems(owner(model, spec)))

    assert problems({'type': 'reset_last', 'layers': ['vhead']}).startswith(
        "plasticity 'reset_last': no parameter has one"
    )
    assert problems('reset_last') == problems('l2_init') == ''


@pytest.mark.parametrize('name', NAMES)
def test_parameters_are_changed_in_place_and_initial_values_stay(name):
    module = nn.ModuleDict({'policy_head': nn.Linear(3, 2)})
    named = dict(module.named_parameters())
    initial = {key: x.detach() + 1 for key, x in named.items()}
    before, places = {key: x.clone() for key, x in initial.items()}, [x.data_ptr() for x in named.values()]
    old = module['policy_head'].weight.clone()
    change(name, named, initial)
    assert [x.data_ptr() for x in module.parameters()] == places and not torch.equal(module['policy_head'].weight, old)
    assert all(torch.equal(initial[key], x) for key, x in before.items())


@pytest.mark.parametrize('name', NAMES)
def test_the_same_seed_gives_the_same_change(name):
    first, second = network()[0], network()[0]
    for named in (first, second):
        change(name, named, network()[1])
    assert all(torch.equal(x, second[key]) for key, x in first.items())


@pytest.mark.parametrize('name', NAMES)
def test_has_an_interval_and_a_summary(name):
    function = PLASTICITY_REGISTRY.get(name)
    assert options_of(function).model_fields['every'].default >= 1 and summary_of(function).endswith('.')


# --- the interval `every`, in updates


def make_model() -> nn.Linear:
    """Two weights and a bias of known values."""
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 4.0]]))
        model.bias.fill_(5.0)
    return model


def owner(model: nn.Module, spec: Any) -> Any:
    learn = SimpleNamespace(plasticity=spec)
    return SimpleNamespace(cfg=SimpleNamespace(learn=learn), model=model, seed=0, policy_moved=lambda: None)


def attached(model: nn.Module, **spec: Any) -> Plasticity:
    option = Plasticity()
    option.fill(None, owner(model, spec))  # type: ignore[arg-type]
    return option


def test_plasticity_acts_at_every_third_update_and_not_between() -> None:
    model = make_model()
    option = attached(model, type='shrink_perturb', every=3, shrink=0.5, perturb=0.0)
    seen = []
    for _ in range(7):
        option.after_update({})
        seen.append(model.weight[0, 0].item())
    assert seen == [3.0, 3.0, 1.5, 1.5, 1.5, 0.75, 0.75]


def test_plasticity_l2_init_goes_part_of_the_way_back_to_the_values_at_construction() -> None:
    model = make_model()
    option = attached(model, type='l2_init', strength=0.25)
    with torch.no_grad():
        model.bias.fill_(9.0)
    option.after_update({})
    assert model.bias.item() == 8.0  # 9 + .25 (5 - 9)
    assert model.weight.tolist() == [[3.0, 4.0]]


def test_plasticity_changes_parameters_in_the_flat_buffer_of_an_optimizer() -> None:
    model = make_model()
    optimizer = FlatAdam(model.named_parameters())
    attached(model, type='shrink_perturb', every=1, shrink=0.5, perturb=0.0).after_update({})
    assert optimizer.param.tolist() == [1.5, 2.0, 5.0]
