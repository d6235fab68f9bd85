"""The choice between a kernel and the reference, and the reason that `explain` gives."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys

import numpy as np
import pytest
import torch

from tests.rl_utils.kernels.compare import DEVICE, set_mode
from zoo.core.registry import DISTRIBUTION_REGISTRY, Component
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from zoo.rl_utils import (
    Categorical,
    Gaussian,
    MultiCategorical,
    gae,
    gae_data,
    kernels,
    make_dist,
    ppo_policy_data,
    ppo_policy_error,
    surrogates,
    value_losses,
)
from zoo.rl_utils.distribution import fitting


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels on any device, as Triton's interpreter runs them."""
    pytest.importorskip('triton', reason='triton is not installed')
    set_mode(monkeypatch, 'interpret')


@pytest.mark.parametrize(
    'mode, reason', [('auto', 'the tensors are on cpu, kernels need CUDA'), ('0', 'ZOO_KERNELS=0')]
)
def test_find_on_cpu_or_switched_off_is_the_reference(monkeypatch, mode, reason):
    monkeypatch.setattr(kernels, 'MODE', mode)
    assert kernels.find('gae', torch.zeros(3)) is None
    assert kernels.explain('gae', torch.zeros(3)) == f'reference: {reason}'


@pytest.mark.usefixtures('interpreted')
def test_find_inside_disabled_is_the_reference():
    with kernels.disabled():
        with kernels.disabled():
            assert kernels.find('gae', torch.zeros(3)) is None
        assert kernels.find('gae', torch.zeros(3)) is None
    assert kernels.find('gae', torch.zeros(3)) is not None


def test_kernels_that_are_not_enabled_are_not_asked_for(monkeypatch):
    # ENABLED is False on a build of torch without CUDA, so that no call there has to ask `find`
    monkeypatch.setattr(kernels, 'ENABLED', False)
    monkeypatch.setattr(kernels, 'find', None)
    assert gae(gae_data(*torch.ones(3, 2)), 1.0, 1.0).tolist() == [2.0, 1.0]


def rows(n: int, dtype: torch.dtype = torch.float32, device: str = DEVICE) -> list[torch.Tensor]:
    return [torch.ones(1, n, dtype=dtype, device=device)] * 2


class OtherName(Categorical):
    name = 'other'


class Own(Categorical):
    """A user's subclass that inherits the name."""


class OwnSeveral(MultiCategorical):
    """A user's subclass that inherits the name."""


def clip(log_ratio, ratio, adv, clip_ratio):
    """A user's function with the name of one of zoo."""
    return ratio * adv


BOX = Box(-np.ones(2, np.float32), np.ones(2, np.float32))
COVERED = 'not covered, only categorical, multi_categorical and gaussian'
SURROGATES, VALUE_LOSSES = 'not covered, only clip and spo of zoo', 'not covered, only mse and clip of zoo'
MANY = '{} choices, the largest of {} options, would take over 8 times their 100 logits'


@pytest.mark.usefixtures('interpreted')
@pytest.mark.parametrize(
    'tensors, options, reason',
    [
        (rows(2, torch.float64), {}, 'float64 is not covered, only float32 and bfloat16'),
        ((torch.zeros(3, 2), None, torch.zeros(3, device='meta')), {}, 'tensors are on .* and meta'),
        (rows(16385), {}, 'rows of 16385 are not covered, only up to 16384'),
        (rows(32770), dict(dist=Gaussian(16385)), 'rows of 16385 are not covered, only up to 16384'),
        (rows(32769), dict(dist=MultiCategorical((16384, 16385))), 'rows of 16385 are not covered, only up to 16384'),
        # padded to 10 * 91 = 910 logits in place of 100, over 8 times as many
        (rows(100), dict(dist=MultiCategorical((1,) * 9 + (91,))), MANY.format(10, 91)),
        (rows(100), dict(dist=MultiCategorical((1,) * 8 + (92,))), MANY.format(9, 92)),
        (rows(100), dict(dist=MultiCategorical((1,) * 7 + (93,))), ''),  # 8 * 93 = 744
        (rows(20_000), dict(dist=MultiCategorical((100,) * 200)), ''),  # wide, but each choice has only 100
        (rows(7), dict(dist=OtherName(7)), rf"the distribution 'other' \(OtherName\) is {COVERED}"),
        (rows(7), dict(dist=Own(7)), rf"the distribution 'categorical' \(Own\) is {COVERED}"),
        (rows(7), dict(dist=OwnSeveral((3, 4))), rf"the distribution 'multi_categorical' \(OwnSeveral\) is {COVERED}"),
        (rows(7), dict(part=surrogates.clip), ''),
        (rows(7), dict(part=surrogates.spo), ''),
        (rows(7), dict(part=surrogates.dpo), f"the surrogate 'dpo' is {SURROGATES}"),
        (rows(7), dict(part=clip), f'.* is {SURROGATES}'),
        (rows(7), dict(part=Component('surrogate', 'clip', clip)), f"the surrogate 'clip' is {SURROGATES}"),
    ],
)
def test_find_takes_what_is_covered_and_explain_names_what_is_not(tensors, options, reason):
    options = {'dist': Categorical(tensors[0].shape[-1]), **options}
    said = kernels.explain('ppo_policy_error', *tensors, **options)
    assert re.fullmatch(f'reference: {reason}' if reason else 'kernel: zoo.rl_utils.kernels.ppo_policy', said), said
    assert (kernels.find('ppo_policy_error', *tensors, **options) is None) == bool(reason)


@pytest.mark.usefixtures('interpreted')
@pytest.mark.parametrize(
    'part, reason',
    [
        (value_losses.clip, ''),
        (value_losses.huber, f"the value loss 'huber' is {VALUE_LOSSES}"),
        (value_losses.TwoHot(), f"the value loss 'two_hot' is {VALUE_LOSSES}"),
    ],
)
def test_value_losses_that_no_kernel_knows_use_the_reference(part, reason):
    data = rows(3)
    said = kernels.explain('ppo_value_error', *data, part=part)
    assert said == (f'reference: {reason}' if reason else 'kernel: zoo.rl_utils.kernels.ppo_value')
    assert (kernels.find('ppo_value_error', *data, part=part) is None) == bool(reason)


@pytest.mark.usefixtures('interpreted')
def test_losses_of_what_no_kernel_knows_are_those_of_the_reference():
    data = [torch.randn(7, 3, generator=torch.Generator().manual_seed(0)) for _ in range(2)]
    data = ppo_policy_data(*(x.to(DEVICE) for x in data), *torch.ones(2, 7, device=DEVICE).long())
    data = data._replace(adv=data.adv.float())
    wanted = ppo_policy_error(data)[0].policy_loss
    for clip_ratio, dist in ((torch.tensor(0.2), Categorical(3)), (0.2, OtherName(3))):
        assert kernels.find('ppo_policy_error', *data[:4], dist=dist, numbers=(clip_ratio, None)) is None
        torch.testing.assert_close(ppo_policy_error(data, clip_ratio, dist=dist)[0].policy_loss, wanted)


@pytest.mark.usefixtures('interpreted')
@pytest.mark.parametrize('op', ['ppo_policy_error', 'ppg_joint_error'])
def test_only_categorical_multi_categorical_and_gaussian_have_kernels(op):
    found = {}
    for name in DISTRIBUTION_REGISTRY.names():
        for space in (Discrete(3), MultiDiscrete((2, 3), (0, 0), (2,)), BOX, MultiBinary((3,)), Dict({'a': BOX})):
            if name in fitting(space, {}):
                dist = make_dist(space, name, {'n_feature': 4})
                row = rows(dist.n_param)
                found[name] = kernels.find(op, *row, dist=dist) is not None
                said = kernels.explain(op, *row, dist=dist)
                assert said.startswith('kernel' if found[name] else 'reference: the distribution')
    assert len(found) == len(DISTRIBUTION_REGISTRY.names())
    kinds = {'categorical', 'multi_categorical', 'gaussian'}
    assert {name for name, has_kernel in found.items() if has_kernel} == kinds


LOADED = """import sys, zoo.rl_utils
names = ("torch._dynamo", "triton", "zoo.backend", "zoo.env", "zoo.config", "zoo.model", "gymnasium")
print(zoo.rl_utils.kernels.MODE, zoo.rl_utils.kernels.ENABLED, [x for x in names if x in sys.modules])"""
WITHOUT_TRITON = """import sys; sys.modules["triton"] = None
import torch; from zoo.rl_utils import gae, gae_data, kernels
kernels.ENABLED = True  # as in a CUDA build
print(gae(gae_data(*torch.ones(3, 2)), 1.0, 1.0).tolist())"""
COMPILED = """import torch; from zoo.rl_utils import gae, gae_data, kernels, ppo_value_data, ppo_value_error
def both(*x):
    return gae(gae_data(*x), 1.0, 1.0), ppo_value_error(ppo_value_data(x[0], x[1], x[2] + 2))
f = torch.compile(both, backend="aot_eager", fullgraph=True)
print(kernels.MODE, kernels.ENABLED, *(y.tolist() for y in f(*torch.ones(3, 2))))"""


@pytest.mark.slow
@pytest.mark.parametrize(
    'code, mode, shown',
    [
        (LOADED, '0', '0 False []'),  # no compiler, no backend and no env
        (WITHOUT_TRITON, 'auto', '[2.0, 1.0]'),  # delta = 1 + 1 - 1 = 1 in both steps
        # kernels load even if their first calls are compiled; R - V = 3 - 1 = 2, and half of its square is 2
        pytest.param(COMPILED, 'interpret', 'interpret True [2.0, 1.0] 2.0', marks=pytest.mark.long),
    ],
    ids=['imports', 'without triton', 'compiled'],
)
@pytest.mark.soak
def test_process_of_its_own_reads_the_mode_and_loads_what_it_needs(code, mode, shown):
    if mode == 'interpret':
        pytest.importorskip('triton', reason='triton is not installed')
    environment = {**os.environ, 'ZOO_KERNELS': mode, 'TRITON_INTERPRET': '1'}
    done = subprocess.run([sys.executable, '-c', code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == shown, done.stderr[-2000:]


def test_unknown_mode_is_refused(monkeypatch):
    monkeypatch.setenv('ZOO_KERNELS', 'off')
    with pytest.raises(ValueError, match="ZOO_KERNELS is 'off' but must be 'auto', '0' or 'interpret'"):
        runpy.run_path(kernels.__file__)


@pytest.mark.parametrize(
    'logits, dist',
    [
        ([{'mu': torch.zeros(2, 3), 'sigma': torch.ones(2, 3)}] * 2, None),
        ([torch.zeros(2, 6)] * 2, Gaussian(3)),
    ],
)
def test_explain_takes_logits_in_the_forms_that_the_losses_take(monkeypatch, logits, dist):
    def said() -> str:
        return kernels.explain('ppo_policy_error', *logits, torch.zeros(2, 3), torch.zeros(2), None, dist=dist)

    assert said() == 'reference: the tensors are on cpu, kernels need CUDA'
    monkeypatch.setattr(kernels, 'MODE', 'interpret')
    monkeypatch.setattr(kernels, '_HAS_TRITON', True)
    assert said() == 'kernel: zoo.rl_utils.kernels.ppo_policy'


@pytest.mark.parametrize(
    'op, tensors, sentence',
    [
        *((op, x, 'give its tensors one by one') for op, x in (('gae', ()), ('ppo_policy_error', [None] * 2))),
        ('gae', ([1.0],), 'give its tensors one by one'),
        ('ppo', (torch.zeros(3),), 'op is .ppo. but kernels are for gae, ppo_policy_error'),
    ],
)
def test_explain_without_tensors_or_of_an_unknown_op_is_refused(op, tensors, sentence):
    with pytest.raises(ValueError, match=sentence):
        kernels.explain(op, *tensors)
