"""Runs every kind of step, the forward function and acting at every instruction-set level, for a library built with sanitizers.

Usage: sweep.py FOLDER_OF_LIBRARY. `test_build.py` runs it with the sanitizers' runtime loaded first.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from tests.backend.native import reference
from zoo.backend.native import bindings
from zoo.backend.native.bindings import (
    ActingBlocks,
    Activation,
    CellKind,
    Dist,
    Input,
    Kind,
    Level,
    Output,
    StepSpec,
    Surrogate,
    ValueLoss,
)

Case = reference.Case

CASES = [
    Case(),
    Case(1, (1,), (1,), 1),
    Case(5, (33, 7), None, 5, activation=Activation.RELU, stop=True),
    Case(50, (24, 24), (9,), 19, input=Input.INDEX),
    Case(17, (31, 65), (64, 8), 6, Dist.GAUSSIAN),
    Case(7, (20,), (9,), 11, nvec=(3, 1, 7)),
    Case(11, (20,), None, 2, input=Input.BOOL),
    Case(6, (40,), None, 17, Dist.GAUSSIAN, state_std=True, input=Input.NORMALIZED),
    Case(7, (20,), (33,), 5, input=Input.INDEX, state=13),
    Case(18, (20,), (20,), 5, input=Input.BOOL, state=54),
]


LSTM, GRU, MINGRU = CellKind
RECURRENT = [
    Case(cells=((LSTM, 16),)),
    Case(5, (33, 7), None, 5, cells=((GRU, 32), (MINGRU, 16)), stop=True),
    Case(7, (20,), (9,), 11, nvec=(3, 1, 7), cells=((MINGRU, 48),), critic_cells=False),
    Case(50, (24,), (9,), 19, input=Input.INDEX, state=13, cells=((LSTM, 16), (GRU, 16))),
    Case(17, (31, 65), (64, 8), 6, Dist.GAUSSIAN, cells=((GRU, 80),)),
]
SHAPES = ((1, 1, 0), (3, 67, 5), (40, 16, 0), (19, 8, 21))  # sequences, steps of each, steps of the burn-in


def sweep_memory(lib: bindings.Library) -> None:
    """Runs each recurrent case with each kind of step on sequences of all shapes, in 2 threads; then outputs, values and acting."""
    for case in RECURRENT:
        net = reference.Net(case)
        is_masked = case.dist == Dist.CATEGORICAL
        for n, n_step, n_burn in SHAPES:
            batch = reference.sequences(case, n, n_step, n_burn, weighted=n > 1, mask=is_masked)
            for kind in Kind:
                index = torch.arange(n).repeat(2)
                metrics = lib.epoch(lib.workspace(), net.model, StepSpec(kind, True), batch, net.states, index, n, 2)
                assert metrics[:, 6].isfinite().all()
            for output in (Output.LOGIT, Output.VALUE, Output.LOGIT | Output.VALUE):
                lib.outputs(lib.workspace(), net.model, batch, output, 2)
        n_env, n_step = 5, 3
        batch = reference.sequences(case, n_env, n_step, mask=is_masked)
        obs = reference.each_entry(lambda x: x.transpose(0, 1).contiguous(), batch['obs'])
        first = reference.each_entry(lambda x: x[0], obs)
        lib.forward(lib.workspace(), net.model, first, Output.LOGIT | Output.VALUE, 2, state=batch['state'])
        action = torch.zeros((n_step, n_env, *net.model.action_shape), dtype=net.model.action_dtype)
        noise, logit = torch.randn(n_step, n_env, case.action), torch.zeros(n_step, n_env, net.model.n_logit)
        mask = batch['mask'].transpose(0, 1).contiguous() if is_masked else None
        now = batch['state']
        after = {name: torch.zeros(n_step, *x.shape) for name, x in now.items()}
        begins = [x.t().contiguous() for x in (batch['is_first'], ~batch['is_first'])]
        blocks = noise, action, logit, torch.zeros(n_step, n_env)
        rollout = ActingBlocks(net.model, obs, *blocks, mask, now, after, begins)
        workspace = lib.workspace()
        lib.act_begin(workspace, rollout)
        for t in range(n_step):
            lib.act(workspace, t)


def sweep(lib: bindings.Library) -> None:
    """Runs each case with each kind of step on odd numbers of rows, in up to 2 threads; then acts."""
    for case in CASES:
        net = reference.Net(case)
        is_masked = case.dist == Dist.CATEGORICAL
        batch = reference.rows(case, 403, weighted=True, mask=is_masked)
        mask = batch.get('mask')
        for n in (1, 67, 201, 403):
            for i, kind in enumerate((*Kind, *Kind)):  # 8 steps: each kind twice
                surrogate, value_loss = list(Surrogate)[i % 3], list(ValueLoss)[i * 3 % 4]
                step = StepSpec(kind, True, surrogate, value_loss=value_loss, dual_clip=2.0, kl_penalty=0.1)
                step = step._replace(entropy_weight=0.01)
                metrics = lib.epoch(lib.workspace(), net.model, step, batch, net.states, torch.arange(n), n, 2)
                assert metrics[0, 6].isfinite()
            some = None if mask is None else mask[:n]
            everything = Output.LOGIT | Output.VALUE | Output.AUX
            some_obs = reference.each_entry(lambda x: x[:n], batch['obs'])  # noqa: B023
            lib.forward(lib.workspace(), net.model, some_obs, everything, 2, some)
        obs = reference.each_entry(lambda x: x[:12].unflatten(0, (3, 4)), batch['obs'])
        action = torch.zeros((2, 4, *net.model.action_shape), dtype=net.model.action_dtype)
        value = torch.zeros(2, 4) if case.critic is None else None
        noise, logit = torch.randn(2, 4, case.action), torch.zeros(2, 4, net.model.n_logit)
        block = None if mask is None else mask[:12].unflatten(0, (3, 4))
        rollout = ActingBlocks(net.model, obs, noise, action, logit, value, block)
        workspace = lib.workspace()
        lib.act_begin(workspace, rollout)
        lib.act(workspace, 0)
        lib.act(workspace, 1)


if __name__ == '__main__':
    torch.set_num_threads(1)
    found, why = bindings.load(Path(sys.argv[1]))
    assert found is not None, why
    for level in Level:
        if found.set_level(level) == level:
            sweep(found)
            sweep_memory(found)
    sys.stdout.write('swept\n')
