"""Rollouts that keep a part of large states, of the memory cell 'trxl': samples, values, training, and a resumed run."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.policy.staggered import MODES, OBS, Staggered, close
from tests.policy_envs import TWO_ACTIONS, differing, run_config
from zoo import serial_pipeline
from zoo.backend.executor import RecordingActing
from zoo.core.data import Rollout, leaves
from zoo.core.seeding import stream
from zoo.env import EnvConfig, make_env_groups
from zoo.policy import PPOPolicy
from zoo.policy.modes import CollectMode
from zoo.policy.sequences import rows_of, run_model
from zoo.run.checkpoint.file import load_checkpoint
from zoo.run.config import resolve_config, resolve_policy
from zoo.run.job import SerialJob
from zoo.worker.collector import Collector

TRXL = dict(cell='trxl', hidden_size=8, heads=2, memory=5, n_layer=2)
N_RECORD = 2 * 8  # the inputs of two layers
N_STATE = 2 * (5 * 8 + 1)  # the last five of each, and their number


def make(mode: str, whole: bool = False, **sequence: Any) -> tuple[Any, Collector]:
    """A policy with attention, and its collector of four envs with episodes of 3, 4, 5 and 6 steps.

    Args: whole: its rollouts keep the whole state of each row.
    """
    Staggered.n_made = 0
    groups = make_env_groups(EnvConfig(id=Staggered, collector_env_num=4, collector_group_num=1, **MODES[mode]))
    learn = dict(sequence=dict(len=8, **sequence), batch_size=32, executor='eager')
    cfg = resolve_policy(dict(type='ppo', collect=dict(n_step=24), learn=learn, model=dict(recurrent=TRXL)))
    policy = PPOPolicy(cfg, OBS, TWO_ACTIONS, seed=0)
    collector = Collector(groups, with_whole_states(policy.collect_mode) if whole else policy.collect_mode)
    collector.reset(stream(0, 'test'))
    return policy, collector


def with_whole_states(mode: CollectMode) -> CollectMode:
    def start(obs: Any, first: int = 0) -> Any:
        acting = mode.start(obs, first)
        assert isinstance(acting, RecordingActing)
        acting.keep_whole_states()
        return acting

    return mode._replace(start=start, recorder=None)


@pytest.mark.long
@pytest.mark.parametrize(
    ('mode', 'sequence'),
    [
        ('same_step', {}),
        ('next_step', dict(burn_in=3)),
        ('disabled', dict(burn_in=3, overlap='half')),
        ('async same_step', dict(overlap='maximum')),
    ],
)
def test_samples_are_those_of_rollouts_with_whole_states(mode: str, sequence: dict[str, Any]) -> None:
    """Bit for bit, in the second rollout too, which begins in the middle of episodes; ratios are 1 before the first step."""
    found = []
    for whole in (False, True):
        policy, collector = make(mode, whole, **sequence)
        collector.collect()
        rollout = collector.collect()
        width = N_STATE if whole else N_RECORD
        assert {x.shape for _, x in leaves(rollout.data['state'])} == {(24, 4, width)}
        assert {x.shape for _, x in leaves(rollout.state)} == {(4, N_STATE)}
        samples = policy.collect_mode.get_train_sample(rollout)
        assert (samples['state']['actor'] != 0).any(1).sum() > len(samples['state']['actor']) / 2
        found.append(dict(leaves(samples)))
        run = run_model(policy.model, 'compute_actor_critic', samples)
        torch.testing.assert_close(run['logit'], rows_of(samples)['logit'], rtol=0, atol=1e-5)
        close(collector)
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_values_of_true_successors_are_the_same_from_the_observation_of_each_row() -> None:
    """Envs on a device give the successor of every row: the states of one row at a time are made for these."""
    policy, collector = make('same_step')
    collector.collect()
    rollout = collector.collect()
    want = policy.collect_mode.get_train_sample(rollout)
    dense = Rollout(
        rollout.data,
        rollout.last_obs,
        rollout.final_obs[:0],
        rollout.final_index[:0],
        rollout.next_obs(),
        rollout.state,
        rollout.recorder,
    )
    found = policy.collect_mode.get_train_sample(dense)
    torch.testing.assert_close(found['adv'], want['adv'], rtol=0, atol=1e-5)
    close(collector)


CUE: dict[str, Any] = {'kwargs': {'delay': 4}, 'collector_env_num': 4, 'evaluator_env_num': 2, 'check': False}


def config(root: Path, kind: str, **model: Any) -> Any:
    policy = dict(model=dict(recurrent=TRXL, **model), learn=dict(sequence=dict(len=8)))
    return resolve_config(run_config(root, kind, 'remember_cue', seed=3, env=CUE, policy=policy))


@pytest.mark.long
@pytest.mark.parametrize(
    ('kind', 'model'),
    [
        ('ppo', {}),
        ('ppo_offpolicy', {'shared_encoder': 'both'}),
        ('ppg', {'arch': 'dual'}),
        ('ppg', {'arch': 'detach'}),
        ('ppg', {'arch': 'shared'}),
    ],
)
def test_run_trains_every_parameter_and_resumes_bit_equal(
    kind: str, model: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of PPG in each arch, with an auxiliary phase before and after the checkpoint; a resume begins new episodes."""
    caplog.set_level(logging.INFO, 'zoo')
    cfg = config(tmp_path, kind, **model)
    with SerialJob(cfg) as job:
        before = {name: p.detach().clone() for name, p in job.policy.model.named_parameters()}
        for i in range(4):
            if i == 2:
                job.save()
                job.reset_env()
            job.iteration()
        straight, run_dir = job.state_dict()['policy'], job.run_dir
        same = [name for name, p in job.policy.model.named_parameters() if torch.equal(p, before[name])]
    assert not same
    assert 'run in PyTorch: the native executor has no TransformerXL' in caplog.text
    with SerialJob(cfg, checkpoint=load_checkpoint(run_dir)) as job:
        for _ in range(2):
            job.iteration()
        assert not differing(job.state_dict()['policy'], straight)


@pytest.mark.soak
@pytest.mark.skipif(shutil.which('g++') is None, reason='no C++ compiler')
def test_compiled_run_ends_with_the_parameters_of_eager(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = []
    for executor in ('eager', 'graph'):
        cfg = run_config(tmp_path, 'ppo', 'remember_cue', seed=3, env=CUE, max_env_step=128)
        cfg['policy']['model']['recurrent'] = TRXL
        cfg['policy']['learn'] |= dict(sequence=dict(len=8), executor=executor)
        found.append(serial_pipeline(cfg).policy.model.state_dict())
    assert 'could not be compiled' not in caplog.text
    for key, x in found[0].items():
        torch.testing.assert_close(found[1][key], x, rtol=0, atol=1e-5, msg=key)


def test_sampling_and_judging_take_the_state_that_acting_gave() -> None:
    """Three steps one by one, with the state that each gives: the logits are those of the sequence of three."""
    policy, collector = make('same_step')
    obs = torch.rand(3, 2, 1, generator=torch.Generator().manual_seed(0))
    state = policy.model.initial_state(2)
    first = torch.zeros(3, 2, dtype=torch.bool)
    with torch.no_grad():
        want = policy.model.compute_actor_critic(obs, state, first)
    for t in range(3):
        sample = policy.sample(obs[t].numpy(), state=state)
        judged = policy.evaluate_actions(obs[t].numpy(), sample.action, state=state)
        log_prob = want['logit'][t].log_softmax(-1)[torch.arange(2), torch.as_tensor(sample.action)]
        torch.testing.assert_close(judged.log_prob.detach(), log_prob, rtol=0, atol=1e-5)
        state = sample.state
    close(collector)
