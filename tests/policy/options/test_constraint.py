"""Constraints: multipliers, costs of episodes and advantages of costs by hand; a task whose best feasible policy is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, differing, job_config, make_policy, rows
from tests.thread_ranks import on_ranks
from zoo.config.components import make_component
from zoo.core.data import Rollout
from zoo.core.errors import UserError
from zoo.core.ranks import Ranks, RunInfo
from zoo.core.registry import CONSTRAINT_REGISTRY, POLICY_REGISTRY
from zoo.pipeline import serial_pipeline
from zoo.policy.config import ConstraintConfig
from zoo.policy.options.constraint import CostLearner
from zoo.run.config import resolve_config, resolve_policy
from zoo.run.policy_file import load_policy

SMALL = {'hidden_sizes': [8], 'critic_batch_size': 8}


class TwoArms(gymnasium.Env):
    """One step: action 1 pays 1 and costs 1, action 0 pays 0.2 and costs 0."""

    observation_space = Box(-1.0, 1.0, (1,), np.float32)
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = 1.0 if action == 1 else 0.2
        return np.zeros(1, np.float32), reward, True, False, {'cost': float(action == 1)}


def rule(kind: str, **options: Any) -> Any:
    return make_component(
        CONSTRAINT_REGISTRY, {'type': kind, 'limits': {'cost': 1.0}, **options}, common=ConstraintConfig
    )


def policy_with(limits: dict[str, float], kind: str = 'lagrange', ranks: Ranks | None = None, **options: Any) -> Any:
    learn = {'constraint': {'type': kind, 'limits': limits, **SMALL, **options}}
    if ranks is None:
        return make_policy(ONE_NUMBER, TWO_ACTIONS, learn=learn)
    cfg = resolve_policy({'model': {'hidden_sizes': [8]}, 'learn': learn})
    return POLICY_REGISTRY.get('ppo')(cfg, ONE_NUMBER, TWO_ACTIONS, run=RunInfo(ranks=ranks))


def rollout_of(ends: Any, **infos: Any) -> Rollout:
    """A rollout of episodes that end where `ends` [T, B] says, with columns of infos."""
    end = torch.tensor(ends)
    shape = (*end.shape, 1)
    data: Any = {'obs': torch.zeros(shape), 'done': end, 'traj_flag': end}
    data |= {f'info/{name}': torch.tensor(x) for name, x in infos.items()}
    last = torch.zeros(shape[1:])
    return Rollout(data, last, last[:0], torch.zeros(0, 2, dtype=torch.int64))


def follow(policy: Any, rollout: Rollout) -> tuple[list[float], list[float]]:
    """Lambda and the mean costs of episodes after a rollout."""
    (option,) = policy.options
    option.add_columns(rollout, None)
    state = option.state_dict()['constraint']
    return state['lambda'], state['episode_cost']


# --- multipliers ---


def test_lagrange_with_sgd_worked_by_hand_never_falls_below_0() -> None:
    lagrange = rule('lagrange', optimizer='sgd', learning_rate=0.1, initial=0.2)
    assert lagrange.start(2) == [0.2, 0.2]
    assert lagrange.update([5.0, -3.0], [6.0, 0.0]) == pytest.approx([0.7, 0.0])  # .2 + .1 * 5; .2 - .3 < 0
    assert lagrange.update([-1.0, 1.0], [0.0, 4.0]) == pytest.approx([0.6, 0.1])


def test_lagrange_with_adam_worked_by_hand_moves_by_about_the_rate_in_any_unit() -> None:
    lagrange = rule('lagrange', learning_rate=0.05, initial=1.0)
    lagrange.start(2)
    assert lagrange.update([3.0, 300.0], [0.0, 0.0]) == pytest.approx(
        [1.05, 1.05]
    )  # the first step of Adam is the rate
    # m = .9 * .3 - .1 = .17, over 1 - .81 = .19; v = .999 * .009 + .001 = .009991, over 1 - .998001 = .001999
    # .894737 / sqrt(4.997999) = .400217, times .05 = .020011
    assert lagrange.update([-1.0, -100.0], [0.0, 0.0]) == pytest.approx([1.070011, 1.070011], abs=1e-6)


def test_pid_worked_by_hand() -> None:
    pid = rule('pid', kp=0.5, ki=0.1, kd=0.2)
    assert pid.start(1) == [0.0]
    assert pid.update([2.0], [3.0]) == pytest.approx([1.2])  # .5 * 2 + .1 * 2 + no rise
    assert pid.update([4.0], [5.0]) == pytest.approx([3.0])  # .5 * 4 + (.2 + .4) + .2 * 2
    assert pid.update([-1.0], [0.0]) == pytest.approx([0.0])  # -.5 + .5; costs fall: no derivative
    assert pid.update([-9.0], [0.0]) == [0.0]


def test_pid_smoothing_weighs_the_past() -> None:
    pid = rule('pid', kp=1.0, ki=0.0, kd=1.0, smoothing=0.75)
    pid.start(1)
    pid.update([4.0], [4.0])
    assert pid.update([8.0], [8.0]) == pytest.approx([6.0])  # .75 * 4 + .25 * 8 = 5; costs rose from 4 to 5: + 1


@pytest.mark.parametrize('kind', ['lagrange', 'pid'])
def test_multipliers_are_bounded_and_go_on_from_their_state(kind: str) -> None:
    first, second = (rule(kind, max_lambda=0.3, initial=0.1) for _ in range(2))
    first.start(1)
    second.start(1)
    first.update([0.4], [1.4])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert first.update([0.3], [1.3]) == second.update([0.3], [1.3])
    for _ in range(50):
        found = first.update([9.0], [10.0])
    assert found == [0.3]


# --- costs of episodes ---


def test_costs_of_episodes_worked_by_hand_continue_in_the_next_rollout() -> None:
    policy = policy_with({'cost': 2.0}, optimizer='sgd', learning_rate=0.5)
    no, yes = False, True
    # env 0 ends after costs 1 + 2 = 3, env 1 continues with 4 + 0 + 1 = 5, env 0 with 1
    first = rollout_of([[no, no], [yes, no], [no, no]], cost=[[1.0, 4.0], [2.0, 0.0], [1.0, 1.0]])
    assert follow(policy, first) == ([0.5], [3.0])  # .5 * (3 - 2)
    # env 0 ends with 1 + 3 = 4, env 1 with 5 + 1 = 6: mean 5; .5 + .5 * (5 - 2) = 2
    second = rollout_of([[yes, no], [no, yes]], cost=[[3.0, 1.0], [0.0, 0.0]])
    assert follow(policy, second) == ([2.0], [5.0])


def test_rollout_without_an_end_leaves_lambda() -> None:
    policy = policy_with({'cost': 2.0}, initial=0.5)
    assert follow(policy, rollout_of([[False]], cost=[[9.0]])) == ([0.5], [None])


def test_missing_costs_and_rows_that_only_reset_cost_nothing() -> None:
    policy = policy_with({'cost': 1.0}, optimizer='sgd', learning_rate=1.0)
    rollout = rollout_of([[False], [True], [False], [True]], cost=[[float('nan')], [3.0], [7.0], [1.0]])
    rollout.data['is_reset'] = torch.tensor([[False], [False], [True], [False]])
    assert follow(policy, rollout) == ([1.0], [2.0])  # episodes of 3 and 1: mean 2


def test_episodes_that_were_lost_are_forgotten() -> None:
    policy = policy_with({'cost': 0.0}, optimizer='sgd', learning_rate=1.0)
    follow(policy, rollout_of([[False, False]], cost=[[8.0, 2.0]]))
    policy.collect_mode.forget(slice(0, 1))
    assert follow(policy, rollout_of([[True, True]], cost=[[1.0, 1.0]]))[1] == [2.0]  # 1 and 2 + 1
    follow(policy, rollout_of([[False, False]], cost=[[8.0, 2.0]]))
    policy.collect_mode.reset()
    assert follow(policy, rollout_of([[True, True]], cost=[[1.0, 1.0]]))[1] == [1.0]


def test_ranks_follow_the_mean_cost_of_all_their_episodes() -> None:
    def lambda_on(ranks: Ranks) -> Any:
        policy = policy_with({'cost': 1.0}, ranks=ranks, optimizer='sgd', learning_rate=1.0)
        ends = [[[True], [True], [True]], [[False], [False], [True]]][ranks.rank]
        return follow(policy, rollout_of(ends, cost=[[2.0], [2.0], [2.0]]))

    # rank 0 has three episodes of 2, rank 1 one of 6: 12 / 4 = 3, and 3 - 1 = 2; the mean of the means would be 4
    assert on_ranks(lambda_on) == [([2.0], [3.0])] * 2


# --- advantages ---


def test_advantage_of_costs_worked_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    cfg: Any = ConstraintConfig(limits={'a': 1.0, 'b': 1.0}, discount_factor=0.5, gae_lambda=1.0, **SMALL)
    learner = CostLearner(cfg, None, ONE_NUMBER, torch.device('cpu'), 0, Ranks())
    monkeypatch.setattr(learner, 'value', lambda obs: torch.tensor([2.0, 0.0]).expand(len(obs), 2))
    rollout = rollout_of([[False], [True], [False]])
    costs = torch.tensor([[[1.0], [3.0], [4.0]], [[0.0], [8.0], [0.0]]])
    # a, V = 2: 4 + .5 * 2 - 2 = 3; 3 - 2 = 1 (terminal); 1 + .5 * 2 - 2 + .5 * 1 = .5
    # b, V = 0: 0; 8; 0 + .5 * 8 = 4
    assert learner.advantage(rollout, costs).squeeze(1).tolist() == [[0.5, 4.0], [1.0, 8.0], [3.0, 0.0]]


def test_advantage_of_rewards_and_costs_worked_by_hand() -> None:
    (option,) = policy_with({'a': 1.0, 'b': 1.0}, initial=0.5).options
    columns = {'adv': torch.tensor([2.0, -1.0]), 'cost_adv': torch.tensor([[1.0, 3.0], [-2.0, 0.0]])}
    assert option.advantage(columns).tolist() == [0.0, 0.0]  # (2 - .5 * 4) / 2; (-1 + .5 * 2) / 2
    columns['cost_adv'] = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    assert option.advantage(columns).tolist() == [0.5, -0.5]


def test_critic_of_costs_learns_the_costs_that_follow() -> None:
    policy = policy_with(
        {'cost': 1.0}, discount_factor=0.0, critic_learning_rate=1e-2, critic_batch_size=64, critic_epochs=20
    )
    (option,) = policy.options
    obs = torch.linspace(-1, 1, 64).view(8, 8, 1)
    rollout = rollout_of([[False] * 8] * 8, cost=[[3.0] * 8] * 8)
    rollout.data['obs'] = obs
    rollout.data['info/cost'] = 5 + 10 * (obs[..., 0] > 0).float()
    for _ in range(5):
        option.add_columns(rollout, None)
        metrics = option.after_update({})
    left = float(metrics['cost_value_loss'])
    assert left < 0.1  # of .5, the loss of the mean
    cost_adv = option.add_columns(rollout, None)['cost_adv']
    assert cost_adv.abs().mean() < 1.5  # 5 before


# --- refusals ---


def test_cost_without_a_column_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"limits 'cost' but the rollout has no column 'info/cost'; put 'cost' into env.info_col"
    ):
        follow(policy_with({'cost': 1.0}), rollout_of([[True]]))


def test_cost_that_no_step_reports_is_refused_when_an_episode_has_ended() -> None:
    policy = policy_with({'cost': 1.0, 'other': 1.0})
    nan = float('nan')
    follow(policy, rollout_of([[False]], cost=[[1.0]], other=[[nan]]))
    with pytest.raises(UserError, match="limits 'other' but an episode has ended and no step has reported a number"):
        follow(policy, rollout_of([[True]], cost=[[1.0]], other=[[nan]]))


def test_cost_that_no_step_reports_is_named_although_another_one_is_missing_in_this_rollout() -> None:
    policy = policy_with({'cost': 1.0, 'other': 1.0})
    nan = float('nan')
    follow(policy, rollout_of([[False]], cost=[[1.0]], other=[[nan]]))
    with pytest.raises(UserError, match="limits 'other' but an episode has ended"):
        follow(policy, rollout_of([[True]], cost=[[nan]], other=[[nan]]))
    follow(policy, rollout_of([[True]], cost=[[nan]], other=[[2.0]]))  # each has been reported by now
    follow(policy, rollout_of([[True]], cost=[[nan]], other=[[nan]]))
    older = policy.options[0].state_dict()
    older['constraint']['is_known'] = True  # as older files have it
    policy.options[0].load_state_dict(older)
    follow(policy, rollout_of([[True]], cost=[[nan]], other=[[nan]]))


def test_cost_that_is_an_array_is_refused() -> None:
    with pytest.raises(UserError, match=r"limits 'cost' but its values in infos have the shape \(2,\)"):
        follow(policy_with({'cost': 1.0}), rollout_of([[True]], cost=[[[1.0, 2.0]]]))


@pytest.mark.parametrize(
    ('constraint', 'words'),
    [
        ('lagrange', 'policy.learn.constraint.limits is missing'),
        ({'type': 'lagrange', 'limits': {}}, 'limits is {} .* of length at least 1'),
        (
            {'type': 'lagrange', 'limits': {'cost': -1.0}},
            'limits.cost is -1 but a limit of costs must be a number of at least 0',
        ),
        ({'type': 'lagrang', 'limits': {'cost': 1.0}}, "did you mean 'lagrange'"),
        ({'type': 'pid', 'limits': {'cost': 1.0}, 'encoder': 'mpl'}, "unknown encoder 'mpl'"),
        *(
            (
                {'type': kind, 'limits': {'cost': 1.0}, 'initial': 2.0, 'max_lambda': 1.5},
                r'initial is 2 but max_lambda, the greatest lambda, is 1\.5; raise max_lambda or lower initial',
            )
            for kind in ('lagrange', 'pid')
        ),
    ],
)
def test_config_of_a_constraint_that_cannot_be_is_refused(constraint: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        resolve_policy({'learn': {'constraint': constraint}})


# --- runs ---


def config(root: Path, name: str = 'ppo', **learn: Any) -> dict[str, Any]:
    constraint = {'type': 'lagrange', 'limits': {'cost': 0.3}, **SMALL}
    policy = {'type': name, 'learn': {'batch_size': 32, 'constraint': constraint, **learn}}
    return job_config(root, TwoArms, policy=policy)


def test_costs_are_stored_although_only_the_constraint_names_them(tmp_path: Path) -> None:
    cfg = config(tmp_path)
    cfg['env']['info_columns'] = ['other']
    assert resolve_config(cfg)['env']['info_columns'] == ['other', 'cost']


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'learn'),
    [
        ('ppo', {}),
        ('ppg', {'aux_freq': 2, 'aux_batch_size': 64}),
        ('ppo', {'recompute_adv': True, 'adv_norm': 'batch'}),
        ('ppo_offpolicy', {}),
    ],
)
def test_run_with_a_constraint_logs_lambda_and_costs(tmp_path: Path, name: str, learn: dict[str, Any]) -> None:
    cfg = config(tmp_path, name, **learn)
    if name == 'ppo_offpolicy':
        cfg['buffer'] = {'size': 128, 'n_sample': 64, 'update_per_collect': 2, 'max_staleness': 1}
    if name == 'ppg':
        del cfg['policy']['learn']['epoch_per_collect']
    result = serial_pipeline(cfg)
    last = [row for row in rows(result.run_dir) if 'learn/lambda_cost' in row][-1]
    assert 0 < last['learn/lambda_cost'] <= 4 * 0.0351  # four rollouts, each with a step of about .035
    assert 0.3 < last['learn/episode_cost'] < 1  # about half of the actions are 1
    assert last['learn/cost_value_loss'] > 0


@pytest.mark.slow
def test_policy_with_a_constraint_goes_on_to_the_bit_from_a_file(tmp_path: Path) -> None:
    policy = serial_pipeline(config(tmp_path)).policy
    loaded = load_policy(policy.save(tmp_path / 'p.safetensors'), fields='all')
    found = []
    for each in (policy, loaded):
        (option,) = each.options
        adv = option.add_columns(rollout_of([[True]] * 9, cost=[[1.0]] * 9), None)['cost_adv']
        found.append((adv, option.after_update({})))
    assert torch.equal(found[0][0], found[1][0]) and found[0][1] == found[1][1]
    assert not differing(policy.state_dict(), loaded.state_dict())


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize('seed', [0, 1, 2])
@pytest.mark.parametrize('kind', ['pid', 'lagrange'])
def test_two_arms_stay_at_the_best_policy_within_the_limit(tmp_path: Path, kind: str, seed: int) -> None:
    # at most .3 of the actions may be 1, so the best return is .3 * 1 + .7 * .2 = .44; lambda is then (1 - .2) / 1 = .8
    constraint = {
        'pid': {'type': 'pid', 'kp': 0.5, 'ki': 0.1, 'limits': {'cost': 0.3}},
        'lagrange': {'type': 'lagrange', 'optimizer': 'sgd', 'learning_rate': 0.1, 'limits': {'cost': 0.3}},
    }[kind]
    learn = {'batch_size': 256, 'adv_norm': 'off', 'learning_rate': {'start': 3e-3, 'end': 0.0}, 'entropy_weight': 0.1}
    policy = {'learn': {**learn, 'constraint': constraint, 'epoch_per_collect': 4}, 'collect': {'n_step': 64}}
    cfg = job_config(tmp_path, TwoArms, policy=policy, env={'collector_env_num': 16}, max_env_step=200_000, seed=seed)
    lines = [row for row in rows(serial_pipeline(cfg).run_dir) if 'learn/episode_cost' in row]
    half = lines[len(lines) // 2 :]  # single rollouts of 1,024 episodes have a deviation of .014, 5% of the limit
    assert np.mean([row['learn/episode_cost'] for row in half]) == pytest.approx(0.3, rel=0.02)
    assert np.mean([0.2 + 0.8 * row['learn/episode_cost'] for row in half]) == pytest.approx(0.44, rel=0.02)
