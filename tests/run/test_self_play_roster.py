"""A policy that plays against itself: who acts, what is learned from, resumes, refusals."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
import torch

from zoo import SerialJob, serial_pipeline
from zoo.agents.self_play import League, SelfPlayConfig
from zoo.core.errors import UserError
from zoo.policy.modes import EvalMode
from zoo.run.self_play_roster import LeagueObserver

pytest.importorskip('pettingzoo', reason='the extra agents')


def config(root, self_play=None, n_step=512, **agents):
    return dict(
        exp_name='ttt',
        max_env_step=n_step,
        env=dict(id='pettingzoo:classic/tictactoe-v3', collector_env_num=4, evaluator_env_num=4),
        agents=dict(self_play=self_play or {}, **agents),
        policy=dict(
            model=dict(hidden_sizes=[8]),
            learn=dict(batch_size=64),
            collect=dict(n_step=32),
            eval=dict(eval_freq=256, n_episode=8),
        ),
        checkpoint=dict(freq=256),
        logger=dict(root=str(root), console='off', tensorboard=False, freq=128),
    )


PAST = dict(opponents=dict(latest=0.5, past=0.5), snapshot=dict(every=128), keep=3, slots=2)


def test_run_takes_snapshots_and_rates_them(tmp_path):
    result = serial_pipeline(config(tmp_path, PAST))
    snapshots = sorted(int(path.stem) for path in (result.run_dir / 'league').iterdir())
    assert (snapshots[0], snapshots[-1]) == (0, 512)
    assert len(snapshots) in (3, 4)  # one more while it plays
    lines = [json.loads(line) for line in (result.run_dir / 'metrics.jsonl').read_text().splitlines()]
    last = [line for line in lines if 'league/elo' in line][-1]
    assert last['league/snapshots'] <= 4
    assert last['league/win_rate/0'] >= 0
    evaluation = [line for line in lines if 'eval/return_mean' in line][-1]
    assert -1 <= evaluation['eval/return_mean'] <= 1  # of the policy, against random; the sum over both agents is 0
    assert evaluation['eval/return_mean'] == evaluation['eval/main/return_mean']


def test_rows_of_opponents_are_not_learned_from(tmp_path):
    """Against snapshots alone the policy has one seat of each copy: half of the actions are no data."""
    with SerialJob(config(tmp_path, dict(opponents=dict(latest=0.0, past=1.0)))) as job:
        job.start()
        (rollout,) = job.collector.collect_by_name().values()
        real = ~rollout.data['is_reset']
        rows = real.sum(0).view(4, 2)
        for copy in range(4):
            assert rows[copy, copy % 2] > 0
            assert rows[copy, 1 - copy % 2] == 0
        assert int(job.collector.agent_step) == 4 * 32


def test_resumed_runs_have_the_same_opponents_and_end_bit_equal(tmp_path):
    first = serial_pipeline(config(tmp_path / 'a', PAST, 256))
    ends = []
    for name in 'bc':
        copy = tmp_path / name
        shutil.copytree(first.run_dir, copy / 'run')
        again = serial_pipeline(resume=copy / 'run', max_env_step=512)
        lines = [json.loads(line) for line in (again.run_dir / 'metrics.jsonl').read_text().splitlines()]
        elo = [line['league/elo'] for line in lines if 'league/elo' in line]
        ends.append((again.policy.state_dict()['model'], elo))
    (one, elo), (other, other_elo) = ends
    assert elo == other_elo
    assert all(torch.equal(x, other[name]) for name, x in one.items())


@pytest.mark.parametrize(
    ('agents', 'sentence'),
    [
        (dict(mapping={'*': 'main'}), 'agents.mapping and agents.self_play are both set'),
        (dict(train=['main']), 'agents.train and agents.self_play are both set'),
        (dict(self_play=dict(opponents=dict(lates=1))), 'lates'),
        (dict(self_play=dict(keep=0)), 'agents.self_play.keep is 0'),
    ],
)
def test_wrong_sections_are_refused(agents, sentence, tmp_path):
    section = {'self_play': {}} | agents
    with pytest.raises(UserError, match=sentence):
        serial_pipeline(config(tmp_path) | dict(agents=section))


def test_one_agent_cannot_play_itself(tmp_path):
    one = config(tmp_path)
    one['env']['id'] = 'tests.agents.envs:CartPoleParallel'
    with pytest.raises(UserError, match='agents.self_play is set but the env has one agent'):
        serial_pipeline(one)


def test_snapshots_are_copied_to_a_new_folder(tmp_path):
    league = League(SelfPlayConfig(), ['a', 'b'], 0, lambda path: EvalMode(lambda obs, state: {}))
    policy = SimpleNamespace(save=lambda path: path.write_text('weights'))
    observer = LeagueObserver(league)
    observer.on_start(SimpleNamespace(run_dir=tmp_path / 'old', env_step=0, policy=policy))
    assert [path.name for path in (tmp_path / 'old' / 'league').iterdir()] == ['0.safetensors']
    observer.on_start(SimpleNamespace(run_dir=tmp_path / 'new', env_step=10, policy=policy))
    assert [path.name for path in (tmp_path / 'new' / 'league').iterdir()] == ['0.safetensors']
    observer.after_round(SimpleNamespace(run_dir=tmp_path / 'new', env_step=60_000, policy=policy))
    assert sorted(path.stem for path in (tmp_path / 'new' / 'league').iterdir()) == ['0', '60000']
