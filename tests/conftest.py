"""What holds for all tests: one torch thread, since the networks are small."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
