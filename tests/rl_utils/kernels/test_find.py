"""Which version is chosen, and what `explain` says about it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from zoo.backend.trace import trace
from zoo.rl_utils import kernels


def test_find_on_cpu_is_the_reference():
    assert kernels.find('gae', torch.zeros(3)) is None
    assert kernels.explain('gae', torch.zeros(3)) == 'reference: the tensors are on cpu, kernels need CUDA'


def test_find_switched_off_is_the_reference(monkeypatch):
    monkeypatch.setattr(kernels, 'MODE', '0')
    assert kernels.find('gae', torch.zeros(3)) is None
    assert kernels.explain('gae', torch.zeros(3)) == 'reference: ZOO_KERNELS=0'


def test_find_while_a_graph_is_traced_is_the_reference(monkeypatch):
    monkeypatch.setattr(kernels, 'MODE', 'interpret')
    found = []
    trace(lambda x: [found.append(kernels.find('gae', x)) or x + 1], [torch.zeros(3)])
    assert found == [None]


def test_find_reads_the_environment_variable():
    code = 'from zoo.rl_utils import kernels; print(kernels.MODE)'
    shown = subprocess.run(
        [sys.executable, '-c', code], env={**os.environ, 'ZOO_KERNELS': '0'}, capture_output=True, text=True, check=True
    )
    assert shown.stdout == '0\n'


@pytest.mark.parametrize(
    'tensors, reason',
    [
        ((torch.zeros(3, dtype=torch.float64),), 'float64 is not covered, only float32 and bfloat16'),
        ((torch.zeros(3), None, torch.zeros(3, device='meta')), 'tensors are on cpu and meta'),
        ((torch.zeros(1, 16385),), 'rows of 16385 are not covered, only up to 16384'),
    ],
)
def test_explain_names_what_is_not_covered(monkeypatch, tensors, reason):
    monkeypatch.setattr(kernels, 'MODE', 'interpret')
    assert kernels.explain('ppo_policy_error', *tensors) == f'reference: {reason}'
    assert kernels.find('ppo_policy_error', *tensors) is None


def test_rl_utils_loads_no_compiler():
    code = 'import sys, zoo.rl_utils; print("torch._dynamo" in sys.modules)'
    shown = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert shown.stdout == 'False\n'


def test_a_kernel_whose_first_call_is_compiled_is_loaded():
    pytest.importorskip('triton', reason='triton is not installed')
    code = (
        'import torch; from zoo.rl_utils import gae, gae_data\n'
        'f = torch.compile(lambda *x: gae(gae_data(*x), 1.0, 1.0), backend="aot_eager", fullgraph=True)\n'
        'print(f(*torch.ones(3, 2)).tolist())'
    )
    environment = {**os.environ, 'ZOO_KERNELS': 'interpret', 'TRITON_INTERPRET': '1'}
    shown = subprocess.run([sys.executable, '-c', code], env=environment, capture_output=True, text=True)
    assert shown.stdout == '[2.0, 1.0]\n', shown.stderr[-2000:]


def test_explain_takes_the_inputs_of_a_gaussian_policy_as_they_are():
    logit = {'mu': torch.zeros(2, 3), 'sigma': torch.ones(2, 3)}
    said = kernels.explain('ppo_policy_error', logit, logit, torch.zeros(2, 3), torch.zeros(2), None)
    assert said == 'reference: the tensors are on cpu, kernels need CUDA'


def test_explain_without_tensors_is_refused():
    with pytest.raises(ValueError, match='give its tensors one by one'):
        kernels.explain('gae')


def test_an_unknown_mode_is_refused_at_the_start():
    shown = subprocess.run(
        [sys.executable, '-c', 'import zoo.rl_utils'],
        env={**os.environ, 'ZOO_KERNELS': 'off'},
        capture_output=True,
        text=True,
    )
    assert "ZOO_KERNELS is 'off' but must be 'auto', '0' or 'interpret'" in shown.stderr


def test_explain_of_unknown_op_names_the_known():
    with pytest.raises(ValueError, match="op is 'ppo' but kernels are for gae, ppo_policy_error"):
        kernels.explain('ppo', torch.zeros(3))


def test_rl_utils_without_triton_imports_and_uses_the_reference():
    code = (
        'import sys; sys.modules["triton"] = None\n'
        'import torch; from zoo.rl_utils import gae, gae_data\n'
        'print(gae(gae_data(*torch.ones(3, 2)), 1.0, 1.0).tolist())'
    )
    shown = subprocess.run(
        [sys.executable, '-c', code],
        env={**os.environ, 'ZOO_KERNELS': 'auto'},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == '[2.0, 1.0]\n'  # delta = 1 + 1 - 1 = 1 in both steps
