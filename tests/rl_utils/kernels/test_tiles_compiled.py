"""Kernels compiled as for a GPU, for two generations, without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('triton', reason='triton is not installed')
REPO = Path(__file__).parents[3]


@pytest.mark.soak
@pytest.mark.parametrize('capability', [80, 90])
def test_kernels_compile_and_keep_their_rows_in_registers(capability):
    environment = {key: value for key, value in os.environ.items() if key != 'TRITON_INTERPRET'}
    shown = subprocess.run(
        [sys.executable, '-m', 'tests.rl_utils.kernels.compile_all', str(capability)],
        cwd=REPO,
        env={**environment, 'PYTHONPATH': str(REPO)},
        capture_output=True,
        text=True,
    )
    assert shown.returncode == 0, shown.stderr[-2000:]
    kernels = [json.loads(line) for line in shown.stdout.splitlines()]
    names = {'ppo_policy._forward', 'ppo_policy._backward', 'ppo_value._forward', 'ppg_joint._forward', 'gae._scan'}
    assert {kernel['kernel'] for kernel in kernels} == names
    kinds = {kernel['KIND'] for kernel in kernels if kernel['kernel'] == 'ppo_policy._forward'}
    assert kinds == {'categorical', 'multi_categorical', 'gaussian'}
    surrogates = {kernel['SURROGATE'] for kernel in kernels if kernel['kernel'] == 'ppo_policy._forward'}
    assert surrogates == {'clip', 'spo'}
    # stack bytes per thread: a tile that does not fit spills hundreds; one or two numbers are ptxas' own choice
    assert [kernel for kernel in kernels if kernel['stack'] > 16] == []
