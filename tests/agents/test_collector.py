"""A run in an env of agents equals the run of the env itself, or of a vector of rows, bit for bit."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from zoo import load_policy, serial_pipeline
from zoo.run.checkpoint import load_checkpoint

PARALLEL = 'tests.agents.envs:CartPoleParallel'
TURNS = 'tests.agents.envs:CartPoleTurns'
ENVS = PARALLEL, TURNS


def train(root, env_id, policy, more=None, n_env_step=512, **env):
    more = more or {}
    section = dict(id=env_id, collector_env_num=4, evaluator_env_num=2, vectorization='sync') | env
    policy = dict(eval=dict(eval_freq=256, n_episode=2)) | policy
    logger = dict(root=str(root), console='off', tensorboard=False, freq=1)
    return serial_pipeline(
        dict(exp_name='x', max_env_step=n_env_step, env=section, logger=logger) | more | dict(policy=policy)
    )


def tensors(tree, path=()):
    """The tensors and numbers of a tree, by path."""
    if isinstance(tree, dict):
        return {name: x for key, part in tree.items() for name, x in tensors(part, (*path, key)).items()}
    return {path: tree}


def differences(a, b):
    """The paths at which two trees differ in any bit."""
    a, b = tensors(a), tensors(b)
    assert a.keys() == b.keys()
    return [path for path, x in a.items() if not is_equal(x, b[path])]


def is_equal(x, y):
    if isinstance(x, torch.Tensor):
        return torch.equal(x, y)
    if isinstance(x, np.ndarray):
        return np.array_equal(x, y)
    return x == y


def log_of(result):
    """The lines of metrics.jsonl without those of time and machine."""
    lines = [json.loads(line) for line in (result.run_dir / 'metrics.jsonl').read_text().splitlines()]
    return [{name: x for name, x in line.items() if name.split('/')[0] in GROUPS} for line in lines]


GROUPS = 'collect', 'learn', 'eval', 'env_step'


def assert_same_run(alone, agents):
    assert differences(alone.policy.state_dict(), agents.policy.state_dict()) == []
    for line, other in zip(log_of(alone), log_of(agents), strict=True):
        assert {name: other.get(name) for name in line} == line
    counters = [load_checkpoint(saved_end(result)).state['counter'] for result in (alone, agents)]
    for counter in counters:
        del counter['wall_s']
    assert counters[1].pop('agent_step') == counters[1]['env_step']
    assert counters[0] == counters[1]


def saved_end(result):
    """The last checkpoint of a run."""
    return max(
        (result.run_dir / 'checkpoints').glob('step_*.safetensors'), key=lambda path: int(path.stem.split('_')[1])
    )


POLICIES = {
    'native': dict(type='ppo', collect=dict(n_step=32), learn=dict(batch_size=32)),
    'eager': dict(type='ppo', collect=dict(n_step=32), learn=dict(batch_size=32, executor='eager')),
    'ppg': dict(type='ppg', collect=dict(n_step=32), learn=dict(batch_size=64, aux_freq=2, aux_batch_size=64)),
    'dqn': dict(type='dqn', collect=dict(n_step=8), learn=dict(batch_size=8)),
    'lstm': dict(
        type='ppo',
        collect=dict(n_step=32),
        learn=dict(batch_size=32),
        model=dict(recurrent=dict(cell='lstm', hidden_size=8)),
    ),
}


MORE = {'dqn': dict(buffer=dict(n_sample=32))}


@pytest.mark.long
@pytest.mark.parametrize('kind', POLICIES)
@pytest.mark.parametrize('env_id', ENVS)
def test_one_agent_is_the_run_of_the_env(env_id, kind, tmp_path):
    alone = train(tmp_path, 'CartPole-v1', POLICIES[kind], MORE.get(kind))
    agents = train(tmp_path, env_id, POLICIES[kind], MORE.get(kind))
    assert alone.last_return == agents.last_return
    assert_same_run(alone, agents)


WAYS = {
    'groups': dict(collector_group_num=2),
    'next_step': dict(autoreset='next_step'),
    'disabled': dict(autoreset='disabled'),
    'limit': dict(max_episode_steps=7),
    'reset_every': dict(reset_every=2),
}


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('env_id', ENVS)
@pytest.mark.slow(ci=True)
def test_one_agent_is_the_run_of_the_env_with_other_settings(env_id, way, tmp_path):
    runs = [train(tmp_path, name, POLICIES['native'], **WAYS[way]) for name in ('CartPole-v1', env_id)]
    assert_same_run(*runs)


@pytest.mark.long
@pytest.mark.slow(first=True)
@pytest.mark.parametrize('env_id', ENVS)
def test_one_agent_in_processes_is_the_run_of_the_env(env_id, tmp_path):
    way = dict(vectorization='async', collector_group_num=2)
    assert_same_run(*[train(tmp_path, name, POLICIES['native'], **way) for name in ('CartPole-v1', env_id)])


@pytest.mark.long
@pytest.mark.parametrize('kind', ['native', 'lstm', 'dqn'])
def test_resumed_run_of_one_agent_is_that_of_the_env(kind, tmp_path):
    ends = []
    for name in ('CartPole-v1', TURNS):
        half = train(tmp_path / name, name, POLICIES[kind], MORE.get(kind), n_env_step=256)
        ends.append(serial_pipeline(resume=half.run_dir, max_env_step=512))
    assert_same_run(*ends)


N_AGENT = 3


class Drift:
    """A walk of three agents, whose steps depend on where each is, and whose episode has the length that the first one takes."""

    def __init__(self) -> None:
        self.x = np.zeros(N_AGENT, np.float32)
        self.n_step = 0

    def obs(self, i: int) -> np.ndarray:
        return np.array([self.x[i], self.n_step / 10], np.float32)

    def step(self, actions: Any) -> tuple[np.ndarray, bool]:
        self.n_step += 1
        self.x += (2 * np.asarray(actions, np.float32) - 1) * np.sin(
            5 * self.x + np.arange(1, N_AGENT + 1, dtype=np.float32)
        )
        return -np.abs(self.x - 1), self.n_step == 6 + int(abs(self.x[0]))


class DriftAgents:
    """Three agents whose episodes end together."""

    metadata: dict[str, Any] = {}  # noqa: RUF012
    render_mode = None
    possible_agents = ['a', 'b', 'c']  # noqa: RUF012

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.task = Drift()
        self.agents = list(self.possible_agents)
        return self._each(self.task.obs), self._each(lambda i: {})

    def step(self, actions: dict[str, Any]) -> Any:
        reward, is_over = self.task.step([actions[agent] for agent in self.possible_agents])
        if is_over:
            self.agents = []
        terminated = self._each(lambda i: is_over)
        rewards = self._each(lambda i: float(reward[i]))
        return self._each(self.task.obs), rewards, terminated, self._each(lambda i: False), self._each(lambda i: {})

    def _each(self, value: Any) -> dict[str, Any]:
        return {agent: value(i) for i, agent in enumerate(self.possible_agents)}

    def close(self) -> None:
        pass


class DriftRows(gymnasium.vector.VectorEnv):
    """The same as rows of a vector env: copies with three rows each."""

    metadata = {'autoreset_mode': gymnasium.vector.AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.tasks = [Drift() for _ in range(-(-self.num_envs // N_AGENT))]
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        n = self.num_envs
        padded = np.zeros(len(self.tasks) * N_AGENT, np.int64)
        padded[:n] = actions
        results = [task.step(part) for task, part in zip(self.tasks, padded.reshape(-1, N_AGENT), strict=True)]
        final = self._obs()
        rewards = np.concatenate([reward for reward, _ in results])[:n]
        terminated = np.repeat([is_over for _, is_over in results], N_AGENT)[:n]
        for b, (_, is_over) in enumerate(results):
            if is_over:
                self.tasks[b] = Drift()
        info = {}
        if terminated.any():
            info = {'final_obs': _objects(final, terminated), '_final_obs': terminated}
        return self._obs(), rewards, terminated, np.zeros(n, bool), info

    def _obs(self) -> np.ndarray:
        rows = np.array([task.obs(i) for task in self.tasks for i in range(N_AGENT)], np.float32)
        return rows[: self.num_envs]


def _objects(final: np.ndarray, ended: np.ndarray) -> np.ndarray:
    found = np.full(len(final), None, dtype=object)
    for i in ended.nonzero()[0]:
        found[i] = final[i]
    return found


@pytest.mark.long
@pytest.mark.parametrize('kind', POLICIES)
def test_agents_of_one_policy_are_rows_of_a_vector_env(kind, tmp_path):
    policy = dict(POLICIES[kind], eval=dict(eval_freq=10_000, n_episode=1))
    if kind == 'dqn':  # else epsilon falls by env steps, of which a vector of rows has three times as many
        policy['collect'] = dict(n_step=8, eps=0.3)
    rows = train(
        tmp_path,
        DriftRows,
        policy,
        MORE.get(kind),
        n_env_step=12 * 128,
        collector_env_num=12,
        evaluator_env_num=3,
        vectorization='auto',
    )
    more = dict(MORE.get(kind, {}), agents=dict(id='off'))
    agents = train(tmp_path, DriftAgents, policy, more, n_env_step=4 * 128, collector_env_num=4)
    assert differences(rows.policy.state_dict()['model'], agents.policy.state_dict()['model']) == []


def test_policy_of_one_agent_loads_without_its_run(tmp_path):
    agents = train(tmp_path, TURNS, POLICIES['native'])
    assert differences(load_policy(agents.run_dir).state_dict()['model'], agents.policy.state_dict()['model']) == []


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('env_id', ['tests.agents.envs:Clockwork', 'tests.agents.envs:Rota'])
def test_agents_in_processes_act_as_in_one(env_id, tmp_path):
    """Agents that die, are born and wait, of two policies; two groups of copies take turns."""
    agents = dict(agents=dict(policies=dict(p={}, q={}), mapping={'a': 'p', '*': 'q'}))
    policy = dict(type='ppo', collect=dict(n_step=16), learn=dict(batch_size=32), model=dict(obs_norm=True))
    runs = [
        train(tmp_path, env_id, policy, agents, 256, vectorization=way, collector_group_num=2)
        for way in ('sync', 'async')
    ]
    states = [{name: policy.state_dict() for name, policy in run.policies.items()} for run in runs]
    assert list(states[0]) == ['p', 'q']
    assert differences(*states) == []
    assert log_of(runs[0]) == log_of(runs[1])
