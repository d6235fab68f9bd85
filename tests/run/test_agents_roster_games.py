"""Runs in small games whose best play is known."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.agents.envs import Referee
from zoo import SerialJob, serial_pipeline
from zoo.core.data import map_tensors
from zoo.run.checkpoint import load_checkpoint


def config_of(root, env_id, n_env_step, policy=None, agents=None, **env):
    policy = policy or {}
    defaults = dict(
        type='ppo',
        model=dict(hidden_sizes=[16]),
        collect=dict(n_step=16),
        learn=dict(batch_size=64, learning_rate=3e-3),
        eval=dict(eval_freq=1_000_000, n_episode=4),
    )
    return dict(
        max_env_step=n_env_step,
        logger=dict(root=str(root), console='off', tensorboard=False, freq=1),
        env=dict(id=f'tests.agents.envs:{env_id}', collector_env_num=16, evaluator_env_num=2, vectorization='sync')
        | env,
        policy=defaults | policy,
        agents=agents or {},
    )


def chances(policy: Any, obs: list[float]) -> list[float]:
    """The probabilities of the choices of a policy."""
    logit = policy.model.compute_actor(torch.tensor([obs]))
    return torch.softmax(logit, -1)[0].tolist()


TWO = dict(policies=dict(a={}, b={}))


@pytest.mark.long
def test_prisoners_defect(tmp_path):
    """To defect is dominant: 5 beats 3, and 1 beats 0."""
    result = serial_pipeline(config_of(tmp_path, 'PrisonersDilemma', 12_000, agents=TWO))
    for policy in result.policies.values():
        assert chances(policy, [0.0])[1] >= 0.99


@pytest.mark.long
def test_hunters_who_share_hunt_the_stag(tmp_path):
    """With the sum of both rewards: stag is 8 or 3, hare 3 or 4; the stag is better if the other hunts it with a chance above 1/6."""
    agents = dict(team='sum', id='off')
    result = serial_pipeline(config_of(tmp_path, 'StagHunt', 12_000, agents=agents))
    assert chances(result.policy, [0.0])[0] >= 0.95


@pytest.mark.long
def test_paper_beats_one_who_always_plays_rock(tmp_path):
    agents = dict(policies=dict(a={}, b=dict(type='function', act='tests.agents.envs:rock')))
    result = serial_pipeline(config_of(tmp_path, 'RockPaperScissors', 20_000, agents=agents))
    assert chances(result.policy, [0.0])[1] >= 0.95
    assert result.last_return == 1.0  # the score is that of the only policy that learns


def explained_variance(result: Any) -> float:
    """The mean of the last ten rounds in the log."""
    lines = [json.loads(line) for line in (result.run_dir / 'metrics.jsonl').read_text().splitlines()]
    values = [line['learn/explained_variance'] for line in lines if 'learn/explained_variance' in line]
    return sum(values[-10:]) / 10


@pytest.mark.long
def test_central_critic_knows_what_only_the_state_shows(tmp_path):
    """gamma is 0, so that the return of a step is its reward, 1 or -1, by the coin. Without it the best value is 0: nothing explained."""
    collect = dict(n_step=16, discount_factor=0.0)
    agents = dict(state='env')
    model = dict(hidden_sizes=[16], critic_obs=['state', 'obs', 'agent'], actor_obs=['obs', 'agent'])
    central = serial_pipeline(config_of(tmp_path, 'HiddenCoin', 20_000, dict(collect=collect, model=model), agents))
    assert explained_variance(central) >= 0.95
    blind = serial_pipeline(config_of(tmp_path, 'HiddenCoin', 20_000, dict(collect=collect)))
    # of 512 returns of a rollout the mean differs from 0 by chance, which no critic can know before: at most a little
    assert explained_variance(blind) <= 0.05


@pytest.mark.soak
@pytest.mark.parametrize('id', ['on', 'off'])
@pytest.mark.parametrize('env_id', ['tictactoe', 'connect_four'])
def test_no_move_is_illegal(env_id, id, tmp_path):
    """In training, and in evaluations whose actions are drawn or the likeliest."""
    pytest.importorskip('pettingzoo.classic')
    Referee.n_move = 0
    Referee.illegal.clear()
    for is_greedy in (True, False):
        policy = dict(collect=dict(n_step=32), learn=dict(batch_size=128))
        policy['eval'] = dict(eval_freq=2_048, n_episode=8, deterministic=is_greedy)
        serial_pipeline(config_of(tmp_path, env_id, 10_240, policy, dict(id=id), check=False))
    assert Referee.illegal == []
    assert Referee.n_move > 20_480


@pytest.mark.parametrize('frozen', ['ppo', 'dqn'])
def test_policy_that_is_not_trained_keeps_every_bit(frozen, tmp_path):
    """Its parameters, its statistics of observations, its buffer and its file."""
    still: dict[str, Any] = dict(type=frozen, model=dict(obs_norm=True, hidden_sizes=[8]))
    if frozen == 'dqn':
        still |= dict(buffer=dict(n_sample=32), learn=dict(batch_size=8))
    agents = dict(
        policies=dict(still=still, moves=dict(model=dict(obs_norm=True))),
        mapping={'a': 'still', '*': 'moves'},
        train=['moves'],
    )
    with SerialJob(config_of(tmp_path, 'Rota', 10_000, agents=agents)) as job:
        learner = job.learners['still']
        before = map_all(learner.state_dict(True))
        first = files(job.save())
        for _ in range(3):
            job.iteration()
        after = map_all(learner.state_dict(True))
        last = files(job.save())
    assert same(before, after)
    assert same(first['still']['policy'], last['still']['policy'])
    assert not same(first['moves']['policy'], last['moves']['policy'])
    assert learner.n_sample == 0
    assert learner.train_iter == 0


def files(path: Any) -> dict[str, Any]:
    """The states that the files of a checkpoint have of the two policies, of which the first is in the main file."""
    (other,) = path.parent.glob(f'{path.stem}.*.safetensors')
    return {'still': load_checkpoint(path).state, other.stem.rpartition('.')[2]: load_checkpoint(other).state}


def map_all(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: map_all(part) for name, part in tree.items()}
    return map_tensors(torch.clone, tree) if isinstance(tree, torch.Tensor) else tree


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(part, b[name]) for name, part in a.items())
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return bool(a == b)
