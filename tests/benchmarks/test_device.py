"""benchmarks/device.py: the waits that it finds in traces, and its rows of runs; the runs themselves need a GPU."""

from __future__ import annotations

import pytest
from device import cases, command, main, rows, traced_runs, waits, waits_line

from report import REPO
from zoo.config.source import load_config
from zoo.run.config import resolve_config


def event(name: str, ts: float, dur: float = 1.0, cat: str = 'cuda_runtime') -> dict:
    return {'ph': 'X', 'name': name, 'ts': ts, 'dur': dur, 'cat': cat}


def test_waits_are_the_calls_inside_of_updates_that_block_the_host():
    update = [event('zoo/learn', ts, 100.0, 'user_annotation') for ts in (1000.0, 2000.0)]
    # not counted: the GPU's copy of a span, a launch, and calls outside of the spans or without a wait
    beside = [
        event('zoo/learn', 1000.0, 100.0, 'gpu_user_annotation'),
        event('cudaLaunchKernel', 1010),
        event('cudaMemcpyAsync', 1020),
        event('cudaDeviceSynchronize', 1500),
        event('cudaStreamWaitEvent', 1030),
    ]
    inside = [event('cudaStreamSynchronize', 1095), event('cudaMemcpy', 2050), event('cudaEventSynchronize', 2100)]
    trace = {'traceEvents': [{'ph': 'M', 'name': 'process_name'}, *update, *beside, *inside]}
    assert waits(trace) == [[('cudaStreamSynchronize', 0.95)], [('cudaMemcpy', 0.5), ('cudaEventSynchronize', 1.0)]]


def test_line_of_an_update_counts_its_waits_and_says_where_they_are():
    copies = [('cudaMemcpy', 0.1), ('cudaStreamSynchronize', 0.2), ('cudaMemcpy', 1.0)]
    assert waits_line([]) == 'none'
    assert waits_line(copies[:1]) == '1 cudaMemcpy, at 0.10'
    assert waits_line(copies) == '2 cudaMemcpy, 1 cudaStreamSynchronize, at 0.10 to 1.00'


@pytest.mark.parametrize('name', traced_runs(64))
def test_every_traced_run_has_a_config_and_room_for_its_trace(name):
    config, *words = traced_runs(64)[name]
    cfg = resolve_config(load_config(config)[0], words)
    assert cfg.max_env_step >= 6 * cfg.env.collector_env_num * cfg.policy.collect.n_step  # 2 + 1 + 3 rollouts


def test_rows_are_medians_and_say_what_failed():
    runs = [dict(what='compiled', num_envs=8192, env_step_per_s=speed, warmup_s=1.0) for speed in (1.0, 9.0, 2.0)]
    failed = dict(what='eager', num_envs=8192, failed='exit code 1')
    assert list(rows([*runs, failed])) == [
        ['compiled', '8,192', '2', '1 to 9', '10,000,000', '1.0'],
        ['eager', '8,192', 'failed', '', '', ''],
    ]


def test_every_case_is_a_command_with_the_device():
    for case in cases([8192]):
        line = command(case, 'cuda', 5.0)
        assert 'policy.device=cuda' in line and line[line.index('--num-envs') + 1] == str(case.num_envs)
        assert (REPO / 'benchmarks' / 'peers' / 'run_zoo.py').samefile(line[1])


def test_without_a_gpu_it_says_so(capsys, monkeypatch):
    monkeypatch.setattr('torch.cuda.is_available', lambda: False)
    with pytest.raises(SystemExit):
        main(['--device', 'cuda'])
    assert 'torch sees no CUDA device; use --device cpu' in capsys.readouterr().err
