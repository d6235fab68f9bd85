"""Plasticity parts act after every so many updates, in place, and go on after a checkpoint."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.policy_envs import differing, job_config
from zoo.config.components import make_part
from zoo.core.registry import PLASTICITY_REGISTRY
from zoo.pipeline import serial_pipeline
from zoo.policy.options.plasticity import Regrowth
from zoo.rl_utils.optimizer import FlatAdam
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob


def make_model() -> nn.Linear:
    """Two weights and a bias of known values."""
    model = nn.Linear(2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, 4.0]]))
        model.bias.fill_(5.0)
    return model


def make_regrowth(model: nn.Module, seed: int = 0, **spec: Any) -> Regrowth:
    return Regrowth(make_part(PLASTICITY_REGISTRY, spec), model, seed)


def test_regrowth_acts_at_every_third_update_and_not_between() -> None:
    model = make_model()
    regrowth = make_regrowth(model, type='shrink_perturb', every=3, shrink=0.5, perturb=0.0)
    seen = []
    for _ in range(7):
        regrowth.after_update()
        seen.append(model.weight[0, 0].item())
    assert seen == [3.0, 3.0, 1.5, 1.5, 1.5, 0.75, 0.75]


def test_regrowth_l2_init_goes_part_of_the_way_back_to_the_values_at_construction() -> None:
    model = make_model()
    regrowth = make_regrowth(model, type='l2_init', strength=0.25)
    with torch.no_grad():
        model.bias.fill_(9.0)
    regrowth.after_update()
    assert model.bias.item() == 8.0  # 9 + .25 (5 - 9)
    assert model.weight.tolist() == [[3.0, 4.0]]


def test_regrowth_changes_parameters_in_the_flat_buffer_of_an_optimizer() -> None:
    model = make_model()
    optimizer = FlatAdam(model.named_parameters())
    make_regrowth(model, type='shrink_perturb', every=1, shrink=0.5, perturb=0.0).after_update()
    assert optimizer.param.tolist() == [1.5, 2.0, 5.0]


def test_regrowth_from_its_state_continues_to_the_bit() -> None:
    models = [make_model(), make_model()]
    spec = {'type': 'shrink_perturb', 'every': 2}
    first = make_regrowth(models[0], seed=0, **spec)
    for _ in range(3):
        first.after_update()
    with torch.no_grad():
        models[1].weight.fill_(7.0)  # of a model that began elsewhere
    second = make_regrowth(models[1], seed=0, **spec)  # which the noise is a function of, with the count
    state = copy.deepcopy(first.state_dict())
    second.load_state_dict(state)
    models[1].load_state_dict(models[0].state_dict())
    for regrowth in (first, second):
        regrowth.after_update()
    assert torch.equal(models[0].weight, models[1].weight) and models[0].weight[0, 0] != 3.0
    assert not differing(first.state_dict(), second.state_dict())


def test_regrowth_of_a_copied_model_moves_the_copy() -> None:
    model = make_model()
    regrowth = make_regrowth(model, type='shrink_perturb', every=1, shrink=0.5, perturb=0.0)
    copied_model, copied = copy.deepcopy((model, regrowth))
    copied.after_update()
    assert copied_model.weight.tolist() == [[1.5, 2.0]] and model.weight.tolist() == [[3.0, 4.0]]


def config(root: Path) -> dict[str, Any]:
    return job_config(root, 'CartPole-v1', policy={'learn': {'plasticity': {'type': 'shrink_perturb', 'every': 2}}})


def test_runs_with_plasticity_are_equal_to_the_bit_and_differ_from_one_without(tmp_path: Path) -> None:
    a, b = (serial_pipeline(config(tmp_path / name)) for name in 'ab')
    assert not differing(a.policy.state_dict(), b.policy.state_dict())
    without = serial_pipeline(job_config(tmp_path / 'c', 'CartPole-v1'))
    assert differing(a.policy.state_dict()['model'], without.policy.state_dict()['model'])


def test_policy_with_plasticity_takes_over_all_of_a_state(tmp_path: Path) -> None:
    cfg = resolve_config(config(tmp_path))
    with SerialJob(cfg) as job:
        job.iteration()
        state = copy.deepcopy(job.policy.state_dict())
    with SerialJob(cfg) as other:
        other.policy.load_state_dict(state)
        assert not differing(other.policy.state_dict(), state)
