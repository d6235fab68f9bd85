"""Speed and numerical error of the losses and gae; writes benchmarks/results/kernels_<device>.md and .json.

    python benchmarks/kernels.py [--device auto] [-o PATH] [--quick] [--only OP ...] [--rows N ...] [--no-compile]

Measures first the copy bandwidth of the device; then, for every op at several sizes, its error against float64, its time, the
time of the reference (eager, and under torch.compile) and the floor, which is bytes over copy bandwidth; then the host's time
of a call; on a CPU also the same formulas written with torch.distributions. The files are rewritten after every case, so an
interrupted run keeps its results. --quick only shows, within seconds, that the script works: its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import logging
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from kernel_cases import (
    CPU_CASES,
    CUDA_CASES,
    FACTORS,
    Case,
    call_of,
    dist_of,
    gae_loop,
    in_float64,
    leaves_of,
    make,
    plain_policy_error,
    traffic,
    with_new_leaves,
)
from kernel_tables import write_results
from timing import Budget, Call, Timed, copy_bandwidth, device_seconds, graph_seconds, host_seconds, wall_seconds
from torch import Tensor

from report import git_commit, machine, results_folder, today, versions
from zoo.rl_utils import ActionDist, Categorical, FlatAdam, kernels, ppo_data, ppo_error, ppo_policy_error

PARTS = {op: '' for op in FACTORS}  # choices of --only
log = logging.getLogger('kernels')


class Setting(NamedTuple):
    """Settings of the whole run."""

    device: torch.device
    bandwidth: float  # bytes per second, read and written
    budget: Budget
    n_set: int | None  # input sets per case; None: enough to fill the cache twice
    compiles: bool

    @property
    def on_cuda(self) -> bool:
        return self.device.type == 'cuda'


class Variant(NamedTuple):
    """One way to compute an op, and the kernels.MODE it runs under."""

    run: Callable[[Any], tuple[Tensor, ...]]
    mode: str
    repeats_backward: bool = True  # False under torch.compile, which reuses the memory of saved tensors


@contextmanager
def forced(mode: str) -> Iterator[None]:
    """Context with kernels.MODE set to `mode`: 'auto', or '0' for the reference."""
    before, kernels.MODE = kernels.MODE, mode
    try:
        yield
    finally:
        kernels.MODE = before


def input_sets(case: Case, setting: Setting) -> list[Any]:
    """Different inputs of one case; on a GPU so many that together they are twice as large as its L2 cache."""
    n_set = setting.n_set
    if n_set is None:
        cache = torch.cuda.get_device_properties(setting.device).L2_cache_size if setting.on_cuda else 0
        n_set = min(max(math.ceil(2 * cache / traffic(case).least), 8 if not setting.on_cuda else 2), 1024)
    generator = torch.Generator(setting.device).manual_seed(0)
    return [make(case, generator) for _ in range(n_set)]


def variants(case: Case, data: Any, setting: Setting) -> tuple[dict[str, Variant], dict[str, str]]:
    """The variants that can be measured here, by name (kernel, reference, compiled, loop), and reasons for missing ones."""
    found, missing = {}, {}
    explained = kernels.explain(case.op, *data, dist=dist_of(case))
    if explained.startswith('kernel'):
        found['kernel'] = Variant(call_of(case), 'auto')
    else:
        missing['kernel'] = explained
    found['reference'] = Variant(call_of(case), '0')
    # a compilation takes some 20 s; a GPU has many cases, so only the interesting ones are compiled there
    if not setting.compiles or setting.on_cuda and (case.columns in (2, 4096) or case.dtype != torch.float32):
        missing['compiled'] = 'not run'
    else:
        torch.compiler.reset()
        compiled = Variant(torch.compile(call_of(case)), '0', repeats_backward=False)
        try:
            outcome(case, data, compiled)
            found['compiled'] = compiled
        except RuntimeError as error:  # the base class of all errors of torch.compile
            missing['compiled'] = f'does not compile: {str(error).splitlines()[0]}'
    if case.op == 'gae':
        found['loop'] = Variant(torch.no_grad()(gae_loop), '0')
    return found, missing


def outcome(case: Case, data: Any, variant: Variant) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Results of a variant and, for a loss, the gradients of their sum weighted by `FACTORS`."""
    with forced(variant.mode):
        results = variant.run(data)
        if not FACTORS[case.op]:
            return results, ()
        return results, torch.autograd.grad(results, leaves_of(data), factors(case, results))


def factors(case: Case, losses: Sequence[Tensor]) -> list[Tensor]:
    return [torch.full_like(loss, factor) for loss, factor in zip(losses, FACTORS[case.op], strict=True)]


def errors(case: Case, data: Any, found: dict[str, Variant]) -> dict[str, dict[str, float | None]]:
    """Largest distance of results and gradients to the reference in float64, by variant.

    gradient_relative: divided by the largest gradient, since gradients of a mean are of size 1/N. None without gradients.
    """
    results, grads = outcome(case, in_float64(data), Variant(call_of(case), '0'))
    largest = max((float(grad.abs().max()) for grad in grads), default=None)
    found_errors = {}
    for name, variant in found.items():
        ours, our_grads = outcome(case, data, variant)
        gradient = distance(our_grads, grads)
        found_errors[name] = {
            'result': distance(ours, results),
            'gradient': gradient,
            'gradient_relative': None if largest is None else gradient / largest,
        }
    return found_errors


def distance(ours: Sequence[Tensor], wanted: Sequence[Tensor]) -> float | None:
    """Largest absolute difference; None without tensors."""
    return max(
        (float((x.detach().double() - y.detach()).abs().max()) for x, y in zip(ours, wanted, strict=True)), default=None
    )


def calls(case: Case, sets: list[Any], variant: Variant) -> dict[str, Call]:
    """Pass ('forward', 'backward', 'both') -> call; for gae only 'forward'."""
    n, run = len(sets), variant.run
    if not FACTORS[case.op]:
        return {'forward': lambda i: run(sets[i % n])}
    leaves = [leaves_of(data) for data in sets]
    weights = factors(case, outcome(case, sets[0], variant)[0])
    passes: dict[str, Call] = {'forward': lambda i: run(sets[i % n])}
    if variant.repeats_backward:
        # the kept graphs get separate leaves: a leaf of a living graph is tied to that graph's stream, and 'both' could
        # not be captured on another stream with the same leaves
        kept = [with_new_leaves(data) for data in sets]
        kept_leaves = [leaves_of(data) for data in kept]
        with forced(variant.mode):
            losses = [run(data) for data in kept]
        passes['backward'] = lambda i: torch.autograd.grad(
            losses[i % n], kept_leaves[i % n], weights, retain_graph=True
        )
    return {**passes, 'both': lambda i: torch.autograd.grad(run(sets[i % n]), leaves[i % n], weights)}


def measure_case(case: Case, setting: Setting) -> list[dict[str, Any]]:
    """One record per pass; times in microseconds by variant."""
    log.info('%s %s %s', case.label, case.size, logit_dtype(case))
    sets = input_sets(case, setting)
    found, missing = variants(case, sets[0], setting)
    error, moved = errors(case, sets[0], found), traffic(case)
    by_variant = {name: calls(case, sets, variant) for name, variant in found.items()}
    floor = {'forward': moved.forward, 'backward': moved.backward, 'both': moved.least}
    n_byte = {'forward': moved.forward, 'backward': moved.backward, 'both': moved.forward + moved.backward}
    records = []
    for phase in by_variant['reference']:
        timed = {
            name: Timed(passes[phase], partial(forced, found[name].mode))
            for name, passes in by_variant.items()
            if phase in passes
        }
        record = {
            'op': case.label,
            'size': case.size,
            'logits': logit_dtype(case),
            'pass': phase,
            'missing': missing,
            'n_set': len(sets),
            'error': error,
            'floor_us': 1e6 * floor[phase] / setting.bandwidth,
            'bandwidth_us': 1e6 * n_byte[phase] / setting.bandwidth,
            'us': in_us(device_seconds(timed, setting.device, setting.budget)),
        }
        if setting.on_cuda and phase == list(by_variant['reference'])[-1]:
            record |= host_record(timed, setting, len(sets))
        records.append(record)
    return records


def host_record(timed: dict[str, Timed], setting: Setting, n_set: int) -> dict[str, Any]:
    """Times of the whole call (the last pass): wall clock, host alone, replay from a CUDA graph."""
    graph = {}
    for name in timed.keys() & {'kernel', 'reference'}:
        with timed[name].context():
            graph[name] = graph_seconds(timed[name].call, n_set)
    return {
        'host_us': in_us(host_seconds(timed, setting.device, setting.budget)),
        'wall_us': in_us(wall_seconds(timed, setting.device, setting.budget)),
        'graph_us': {name: x if isinstance(x, str) else 1e6 * x for name, x in graph.items()},
    }


def measure_host(case: Case, setting: Setting) -> dict[str, Any]:
    """On a CPU: time of the whole call for one row, which has almost no arithmetic."""
    case = case._replace(rows=1, columns=1 if case.op == 'gae' else case.columns)
    passes = calls(case, input_sets(case, setting), Variant(call_of(case), '0'))
    timed = {'reference': Timed(passes[list(passes)[-1]], partial(forced, '0'))}
    return {
        'op': case.label,
        'size': case.size,
        'logits': logit_dtype(case),
        'host_us': in_us(host_seconds(timed, setting.device, setting.budget)),
    }


def measure_plain(case: Case, setting: Setting) -> list[dict[str, Any]]:
    """On a CPU: time of the policy loss (forward and backward, no weights) and of the code that people usually write."""
    sets = [data._replace(weight=None) for data in input_sets(case, setting)]
    dist = dist_of(case)
    against = {
        'zoo': partial(ours, dist=dist),
        'validate_args by default': plain_policy_error,
        'validate_args=False': partial(plain_policy_error, validate_args=False),
    }
    leaves = [leaves_of(data) for data in sets]

    def gradient(run: Callable[[Any], tuple[Tensor, ...]], i: int) -> tuple[Tensor, ...]:
        policy_loss, entropy_loss, *_ = run(sets[i % len(sets)])
        return torch.autograd.grad(policy_loss - 0.01 * entropy_loss, leaves[i % len(sets)])

    for run in against.values():
        torch.testing.assert_close(run(sets[0]), ours(sets[0], dist), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradient(run, 0), gradient(against['zoo'], 0), rtol=1e-4, atol=1e-6)
    timed = {name: Timed(partial(gradient, run)) for name, run in against.items()}
    us = in_us(wall_seconds(timed, setting.device, setting.budget))
    library = f'torch.distributions.{"Normal" if case.gaussian else "Categorical"}'
    return [
        {
            'op': f'{case.label}, forward + backward',
            'size': case.size,
            'zoo_us': us['zoo'],
            'against': f'{library}, {name}',
            'us': us[name],
        }
        for name in list(against)[1:]
    ]


def ours(data: Any, dist: ActionDist | None) -> tuple[Tensor, ...]:
    losses, info = ppo_policy_error(data, dist=dist)
    return losses.policy_loss, losses.entropy_loss, *info


def minibatch_sync(device: torch.device) -> str:
    """Whether a PPO step (networks, loss, gradient, Adam) on a minibatch of 256 makes the host wait for the device."""
    if device.type != 'cuda':
        return 'not measured: no GPU'
    dist = Categorical(4)
    body = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh())
    model = torch.nn.ModuleList((body, dist.make_head(64, {}), torch.nn.Linear(64, 1))).to(device)
    optimizer = FlatAdam(model.named_parameters())
    normal = partial(torch.randn, device=device)
    obs, logit_old, action = normal(256, 8), normal(256, 4), torch.randint(4, (256,), device=device)
    value_old, adv, return_ = normal(3, 256).unbind(0)

    def step() -> None:
        feature = body(obs)
        logit, value = model[1](feature), model[2](feature).squeeze(-1)
        loss, _ = ppo_error(ppo_data(logit, logit_old, action, value, value_old, adv, return_), dist=dist)
        optimizer.zero_grad()
        (loss.policy_loss + 0.5 * loss.value_loss - 0.01 * loss.entropy_loss).backward()
        optimizer.step(0.5)

    for _ in range(3):
        step()
    torch.cuda.set_sync_debug_mode('error')
    try:
        step()
    except RuntimeError as error:
        return f'it waits: {str(error).splitlines()[0]}'
    finally:
        torch.cuda.set_sync_debug_mode('default')
    return 'none'


def in_us(seconds: dict[str, float]) -> dict[str, float]:
    return {name: 1e6 * x for name, x in seconds.items()}


def logit_dtype(case: Case) -> str:
    return str(case.dtype).removeprefix('torch.') if case.op in ('ppo_policy_error', 'ppg_joint_error') else '-'


def measure(cases: Sequence[Case], setting: Setting, facts: dict[str, Any], out: Path) -> None:
    """Measures all cases; writes the files again after each."""
    records: list[dict[str, Any]] = []
    host: list[dict[str, Any]] = []
    firsts = {case.label: case for case in reversed(cases)}  # the first size of each op
    # before anything compiles: torch.compile turns validate_args off for the whole process
    plain = [
        row
        for case in firsts.values()
        if case.op == 'ppo_policy_error' and not (setting.on_cuda or case.nvec or case.masked)
        for row in measure_plain(case, setting)
    ]
    for case in cases:
        new = measure_case(case, setting)
        records += new
        if setting.on_cuda:
            host.append(new[-1])
        elif case is firsts[case.label]:
            host.append(measure_host(case, setting))
            if case.op == 'gae':
                plain.append(
                    {
                        'op': case.label,
                        'size': case.size,
                        'zoo_us': new[0]['us']['reference'],
                        'against': 'loop over rows',
                        'us': new[0]['us']['loop'],
                    }
                )
        write_results(
            out,
            {
                **facts,
                'copy_bandwidth': setting.bandwidth,
                'on_cuda': setting.on_cuda,
                'records': records,
                'host': host,
                'plain': plain,
            },
        )


def chosen_cases(on_cuda: bool, quick: bool, only: Sequence[str], rows: Sequence[int] = ()) -> list[Case]:
    """The cases of a device. only: keep these ops; rows: keep these numbers of rows; quick: keep the first size of each op."""
    cases = [
        case
        for case in (CUDA_CASES if on_cuda else CPU_CASES)
        if (not only or case.op in only) and (not rows or case.rows in rows)
    ]
    return list({case.label: case for case in reversed(cases)}.values())[::-1] if quick else cases


def parse(argv: Sequence[str], program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(program, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', choices=('auto', 'cpu', 'cuda'), default='auto', help='auto: cuda if there is one')
    parser.add_argument('-o', '--out', type=Path, help='the .md file, or its folder; the .json is written next to it')
    parser.add_argument('--quick', action='store_true', help='one size per op, few rounds; into the temporary folder')
    parser.add_argument('--only', nargs='+', choices=PARTS, default=[], metavar='OP', help=', '.join(PARTS))
    parser.add_argument('--rows', nargs='+', type=int, default=[], metavar='N', help='only cases with so many rows')
    parser.add_argument('--no-compile', action='store_true', help='leave torch.compile out: it takes most of the time')
    args = parser.parse_args(argv)
    if args.device == 'cuda' and not torch.cuda.is_available():
        parser.error('--device is cuda but torch sees no CUDA device; use --device cpu')
    return args


def main(argv: Sequence[str] | None = None, program: str = 'python benchmarks/kernels.py') -> int:
    """Measures and writes. program: the command's name in the results."""
    argv = sys.argv[1:] if argv is None else argv
    args = parse(argv, program)
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    on_cuda = args.device != 'cpu' and torch.cuda.is_available()
    device = torch.device('cuda', torch.cuda.current_device()) if on_cuda else torch.device('cpu')
    if not on_cuda:
        torch.set_num_threads(1)
    name = torch.cuda.get_device_name(device) if on_cuda else 'CPU'
    slug = re.sub(r'[^a-z0-9]+', '_', name.lower()).strip('_')
    is_file = args.out is not None and args.out.suffix == '.md'
    out = args.out if is_file else results_folder(args.out, args.quick) / f'kernels_{slug}.md'
    bandwidth = copy_bandwidth(device, 2**24 if args.quick else 2**29, 3 if args.quick else 21)
    budget = Budget(n_round=3, round_s=1e-4, total_s=0.01) if args.quick else Budget()
    setting = Setting(device, bandwidth, budget, 2 if args.quick else None, not (args.quick or args.no_compile))
    facts = {
        'device': name,
        'machine': machine(),
        'versions': versions(('torch', 'triton', 'numpy')),
        'date': today(),
        'commit': git_commit(),
        'command': ' '.join([program, *argv]),
        'quick': args.quick,
        'minibatch_sync': minibatch_sync(device),
    }
    measure(chosen_cases(on_cuda, args.quick, args.only, args.rows), setting, facts, out)
    log.info('written: %s', out)
    return 0


if __name__ == '__main__':
    sys.exit(main())
