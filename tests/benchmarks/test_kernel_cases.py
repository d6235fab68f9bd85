"""Cases of benchmarks/kernels.py that only a GPU measures: their inputs, their bytes, and that they run."""

from __future__ import annotations

import json
import math

import kernels as benchmark
import pytest
import torch
from kernel_cases import CUDA_CASES, Case, Traffic, call_of, dist_of, leaves_of, make, tensors_of, traffic

CHOICES = [case._replace(rows=16) for case in CUDA_CASES if case.nvec or case.masked]
SMALL = [case for i, case in enumerate(CHOICES) if case.label not in {other.label for other in CHOICES[:i]}]


def test_cases_of_masks_and_several_choices_are_there_for_both_losses():
    assert [case.label for case in SMALL] == [
        f'{op} ({kind})'
        for op in ('ppo_policy_error', 'ppg_joint_error')
        for kind in ('masked', 'multi-categorical', 'multi-categorical, masked')
    ]


def test_traffic_of_several_choices_has_an_index_for_each():
    # float32, 2 + 3 logits, 2 indices. forward: 2 x 20 + 16 + 8 read, slope 4 written; back: 20 + 16 + 4 + 4 read,
    # 20 written; least: 3 x 20 + 16 + 8
    case = Case('ppo_policy_error', 1, 5, nvec=(2, 3))
    assert traffic(case) == Traffic(68, 64, 84)


@pytest.mark.parametrize('case', SMALL, ids=lambda case: case.label)
def test_traffic_is_the_size_of_the_inputs_and_the_gradients(case):
    data = make(case, torch.Generator().manual_seed(0))
    assert traffic(case).least == sum(x.nbytes for x in tensors_of(data)) + sum(x.nbytes for x in leaves_of(data))


@pytest.mark.parametrize('case', SMALL, ids=lambda case: case.label)
def test_inputs_give_finite_losses_and_masked_logits_no_gradient(case):
    data = make(case, torch.Generator().manual_seed(0))
    losses = call_of(case)(data)
    gradient = torch.autograd.grad(sum(losses), data.logit_new)[0]
    gone = data.logit_new.isinf()
    assert gone.any() == case.masked and torch.equal(gone, data.logit_old.isinf())
    assert all(loss.isfinite() for loss in losses) and not gradient[gone].any() and gradient.isfinite().all()


@pytest.mark.parametrize('case', SMALL, ids=lambda case: case.label)
def test_actions_are_allowed_options(case):
    data = make(case._replace(op='ppo_policy_error'), torch.Generator().manual_seed(0))
    assert dist_of(case).log_prob(data.logit_old, data.action).isfinite().all()


def test_main_writes_their_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, 'CPU_CASES', tuple(SMALL))
    out = tmp_path / 'kernels_cpu.md'
    benchmark.main(['--device', 'cpu', '--quick', '--out', str(out)])
    records = json.loads(out.with_suffix('.json').read_text(encoding='utf-8'))['records']
    assert [record['op'] for record in records[::3]] == [case.label for case in SMALL]
    assert all(0 < x < math.inf for record in records for x in record['us'].values())
    for record in records:
        for error in record['error'].values():  # float32 keeps 7 digits of numbers up to some 10
            assert all(math.isfinite(x) and x < 1e-5 for x in error.values())
    assert '| ppo_policy_error (multi-categorical, masked) | N=16, K=7, P=78 |' in out.read_text(encoding='utf-8')
