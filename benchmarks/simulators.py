"""Env steps per second of training in a simulator written in JAX: zoo beside the PPO that comes with brax, on the same work.

    python benchmarks/simulators.py [--rounds 3] [--steps 409600] [--envs 256] [--core 0]
    python benchmarks/simulators.py --memory gymnax:Pendulum-v1 brax:ant

Both train brax's Ant (backend spring), and for each rollout do the same:

- 20 steps in each env, episodes of 1,000 steps at most, no action repeated, observations normalised by running statistics;
- networks of 64, 64 with tanh for policy and value, a Gaussian with a free standard deviation;
- 4 passes of 4 minibatches, advantages normalised in each, Adam, gradients clipped to a norm of 0.5.

Three things differ by design. brax computes values and advantages again in each minibatch, zoo once for a rollout. brax begins
each episode of a copy where the copy's first one began, zoo at a new start. And brax runs a whole epoch of rollouts and updates
as one program, where zoo calls the env's program for each step and updates in C.

Each run is a process on one core, and zoo and brax take turns. The first quarter of the env steps, in which programs are
compiled, is left out of both rates. Nothing is evaluated in the time that counts: zoo's is that of its log, brax's the one that
it measures around its epochs. gymnax comes with no PPO; the row CartPole is zoo's rate alone.
Needs the packages brax and gymnax in the Python that runs this. Compiled programs are kept for the next rounds in a temporary
folder. Writes simulators.md and simulators.json into benchmarks/results.

--memory steps envs on the CPU, and says whether the arrays of JAX and the tensors of zoo have the same addresses, in both
directions: the program's results as they leave the vector env, and actions as they enter the program. It fails if any differ,
except for actions that are indices: those of 64 bits in torch become 32 in JAX.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
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
N_PART = 4  # of the env steps; the first part is left out


def zoo_rate(env_id: str, kwargs: dict[str, str], n_env: int, n_step: int) -> float:
    """Env steps per second of a run of zoo, after its first part."""
    from zoo import serial_pipeline

    with tempfile.TemporaryDirectory() as folder:
        result = serial_pipeline(
            dict(
                exp_name='simulator',
                max_env_step=n_step,
                env=dict(id=env_id, kwargs=kwargs, collector_env_num=n_env, check=False),
                policy=dict(
                    model=dict(obs_norm=True, hidden_sizes=list(HIDDEN)),
                    collect=dict(n_step=N_STEP, discount_factor=0.97),
                    learn=dict(epoch_per_collect=4, batch_size=n_env * N_STEP // 4, learning_rate=3e-4, grad_clip=0.5),
                    eval=dict(eval_freq=10 * n_step, n_episode=1),
                ),
                logger=dict(root=folder, console='off', tensorboard=False),
            )
        )
        lines = [json.loads(line) for line in (Path(result.run_dir) / 'metrics.jsonl').read_text().splitlines()]
    rows = [(line['env_step'], line['wall_s']) for line in lines if 'learn/train_iter' in line]
    return _rate([row for row in rows if row[0] >= n_step / N_PART])


def brax_rate(n_env: int, n_step: int) -> float:
    """Env steps per second of a run of brax's PPO, after its first part."""
    import jax
    from brax import envs
    from brax.training.agents.ppo import networks, train

    # brax 0.14.2 calls this function, and jax 0.10, which pip installs with it, has none
    if not hasattr(jax, 'device_put_replicated'):
        jax.device_put_replicated = _put_replicated
    rows: list[tuple[float, float]] = []
    train.train(
        environment=envs.get_environment('ant', backend='spring'),
        num_timesteps=n_step,
        episode_length=1000,
        action_repeat=1,
        num_envs=n_env,
        unroll_length=N_STEP,
        batch_size=n_env // 4,  # in rows of 20 steps
        num_minibatches=4,
        num_updates_per_batch=4,
        learning_rate=3e-4,
        discounting=0.97,
        max_grad_norm=0.5,
        normalize_observations=True,
        num_evals=N_PART + 1,
        run_evals=False,
        network_factory=functools.partial(
            networks.make_ppo_networks,
            policy_hidden_layer_sizes=HIDDEN,
            value_hidden_layer_sizes=HIDDEN,
            activation=jax.numpy.tanh,
            distribution_type='normal',
            noise_std_type='log',
        ),
        progress_fn=lambda step, metrics: rows.append((step, metrics['training/walltime'])),
    )
    return _rate(rows)


def shared_memory(env_id: str) -> dict[str, bool]:
    """Name of an array -> whether JAX and torch have it at the same address in a step of an env."""
    import jax
    import torch

    from zoo.env import Box, EnvConfig, make_vector_env

    envs: Any = make_vector_env(EnvConfig(id=env_id), 16)
    simulator = envs.simulator
    program, given = simulator.program, simulator.step
    calls: dict[str, Any] = {}

    def taken(action: torch.Tensor) -> Any:
        calls['action'] = action
        return given(action)

    def run(carry: Any, action: Any) -> Any:
        calls['taken'] = action
        carry, calls['out'] = program(carry, action)
        return carry, calls['out']

    simulator.step, simulator.program = taken, run
    envs.reset(0)
    dtype = torch.float32 if isinstance(envs.action_space, Box) else torch.int64  # as policies give them
    action = torch.zeros(16, *envs.action_space.shape, dtype=dtype)
    step = envs.step(action)
    shared = {'action': calls['taken'].unsafe_buffer_pointer() == calls['action'].data_ptr()}
    tensors = (step.obs, step.next_obs, step.reward, step.terminated, step.truncated)
    for name, arrays, value in zip(
        ('obs', 'next_obs', 'reward', 'terminated', 'truncated'), calls['out'], tensors, strict=True
    ):
        leaves = jax.tree.leaves(value)
        places = [array.unsafe_buffer_pointer() for array in jax.tree.leaves(arrays)]
        shared[name] = sorted(places) == sorted(leaf.data_ptr() for leaf in leaves)
    return shared


def show_memory(env_ids: Sequence[str]) -> None:
    """Prints a line for each env. Raises: SystemExit if any array was copied that need not be."""
    from zoo.env import Box, EnvConfig, make_vector_env

    is_good = True
    for env_id in env_ids:
        shared = shared_memory(env_id)
        print(env_id, *(f'{name}: {"same address" if same else "copied"}' for name, same in shared.items()), sep='  ')
        has_numbers = isinstance(make_vector_env(EnvConfig(id=env_id), 1).action_space, Box)
        is_good &= all(same for name, same in shared.items() if name != 'action' or has_numbers)
    if not is_good:
        raise SystemExit('an array was copied')


def _put_replicated(tree: Any, devices: Sequence[Any]) -> Any:
    """Each array of a tree with a first dimension of one row a device, on these devices.

    Without the sharding that an epoch returns, the second epoch would compile the program again.
    """
    import jax

    mesh = jax.sharding.Mesh(list(devices), ('i',))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec('i'))
    return jax.tree.map(lambda x: jax.device_put(jax.numpy.stack([x] * len(devices)), rows), tree)


def _rate(rows: Sequence[tuple[float, float]]) -> float:
    """Env steps per second. Args: rows: (env step, seconds), the first and the last of which count."""
    (first_step, first_s), (last_step, last_s) = rows[0], rows[-1]
    return (last_step - first_step) / (last_s - first_s)


def in_process(what: str, args: argparse.Namespace, cache: str) -> float:
    """The rate that a process of its own measures. Args: cache: folder for compiled programs."""
    command = [sys.executable, __file__, '--one', what]
    command += ['--steps', str(args.steps), '--envs', str(args.envs), '--core', str(args.core)]
    env = {**one_thread_env(REPO, HERE), 'JAX_COMPILATION_CACHE_DIR': cache}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=3600, check=False)
    if done.returncode:
        raise SystemExit(f'{what}: {done.stderr[-2000:]}')
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--steps', type=int, default=409_600)
    parser.add_argument('--envs', type=int, default=256)
    parser.add_argument('--core', type=int, default=0, help='the only core that a run may use')
    parser.add_argument('--memory', nargs='+', metavar='ENV', help='only compare addresses of these envs')
    parser.add_argument('--one', choices=('zoo', 'brax', 'cartpole'), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory:
        show_memory(args.memory)
        return
    if args.one is None:
        report(args)
        return
    os.sched_setaffinity(0, {args.core})  # before JAX starts its threads
    if args.one == 'zoo':
        rate = zoo_rate('brax:ant', {'backend': 'spring'}, args.envs, args.steps)
    elif args.one == 'brax':
        rate = brax_rate(args.envs, args.steps)
    else:
        rate = zoo_rate('gymnax:CartPole-v1', {}, args.envs, args.steps)
    print(rate)


def report(args: argparse.Namespace) -> None:
    """Takes turns, and writes the table."""
    rates: dict[str, list[float]] = {'zoo': [], 'brax': [], 'cartpole': []}
    with tempfile.TemporaryDirectory() as cache:
        for _ in range(args.rounds):
            for what, found in rates.items():
                found.append(in_process(what, args, cache))
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
        f'Env steps per second of one core with {args.envs} envs and {args.steps:,} env steps, medians of {args.rounds} processes '
        'that take turns; `python benchmarks/simulators.py` says what is equal.\n\n'
        f'{today()}, {machine()}; {versions_line(found)}.\n\n'
        + table(['env', 'zoo', "the package's own PPO", 'ratio'], rows)
        + '\n'
    )
    (RESULTS / 'simulators.md').write_text(text)
    write_json(RESULTS / 'simulators.json', {'rates': rates, 'envs': args.envs, 'steps': args.steps, 'versions': found})


if __name__ == '__main__':
    main()
