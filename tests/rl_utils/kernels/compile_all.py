"""Compiles every kernel for a GPU that may be absent, from the launches that the public functions make.

Run as a script, without TRITON_INTERPRET. Prints one JSON line per kernel: name, constants, registers and bytes of spill.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ['ZOO_KERNELS'] = 'interpret'  # kernels on CPU tensors: only their launches are needed

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.rl_utils.kernels.cases import gae_case, joint_case, policy_case, value_case
from zoo.rl_utils import (
    Categorical,
    Gaussian,
    MultiCategorical,
    gae_return,
    kernels,
    ppg_joint_error,
    ppo_policy_error,
    ppo_value_error,
    surrogates,
)

TYPES = {
    torch.float32: '*fp32',
    torch.bfloat16: '*bf16',
    torch.float64: '*fp64',
    torch.int64: '*i64',
    torch.int32: '*i32',
    torch.uint8: '*u8',
}
TOOL = Path(triton.__file__).parent / 'backends' / 'nvidia' / 'bin' / 'cuobjdump'


def compile_launch(kernel: Any, capability: int, args: tuple, constants: dict[str, Any]) -> None:
    """Compiles the kernel of a launch without running it, and prints the result."""
    options = {key: constants.pop(key) for key in ('num_warps',)}
    values = dict(zip(kernel.arg_names, args, strict=False))
    constants |= {name: None for name, value in values.items() if value is None}
    signature = {name: 'constexpr' if name in constants else type_of(values[name]) for name in kernel.arg_names}
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    compiled = triton.compile(source, target=GPUTarget('cuda', capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix='.cubin') as file:
        file.write(compiled.asm['cubin'])
        file.flush()
        usage = subprocess.run([TOOL, '--dump-resource-usage', file.name], capture_output=True, text=True, check=True)
    registers, stack = (int(re.search(rf'{key}:(\d+)', usage.stdout)[1]) for key in ('REG', 'STACK'))
    print(
        json.dumps(
            {
                'kernel': f'{kernel.fn.__module__.split(".")[-1]}.{kernel.fn.__name__}',
                'registers': registers,
                'stack': stack,
                **{k: v for k, v in constants.items() if v is not None},
                **options,
            }
        )
    )


def type_of(value: Any) -> str:
    return TYPES[value.dtype] if isinstance(value, torch.Tensor) else 'fp32' if isinstance(value, float) else 'i32'


def main(capability: int) -> None:
    triton.runtime.jit.JITFunction.__getitem__ = lambda kernel, grid: (
        lambda *args, **constants: compile_launch(kernel, capability, args, constants)
    )
    # generations before 90 have the same number of registers: one size shows that the kernels compile for them
    sizes = ((64, 2), (64, 18), (4, 4096)) if capability >= 90 else ((64, 18),)
    cases = [(kind(n), n_row, torch.float32) for n_row, n in sizes for kind in (Categorical, Gaussian)]
    cases += [(Categorical(18), 64, torch.bfloat16), (Gaussian(18), 64, torch.bfloat16)]
    # two choices of two options, a game's choices, 300 choices of two, and one as large as a block's registers allow
    nvecs = ((2, 2), (6, 4, 4, 4, 4, 7, 49), (2,) * 300, (4096, 3)) if capability >= 90 else ((3,) * 6,)
    for dist, n_row, dtype in (*cases, *((MultiCategorical(nvec), 64, torch.float32) for nvec in nvecs)):
        data = policy_case(dist, n_row, weight=True, dtype=dtype)
        loss, _ = ppo_policy_error(data, dual_clip=3.0, dist=dist)
        (loss.policy_loss + loss.entropy_loss).backward()
        ppg_joint_error(joint_case(dist, n_row, weight=True, dtype=dtype), dist=dist)
    ppo_value_error(value_case(64, weight=True))
    dist = Categorical(18)
    args = policy_case(dist, 64, weight=True)[:5]
    kernels.find('ppo_policy_error', *args, dist=dist, part=surrogates.spo)(dist, *args, 0.2, None, surrogates.spo)
    for shape in ((128, 8192), (2048, 64), (8192, 1), (8, 256)):
        gae_return(gae_case(shape))


if __name__ == '__main__':
    main(int(sys.argv[1]))
