"""Which version is chosen, and what `explain` says about it."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from zoo.core.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from zoo.rl_utils import Categorical, Gaussian, gae, gae_data, kernels, make_dist


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, '-c', code], env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_find_on_cpu_is_the_reference():
    assert kernels.find('gae', torch.zeros(3)) is None
    assert kernels.explain('gae', torch.zeros(3)) == 'reference: the tensors are on cpu, kernels need CUDA'


def test_find_switched_off_is_the_reference(monkeypatch):
    monkeypatch.setattr(kernels, 'MODE', '0')
    assert kernels.find('gae', torch.zeros(3)) is None
    assert kernels.explain('gae', torch.zeros(3)) == 'reference: ZOO_KERNELS=0'


def test_find_inside_disabled_is_the_reference(monkeypatch):
    pytest.importorskip('triton', reason='triton is not installed')
    monkeypatch.setattr(kernels, 'MODE', 'interpret')
    with kernels.disabled():
        with kernels.disabled():
            assert kernels.find('gae', torch.zeros(3)) is None
        assert kernels.find('gae', torch.zeros(3)) is None
    assert kernels.find('gae', torch.zeros(3)) is not None


def test_kernels_that_are_not_enabled_are_not_asked_for(monkeypatch):
    # what keeps `find` out of every call on a build of torch without CUDA
    monkeypatch.setattr(kernels, 'ENABLED', False)
    monkeypatch.setattr(kernels, 'find', None)
    assert gae(gae_data(*torch.ones(3, 2)), 1.0, 1.0).tolist() == [2.0, 1.0]


@pytest.mark.long
@pytest.mark.parametrize('mode, wanted', [('0', '0 False'), ('interpret', 'interpret True')])
def test_the_environment_variable_is_read(mode, wanted):
    shown = run_python('from zoo.rl_utils import kernels as k; print(k.MODE, k.ENABLED)', ZOO_KERNELS=mode)
    assert shown.stdout == f'{wanted}\n', shown.stderr[-2000:]


@pytest.mark.parametrize(
    'tensors, dist, reason',
    [
        ((torch.zeros(3, 2, dtype=torch.float64),), None, 'float64 is not covered, only float32 and bfloat16'),
        ((torch.zeros(3, 2), None, torch.zeros(3, device='meta')), None, 'tensors are on cpu and meta'),
        ((torch.zeros(1, 16385),), None, 'rows of 16385 are not covered, only up to 16384'),
        ((torch.zeros(1, 32770),), Gaussian(16385), 'rows of 16385 are not covered, only up to 16384'),
    ],
)
def test_explain_names_what_is_not_covered(monkeypatch, tensors, dist, reason):
    monkeypatch.setattr(kernels, 'MODE', 'interpret')
    assert kernels.explain('ppo_policy_error', *tensors, dist=dist) == f'reference: {reason}'
    dist = dist or Categorical(tensors[0].shape[-1])
    assert kernels.find('ppo_policy_error', *tensors, dist=dist) is None


BOX = Box(-np.ones(2, np.float32), np.ones(2, np.float32))


@pytest.mark.parametrize(
    'space, name, has_kernel',
    [
        (Discrete(3), 'auto', True),
        (MultiDiscrete((2, 3), (0, 0), (2,)), 'auto', True),
        (BOX, 'auto', True),
        (BOX, 'squashed_gaussian', False),
        (BOX, 'gsde', False),
        (BOX, 'beta', False),
        (MultiBinary((3,)), 'auto', False),
        (Dict({'a': Discrete(3), 'b': BOX}), 'auto', False),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
@pytest.mark.parametrize('op', ['ppo_policy_error', 'ppg_joint_error'])
def test_only_categorical_multi_categorical_and_gaussian_have_kernels(monkeypatch, op, space, name, has_kernel):
    pytest.importorskip('triton', reason='triton is not installed')
    monkeypatch.setattr(kernels, 'MODE', 'interpret')
    dist = make_dist(space, name, {'n_feature': 4})
    row = torch.ones(1, dist.n_param)
    assert (kernels.find(op, row, row, dist=dist) is not None) == has_kernel
    assert kernels.explain(op, row, row, dist=dist).startswith(
        'kernel' if has_kernel else 'reference: the distribution'
    )


@pytest.mark.slow
def test_importing_rl_utils_loads_no_compiler_no_backend_and_no_env():
    code = (
        'import sys, zoo.rl_utils\n'
        'names = ("torch._dynamo", "triton", "zoo.backend", "zoo.env", "zoo.config", "zoo.model", "gymnasium")\n'
        'print([x for x in names if x in sys.modules])'
    )
    shown = run_python(code)
    assert shown.stdout == '[]\n', shown.stderr[-2000:]


@pytest.mark.long
def test_kernels_whose_first_calls_are_compiled_are_loaded():
    pytest.importorskip('triton', reason='triton is not installed')
    code = (
        'import torch; from zoo.rl_utils import gae, gae_data, ppo_value_data, ppo_value_error\n'
        'def both(*x):\n'
        '    return gae(gae_data(*x), 1.0, 1.0), ppo_value_error(ppo_value_data(x[0], x[1], x[2] + 2))\n'
        'f = torch.compile(both, backend="aot_eager", fullgraph=True)\n'
        'print(*(y.tolist() for y in f(*torch.ones(3, 2))))'
    )
    shown = run_python(code, ZOO_KERNELS='interpret', TRITON_INTERPRET='1')
    # R - V = 3 - 1 = 2, and half of its square is 2
    assert shown.stdout == '[2.0, 1.0] 2.0\n', shown.stderr[-2000:]


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


@pytest.mark.parametrize('op, tensors', [('gae', ()), ('ppo_policy_error', (None, None)), ('gae', ([1.0],))])
def test_explain_without_tensors_is_refused(op, tensors):
    with pytest.raises(ValueError, match='give its tensors one by one'):
        kernels.explain(op, *tensors)


@pytest.mark.slow
def test_an_unknown_mode_is_refused_at_the_start():
    shown = run_python('import zoo.rl_utils', ZOO_KERNELS='off')
    assert "ZOO_KERNELS is 'off' but must be 'auto', '0' or 'interpret'" in shown.stderr


def test_explain_of_unknown_op_names_the_known():
    with pytest.raises(ValueError, match="op is 'ppo' but kernels are for gae, ppo_policy_error"):
        kernels.explain('ppo', torch.zeros(3))


@pytest.mark.slow
def test_rl_utils_without_triton_imports_and_uses_the_reference():
    code = (
        'import sys; sys.modules["triton"] = None\n'
        'import torch; from zoo.rl_utils import gae, gae_data, kernels\n'
        'kernels.ENABLED = True  # as in a CUDA build\n'
        'print(gae(gae_data(*torch.ones(3, 2)), 1.0, 1.0).tolist())'
    )
    shown = run_python(code, ZOO_KERNELS='auto')
    assert shown.stdout == '[2.0, 1.0]\n', shown.stderr[-2000:]  # delta = 1 + 1 - 1 = 1 in both steps
