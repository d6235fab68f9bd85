"""One timed run of zoo PPO on matched work, through the parts that `serial_pipeline` is made of; no evaluation."""
from __future__ import annotations

import os
import tempfile
import time
from typing import Any

from _driver import N_EPISODE, emit, parse_args, peak_rss_mb

args = parse_args()

import torch  # noqa: E402  (the thread count has to be set first)

import zoo  # noqa: E402
from zoo.evaluator import evaluate  # noqa: E402
from zoo.job import resolve_config  # noqa: E402
from zoo.pipeline import SerialJob  # noqa: E402

NEVER = 10**12  # env steps: evaluation and checkpoints are outside the matched work


def matched_config() -> dict[str, Any]:
    return {
        'exp_name': 'bench_speed', 'seed': args.seed, 'max_env_step': args.total_steps,
        'env': {'id': args.env, 'collector_env_num': args.num_envs, 'vectorization': args.vectorization},
        'policy': {
            'type': 'ppo', 'device': 'cpu',
            'model': {'type': 'vac', 'hidden_sizes': [64, 64], 'activation': 'tanh', 'shared_encoder': False},
            'learn': {'epoch_per_collect': args.epochs, 'batch_size': args.minibatch, 'learning_rate': args.lr,
                      'value_weight': 0.5, 'entropy_weight': args.entropy, 'clip_ratio': 0.2, 'grad_clip': 0.5,
                      'adv_norm': 'minibatch', 'value_clip': False},
            'collect': {'n_step': args.rollout, 'discount_factor': 0.99, 'gae_lambda': 0.95},
            'eval': {'eval_freq': NEVER, 'stop_value': None},
        },
        'checkpoint': {'freq': NEVER},
        'logger': {'tensorboard': False, 'console': 'off'},
    }


def main() -> None:
    torch.set_num_threads(args.threads)
    job = SerialJob(resolve_config(matched_config()))
    startup_s, start = time.time() - args.started, time.perf_counter()
    while job.env_step < args.total_steps:
        job.iteration()
    wall_s, peak = time.perf_counter() - start, peak_rss_mb()
    evaluation = evaluate(job.policy, job.cfg.env, N_EPISODE, 1_000_000 + args.seed)
    job.close()
    emit(args, library='zoo', version=zoo.__version__, env_step=job.env_step, train_iter=job.train_iter,
         wall_s=round(wall_s, 4), startup_s=round(startup_s, 2), peak_rss_mb=peak,
         final_return=round(evaluation.return_mean, 1), final_return_std=round(evaluation.return_std, 1))


with tempfile.TemporaryDirectory() as folder:  # the run folder is part of the work, but nobody reads it
    os.chdir(folder)
    main()
