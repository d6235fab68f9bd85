"""Learner: a policy with its buffer and counters. A run has learners by name; the only one of a run with one policy is ''."""

from __future__ import annotations

import re
from typing import Any

from zoo.buffer.base import Batch, Buffer
from zoo.core.data import Metrics, Rollout, Sample
from zoo.core.seeding import stream
from zoo.policy.base import Policy
from zoo.policy.modes import LearnMode
from zoo.run.base_config import JobConfig

SINGLE = ''
"""Name of the learner of a run with one policy: its metrics and files have no name in front."""
NAME = re.compile(r'(?!rank_)[a-zA-Z][a-zA-Z0-9_-]{0,63}')
"""Names of the learners of a run with several policies; 'rank_1' would be the name of a file of samples."""


class Learner:
    """A policy with its buffer: takes the rollouts of its rows, and learns from them once a round.

    Args: cfg: the config of the run, with the sections `policy` and `buffer` of this learner; learns: whether rounds of
      updates train it; a frozen opponent only acts.
    Attributes: n_sample: samples with a weight above 0 in all its batches so far. More passes over a batch do not count
      again, more draws do. Once batches have had weights it is a tensor on their device: `int` waits for that device.
    Raises: ValueError for a name that cannot be part of a file's name.
    """

    def __init__(self, name: str, cfg: JobConfig, policy: Policy, buffer: Buffer, learns: bool = True) -> None:
        if name != SINGLE and not NAME.fullmatch(name):
            raise ValueError(
                f'a learner is named {name!r} but its name must begin with a letter, have only letters, digits, _ and -, '
                'at most 64 of them, and not begin with rank_'
            )
        self.name = name
        self.cfg = cfg
        self.policy = policy
        self.buffer = buffer
        self.learns = learns
        self.mode: LearnMode = policy.learn_mode
        self.n_sample: Any = 0
        self._get_train_sample = policy.collect_mode.get_train_sample

    @property
    def train_iter(self) -> int:
        """Gradient steps so far, one for each minibatch."""
        return self.mode.train_iter()

    def samples_of(self, rollout: Rollout) -> Sample:
        """The samples of a rollout of this policy, for `push`."""
        return self._get_train_sample(rollout)

    def push(self, samples: Sample) -> None:
        """Gives the samples of a rollout to the buffer."""
        self.buffer.push(samples)

    def keep(self) -> None:
        """Called before a rollout that overwrites another one, which was not learned from; a buffer need not have `keep`."""
        if hasattr(self.buffer, 'keep'):
            self.buffer.keep()

    def begin_update(self, env_step: int) -> None:
        """Sets the schedules of policy and buffer to an env step of the run; a buffer need not have any."""
        self.mode.set_env_step(env_step)
        if hasattr(self.buffer, 'set_env_step'):
            self.buffer.set_env_step(env_step)

    def learn(self, batch: Batch) -> Metrics:
        """Updates the policy from one batch of the buffer."""
        return self.mode.forward(batch)

    def metric(self, name: str) -> str:
        """The name of one of its metrics in the log, without the group's name: 'kl', or 'prey/kl'."""
        if self.name == SINGLE:
            return name
        return f'{self.name}/{name}'

    def named(self, metrics: Metrics) -> Metrics:
        """Metrics of its own by their names in the log, see `metric`."""
        if self.name == SINGLE:
            return metrics
        return {self.metric(name): value for name, value in metrics.items()}

    def state_dict(self, with_memory: bool) -> dict[str, Any]:
        """The state that a checkpoint has of it. Args: with_memory: with the memory of the auxiliary phase."""
        memory = {}
        if with_memory:
            memory = self.policy.memory_state_dict()
        return {'policy': self.policy.state_dict(), 'memory': memory, 'buffer': self.buffer.state_dict()}


def config_of_learner(cfg: JobConfig, name: str, **sections: Any) -> JobConfig:
    """The config of a run with other sections, for a learner that is not its first one, which has its own random numbers."""
    seed = int(stream(cfg.seed, 'learner', name).generate_state(1)[0])
    return cfg.model_copy(update={**sections, 'seed': seed})
