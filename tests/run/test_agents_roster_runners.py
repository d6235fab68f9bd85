"""Runs of several agents with runners: two runners end with the bits of two groups of envs in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import differing, job_config, rows
from zoo import SerialJob, serial_pipeline
from zoo.core.errors import UserError

NOT_EQUAL = ('time', 'cluster/', 'collect/lag_', 'memory/')
TWO = dict(
    policies=dict(one={}, two=dict(type='ppg', learn=dict(batch_size=32, aux_freq=2, aux_batch_size=64))),
    mapping={'a': 'one', '*': 'two'},
)


def always_one(obs: Any, mask: Any) -> list[int]:
    return [1] * len(obs)


def alternating(agent: str, episode: int, copy: int) -> str:
    return ['one', 'two'][(episode + copy) % 2] if agent == 'b' else 'two'


ACTORS = dict(
    policies=dict(one={}, chance='random', fixed=dict(type='function', act=f'{__name__}:always_one')),
    mapping={'a': 'one', 'b': 'chance', 'c': 'fixed'},
)
LSTM = dict(recurrent=dict(cell='lstm', hidden_size=4))
CHANCE = 'tests.agents.chance_env:Chance'
CASES: dict[str, Any] = {
    'one policy, agents that end': (CHANCE, {}, {}),
    'one policy in PyTorch, agents that all act': (
        'tests.agents.chance_env:Everlasting',
        dict(learn=dict(executor='eager')),
        {},
    ),
    'one policy, turns': ('tests.agents.envs:Rota', {}, {}),
    'a memory': (CHANCE, dict(model=LSTM), {}),
    'a central critic': (CHANCE, {}, dict(state='concat')),
    'two policies of two types': (CHANCE, {}, TWO),
    'random actions and a function': (CHANCE, {}, ACTORS),
    'a function maps agents': (CHANCE, {}, dict(policies=dict(one={}, two={}), mapping=f'{__name__}:alternating')),
    'actions of agents are counted': (CHANCE, dict(type='dqn', learn=dict(batch_size=32)), dict(count_by='agent')),
}


def config_of(root: Any, env: str, policy: Any, agents: Any) -> dict[str, Any]:
    """A run of three rounds or more."""
    max_env_step = 192
    if agents.get('count_by') == 'agent':
        max_env_step = 192 * 3
    config = job_config(
        root,
        'CartPole-v1',
        max_env_step=max_env_step,
        env=dict(id=env, collector_env_num=4, evaluator_env_num=2, vectorization='sync'),
        policy=dict(type='ppo', collect=dict(n_step=16), learn=dict(batch_size=32), eval=dict(n_episode=2)),
        agents=agents,
    )
    if 'type' in policy:  # its keys are its own
        config['policy']['learn'] = {}
        config['buffer'] = dict(n_sample=32)
    for name, part in policy.items():
        config['policy'][name] = config['policy'][name] | part if isinstance(part, dict) else part
    return config


def trained(config: dict[str, Any], root: Path, **sections: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The states of all policies after a run, and its log."""
    whole = config | {name: config.get(name, {}) | part for name, part in sections.items()}
    result = serial_pipeline(whole, run_dir=root)
    log = [{key: x for key, x in row.items() if not key.startswith(NOT_EQUAL)} for row in rows(result.run_dir)]
    return {name: policy.state_dict() for name, policy in result.policies.items()}, log


@pytest.mark.parametrize('case', CASES)
@pytest.mark.slow(ci=True)
def test_two_runners_end_with_the_bits_of_two_groups(case: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, *CASES[case])
    groups = trained(config, tmp_path / 'groups', env=dict(collector_group_num=2))
    runners = trained(config, tmp_path / 'runners', cluster=dict(runner_num=2, engine='inline'))
    assert not differing(groups[0], runners[0])
    assert groups[1] == runners[1]
    assert len([row for row in groups[1] if 'collect/agent_step' in row]) >= 2


@pytest.mark.long
def test_resumed_run_of_two_policies_continues_with_runners(tmp_path: Path) -> None:
    config = config_of(tmp_path, CHANCE, {}, TWO)
    ends = []
    for name, sections in (
        ('groups', dict(env=dict(collector_group_num=2))),
        ('runners', dict(cluster=dict(runner_num=2, engine='inline'))),
    ):
        trained(config, tmp_path / name, **sections)
        result = serial_pipeline(resume=tmp_path / name, max_env_step=384)
        assert result.env_step == 384
        ends.append({key: policy.state_dict() for key, policy in result.policies.items()})
    assert not differing(*ends)


def test_envs_of_a_lost_runner_begin_new_episodes(tmp_path: Path) -> None:
    """An agent of Clockwork earns 2 ** (3 t + i) in step t of its episode, so a reward tells the step."""
    config = config_of(tmp_path, 'tests.agents.envs:Clockwork', {}, {})
    config['env']['autoreset'] = 'same_step'
    with SerialJob(config | dict(cluster=dict(runner_num=2, engine='inline'))) as job:
        job.iteration()
        job.collector.source.engine.kill(1, 'a test')
        data = job.collector.collect_by_name()[''].data
        first = data['reward'][0].view(4, 3)[:, 0]  # of agent a in each copy, 2 ** (3 t)
        # 16 steps are 3 episodes of 5 and the step t = 0; copies 2 and 3 are those of runner 1
        assert first.tolist() == [2.0**3, 2.0**3, 1.0, 1.0]


@pytest.mark.long
def test_runners_of_other_processes_act_for_several_policies(tmp_path: Path) -> None:
    config = config_of(tmp_path, CHANCE, {}, dict(ACTORS, policies=dict(ACTORS['policies'], chance={})))
    groups = trained(config, tmp_path / 'groups', env=dict(collector_group_num=2))
    runners = trained(config, tmp_path / 'runners', cluster=dict(runner_num=2, engine='process'))
    assert not differing(groups[0], runners[0])
    assert groups[1] == runners[1]


def test_self_play_with_runners_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = config_of(tmp_path, 'tests.agents.envs:Rota', {}, dict(self_play={}))
    with pytest.raises(UserError, match='cluster.runner_num is 2 but agents.self_play is set'):
        serial_pipeline(config | dict(cluster=dict(runner_num=2, engine='inline')))
    assert not list(tmp_path.iterdir())
