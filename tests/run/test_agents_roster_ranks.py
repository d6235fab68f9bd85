"""Ranks of a run of several agents, here threads: they equal one process with the envs of all, and continue runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.policy_envs import flat, job_config, rows
from tests.thread_ranks import on_ranks
from zoo import SerialJob, load_policy
from zoo.core.errors import UserError
from zoo.core.ranks import ALONE, Ranks
from zoo.run.checkpoint import learner_file, load_checkpoint

N_COPY = 4
N_STEP = 16
TOLERANCE = 1e-6  # of any parameter or moment after an update: sums are in another order
SHARED: dict[str, Any] = {}
LSTM = dict(recurrent=dict(cell='lstm', hidden_size=4))
TWO = dict(
    policies=dict(
        one=dict(learn=dict(batch_size=N_COPY * N_STEP)),
        two=dict(
            type='ppg', learn=dict(batch_size=2 * N_COPY * N_STEP, aux_batch_size=4 * N_COPY * N_STEP, aux_freq=2)
        ),
    ),
    mapping={'a': 'one', '*': 'two'},
)
ACTORS = dict(policies=dict(one=TWO['policies']['one'], chance='random'), mapping={'a': 'one', '*': 'chance'})


def config_of(root: Any, env: str = 'Chance', model: Any = None, **agents: Any) -> dict[str, Any]:
    return job_config(
        root,
        'CartPole-v1',
        max_env_step=4 * N_COPY * N_STEP,
        env=dict(
            id=f'tests.agents.chance_env:{env}', collector_env_num=N_COPY, evaluator_env_num=2, vectorization='sync'
        ),
        policy=dict(
            type='ppo',
            model=dict(hidden_sizes=[8]) | (model or {}),
            learn=dict(batch_size=None, epoch_per_collect=3, executor='eager'),
            collect=dict(n_step=N_STEP),
            eval=dict(n_episode=4),
        ),
        agents=agents,
    )


def rounds(
    config: dict[str, Any], n: int, start: Path, ranks: Ranks = ALONE, run_dir: Path | None = None
) -> dict[str, Any]:
    """Continues a run for n rounds; returns the states of its policies, its counters, its checkpoint and an evaluation."""
    with SerialJob(config, checkpoint=load_checkpoint(start), ranks=ranks, run_dir=run_dir) as job:
        for _ in range(n):
            job.iteration()
        states = {name: flat(learner.policy.state_dict()) for name, learner in job.learners.items()}
        counts = job.env_step, job.collector.agent_step, [learner.n_sample for learner in job.learners.values()]
        return {'states': states, 'counts': counts, 'path': job.save(), 'evaluation': job.play_evaluation()}


def check_close(alone: dict[str, Any], ranks: list[dict[str, Any]], tolerance: float) -> None:
    """Asserts that two ranks have the same bits, and differ from one process by rounding only."""
    first, second = ranks
    assert alone['counts'] == first['counts'] == second['counts']
    for name, state in alone['states'].items():
        for path, x in state.items():
            values = [torch.as_tensor(each['states'][name][path]).double() for each in (first, second)]
            assert torch.equal(*values), (name, path)
            gap = (torch.as_tensor(x).double() - values[0]).abs()
            assert float(gap.max()) <= tolerance, (name, path)


def begun(config: dict[str, Any]) -> Path:
    """A checkpoint of step 0: threads must not make networks at the same time, since torch draws their parameters globally."""
    with SerialJob(config) as job:
        return job.save()


def in_groups(config: dict[str, Any]) -> dict[str, Any]:
    return {**config, 'env': {**config['env'], 'collector_group_num': 2}}


CASES = {
    'one policy, agents that end': ('Chance', None, SHARED),
    'one policy, agents that all act': ('Everlasting', None, SHARED),
    'one policy with a memory': ('Everlasting', dict(LSTM), SHARED),
    'a central critic': ('Chance', None, dict(state='concat')),
    'two policies of two types': ('Chance', None, TWO),
    'a policy and random actions': ('Chance', None, ACTORS),
}


@pytest.mark.parametrize('case', CASES)
@pytest.mark.slow(ci=True)
def test_two_ranks_equal_one_process_after_an_update(case: str, tmp_path: Path) -> None:
    env, model, agents = CASES[case]
    config = config_of(tmp_path, env, model, **agents)
    start = begun(config)
    alone = rounds(in_groups(config), 1, start, run_dir=tmp_path / 'alone')
    check_close(alone, on_ranks(lambda ranks: rounds(config, 1, start, ranks, tmp_path / 'ranks')), TOLERANCE)


def test_ranks_log_the_agents_of_all(tmp_path: Path) -> None:
    config = config_of(tmp_path, **TWO)
    start = begun(config)
    rounds(in_groups(config), 1, start, run_dir=tmp_path / 'alone')
    on_ranks(lambda ranks: rounds(config, 1, start, ranks, tmp_path / 'ranks'))
    alone, ranks = (rows(tmp_path / name)[-1] for name in ('alone', 'ranks'))
    names = [name for name in alone if name.startswith(('collect/', 'learn/one/sample', 'learn/two/sample'))]
    assert {
        'collect/agent_step',
        'collect/acted_share',
        'collect/two/return_mean',
        'collect/agent/c/return_mean',
    } <= set(names)
    names.remove('collect/reward_std')  # the mean of the ranks' own deviations
    for name in names:
        assert ranks[name] == pytest.approx(alone[name], rel=1e-5), name


def test_evaluation_of_ranks_is_that_of_all_episodes(tmp_path: Path) -> None:
    config = config_of(tmp_path, **TWO)
    start = begun(config)
    first, second = on_ranks(lambda ranks: rounds(config, 0, start, ranks, tmp_path / 'ranks'))
    evaluation = first['evaluation']
    assert evaluation == second['evaluation']
    assert {name: len(returns) for name, returns in evaluation.agents.items()} == {'a': 4, 'b': 4, 'c': 4}
    two = [(b + c) / 2 for b, c in zip(evaluation.agents['b'], evaluation.agents['c'], strict=True)]
    assert evaluation.learners['two'].returns == two


def first_copy_alone(agent: str, episode: int, copy: int) -> str:
    """Policy `one` plays a in the first copy of the env, and nothing else."""
    return 'one' if agent == 'a' and copy == 0 else 'two'


def test_copies_of_evaluations_are_numbered_over_all_ranks(tmp_path: Path) -> None:
    """4 episodes in 2 copies: in one process and on two ranks a belongs to `one` in the 2 of the first copy."""
    mapping = 'tests.run.test_agents_roster_ranks:first_copy_alone'
    config = config_of(tmp_path, policies=dict(one={}, two={}), mapping=mapping)
    start = begun(config)
    alone = rounds(config, 0, start, run_dir=tmp_path / 'alone')
    ranks = on_ranks(lambda ranks: rounds(config, 0, start, ranks, tmp_path / 'ranks'))
    for each in (alone, *ranks):
        learners = each['evaluation'].learners
        assert {name: len(evaluation.returns) for name, evaluation in learners.items()} == {'one': 2, 'two': 4}


@pytest.mark.long
def test_ranks_continue_with_the_memory_of_each(tmp_path: Path) -> None:
    """Round 2 ends with ppg's auxiliary phase, on the samples of both rounds."""
    config = config_of(tmp_path, **TWO)
    start = begun(config)
    alone = rounds(in_groups(config), 1, start, run_dir=tmp_path / 'alone')
    ranks = on_ranks(lambda ranks: rounds(config, 1, start, ranks, tmp_path / 'ranks'))
    alone = rounds(in_groups(config), 1, alone['path'], run_dir=tmp_path / 'alone_2')
    path = ranks[0]['path']
    # the first step of the auxiliary phase has a gradient of 0 but for rounding, which Adam scales to its learning rate
    check_close(alone, on_ranks(lambda ranks: rounds(config, 1, path, ranks, tmp_path / 'ranks_2')), 100 * TOLERANCE)


def test_checkpoint_of_ranks_continues_in_one_process(tmp_path: Path) -> None:
    config = config_of(tmp_path, **TWO)
    start = begun(config)
    path = on_ranks(lambda ranks: rounds(config, 1, start, ranks, tmp_path / 'ranks'))[0]['path']
    assert load_policy(learner_file(path, 'two')).cfg.type == 'ppg'
    assert rounds(config, 1, path, run_dir=tmp_path / 'alone')['counts'][0] == 2 * N_COPY * N_STEP


def test_actions_of_agents_of_all_ranks_are_counted(tmp_path: Path) -> None:
    config = config_of(tmp_path, 'Everlasting', count_by='agent')
    start = begun(config)
    found = on_ranks(lambda ranks: rounds(config, 1, start, ranks, tmp_path / 'ranks'))
    assert [each['counts'] for each in found] == [(192, 192, [192])] * 2  # 3 agents, 4 copies, 16 steps


def test_minibatch_of_a_policy_that_ranks_cannot_share_is_refused(tmp_path: Path) -> None:
    agents = dict(TWO, policies=dict(TWO['policies'], one=dict(learn=dict(batch_size=1, adv_norm='off'))))

    def refused(ranks: Ranks) -> str:
        with pytest.raises(UserError) as error:
            SerialJob(config_of(tmp_path, **agents), ranks=ranks)
        return str(error.value)

    sentence = "agents, policy 'one': policy.learn.batch_size is 1 but there are 2 ranks"
    assert [text for text in on_ranks(refused) if sentence not in text] == []
    assert not list(tmp_path.iterdir())


def test_self_play_on_ranks_is_refused(tmp_path: Path) -> None:
    def refused(ranks: Ranks) -> str:
        with pytest.raises(UserError) as error:
            SerialJob(config_of(tmp_path, self_play={}), ranks=ranks)
        return str(error.value)

    assert all('agents.self_play is set but several ranks train together' in text for text in on_ranks(refused))
    assert not list(tmp_path.iterdir())
