"""What holds for all tests: one torch thread, since the networks are small; kernels without a GPU are interpreted."""

from __future__ import annotations

import os

import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ['TRITON_INTERPRET'] = '1'  # before triton is imported; only tests that ask for it use kernels on a CPU
