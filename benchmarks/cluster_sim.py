"""Simulated speed of up to 1,000 runners and 8 learners, from costs measured on this machine; writes cluster_sim.md.

    python benchmarks/cluster_sim.py [--iterations 200]

Measured here, in one process for each work: seconds of a rollout (mean and spread), a gradient step and packing the weights.
Measured with two processes: an all-reduce of the gradient over gloo. Assumed: the network (10 Gbit/s, .3 ms to request and
fetch a rollout), copies in memory at 5 GB/s, 32 cores a node, each as fast as this one. Simulated: the seconds of each rollout
are drawn from a gamma distribution with the measured mean and spread. The learner receives rollouts one after the other over
its one network card. It learns when all have arrived (lag 0), or during the next collection (lag 1).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from speed_works import PEERS_DIR

from report import RESULTS, git_commit, last_json_line, machine, one_thread_env, table, today, versions, versions_line

RUNNERS = (1, 4, 16, 64, 256, 1000)
WIRE, MEMORY = 1.25e9, 5e9  # bytes/s of 10 Gbit/s, and of a copy in memory
CALL_S = 0.3e-3  # the driver's time to send a request to a runner and take its reply
PER_NODE = 32  # runners on a node


class Work(NamedTuple):
    """One runner's rollouts (n_env envs x n_step steps) and the settings of the update. set: config overrides."""

    title: str
    env: str
    n_env: int
    n_step: int
    minibatch: int
    epochs: int
    set: tuple[str, ...] = ()


WORKS = (
    Work('CartPole-v1, towers 64-64', 'CartPole-v1', 8, 128, 256, 4, ('env.vectorization=sync',)),
    Work('HalfCheetah-v5, towers 64-64', 'HalfCheetah-v5', 8, 128, 256, 4, ('env.vectorization=sync',)),
    Work('an env of 2 ms, towers 64-64', 'SlowCartPole-v1', 8, 32, 64, 4, ('env.vectorization=sync',)),
)


class Measured(NamedTuple):
    """Costs of one work on this machine, in seconds and bytes."""

    collect_s: float  # mean of collecting a rollout
    spread: float  # standard deviation of collecting a rollout / its mean
    step_s: float  # a gradient step
    put_s: float  # packing the weights
    weight_bytes: int
    rollout_bytes: int
    all_reduce_s: float  # of the gradient, two processes


class Speed(NamedTuple):
    """Env steps/s with lag 0 and lag 1; limit: the slowest of learning, collecting and the network."""

    lag_0: float
    lag_1: float
    limit: str


def simulate(
    m: Measured, work: Work, n_runner: int, n_learner: int = 1, n_iteration: int = 200, seed: int = 0
) -> Speed:
    """Speed of n_runner runners, divided among n_learner learners that take every gradient step together."""
    rng = np.random.default_rng(seed)
    each = max(n_runner // n_learner, 1)
    shape = 1 / max(m.spread, 1e-3) ** 2
    collect = rng.gamma(shape, m.collect_s / shape, size=(n_iteration, n_learner, each))
    n_node = -(-each // PER_NODE)
    publish = m.put_s + m.weight_bytes * (1 + math.log2(max(n_node, 1))) / WIRE
    fetch = CALL_S + m.rollout_bytes / WIRE  # rollouts come one after the other: there is one network card
    copy = each * m.rollout_bytes / MEMORY
    order = np.sort(collect, axis=-1)
    arrive = order + publish
    done = np.zeros(arrive.shape[:-1])
    for i in range(each):  # a transfer starts when the rollout is ready and the card is free
        done = np.maximum(done, arrive[..., i]) + fetch
    rows = work.n_env * work.n_step * each
    n_step = work.epochs * max(rows // work.minibatch, 1)  # gradient steps of each learner
    learn = n_step * (m.step_s + (m.all_reduce_s * math.log2(n_learner) if n_learner > 1 else 0.0)) + copy
    slowest = done.max(axis=-1)  # learners wait for each other
    steps = rows * n_learner
    parts = {'learning': learn, 'collecting': float(collect.max(axis=(-2, -1)).mean()), 'the wire': each * fetch}
    return Speed(
        steps / float((slowest + learn).mean()),
        steps / float(np.maximum(slowest, learn).mean()),
        max(parts, key=lambda name: parts[name]),
    )


def measure(work: Work) -> Measured:
    """Measures one work in a child process, and the all-reduce of its gradient."""
    command = [sys.executable, str(Path(__file__)), '--measure', json.dumps(work._asdict())]
    path = os.pathsep.join((str(PEERS_DIR), one_thread_env()['PYTHONPATH']))
    done = subprocess.run(
        command, env={**one_thread_env(), 'PYTHONPATH': path}, capture_output=True, text=True, check=True
    )
    found = last_json_line(done.stdout)
    assert found is not None, done.stderr
    n_float = found['weight_bytes'] // 4
    return Measured(**found, all_reduce_s=all_reduce_s(n_float))


def measure_here(work: Work) -> dict[str, Any]:
    """Measures a work in this process: all of `Measured` but the all-reduce."""
    from zoo.cluster.messages import WeightLayout
    from zoo.run.config import resolve_config
    from zoo.run.job import SerialJob

    if work.env.startswith('Slow'):
        import slow_env  # noqa: F401
    torch.set_num_threads(1)
    policy = {
        'type': 'ppo',
        'model': {'type': 'vac', 'hidden_sizes': [64, 64], 'activation': 'tanh', 'shared_encoder': False},
        'learn': {'epoch_per_collect': work.epochs, 'batch_size': work.minibatch},
        'collect': {'n_step': work.n_step},
        'eval': {'eval_freq': 10**12},
    }
    env = {'id': work.env, 'collector_env_num': work.n_env}
    quiet = {'tensorboard': False, 'console': 'off'}
    with tempfile.TemporaryDirectory() as folder:
        config = {'env': env, 'policy': policy, 'logger': {**quiet, 'root': folder}, 'checkpoint': {'freq': 10**12}}
        job = SerialJob(resolve_config({**config, 'max_env_step': 10**9}, work.set))
        for _ in range(2):
            job.iteration()
        collect, learn, n_before = [], 0.0, job.train_iter
        for _ in range(20):
            start = time.perf_counter()
            job.collect_round()
            middle = time.perf_counter()
            job.learn_round()
            collect.append(middle - start)
            learn += time.perf_counter() - middle
        layout = WeightLayout(job.policy.acting_state())
        start = time.perf_counter()
        for _ in range(100):
            weights = layout.pack()
        put_s = (time.perf_counter() - start) / 100
        per_step = (learn / (job.train_iter - n_before)) if job.train_iter > n_before else 0.0
        n_obs = int(np.prod(job.policy.obs_space.shape))
        n_logit = job.policy.dist.n_param
        job.close()
    return {
        'collect_s': float(np.mean(collect)),
        'spread': float(np.std(collect) / np.mean(collect)),
        'step_s': per_step,
        'put_s': put_s,
        'weight_bytes': int(weights.nbytes),
        'rollout_bytes': work.n_env * work.n_step * (4 * (n_obs + n_logit + 2) + 8 + 3),
    }


def all_reduce_s(n: int) -> float:
    """Median seconds of an all-reduce of n floats between two processes, over gloo."""
    code = (
        'import os, sys, time, statistics, torch, torch.distributed as d\n'
        'd.init_process_group("gloo", rank=int(sys.argv[1]), world_size=2)\n'
        'x, found = torch.ones(int(sys.argv[2])), []\n'
        'for _ in range(200):\n'
        '    start = time.perf_counter(); d.all_reduce(x); found.append(time.perf_counter() - start); x.fill_(1)\n'
        'print(statistics.median(found))\n'
    )
    env = {**one_thread_env(), 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': '29533'}
    both = [
        subprocess.Popen([sys.executable, '-c', code, str(rank), str(n)], env=env, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    return max(float(process.communicate()[0]) for process in both)


def page(found: Sequence[tuple[Work, Measured]], n_iteration: int) -> str:
    """The Markdown report."""
    text = [
        '# How far runners and learners would carry',
        '',
        f'{machine()}; {versions_line(versions())}; commit {git_commit()}, {today()}.',
        f'Command: `python benchmarks/cluster_sim.py {" ".join(sys.argv[1:])}`'.replace(' `', '`'),
        '',
        '## Measured',
        '',
    ]
    rows = [
        [
            work.title,
            f'{m.collect_s * 1e3:.1f}',
            f'{m.spread:.2f}',
            f'{m.step_s * 1e3:.3f}',
            f'{m.put_s * 1e6:.0f}',
            f'{m.weight_bytes / 1e3:.0f}',
            f'{m.rollout_bytes / 1e3:.0f}',
            f'{m.all_reduce_s * 1e3:.2f}',
        ]
        for work, m in found
    ]
    columns = ['work (b envs x T of each runner)', 'rollout, ms', 'spread', 'gradient step, ms', 'pack weights, us']
    text += [table([*columns, 'weights, kB', 'rollout, kB', 'all-reduce, ms'], rows)]
    text += [
        '## Calculated',
        '',
        f'Env steps/s, lag 0 / lag 1, of {n_iteration} simulated rounds; assumed: 10 Gbit/s, {CALL_S * 1e3:g} ms a call,',
        f'{PER_NODE} runners a node. With 8 learners the runners are divided among them, and a gradient step is',
        'taken to cost what it does in C; as built it runs eagerly, which is several times as long.',
        '',
    ]
    rows = []
    for work, m in found:
        for n_learner in (1, 8):
            speeds = [simulate(m, work, n, n_learner, n_iteration) if n >= n_learner else None for n in RUNNERS]
            cells = ['' if s is None else f'{s.lag_0 / 1e3:,.1f}k / {s.lag_1 / 1e3:,.1f}k' for s in speeds]
            last = speeds[-1]
            rows.append(
                [f'{work.title}, {n_learner} learner{"s" if n_learner > 1 else ""}', *cells, last and last.limit]
            )
    text += [table(['', *(f'{n} runners' for n in RUNNERS), 'limit at 1,000'], rows)]
    return '\n'.join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split('\n', 1)[0])
    parser.add_argument('--iterations', type=int, default=200)
    parser.add_argument('--results', type=Path, default=RESULTS)
    parser.add_argument('--measure', help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure_here(Work(**json.loads(args.measure)))))
        return
    found = [(work, measure(work)) for work in WORKS]
    (args.results / 'cluster_sim.md').write_text(page(found, args.iterations), encoding='utf-8')


if __name__ == '__main__':
    main()
