"""How much a checkpoint may ask for: unusual sizes in its config need the user's consent, impossible ones are refused."""

from __future__ import annotations

import math
from collections.abc import Sequence

from zoo.run.checkpoint_file import CheckpointError
from zoo.run.memory import SAMPLE_KEYS, machine_memory, sample_bytes
from zoo.run.saved_run import SavedRun
from zoo.run.trust import Trust, leaf_values, overridden

MOST = {
    'collector_env_num': 1 << 16,
    'evaluator_env_num': 1 << 16,
    'max_episode_steps': 1 << 18,
    'window': 1 << 12,
    'stack_size': 1 << 12,
    'n_thread': 1 << 10,
    'n_step': 1 << 26,
    'n_sample': 1 << 26,
    'batch_size': 1 << 26,
    'aux_batch_size': 1 << 26,
    'critic_batch_size': 1 << 26,
    'size': 1 << 30,
    'len': 1 << 16,
    'epoch_per_collect': 1_000,
    'actor_epoch_per_collect': 1_000,
    'critic_epoch_per_collect': 1_000,
    'aux_train_epoch': 1_000,
    'aux_freq': 1 << 16,
    'aux_window': 1 << 16,
    'update_per_collect': 1 << 16,
}
"""Largest value of a key that a checkpoint may ask for: larger ones use up memory or time before a run has begun."""
MOST_PROCESSES = 1 << 10
"""The same for training envs with a process each."""


def check_sizes(run: SavedRun, sections: Sequence[str], trust: Trust = (), overrides: Sequence[str] = ()) -> None:
    """Checks that sections of a checkpoint's config ask for usual sizes, or that the user consents.

    Of keys that an override sets nothing is said.
    Raises: CheckpointError with the value, the limit and the key.
    """
    if trust is True:
        return
    replaced = overridden(overrides)
    for path, value in leaf_values({section: run.config[section] for section in sections}):
        is_kwarg = '.kwargs.' in path and path.startswith(('env.', 'policy.eval.'))
        most = math.inf if is_kwarg else MOST.get(path.rpartition('.')[2], math.inf)
        if path == 'env.collector_env_num' and run.config['env'].get('vectorization') == 'async':
            most = MOST_PROCESSES
        if path not in replaced and isinstance(value, int) and value > most:
            raise CheckpointError(
                run.path,
                f'asks for {path}={value}: more than {most} needs your consent; add --trust (in Python trust=True), or '
                f'another {path} where the command takes overrides',
            )


def check_memory(run: SavedRun, overrides: Sequence[str] = ()) -> None:
    """Checks that the samples of a run with a checkpoint's config fit into memory. Raises: CheckpointError."""
    replaced, n_byte, memory = overridden(overrides), sample_bytes(run.config, run.obs_space), machine_memory()
    if n_byte > memory and not replaced.intersection(SAMPLE_KEYS):
        raise CheckpointError(
            run.path,
            f'asks for {n_byte / 1e9:,.0f} GB of memory for samples but this machine has {memory / 1e9:,.0f} GB; '
            f'override one of {", ".join(SAMPLE_KEYS)}',
        )
