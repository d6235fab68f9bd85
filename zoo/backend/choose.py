"""Choice of the executor of a policy, and the line of the log that names it."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from zoo.backend import native
from zoo.backend.executor import Eager
from zoo.backend.places import StepParts, why_not
from zoo.core.errors import UserError
from zoo.rl_utils.distribution import ActionDist

ExecutorName = Literal['auto', 'eager', 'native', 'graph']
CompileMode = Literal['off', 'on', 'auto']
# (pure function of tensors, its name in messages) -> the same, compiled
Compile = Callable[[Callable[..., Sequence[Tensor]], str], Callable[..., Sequence[Tensor]]]
WORTH_STEPS = 60_000
"""A run of at least this many gradient steps gains from compiling those that the native executor cannot run: a first
compilation takes 12 to 16 s for each kind of step and saves .4 to 1.1 ms a step (benchmarks/results/compile.md)."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)  # compiled on a CPU, Nature takes a tenth less time, IMPALA more

logger = logging.getLogger(__name__)


class Named(NamedTuple):
    """A component of gradient steps that is known by its name alone; others are `zoo.config.components.Component`."""

    kind: str
    name: str
    options: tuple[tuple[str, Any], ...] = ()


class ExecutorRequest(NamedTuple):
    """The executor and compile mode that the config asks for; n_step: gradient steps of the whole run, None: not known."""

    executor: ExecutorName
    compile: CompileMode
    n_step: float | None
    components: Sequence[Any] = ()  # of the gradient steps: kind, name, options
    eager_only: str = ''  # why steps can only run eagerly, in a sentence
    not_compiled: str = ''  # why steps cannot be compiled, in a sentence; C may run them
    exploration: str = 'sample'  # C acts only with 'sample'
    exploration_moves: bool = False  # its options change with env steps: neither C nor a compiled program acts with it
    is_quiet: bool = False  # nothing is logged
    own_code: str = ''  # why C cannot run steps of zoo with the code that options put into them, in a sentence


def choose_executor(model: nn.Module, dist: ActionDist, device: torch.device, request: ExecutorRequest) -> Eager:
    """The named executor, or the fastest one that can run the policy: native, else graph if it pays, else eager.

    If C knows the model but not all components of its updates, C acts and the next executor takes the steps.
    Raises: UserError if the named executor cannot run the policy; it says why, and which one can.
    """
    request = request._replace(eager_only=request.eager_only or why_not('graph', StepParts(model)))
    wants_c = request.executor in ('auto', 'native')
    if wants_c:
        why_not_c = native.obstacle(model, dist, device)
    else:
        why_not_c = 'another executor is named'
    why_not_steps = request.eager_only or native.unknown_parts(request.components) or request.own_code
    problem = _problem(why_not_c or why_not_steps, device, request)
    if problem:
        raise UserError(problem)
    if not why_not_c and why_not_steps:
        is_compiled = not _why_not_compiled(model, device, request)
        if request.exploration == 'sample':
            what = 'acting runs'
        else:
            what = 'values are found'
        of_memory = ''
        if is_compiled:
            fallback = _graph(model, dist)
            how = 'compiled'
        else:
            fallback, of_memory = _eager(model, dist, device, request)
            how = 'eagerly'
        _say(request, f'{what} in C ({native.level()}), updates run {how}: {why_not_steps}{of_memory}')
        only_acts = bool(request.eager_only) or any(each.kind == 'option' for each in request.components)
        # an option may change any step
        return native.NativeExecutor(model, dist, fallback, only_acts, said=request.own_code)
    if not why_not_c:
        if request.exploration == 'sample':
            what = 'updates and acting'
        else:
            what = 'updates'
        _say(request, f"{what} run in zoo's C code, not in PyTorch (processor level {native.level()})")
        fallback, _ = _eager(model, dist, device, request)  # of steps that C does not have
        return native.NativeExecutor(model, dist, fallback, is_named=request.executor == 'native')
    is_missing = wants_c and why_not_c == native.missing()
    if is_missing and not request.is_quiet:
        logger.warning('nothing runs in C, which would be several times as fast: %s', why_not_c)
    why_not_compiled = _why_not_compiled(model, device, request)
    if not why_not_compiled:
        only_updates = device.type == 'cpu' or request.exploration_moves
        if only_updates:
            what = 'updates are'
        else:
            what = 'updates and acting are'
        _say(request, f'{what} compiled: the first update of each kind takes 3 to 16 s')
        return _graph(model, dist, is_named=request.executor == 'graph')
    executor, of_memory = _eager(model, dist, device, request)
    if request.executor == 'auto' and not is_missing:
        why = why_not_c
        if device.type != 'cpu':
            why = why_not_compiled
        _say(request, f'updates and acting run in PyTorch: {why}{of_memory}')
    return executor


def executor_label(executor: Eager) -> str:
    """The name of an executor, with the instruction set where results depend on it: 'eager', 'graph', 'native v4'.

    Eager steps with layers of memory in C have the name 'eager with memory v4'.
    """
    if executor.name == 'native':
        return f'{executor.name} {native.level()}'
    if executor.has_memory_in_c:
        return f'{executor.name} with memory {native.level()}'
    return executor.name


def env_compiler(request: ExecutorRequest, device: torch.device) -> Compile | None:
    """The compiler of the step of envs that are tensor programs; None: it runs uncompiled. A compiler that fails only warns."""
    if request.compile == 'off' or (request.compile == 'auto' and (not _is_long(request) or missing_compiler(device))):
        return None
    from zoo.backend.trace import compile_function

    return compile_function


def missing_compiler(device: torch.device) -> str:
    """Why functions cannot be compiled for a device; empty if they can."""
    if device.type != 'cpu':
        if find_spec('triton'):
            return ''
        return 'triton, which compiles for GPUs, is not installed'
    name = os.environ.get('CXX') or ({'darwin': 'clang++', 'win32': 'cl'}.get(sys.platform, 'g++'))  # as inductor looks
    if shutil.which(name):
        return ''
    return f'there is no C++ compiler {name!r} here; install one or name it in CXX'


def _problem(why_not_all_c: str, device: torch.device, request: ExecutorRequest) -> str:
    """Why the named executor cannot run the policy, and which one can, in a sentence; empty if it can, or none is named."""
    why_not_graph = request.eager_only or request.not_compiled
    if request.executor == 'native' and why_not_all_c:
        if why_not_graph:
            others = "'auto' or 'eager'"
        else:
            others = "'auto', 'eager' or 'graph'"
        return f"policy.learn.executor is 'native' but {why_not_all_c}; use {others}"
    if request.executor == 'graph' and why_not_graph:
        return f"policy.learn.executor is 'graph' but {why_not_graph}; use 'auto' or 'eager'"
    if request.executor == 'graph' and request.compile == 'off':
        return "policy.learn.executor is 'graph' but policy.learn.compile is 'off'; leave one of the two out"
    if request.executor == 'graph' and (missing := missing_compiler(device)):
        return f"policy.learn.executor is 'graph' but {missing}; use 'auto' or 'eager'"
    is_compiled = request.executor == 'auto' and request.compile == 'on' and why_not_all_c and not why_not_graph
    if is_compiled and (missing := missing_compiler(device)):
        return f"policy.learn.compile is 'on' but {missing}; use 'auto' or 'off'"
    return ''


def _is_long(request: ExecutorRequest) -> bool:
    return request.n_step is not None and request.n_step >= WORTH_STEPS


def _why_not_compiled(model: nn.Module, device: torch.device, request: ExecutorRequest) -> str:
    """Why updates are not compiled, as the end of a sentence; empty if they are."""
    if request.eager_only or request.not_compiled:
        return request.eager_only or request.not_compiled
    if request.executor == 'graph' or (request.executor == 'auto' and request.compile == 'on'):
        return ''
    if request.executor != 'auto' or request.compile == 'off':
        return 'it is asked for'
    if not _is_long(request):
        return f'the run has fewer than {WORTH_STEPS:,} gradient steps'
    if device.type == 'cpu' and any(isinstance(module, CONVOLUTIONS) for module in model.modules()):
        return 'the time goes into convolutions'
    return missing_compiler(device)


def _say(request: ExecutorRequest, line: str) -> None:
    if not request.is_quiet:
        logger.info('%s', line)


def _eager(model: nn.Module, dist: ActionDist, device: torch.device, request: ExecutorRequest) -> tuple[Eager, str]:
    """The executor of eager steps, and what to say of its layers of memory, which run in C where it has them."""
    is_asked = request.executor != 'eager' and device.type == 'cpu'
    is_float32 = all(each.name != 'policy.learn.precision' for each in request.components)
    # without this module no model has such a layer
    if is_asked and is_float32 and 'zoo.model.recurrent' in sys.modules:
        from zoo.backend.native.unroll import eager_with_memory

        with_memory = eager_with_memory(model, dist)
        if with_memory is not None:
            return with_memory, f'; its memory runs over sequences in C ({native.level()})'
    return Eager(model, dist), ''


def _graph(model: nn.Module, dist: ActionDist, is_named: bool = False) -> Eager:
    from zoo.backend.graph import GraphExecutor

    return GraphExecutor(model, dist, is_named)
