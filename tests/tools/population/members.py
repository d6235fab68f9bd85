"""Members of populations for tests: trained for two rollouts, in a folder of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo import load_policy, serial_pipeline
from zoo.policy.base import Policy
from zoo.run.base_config import JobConfig
from zoo.run.checkpoint import Checkpoint, State, load_checkpoint, save_checkpoint
from zoo.run.config import frozen_config, resolve_config
from zoo.tools.sweep.spaces import Space, split_spaces

ENVS = {'categorical': 'CartPole-v1', 'gaussian': 'Pendulum-v1'}
LR = 'policy.learn.learning_rate'


class TrainedMember(NamedTuple):
    """A member as mutations see it."""

    source: Any
    config: JobConfig
    spaces: Mapping[str, Space]
    checkpoint: Checkpoint

    def resolve(self, overrides: Sequence[str]) -> JobConfig:
        return frozen_config(resolve_config(self.source, overrides))


def config(folder: Path, policy: Mapping[str, Any], env: str = 'CartPole-v1') -> dict[str, Any]:
    """A config with rollouts of 256 env steps."""
    return dict(
        exp_name='member',
        max_env_step=512,
        env=dict(id=env, collector_env_num=4, evaluator_env_num=1),
        policy={**policy, 'collect': {'n_step': 64}, 'eval': {'eval_freq': 1_000, 'n_episode': 1}},
        logger=dict(root=str(folder), tensorboard=False, console='off'),
    )


def trained(source: dict[str, Any], texts: Sequence[str] = ()) -> TrainedMember:
    """Trains a config; texts: spaces."""
    result = serial_pipeline(source)
    return TrainedMember(
        source, frozen_config(resolve_config(source)), split_spaces(texts)[0], load_checkpoint(result.run_dir)
    )


def saved_child(member: TrainedMember, state: State, cfg: JobConfig, path: Path) -> Policy:
    """Writes the state of a child to a checkpoint, and loads its policy with all modes, with every check of a load."""
    save_checkpoint(path, state, {**member.checkpoint.meta, 'config': cfg.to_dict()})
    return load_policy(path, fields='all')
