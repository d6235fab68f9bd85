"""A policy that plays against itself: who acts, what is learned from, resumes, refusals."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest
import torch

from zoo import SerialJob, exploitability, load_policy, serial_pipeline
from zoo.agents.self_play import League, SelfPlayConfig
from zoo.core.data import first_leaf
from zoo.core.errors import UserError
from zoo.policy.modes import EvalMode
from zoo.run.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
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


@pytest.mark.long
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


def test_player_that_looks_one_move_ahead_is_an_opponent(tmp_path):
    """A network of a few steps plays nearly at random, so that it loses most games that are no draws."""
    fixed = config(tmp_path, dict(opponents=dict(latest=0.0, past=0.0, fixed=1.0), fixed=['one_move_ahead']))
    fixed['env'] |= dict(id='torch', game='tictactoe')
    result = serial_pipeline(fixed)
    lines = lines_of(result.run_dir)
    rates = [line['league/win_rate/one_move_ahead'] for line in lines if 'league/win_rate/one_move_ahead' in line]
    returns = [line['eval/return_mean'] for line in lines if 'eval/return_mean' in line]
    assert rates[-1] < 0.4
    assert returns[-1] < 0


def lines_of(run_dir):
    return [json.loads(line) for line in (run_dir / 'metrics.jsonl').read_text().splitlines()]


@pytest.mark.long
def test_exploitability_of_small_games_is_logged_also_by_a_resumed_run(tmp_path):
    pytest.importorskip('pyspiel', reason='OpenSpiel')
    run = config(tmp_path, PAST | dict(exploitability=True), 256)
    run['env']['id'] = 'pyspiel:kuhn_poker'
    first = serial_pipeline(run)
    newest, average = exploitability(f'{first.run_dir}@256'), exploitability(first.run_dir, average=True)
    last = [line for line in lines_of(first.run_dir) if 'league/exploitability' in line][-1]
    # the log has the numbers of the snapshots 0 and 128: that of 256 came after the last line
    assert last['league/exploitability'] == pytest.approx(exploitability(f'{first.run_dir}@128').exploitability)
    assert last['league/value'] == pytest.approx(exploitability(f'{first.run_dir}@128').value)
    again = serial_pipeline(resume=first.run_dir, max_env_step=384)
    following = [
        line for line in lines_of(again.run_dir) if line.get('league/exploitability') and line['env_step'] > 256
    ][0]
    assert following['league/exploitability'] == pytest.approx(newest.exploitability)
    assert following['league/exploitability_of_average'] == pytest.approx(average.exploitability)


def test_exploitability_of_other_games_is_refused(tmp_path):
    with pytest.raises(UserError, match='exploitability is true but .* is no game of OpenSpiel, .*; leave it out'):
        serial_pipeline(config(tmp_path, dict(exploitability=True)))


class StopAt:
    """A callback that ends a run after the round that reaches an env step."""

    def __init__(self, env_step):
        self.env_step = env_step

    def on_update(self, job, metrics):
        if job.env_step >= self.env_step:
            job.stop('enough')


@pytest.mark.long
def test_run_that_broke_off_continues_as_one_that_ended_there(tmp_path):
    """From the checkpoint of step 256 of a run that went on, and from the end of a run that was stopped in step 256."""
    section = PAST | dict(sample='pfsp', keep=2, snapshot=dict(every=128, win_rate=0.6))
    settings = config(tmp_path / 'a', section, 512) | dict(checkpoint=dict(freq=256, keep_last=9))
    longer = serial_pipeline(settings).run_dir
    settings['logger'] = settings['logger'] | dict(root=str(tmp_path / 'b'))
    stopped = serial_pipeline(settings, callbacks=[StopAt(256)]).run_dir
    checkpoints = [path for path in (longer / 'checkpoints').iterdir() if '256' in path.name]
    ends = []
    for start in (*checkpoints, stopped):
        end = serial_pipeline(resume=start, max_env_step=640)
        ends.append((end.policy.state_dict()['model'], load_checkpoint(end.run_dir).state['league']['json']))
    (one, league), (other, other_league) = ends
    assert league == other_league
    assert all(torch.equal(x, other[name]) for name, x in one.items())


@pytest.mark.parametrize(
    ('agents', 'sentence'),
    [
        (dict(mapping={'*': 'main'}), 'agents.mapping and agents.self_play are both set'),
        (dict(train=['main']), 'agents.train and agents.self_play are both set'),
        (dict(self_play=dict(opponents=dict(lates=1))), 'lates'),
        (dict(self_play=dict(keep=0)), 'agents.self_play.keep is 0'),
        (dict(self_play=dict(opponents=dict(latest=0, past=0))), 'all weights are 0'),
        (dict(self_play=dict(opponents=dict(fixed=1), fixed=[])), 'opponents.fixed is 1 but fixed is empty'),
        (dict(self_play=dict(fixed=['random', 'random'])), "fixed has 'random' twice"),
        (dict(self_play=dict(fixed=['randm'])), "agents.self_play.fixed has 'randm' but opponents are 'random'"),
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


def altered(run_dir, change):
    """Changes the newest checkpoint of a run. Args: change: a function of its state."""
    checkpoint = load_checkpoint(run_dir)
    change(checkpoint.state)
    save_checkpoint(checkpoint.path, checkpoint.state, checkpoint.meta)


@pytest.mark.parametrize('name', ['../../elsewhere', '/tmp/elsewhere', '0x80', '00', 'a'])
@pytest.mark.slow(ci=True)
def test_names_of_snapshots_that_are_no_env_steps_are_refused(name, tmp_path):
    first = serial_pipeline(config(tmp_path, PAST, 256))

    def rename(state):
        league = json.loads(state['league']['json'])
        league['snapshots'][-1][0] = name
        state['league']['json'] = json.dumps(league)

    altered(first.run_dir, rename)
    with pytest.raises(CheckpointError, match='league is malformed .* the results of its games cannot be read'):
        serial_pipeline(resume=first.run_dir, max_env_step=512)


EVIL = """
from pathlib import Path
Path(__file__).with_name('executed').touch()
class Net: pass
"""


@pytest.mark.parametrize('section', ['policy', 'agents'])
def test_snapshot_of_another_run_loads_no_code_without_consent(section, tmp_path, monkeypatch):
    """A file of the league names code that the run itself does not: it is not executed."""
    first = serial_pipeline(config(tmp_path / 'run', PAST, 256))
    (tmp_path / 'league_code.py').write_text(EVIL)
    monkeypatch.syspath_prepend(tmp_path)
    path = first.run_dir / 'league' / '0.safetensors'
    snapshot = load_checkpoint(path)
    if section == 'policy':
        snapshot.meta['config']['policy']['model']['type'] = 'league_code:Net'
    else:
        snapshot.meta['config']['agents']['mapping'] = 'league_code:Net'
    save_checkpoint(path, snapshot.state, snapshot.meta)
    if section == 'policy':
        with pytest.raises(CheckpointError, match='0.safetensors names code of module .league_code. .*consent'):
            serial_pipeline(resume=first.run_dir, max_env_step=512)
    else:  # a policy alone needs no opponents
        serial_pipeline(resume=first.run_dir, max_env_step=512)
    assert not (tmp_path / 'executed').exists()


def test_snapshot_of_other_spaces_is_refused(tmp_path):
    first = serial_pipeline(config(tmp_path / 'run', PAST, 256))
    other = config(tmp_path / 'other', PAST, 128)
    other['env']['id'] = 'tests.agents.envs:RockPaperScissors'
    path = 'league/0.safetensors'
    shutil.copy2(serial_pipeline(other).run_dir / path, first.run_dir / path)
    with pytest.raises(CheckpointError, match='0.safetensors is of a policy with other spaces'):
        serial_pipeline(resume=first.run_dir, max_env_step=512)


@pytest.mark.long
def test_run_continues_from_each_checkpoint_that_is_kept(tmp_path):
    """A checkpoint every 128 env steps, of which the last three stay; of the snapshots two and the first one stay."""
    section = PAST | dict(keep=2, slots=1)
    settings = config(tmp_path, section, 1280) | dict(checkpoint=dict(freq=128, keep_last=3))
    run = serial_pipeline(settings).run_dir
    checkpoints = [load_checkpoint(path) for path in (run / 'checkpoints').glob('step_*.safetensors')]
    checkpoints.sort(key=lambda checkpoint: checkpoint.meta['env_step'])
    assert [checkpoint.meta['env_step'] for checkpoint in checkpoints] == [1024, 1152, 1280]
    needed = set()
    for checkpoint in (*checkpoints, load_checkpoint(run / 'checkpoints' / 'best.safetensors')):
        needed |= {int(values[0]) for values in json.loads(checkpoint.state['league']['json'])['snapshots']}
    files = {int(path.stem) for path in (run / 'league').iterdir()}
    assert files == needed
    assert len(files) < 1280 / 128 + 1
    again = serial_pipeline(resume=checkpoints[0].path, max_env_step=1152)
    assert again.env_step == 1152


def test_snapshots_of_a_policy_with_a_memory_keep_it_through_an_episode(tmp_path):
    """Each forward pass of a snapshot gets the state after the one before, but for the first turn of an episode."""
    section = dict(opponents=dict(latest=0.0, past=1.0), slots=1)
    settings = config(tmp_path, section)
    settings['policy']['model'] = dict(recurrent=dict(cell='lstm', hidden_size=4))
    with SerialJob(settings) as job:
        job.start()
        league = job.collector.league
        snapshot = league.snapshots[0]
        passes = []

        def sample(obs, state, generator):
            output = snapshot_mode.sample(obs, state, generator)
            passes.append(
                (
                    obs['observation'].flatten(1).sum(1),
                    first_leaf(state).flatten(1),
                    first_leaf(output['state']).flatten(1),
                )
            )
            return output

        snapshot_mode = snapshot.mode
        snapshot.mode = snapshot_mode._replace(sample=sample)
        job.collector.collect_by_name()
    n_mark, before, _ = (torch.cat(x) for x in zip(*passes, strict=True))
    afterwards = torch.cat([after for _, _, after in passes])
    n_begun = n_mark - n_mark.min() < 2  # the snapshot has made no move yet
    assert n_begun.any() and not n_begun.all()
    assert not before[n_begun].any()
    for state in before[~n_begun]:
        assert (afterwards == state).all(1).any()


def test_model_that_was_given_plays_against_its_past(tmp_path):
    """Each snapshot has a network of its own, with the parameters of its time."""
    model = load_policy(serial_pipeline(config(tmp_path / 'a')).run_dir).model
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with SerialJob(config(tmp_path / 'b', PAST), model=model) as job:
        job.iteration()
        first = job.collector.league.snapshots[0]
        obs = {
            'observation': torch.rand(200, 3, 3, 2, generator=torch.Generator().manual_seed(0)),
            'agent': torch.ones(200, 2),
            'action_mask': torch.ones(200, 9, dtype=torch.bool),
        }
        of_snapshot = first.mode.forward(obs)['action']
        assert not torch.equal(of_snapshot, job.policy.eval_mode.forward(obs)['action'])
        job.policy.model.load_state_dict(before)
        assert torch.equal(of_snapshot, job.policy.eval_mode.forward(obs)['action'])


def test_best_and_last_return_are_those_of_the_policy(tmp_path):
    result = serial_pipeline(config(tmp_path, PAST, 512))
    lines = [json.loads(line) for line in (result.run_dir / 'metrics.jsonl').read_text().splitlines()]
    means = [line['eval/main/return_mean'] for line in lines if 'eval/main/return_mean' in line]
    assert result.last_return == means[-1]
    assert result.best_return == max(means)


def test_snapshots_are_copied_to_a_new_folder(tmp_path):
    league = League(SelfPlayConfig(), ['a', 'b'], 0, lambda path, is_own: EvalMode(lambda obs, state: {}))
    policy = SimpleNamespace(save=lambda path: path.write_text('weights'))
    observer = LeagueObserver(league)
    observer.on_start(SimpleNamespace(run_dir=tmp_path / 'old', env_step=0, policy=policy))
    assert [path.name for path in (tmp_path / 'old' / 'league').iterdir()] == ['0.safetensors']
    observer.on_start(SimpleNamespace(run_dir=tmp_path / 'new', env_step=10, policy=policy))
    assert [path.name for path in (tmp_path / 'new' / 'league').iterdir()] == ['0.safetensors']
    observer.after_round(SimpleNamespace(run_dir=tmp_path / 'new', env_step=60_000, policy=policy))
    assert sorted(path.stem for path in (tmp_path / 'new' / 'league').iterdir()) == ['0', '60000']
