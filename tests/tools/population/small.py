"""Small populations for tests: CartPole in rollouts of 64 env steps; envs and callbacks that fail where a test wants it."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np

from zoo.config.yaml_io import yaml_text
from zoo.run.checkpoint import State, load_checkpoint
from zoo.tools.population.population import Population

LR = 'policy.learn.learning_rate'
SPACES = [f'{LR}=log(1e-5,1e-1)', 'policy.learn.epoch_per_collect=int(1,3)']
MARK = 'POPULATION_TEST_MARK'
"""Environment variable with the path of a file: `Killer`s do nothing once it is there."""


def small(root: Path, env: str = 'CartPole-v1', **sections: Any) -> dict[str, Any]:
    """A config with rollouts of 64 env steps, of which a generation has one by default."""
    config: dict[str, Any] = dict(
        exp_name='small',
        max_env_step=640,
        env=dict(id=env, collector_env_num=4, evaluator_env_num=4, check=False),
        policy=dict(
            model=dict(hidden_sizes=[8]),
            learn=dict(batch_size=32, epoch_per_collect=2, learning_rate=1e-3),
            collect=dict(n_step=16),
            eval=dict(n_episode=10),
        ),
        logger=dict(root=str(root), tensorboard=False, console='off', freq=1),
    )
    return config | sections


def written(path: Path, config: dict[str, Any]) -> Path:
    path.write_text(yaml_text(config))
    return path


def final_states(population: Population) -> dict[str, State]:
    """The states of the members' newest checkpoints, without the seconds that they took, by life."""
    states = {}
    for member in population.members:
        state = load_checkpoint(member.run_dir).state
        state['counter'].pop('wall_s')
        states[member.life] = state
    return states


class Killer:
    """Kills the command once, with no warning, as kill -9 does."""

    def _kill(self, pid: int) -> None:
        mark = Path(os.environ[MARK])
        if not mark.exists():
            mark.touch()
            os.kill(pid, signal.SIGKILL)


class KillAfterGeneration(Killer):
    """Between the second generation and the selection that follows it."""

    def on_generation(self, population: Population, generation: int) -> None:
        if generation == 1:
            self._kill(os.getpid())


class KillInSelection(Killer):
    """After the first fork of the second selection, which is not in the lineage yet."""

    def on_fork(self, parent: Path, child: Path) -> None:
        if child.name.endswith('_g02'):
            self._kill(os.getpid())


class KillInStage(Killer):
    """A callback of runs: in the third generation of a member, after a round of it."""

    def on_update(self, job: Any, metrics: Any) -> None:
        if job.env_step > 300 and json.loads(job.run_dir.joinpath('result.json').read_text())['state'] == 'running':
            self._kill(os.getpid())


class FillDisk:
    """Fills the disk of a population that is small, when a generation is over or a child was forked; `event` says which."""

    event: ClassVar[str] = ''

    def on_generation(self, population: Population, generation: int) -> None:
        if self.event == 'on_generation':
            fill(population.folder)

    def on_fork(self, parent: Path, child: Path) -> None:
        if self.event == 'on_fork':
            fill(child.parents[1])


def fill(folder: Path) -> None:
    """Writes a file `filler` until the disk has no room, not even for the rest of a page."""
    with (folder / 'filler').open('ab', buffering=0) as file, suppress(OSError):
        while file.write(b'0' * 512):
            pass


class Odd(gymnasium.Wrapper):
    """CartPole that may raise an error."""

    def __init__(self, fault: str = 'none') -> None:
        super().__init__(gymnasium.make('CartPole-v1'))
        self._fault = fault

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        if self._fault == 'raises':
            raise ValueError('by hand')
        return obs, float(reward), terminated, truncated, info


class SameStart(gymnasium.Wrapper):
    """CartPole in which all episodes begin alike."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make('CartPole-v1'))

    def reset(self, **options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        return self.env.reset(**{**options, 'seed': 3})


class TwoPoles:
    """A parallel env of two agents with a CartPole each; an episode ends as soon as one of the poles falls."""

    metadata: ClassVar[dict[str, Any]] = {'name': 'two poles'}
    render_mode = None
    possible_agents: ClassVar[list[str]] = ['a', 'b']

    def __init__(self) -> None:
        self._envs = {agent: gymnasium.make('CartPole-v1') for agent in self.possible_agents}
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.Space:
        return self._envs[agent].observation_space

    def action_space(self, agent: str) -> gymnasium.Space:
        return self._envs[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        seeds = {'a': seed, 'b': None if seed is None else seed + 1}
        results = {agent: env.reset(seed=seeds[agent]) for agent, env in self._envs.items()}
        return {agent: obs for agent, (obs, _) in results.items()}, {agent: {} for agent in results}

    def step(self, actions: dict[str, Any]) -> Any:
        results = {agent: self._envs[agent].step(action) for agent, action in actions.items()}
        obs, rewards, terminated, truncated = ({agent: x[i] for agent, x in results.items()} for i in range(4))
        is_terminated = any(terminated.values())
        is_truncated = any(truncated.values())
        if is_terminated or is_truncated:
            self.agents = []
        ends = [dict.fromkeys(results, is_over) for is_over in (is_terminated, is_truncated)]
        return obs, rewards, *ends, {agent: {} for agent in results}

    def close(self) -> None:
        for env in self._envs.values():
            env.close()
