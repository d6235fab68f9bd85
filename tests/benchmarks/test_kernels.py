"""benchmarks/kernels.py: the memory traffic that it counts and the tables that it writes; no speed is tested."""

from __future__ import annotations

import json
import math

import kernels as benchmark
import pytest
import torch
from kernel_cases import (
    CUDA_CASES,
    Case,
    Traffic,
    call_of,
    dist_of,
    gae_traffic,
    leaves_of,
    make,
    tensors_of,
    traffic,
)
from kernels import CPU_CASES, chosen_cases, main
from timing import Budget, Timed, wall_seconds

from zoo.rl_utils import kernels

M = 2**20
CHOICES = [case._replace(rows=16) for case in CUDA_CASES if case.nvec or case.masked]
SMALL = [case for i, case in enumerate(CHOICES) if case.label not in {other.label for other in CHOICES[:i]}]
"""Cases with masks or several choices, which are measured on a GPU only; here with 16 rows."""
small = pytest.mark.parametrize('case', SMALL, ids=lambda case: case.label)


# us: the least bytes divided by the 4.3 TB/s of an H200
@pytest.mark.parametrize(
    'least, us',
    [
        (gae_traffic(128 * 8192, n_flag=1).least, 4.1),  # 4 x 4 + 1 = 17 bytes x 1,048,576 = 17.8 MB
        (traffic(Case('ppo_policy_error', M, 18)).least, 57),  # 3 x 72 + 8 + 4 + 4 = 232 bytes a row
        (traffic(Case('ppo_value_error', M)).least, 4.9),  # 5 x 4 = 20 bytes a row
        (traffic(Case('ppg_joint_error', M, 15)).least, 49),  # 3 x 60 + 20 = 200 bytes a row, no action: it is not read
    ],
)
def test_traffic_gives_the_calculated_floor(least, us):
    assert least / 4.3e12 * 1e6 == pytest.approx(us, rel=0.015)


@pytest.mark.parametrize(
    'case, wanted',
    [
        # mu, sigma of both policies 4 x 12, action 12, adv and weight 8, slope 4;
        # back: mu, sigma 24, action 12, weight 4, slope 4, gradients 24; least: 48 + 12 + 8 + 24
        (Case('ppo_policy_error', 1, 3, True), Traffic(72, 68, 92)),
        # bfloat16: logits and their gradient 2 x 3 = 6 each. forward 12 + 8 + 8 + 4; back 6 + 8 + 4 + 4 + 6
        (Case('ppo_policy_error', 1, 3, dtype=torch.bfloat16), Traffic(32, 28, 34)),
        # 4 x 12 read, 2 x 12 written, 20 for the values; back: 24 + 24, 4 + 4
        (Case('ppg_joint_error', 1, 3, True), Traffic(92, 56, 92)),
        (Case('ppo_value_error', 1), Traffic(20, 8, 20)),
        # several choices have an index each: float32, 2 + 3 logits, 2 indices. forward: 2 x 20 + 16 + 8 read, slope 4
        # written; back: 20 + 16 + 4 + 4 read, 20 written; least: 3 x 20 + 16 + 8
        (Case('ppo_policy_error', 1, 5, nvec=(2, 3)), Traffic(68, 64, 84)),
    ],
)
def test_traffic_of_one_row_is_the_sum_of_its_fields(case, wanted):
    assert traffic(case) == wanted


@pytest.mark.parametrize('case', chosen_cases(on_cuda=False, quick=True, only=()), ids=lambda case: case.label)
def test_traffic_is_the_size_of_the_inputs_and_the_results(case):
    data = make(case, torch.Generator().manual_seed(0))
    written = sum(x.nbytes for x in tensors_of(data) if x.requires_grad) or data.value.nbytes  # gradients, or adv
    assert traffic(case).least == sum(x.nbytes for x in tensors_of(data)) + written


def test_cases_of_masks_and_several_choices_are_there_for_both_losses():
    kinds = ('masked', 'multi-categorical', 'multi-categorical, masked')
    assert [case.label for case in SMALL] == [
        f'{op} ({kind})' for op in ('ppo_policy_error', 'ppg_joint_error') for kind in kinds
    ]


@small
def test_inputs_of_choices_have_their_size_allowed_actions_finite_losses_and_no_gradient_where_masked(case):
    data = make(case, torch.Generator().manual_seed(0))
    assert traffic(case).least == sum(x.nbytes for x in tensors_of(data)) + sum(x.nbytes for x in leaves_of(data))
    losses = call_of(case)(data)
    gradient = torch.autograd.grad(sum(losses), data.logit_new)[0]
    gone = data.logit_new.isinf()
    assert gone.any() == case.masked and torch.equal(gone, data.logit_old.isinf())
    assert all(loss.isfinite() for loss in losses) and not gradient[gone].any() and gradient.isfinite().all()
    data = make(case._replace(op='ppo_policy_error'), torch.Generator().manual_seed(0))
    assert dist_of(case).log_prob(data.logit_old, data.action).isfinite().all()


def test_wall_seconds_continues_through_the_input_sets():
    seen: list[int] = []
    wall_seconds({'call': Timed(seen.append)}, torch.device('cpu'), Budget(n_round=3, round_s=1e-4))
    measured = seen[4:]  # after two calls that warm up and two that estimate
    assert measured == list(range(len(measured)))


@pytest.mark.slow
def test_main_quick_writes_both_tables_and_small_errors(tmp_path, monkeypatch):
    out, mode = tmp_path / 'kernels_cpu.md', kernels.MODE
    monkeypatch.setattr(benchmark, 'CPU_CASES', (*CPU_CASES, SMALL[2], SMALL[5]))
    main(['--device', 'cpu', '--quick', '--out', str(out)])
    result = json.loads(out.with_suffix('.json').read_text(encoding='utf-8'))
    ops = {case.label for case in chosen_cases(on_cuda=False, quick=True, only=())}
    assert len(ops) == 8 and {record['op'] for record in result['records']} == ops
    assert {record['op'] for record in result['host']} == ops
    assert {record['pass'] for record in result['records']} == {'forward', 'backward', 'both'}
    for record in result['records']:
        assert set(record['us']) == ({'reference', 'loop'} if record['op'] == 'gae' else {'reference'})
        for error in record['error'].values():  # float32 keeps 7 digits of numbers up to some 10
            assert all(math.isfinite(x) and x < 1e-5 for x in error.values() if x is not None)
        assert all(0 < x < math.inf for x in (*record['us'].values(), record['floor_us']))
    text = out.read_text(encoding='utf-8')
    assert '| ppo_policy_error (multi-categorical, masked) | N=16, K=7, P=78 |' in text
    assert text.count('\n| --- |') == 3 and '## What a call costs the host' in text
    assert 'host synchronisations in a training minibatch (loss, gradient, Adam): not measured: no GPU' in text
    assert set(result['versions']) - {'triton'} == {'python', 'torch', 'numpy'} and result['command'] in text
    assert kernels.MODE == mode


def test_main_without_a_gpu_refuses_to_measure_one(capsys):
    with pytest.raises(SystemExit):
        main(['--device', 'cuda'])
    assert 'torch sees no CUDA device' in capsys.readouterr().err
