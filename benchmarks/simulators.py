"""Env steps per second of training in a simulator written in JAX: zoo beside the PPO that comes with brax, on the same work.

    python benchmarks/simulators.py [--rounds 3] [--steps 400000] [--envs 256]

Both train brax's Ant (backend spring) with networks of 64, 64, rollouts of 20 steps in each env, 4 passes of minibatches of a
quarter of the rollout, observations normalised, and no evaluation in the time that counts. Each run is a process, zoo and brax
take turns, and the compiler's time is left out: zoo's rate is that between the first and the last line of its log, brax's that
of its last epoch. brax begins each episode of a copy where the copy's first one began, and zoo at a new start. gymnax comes with
no PPO; the row CartPole is zoo's rate alone. Needs the packages brax and gymnax in the Python that runs this.
Writes simulators.md and simulators.json into benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import HERE, REPO, RESULTS, machine, one_thread_env, table, today, versions, versions_line, write_json

N_STEP = 20
HIDDEN = (64, 64)


def zoo_rate(env_id: str, kwargs: dict[str, str], n_env: int, n_step: int) -> float:
    """Env steps per second of a run of zoo, after its first rollout."""
    from zoo import serial_pipeline

    with tempfile.TemporaryDirectory() as folder:
        result = serial_pipeline(
            dict(
                exp_name='simulator',
                max_env_step=n_step,
                env=dict(id=env_id, kwargs=kwargs, collector_env_num=n_env, check=False),
                policy=dict(
                    model=dict(obs_norm=True, hidden_sizes=list(HIDDEN)),
                    collect=dict(n_step=N_STEP),
                    learn=dict(epoch_per_collect=4, batch_size=n_env * N_STEP // 4),
                    eval=dict(eval_freq=10 * n_step, n_episode=1),
                ),
                logger=dict(root=folder, console='off', tensorboard=False),
            )
        )
        lines = [json.loads(line) for line in (Path(result.run_dir) / 'metrics.jsonl').read_text().splitlines()]
    rows = [(line['env_step'], line['wall_s']) for line in lines if 'learn/train_iter' in line]
    return (rows[-1][0] - rows[0][0]) / (rows[-1][1] - rows[0][1])


def _put_replicated(tree: Any, devices: Sequence[Any]) -> Any:
    """Each array of a tree with a first dimension of one row a device."""
    import jax

    return jax.tree.map(lambda x: jax.numpy.stack([x] * len(devices)), tree)


def brax_rate(n_env: int, n_step: int) -> float:
    """Env steps per second of a run of brax's PPO, in its last epoch."""
    import functools

    import jax
    from brax import envs
    from brax.training.agents.ppo import networks, train

    # brax 0.14.2 calls this function, and jax 0.10, which pip installs with it, has none
    if not hasattr(jax, 'device_put_replicated'):
        jax.device_put_replicated = _put_replicated
    rates = []
    train.train(
        environment=envs.get_environment('ant', backend='spring'),
        num_timesteps=n_step,
        episode_length=1000,
        num_envs=n_env,
        unroll_length=N_STEP,
        batch_size=n_env // 4,
        num_minibatches=4,
        num_updates_per_batch=4,
        normalize_observations=True,
        reward_scaling=0.1,
        num_evals=3,
        num_eval_envs=4,
        network_factory=functools.partial(
            networks.make_ppo_networks, policy_hidden_layer_sizes=HIDDEN, value_hidden_layer_sizes=HIDDEN
        ),
        progress_fn=lambda step, metrics: rates.append(metrics.get('training/sps')),
    )
    return float(rates[-1])


def in_process(what: str, args: argparse.Namespace) -> float:
    """The rate that a process of its own measures."""
    command = [sys.executable, __file__, '--one', what, '--steps', str(args.steps), '--envs', str(args.envs)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=one_thread_env(REPO, HERE), timeout=3600, check=False
    )
    if done.returncode:
        raise SystemExit(f'{what}: {done.stderr[-2000:]}')
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--steps', type=int, default=400_000)
    parser.add_argument('--envs', type=int, default=256)
    parser.add_argument('--one', choices=('zoo', 'brax', 'cartpole'), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one == 'zoo':
        print(zoo_rate('brax:ant', {'backend': 'spring'}, args.envs, args.steps))
    elif args.one == 'brax':
        print(brax_rate(args.envs, args.steps))
    elif args.one == 'cartpole':
        print(zoo_rate('gymnax:CartPole-v1', {}, args.envs, args.steps))
    else:
        report(args)


def report(args: argparse.Namespace) -> None:
    """Takes turns, and writes the table."""
    rates: dict[str, list[float]] = {'zoo': [], 'brax': [], 'cartpole': []}
    for _ in range(args.rounds):
        for what, found in rates.items():
            found.append(in_process(what, args))
            print(what, f'{found[-1]:,.0f}/s', flush=True)
    medians = {what: statistics.median(found) for what, found in rates.items()}
    ratio = medians['zoo'] / medians['brax']
    rows = [
        ['brax:ant', f'{medians["zoo"]:,.0f}', f'{medians["brax"]:,.0f}', f'{ratio:.2f}'],
        ['gymnax:CartPole-v1', f'{medians["cartpole"]:,.0f}', 'has no PPO', ''],
    ]
    found = versions(('torch', 'numpy', 'jax', 'brax', 'gymnax'))
    text = (
        '# Training in simulators written in JAX\n\n'
        f'Env steps per second with {args.envs} envs and {args.steps:,} env steps, medians of {args.rounds} processes that take '
        'turns; `python benchmarks/simulators.py` says what is equal.\n\n'
        f'{today()}, {machine()}; {versions_line(found)}.\n\n'
        + table(['env', 'zoo', "the package's own PPO", 'ratio'], rows)
        + '\n'
    )
    (RESULTS / 'simulators.md').write_text(text)
    write_json(RESULTS / 'simulators.json', {'rates': rates, 'envs': args.envs, 'steps': args.steps, 'versions': found})


if __name__ == '__main__':
    main()
