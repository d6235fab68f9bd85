"""Forks: the run that begins with another run's checkpoint trains as that run would, or with what was changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.policy_envs import differing, flat, job_config, rows, run_config
from zoo import serial_pipeline
from zoo.config.yaml_io import config_of_yaml
from zoo.core.errors import UserError
from zoo.run.checkpoint.file import State, load_checkpoint
from zoo.run.fork import RECORD, fork

END = 256  # env steps of the parent: 4 rollouts of 64
LONGER = 448  # 3 more
NORMALISERS = dict(
    model=dict(obs_norm=True), learn=dict(value_norm=True, reward_norm=True, learning_rate={'start': 1e-3, 'end': 0.0})
)
RUNS: dict[str, dict[str, Any]] = {
    'ppo native': dict(name='ppo'),
    'ppo eager': dict(name='ppo', learn=dict(executor='eager')),
    'ppg native': dict(name='ppg'),
    'ppo_offpolicy': dict(name='ppo_offpolicy'),
    'ppg_offpolicy eager': dict(name='ppg_offpolicy', learn=dict(executor='eager')),
    'lstm': dict(name='ppo', model=dict(recurrent=dict(cell='lstm', hidden_size=8))),
    'normalisers': dict(name='ppo', **NORMALISERS),
    'normalisers eager': dict(
        name='ppg', model=NORMALISERS['model'], learn=NORMALISERS['learn'] | dict(executor='eager')
    ),
}


def config_of(root: Path, name: str, **policy: Any) -> dict[str, Any]:
    cfg = run_config(root, name, policy=policy)
    cfg['policy']['model'] = {'hidden_sizes': [8, 8], **policy.get('model', {})}
    if 'recurrent' in policy.get('model', {}):
        cfg['policy']['learn'] |= dict(batch_size=64)
    return cfg


def trained_state(run_dir: Path) -> State:
    """The state of a finished run without the seconds that it took."""
    state = load_checkpoint(run_dir).state
    state['counter'].pop('wall_s')
    return state


GRAPH = pytest.param(dict(name='ppo', learn=dict(executor='graph')), marks=pytest.mark.soak, id='ppo graph')  # compiles


@pytest.mark.slow
@pytest.mark.parametrize('options', [*(pytest.param(options, id=name) for name, options in RUNS.items()), GRAPH])
def test_fork_without_a_change_trains_as_its_parent_would(options: dict[str, Any], tmp_path: Path) -> None:
    parent = serial_pipeline(config_of(tmp_path, **options)).run_dir
    fork(parent, tmp_path / 'child')
    longer = dict(max_env_step=LONGER)
    before = [differing(trained_state(parent), trained_state(tmp_path / 'child'))]
    serial_pipeline(resume=parent, **longer)
    child = serial_pipeline(run_dir=tmp_path / 'child', **longer)
    assert child.env_step == LONGER and before == [[]]
    assert differing(trained_state(parent), trained_state(tmp_path / 'child')) == []
    assert rows(parent) == rows(tmp_path / 'child')


def test_fork_with_another_seed_begins_equal_and_takes_other_steps(tmp_path: Path, finished: Path) -> None:
    fork(finished, tmp_path / 'child', ['seed=5', 'max_env_step=320'])
    same = differing(trained_state(finished), trained_state(tmp_path / 'child'))
    child = serial_pipeline(run_dir=tmp_path / 'child').run_dir
    other = serial_pipeline(resume=finished, run_dir=tmp_path / 'other', max_env_step=320).run_dir
    assert same == []
    assert 'policy/model/actor_encoder.layers.0.weight' in differing(trained_state(child), trained_state(other))


def test_pipeline_with_resume_and_run_dir_forks_once_and_then_continues(tmp_path: Path, finished: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob('*') if path.is_file()}
    words = dict(resume=finished, run_dir=tmp_path / 'new', overrides=['policy.learn.learning_rate=5e-4'])
    first = serial_pipeline(**words, max_env_step=320)
    second = serial_pipeline(**words, max_env_step=384)
    assert (first.run_dir, second.run_dir) == (tmp_path / 'new', tmp_path / 'new')
    assert (first.env_step, second.env_step) == (320, 384)
    steps = [row['env_step'] for row in rows(second.run_dir) if 'learn/train_iter' in row]
    assert steps == [64, 128, 192, 256, 320, 384]
    assert before == {path: path.read_bytes() for path in finished.rglob('*') if path.is_file()}


def test_fork_says_where_it_comes_from_and_what_changed(tmp_path: Path, finished: Path) -> None:
    path = fork(finished, tmp_path / 'child', ['policy.learn.learning_rate=5e-4'])
    record = json.loads((tmp_path / 'child' / RECORD).read_text())
    assert path == tmp_path / 'child' / 'checkpoints' / f'step_{END:09d}.safetensors'
    assert record == {
        'run': str(finished),
        'checkpoint': str(finished / 'checkpoints' / f'step_{END:09d}.safetensors'),
        'env_step': END,
        'changed': 'policy.learn.learning_rate 0.001 -> 0.0005',
        'state_changed': False,
    }
    saved = load_checkpoint(path).meta['config']
    written = config_of_yaml(tmp_path / 'child' / 'config.yaml')
    assert saved['policy']['learn']['learning_rate'] == written['policy']['learn']['learning_rate'] == 5e-4
    assert rows(tmp_path / 'child') == rows(finished)


def test_fork_of_an_older_checkpoint_has_the_log_up_to_it(tmp_path: Path) -> None:
    parent = serial_pipeline(job_config(tmp_path, checkpoint=dict(freq=64, keep_last=9))).run_dir
    fork(parent / 'checkpoints' / 'step_000000128.safetensors', tmp_path / 'child')
    assert [row['env_step'] for row in rows(tmp_path / 'child')] == [64, 128]


def test_change_maps_the_state_and_nothing_else(tmp_path: Path, finished: Path) -> None:
    def doubled(state: State) -> State:
        model = {name: 2 * value for name, value in state['policy']['model'].items()}
        return {**state, 'policy': {**state['policy'], 'model': model}}

    fork(finished, tmp_path / 'child', change=doubled)
    was = flat(trained_state(finished))
    now = flat(trained_state(tmp_path / 'child'))
    changed = [name for name in was if torch.is_tensor(was[name]) and not torch.equal(was[name], now[name])]
    assert changed and all(name.startswith('policy/model/') for name in changed)
    assert all(torch.equal(2 * was[name], now[name]) for name in changed)


def agents_config(root: Path, env_id: str, agents: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """Two policies or one that plays against itself, in 4 rollouts of 32 steps of 2 copies."""
    env = dict(id=env_id, collector_env_num=2, evaluator_env_num=2, vectorization='sync')
    policy = dict(collect=dict(n_step=32), learn=dict(batch_size=16))
    return job_config(root, env_id, env=env, policy=policy, agents=agents, **sections)


@pytest.mark.slow
def test_fork_of_a_run_of_two_policies_trains_both_as_their_parents_would(tmp_path: Path) -> None:
    agents = dict(policies=dict(p={}, q={}), mapping={'a': 'p', '*': 'q'})
    parent = serial_pipeline(agents_config(tmp_path, 'tests.agents.envs:Clockwork', agents)).run_dir
    fork(parent, tmp_path / 'child')
    serial_pipeline(resume=parent, max_env_step=LONGER)
    serial_pipeline(run_dir=tmp_path / 'child', max_env_step=LONGER)
    ends = [sorted((folder / 'checkpoints').glob('step_*'))[-2:] for folder in (parent, tmp_path / 'child')]
    names = [[path.name for path in files] for files in ends]
    assert names[0] == names[1] and names[0][0].endswith('.q.safetensors')
    for files in zip(*ends, strict=True):
        states = [load_checkpoint(path).state for path in files]
        for state in states:
            state['counter'].pop('wall_s')
        assert differing(*states) == []


@pytest.mark.slow
def test_fork_of_self_play_has_the_snapshots_up_to_its_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip('pettingzoo', reason='the extra agents')
    past = dict(opponents=dict(latest=0.5, past=0.5), snapshot=dict(every=64), keep=3, slots=2)
    config = agents_config(
        tmp_path, 'pettingzoo:classic/tictactoe-v3', dict(self_play=past), checkpoint=dict(freq=64, keep_last=9)
    )
    parent = serial_pipeline(config).run_dir
    checkpoint = sorted((parent / 'checkpoints').glob('step_*'))[1]
    fork(checkpoint, tmp_path / 'child')
    step = load_checkpoint(checkpoint).state['counter']['env_step']
    snapshots = [{int(path.stem) for path in folder.glob('league/*')} for folder in (parent, tmp_path / 'child')]
    assert snapshots[1] == {each for each in snapshots[0] if each <= step} and len(snapshots[1]) >= 2
    assert serial_pipeline(run_dir=tmp_path / 'child').env_step > step


def test_fork_that_was_interrupted_is_written_again(tmp_path: Path, finished: Path) -> None:
    path = fork(finished, tmp_path / 'child')
    path.unlink()  # it is written last
    (tmp_path / 'child' / 'metrics.jsonl').write_text('{"env_step"')
    assert fork(finished, tmp_path / 'child') == path
    assert path.is_file() and rows(tmp_path / 'child') == rows(finished)


def test_fork_that_cannot_be_is_refused_in_a_sentence(tmp_path: Path, finished: Path) -> None:
    fork(finished, tmp_path / 'child')
    with pytest.raises(UserError, match='has a run already; name another folder, or continue that one: zoo train'):
        fork(finished, tmp_path / 'child')
    with pytest.raises(UserError, match='is the folder of the checkpoints of a run; name the run'):
        fork(finished, finished / 'checkpoints')
    with pytest.raises(UserError, match='does not exist'):
        fork(tmp_path / 'none', tmp_path / 'other')
    with pytest.raises(UserError, match=r'unknown key policy.learn.learning_rat'):
        fork(finished, tmp_path / 'other', ['policy.learn.learning_rat=1'])
    assert not (tmp_path / 'other').exists()
