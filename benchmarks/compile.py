"""Gain of torch.compile on a CPU for code without a native version; writes benchmarks/results/compile.md and compile.json.

    python benchmarks/compile.py [--rows 64 256 1024] [--envs 8 4096] [--out PATH] [--quick]

Cases: updates and acting of a user's own model (two towers of 64-64, a plain nn.Module), and the step of the torch env
CartPole-v1; each eager and compiled. Each case runs in three processes of one thread: with an empty cache of compiled code,
then with the cache of the first process, then eager alone to measure its memory. Times are medians of rounds in which
eager and compiled take turns. --quick: one size and few rounds per case, into the temporary folder.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import Budget, Timed, wall_seconds
from torch import Tensor, nn

from report import (
    RESULTS,
    git_commit,
    last_json_line,
    machine,
    one_thread_env,
    table,
    today,
    versions,
    versions_line,
    write_json,
)
from zoo.backend.executor import Eager, ForwardActing, forward_for_acting
from zoo.backend.graph import GraphActing, GraphExecutor
from zoo.backend.step import LossSpec, StepNumbers, StepPlan
from zoo.backend.trace import compile_function
from zoo.env import EnvConfig, make_vector_env
from zoo.policy.ppo import ppo_step
from zoo.rl_utils import Categorical, FlatAdam

CPU = torch.device('cpu')
N_OBS, N_ACTION, N_STEP = 4, 2, 64
COLUMNS = (
    'what',
    'rows or envs',
    'eager, us',
    'compiled, us',
    'first call, nothing cached, s',
    'first call, cached, s',
    'peak memory more than eager, MB',
    'pays from',
)

log = logging.getLogger('compile')


class Towers(nn.Module):
    """An actor and a critic in the way a user may write them."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = self._tower(N_ACTION), self._tower(1)

    def _tower(self, n_out: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Linear(N_OBS, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, n_out)
        )  # fmt: skip

    def compute_actor(self, obs: Tensor) -> Tensor:
        return self.actor(obs)

    def compute_critic(self, obs: Tensor) -> Tensor:
        return self.critic(obs).squeeze(-1)

    def compute_actor_critic(self, obs: Tensor) -> dict[str, Tensor]:
        return {'logit': self.compute_actor(obs), 'value': self.compute_critic(obs)}


def updates(n_row: int) -> dict[str, Any]:
    """One pass over 16 minibatches of n_row samples, eager and compiled; n: calls to divide the time by."""
    torch.manual_seed(0)
    n, dist = 16 * n_row, Categorical(N_ACTION)
    columns = {'obs': torch.randn(n, N_OBS), 'action': torch.randint(N_ACTION, (n,))}
    columns |= {'logit': torch.randn(n, N_ACTION) * 0.1}
    columns |= {name: torch.randn(n) for name in ('value', 'adv', 'return_')}
    data = StepPlan(columns, torch.randperm(n)[None], n_row, CPU, normalize_adv=True)

    def make(kind: type[Eager]) -> Any:
        model = Towers()
        executor: Eager = kind(model, dist)
        optimizers = [FlatAdam(model.named_parameters(), lr=3e-4)]
        numbers = StepNumbers(entropy_weight=0.01)
        return lambda _: executor.run(ppo_step, optimizers, data, LossSpec(), numbers)

    return {'eager': make(Eager), 'compiled': make(GraphExecutor), 'n': 16}


def acting(n_env: int) -> dict[str, Any]:
    """Acting over 64 steps, eager and with the graph executor, which compiles acting only on a GPU."""
    torch.manual_seed(0)
    model, dist, obs = Towers(), Categorical(N_ACTION), torch.randn(N_STEP + 1, n_env, N_OBS)
    noise: list[Tensor] = []

    def draw(n: int) -> Tensor:
        return dist.noise((N_STEP, n), None, CPU)

    def forward(x: Tensor, state: Any) -> dict[str, Any]:
        if not noise:
            noise.extend(draw(n_env))
        output = forward_for_acting(model, x, with_value=False)
        return {'action': dist.sample(output['logit'], noise.pop()), **output}

    def rollout(each: Any, _: int) -> None:
        each.begin()
        for t in range(N_STEP):
            each.step(t)

    eager, compiled = ForwardActing(forward, obs), GraphActing(model, dist, obs, draw, has_value=False)
    return {'eager': partial(rollout, eager), 'compiled': partial(rollout, compiled), 'n': N_STEP}


def env_steps(n_env: int) -> dict[str, Any]:
    """64 steps of n_env CartPole-v1 envs, resets included, eager and compiled."""
    envs = [make_vector_env(EnvConfig(id='torch', game='CartPole-v1'), n_env) for _ in range(2)]
    envs[1].compile(compile_function)  # type: ignore[union-attr]
    actions = torch.randint(2, (N_STEP, n_env), generator=torch.Generator().manual_seed(0))

    def steps(env: Any, _: int) -> None:
        for action in actions:
            env.step(action)

    for env in envs:
        env.reset(0)
    return {'eager': partial(steps, envs[0]), 'compiled': partial(steps, envs[1]), 'n': N_STEP}


CASES = {'update': updates, 'acting': acting, 'env step': env_steps}


def child(args: argparse.Namespace) -> None:
    """Runs one case in this process; prints a JSON line: seconds of the first call, microseconds a step, peak memory in MB."""
    what, size, mode = args.child
    case = CASES[what](int(size))
    record: dict[str, Any] = {}
    with torch.set_grad_enabled(what == 'update'):
        case['eager'](0)
        if mode == 'eager':
            for i in range(20):
                case['eager'](i)
        else:
            start = time.perf_counter()
            case['compiled'](0)
            record['first_s'] = time.perf_counter() - start
        record['peak_mb'] = peak_mb()
        if mode == 'warm':
            budget = Budget(n_round=5 if args.quick else 61, total_s=1.0 if args.quick else 5.0)
            timed = {name: Timed(case[name]) for name in ('eager', 'compiled')}
            taken = wall_seconds(timed, CPU, budget)
            record |= {f'{name}_us': seconds / case['n'] * 1e6 for name, seconds in taken.items()}
    sys.stdout.write('\n' + json.dumps(record) + '\n')


def peak_mb() -> float:
    """Peak resident memory of this process, in MB."""
    lines = dict(line.split(':', 1) for line in Path('/proc/self/status').read_text().splitlines())
    return int(lines['VmHWM'].split()[0]) * 1024 / 1e6


def measure(what: str, size: int, args: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {'what': what, 'size': size}
    with tempfile.TemporaryDirectory(prefix='zoo_compile_') as cache:
        env = {**one_thread_env(), 'TORCHINDUCTOR_CACHE_DIR': cache}
        for mode in ('cold', 'warm', 'eager'):
            command = [sys.executable, __file__, '--child', what, str(size), mode, *(['--quick'] if args.quick else [])]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            record = last_json_line(done.stdout)
            if done.returncode or record is None:
                raise RuntimeError(f'{what} {size} {mode} ended with {done.returncode}:\n{done.stderr[-2000:]}')
            found |= {f'{mode}_{name}' if name in ('first_s', 'peak_mb') else name: x for name, x in record.items()}
    return found


def row(found: dict[str, Any]) -> list[str]:
    """One row of the table."""
    gain = found['eager_us'] - found['compiled_us']
    pays = f'{found["cold_first_s"] / gain * 1e6:,.0f} calls' if gain > 0 else 'never'
    return [
        found['what'],
        f'{found["size"]:,}',
        f'{found["eager_us"]:,.0f}',
        f'{found["compiled_us"]:,.0f}',
        f'{found["cold_first_s"]:.1f}',
        f'{found["warm_first_s"]:.1f}',
        f'{found["cold_peak_mb"] - found["eager_peak_mb"]:.0f}',
        pays,
    ]


def write_results(found: list[dict[str, Any]], out: Path, command: str) -> None:
    facts = {'machine': machine(), 'versions': versions(), 'date': today(), 'commit': git_commit(), 'command': command}
    text = (
        '# Compiling on a CPU, for what has no native code\n\n'
        "Executor 'graph' compiles the update of a model of a user's own; a torch env compiles its step. One thread. "
        'Times are for one minibatch, one step of acting, or one step of all envs; acting is shown for comparison: on '
        'a CPU it is not compiled. The first call traces and compiles; what it compiled is cached on disk for later '
        'runs. It pays from as many calls on as make up for the first call with nothing cached.\n\n'
        f'{table(COLUMNS, [row(each) for each in found])}\n'
        f'- machine: {facts["machine"]}\n'
        f'- versions: {versions_line(facts["versions"])}\n'
        f'- date: {facts["date"]}, commit {facts["commit"]}\n'
        f'- command: `{command}`; raw numbers: `{out.with_suffix(".json").name}`\n'
    )
    write_json(out.with_suffix('.json'), {**facts, 'results': found})
    out.write_text(text, encoding='utf-8')


def cases(args: argparse.Namespace) -> Iterator[tuple[str, int]]:
    yield from (('update', n) for n in args.rows)
    yield 'acting', 8
    yield from (('env step', n) for n in args.envs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rows', type=int, nargs='+', default=[64, 256, 1024])
    parser.add_argument('--envs', type=int, nargs='+', default=[8, 4096])
    parser.add_argument('--out', type=Path)
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--child', nargs=3, metavar=('WHAT', 'SIZE', 'MODE'), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        torch.set_num_threads(1)
        child(args)
        return
    logging.basicConfig(level=logging.INFO, format='%(message)s')
    if args.quick:
        args.rows, args.envs = args.rows[:1], args.envs[:1]
    out = args.out or (Path(tempfile.gettempdir()) if args.quick else RESULTS) / 'compile.md'
    found: list[dict[str, Any]] = []
    for what, size in cases(args):
        found.append(measure(what, size, args))
        log.info('%s', ' | '.join(row(found[-1])))
        write_results(found, out, ' '.join(['python benchmarks/compile.py', *sys.argv[1:]]))
    log.info('written: %s', out)


if __name__ == '__main__':
    main()
