"""The lines of a run's log: their numbers agree with the run's episodes, and docs/metrics.md has exactly their names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, make_policy
from zoo import serial_pipeline
from zoo.run.checkpoint.file import load_checkpoint

PAGE = Path(__file__).parents[3] / 'docs' / 'metrics.md'


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / 'metrics.jsonl').read_text().splitlines()]


def config(root: Path, type: str = 'ppo', n_step: int = 32, collect: Any = None, **learn: Any) -> dict[str, Any]:
    return dict(
        seed=0,
        max_env_step=512,
        env=dict(id='CartPole-v1', collector_env_num=4, evaluator_env_num=1),
        logger=dict(root=str(root), console='off', tensorboard=False, freq=1),
        policy=dict(type=type, eval=dict(n_episode=2), learn=learn, collect=dict(n_step=n_step, **(collect or {}))),
    )


class Watch:
    """Callback that computes the counts and statistics of a run from its rollouts, independently of the log."""

    def __init__(self) -> None:
        self.rewards: list[list[float]] = []
        self.n_end = self.n_sample = 0
        self.rows: list[dict[str, float]] = []

    def on_rollout(self, job: Any, rollout: Any) -> None:
        data = rollout.data
        kept = ~data['is_reset'] if 'is_reset' in data else data['reward'] == data['reward']
        self.rewards.append(data['reward'][kept].tolist())
        self.n_end += int((data['traj_flag'] & kept).sum())
        returns = job.collector.episodes.returns
        self.rows.append({'n_end': self.n_end, **statistics(list(returns), 'return')})

    def on_samples(self, job: Any, samples: Any) -> None:
        self.n_sample += int((samples['weight'] > 0).sum()) if 'weight' in samples else len(samples['adv'])
        self.rows[-1]['n_sample'] = self.n_sample


def statistics(values: list[float], name: str) -> dict[str, float]:
    if not values:
        return {}
    found = {'mean': np.mean(values), 'std': np.std(values), 'min': min(values), 'max': max(values)}
    return {f'collect/{name}_{each}': float(x) for each, x in found.items()}


def test_lines_have_the_statistics_of_returns_and_rewards_and_the_counts(tmp_path: Path) -> None:
    watch = Watch()
    cfg = config(tmp_path, batch_size=32) | dict(env=dict(id='Pendulum-v1', collector_env_num=4, max_episode_steps=20))
    result = serial_pipeline(cfg, callbacks=[watch])
    lines = [line for line in lines_of(result.run_dir) if 'learn/sample' in line]
    assert len(lines) == len(watch.rows) == 4
    for line, row, rewards in zip(lines, watch.rows, watch.rewards, strict=True):
        want = {name: x for name, x in row.items() if '/' in name} | statistics(rewards, 'reward')
        assert {name: line[name] for name in want} == pytest.approx(want, rel=1e-6, abs=1e-6)
        assert line['env/reset'] == row['n_end'] + 4 and line['learn/sample'] == row['n_sample']
    assert 'collect/return_std' in lines[-1] and lines[-1]['env/reset'] > 8


@pytest.mark.slow
def test_seconds_of_the_parts_are_logged_and_are_no_more_than_those_of_the_run(tmp_path: Path) -> None:
    result = serial_pipeline(config(tmp_path, batch_size=32))
    lines = [line for line in lines_of(result.run_dir) if 'learn/sample' in line]
    names = [name for name in lines[-1] if re.fullmatch('time/[a-z]+_s', name)]
    assert {'time/env_s', 'time/act_s', 'time/sample_s', 'time/learn_s', 'time/evaluate_s', 'time/log_s'} == set(names)
    assert all(line[name] >= 0 for line in lines for name in names)
    n_round = lines[-1]['collect/iter']
    total = {name: sum(line[name] for line in lines) for name in names}
    assert 0 < total['time/learn_s'] and sum(total.values()) <= result.wall_s
    share = lines[-1]['time/share_learn'] / lines[-1]['time/share_env']
    assert n_round == len(lines) and share == pytest.approx(total['time/learn_s'] / total['time/env_s'], rel=1e-6)


@pytest.mark.slow
def test_counts_continue_after_a_resume(tmp_path: Path) -> None:
    first = serial_pipeline(config(tmp_path, batch_size=32))
    counter = load_checkpoint(first.run_dir).state['counter']
    second = serial_pipeline(resume=first.run_dir, max_env_step=1024)
    last = [line for line in lines_of(second.run_dir) if 'learn/sample' in line][-1]
    assert counter['sample'] == counter['env_step'] < 512 and counter['reset'] > 4  # of 512 rows some only reset an env
    assert last['learn/sample'] > counter['sample'] and last['env/reset'] >= counter['reset'] + 4


RUNS: dict[str, dict[str, Any]] = {
    'ppo': dict(
        batch_size=32, critic_learning_rate=1e-3, value_loss='clip', penalties=[{'type': 'kl', 'target': 0.01}]
    ),
    'ppo_histogram': dict(type='ppo', batch_size=32, value_loss={'type': 'hl_gauss'}, intrinsic='rnd'),
    'ppg': dict(type='ppg', batch_size=32, aux_freq=2, aux_batch_size=32),
    'pg': dict(type='pg'),
    'ppo_offpolicy': dict(type='ppo_offpolicy', batch_size=32),
    'ppg_offpolicy': dict(type='ppg_offpolicy', batch_size=32, aux_freq=2, aux_batch_size=32),
    'dqn': dict(type='dqn', batch_size=32),
    'trpo': dict(type='trpo', batch_size=32),
    'runners': dict(batch_size=32),
}
RUNNERS = dict(cluster=dict(engine='inline', runner_num=2))
PATTERNS = {
    r'learn/penalty_\w+': 'learn/penalty_<name>',
    r'(collect|eval)/info/\w+_mean': r'\1/info/<key>_mean',
    r'time/share_\w+': 'time/share_<part>',
    r'time/(env|act|sample|learn|evaluate|log)_s': 'time/<part>_s',
    r'learn/kl_weight': 'learn/<name>_weight',
}
RARE = {'collect/success_rate', 'eval/success_rate', 'collect/info/<key>_mean', 'eval/info/<key>_mean'}
RARE |= {'env/restart', 'env/schedule/<name>', 'eval/<name>/return_mean'}


def page_names() -> set[str]:
    """Returns the names in the first column of the page's tables of metrics."""
    tables = PAGE.read_text().split('## Warnings')[0]
    cells = re.findall(r'^\| (`.*?) \|', tables, re.M)
    return {name for cell in cells for name in re.findall('`([^`]+)`', cell)}


@pytest.mark.parametrize('kind', sorted({run.get('type', 'ppo') for run in RUNS.values()}))
def test_the_page_has_the_metrics_that_a_policy_names(kind: str) -> None:
    policy = make_policy(ONE_NUMBER, TWO_ACTIONS, type=kind)
    assert {f'learn/{name}' for name in policy.learn_mode.monitor_vars()} <= page_names()


@pytest.mark.soak
def test_the_page_has_every_metric_that_runs_log_and_no_other(tmp_path: Path) -> None:
    logged: set[str] = set()
    for name, learn in RUNS.items():
        options = dict(learn)
        n_step = 128 if name == 'pg' else 32
        cfg = config(tmp_path / name, options.pop('type', 'ppo'), n_step, **options) | dict(max_env_step=3072)
        cfg |= RUNNERS if name == 'runners' else {}
        logged |= {key for line in lines_of(serial_pipeline(cfg).run_dir) for key in line}
    for pattern, general in PATTERNS.items():
        logged = {re.sub(f'^{pattern}$', general, name) for name in logged}
    assert logged - {'env_step', 'wall_s'} - page_names() == set()
    assert page_names() - logged - RARE == set()
