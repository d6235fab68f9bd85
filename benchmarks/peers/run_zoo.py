"""One timed run of zoo PPO with `SerialJob`, which `serial_pipeline` uses too; no evaluation during training."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from typing import Any

from _driver import Clock, emit, parse_args

args = parse_args()

import zoo  # noqa: E402  (the thread count has to be set first)
from zoo.run.config import resolve_config  # noqa: E402
from zoo.run.job import SerialJob  # noqa: E402
from zoo.worker.evaluator import evaluate  # noqa: E402

NEVER = 10**12  # env steps: no evaluation and no checkpoint, since the matched work has none
TOWERS = {'type': 'vac', 'hidden_sizes': [64, 64], 'activation': 'tanh', 'shared_encoder': False}
NATURE = {'type': 'vac', 'shared_encoder': True}
IN_TURNS = 'ZOO_BENCH_TURNS' in os.environ  # benchmarks/rounds.py starts each round


def matched_config() -> dict[str, Any]:
    env_id, _, game = args.env.partition('/')
    return {
        'exp_name': 'bench_speed',
        'seed': args.seed,
        'max_env_step': args.total_steps,
        'env': {
            'id': env_id,
            'game': game or None,
            'collector_env_num': args.num_envs,
            'kwargs': {'num_threads': args.threads} if args.image else {},
        },
        'policy': {
            'type': 'ppo',
            'device': args.device,
            'model': NATURE if args.image else TOWERS,
            'learn': {
                'epoch_per_collect': args.epochs,
                'batch_size': args.minibatch,
                'learning_rate': args.lr,
                'value_weight': 0.5,
                'entropy_weight': args.entropy,
                'clip_ratio': 0.2,
                'grad_clip': 0.5,
                'adv_norm': 'minibatch',
                'value_clip': False,
            },
            'collect': {'n_step': args.rollout, 'discount_factor': 0.99, 'gae_lambda': 0.95},
            'eval': {'eval_freq': NEVER, 'stop_value': None},
        },
        'checkpoint': {'freq': NEVER},
        'logger': {'tensorboard': False, 'console': 'off'},
    }


def train(job: SerialJob, clock: Clock) -> dict[str, Any]:
    """Trains; returns the seconds of the run's parts and of its iterations after the start of the clock."""
    clock.begin()
    for _ in range(args.warmup):
        job.iteration()
    clock.mark(job.env_step, job.train_iter)
    start, iterations = job.clocks(), []
    while job.env_step < args.total_steps and not 0 < args.seconds < clock.seconds:
        if IN_TURNS and not sys.stdin.readline():
            break  # no more rounds are wanted
        before = time.perf_counter()
        job.iteration()
        iterations.append(time.perf_counter() - before)
        if IN_TURNS:
            print(iterations[-1], flush=True)
    clock.mark(job.env_step, job.train_iter)
    parts = job.clocks().since(start).seconds
    return {
        'part_s': {name: round(seconds, 4) for name, seconds in parts.items()},
        'iteration_s': round(statistics.median(iterations), 5),
        'slowest_iteration_s': round(max(iterations), 5),
    }


def runners_ms(job: SerialJob) -> dict[str, Any]:
    """Milliseconds per rollout that runners cost the learner (medians over log lines); empty without runners."""
    lines = [json.loads(line) for line in (job.run_dir / 'metrics.jsonl').read_text().splitlines()]
    names = ('put', 'wait', 'join')
    found = {name: [line[f'cluster/{name}_s'] for line in lines if f'cluster/{name}_s' in line] for name in names}
    return {'cluster_ms': {name: 1e3 * statistics.median(x) for name, x in found.items() if x}}


def run(**ranks: Any) -> None:
    clock = Clock(args)
    job = SerialJob(resolve_config(matched_config(), args.set), **ranks)
    spent = train(job, clock) | runners_ms(job)
    returns = evaluate(job.policy, job.cfg.env, args.episodes, 1_000_000 + args.seed).returns if args.episodes else []
    job.close()
    if os.environ.get('RANK', '0') == '0':
        emit(args, clock, 'zoo', zoo.__version__, returns, overrides=args.set, **spent)


def main() -> None:
    if os.environ.get('WORLD_SIZE', '1') == '1':
        run()
        return
    from zoo.run.launch import launched

    with launched(resolve_config(matched_config(), args.set)) as launch:
        run(ranks=launch.ranks)


with tempfile.TemporaryDirectory() as folder:  # the run folder is part of the work, but nobody reads it
    os.chdir(folder)
    main()
