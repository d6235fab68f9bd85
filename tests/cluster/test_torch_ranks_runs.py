"""Runs and scripts under torchrun: the ranks' training and files, ends of runs, resumed runs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cluster.rank_cases import CASES, EQUAL_ONLY, HANG_S, SIZE, differences, in_one_process
from tests.cluster.torchrun import QUICK, TORCHRUN, Started
from tests.forked import run_python
from tests.policy_envs import differing, rows
from tests.processes import PATIENCE, left, once
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import load_checkpoint
from zoo.tools.cli.command import main

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
TOLERANCE = 1e-6  # absolute, of any parameter, moment or statistic after a case: sums are in another order
PASSES = 'policy.learn.epoch_per_collect=2', 'policy.collect.n_step=32', 'policy.learn.batch_size=64'
SMALL = *PASSES, 'max_env_step=1100'
OFTEN = 'policy.eval.eval_freq=100000000', 'checkpoint.freq=1024', 'checkpoint.keep_last=1000'
ENDLESS = 'max_env_step=100000000', *OFTEN


def _check_log_rises(run: Path) -> None:
    for name in ('learn/train_iter', 'eval/return_mean'):
        steps = [row['env_step'] for row in rows(run) if name in row]
        assert steps == sorted(set(steps)) and steps, (name, steps)


@pytest.fixture(scope='module')
def two(tmp_path_factory: pytest.TempPathFactory) -> Started:
    """A run of two ranks that has ended."""

    def make(folder: Path) -> None:
        options = ('policy.eval.eval_freq=512', 'checkpoint.freq=256')
        started, code = Started.ran(folder, 2, 'cartpole_ppo', *SMALL, *options)
        assert code == 0, started.output

    return Started.of(once(tmp_path_factory, 'two', make))


def test_two_ranks_write_one_run(two: Started) -> None:
    run = two.run()
    _check_log_rises(run)
    assert two.output.count('run folder: ') == 1
    updates = [row for row in rows(run) if 'learn/train_iter' in row]
    # rollouts of 8 x 32 rows, 2 passes of 4 minibatches each, for any number of ranks
    assert [row['learn/train_iter'] for row in updates] == [8, 16, 24, 32]
    assert all(0 < row['env_step'] <= 256 * (i + 1) for i, row in enumerate(updates))
    assert [row['learn/sample'] for row in updates] == [row['env_step'] for row in updates]
    assert two.saved()[-1] == updates[-1]['env_step']


def test_checkpoint_of_two_ranks_evaluates_and_continues_in_one_process(
    two: Started, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not main(['eval', str(two.run()), '--json', '--trust', '--episodes', '2'])
    assert json.loads(capsys.readouterr().out)
    overrides = [*QUICK, *SMALL, f'logger.root={tmp_path}', 'max_env_step=1600']
    assert serial_pipeline('cartpole_ppo', resume=two.run(), overrides=overrides).env_step > 1100


def test_uneven_split_is_refused_in_one_sentence_before_anything_is_made(tmp_path: Path) -> None:
    options = 'env.collector_env_num=9', 'policy.learn.batch_size=128', f'--run-dir={tmp_path / "mine"}'
    started, code = Started.ran(tmp_path, 2, 'cartpole_ppo', *options)
    assert code == 1
    assert [line for line in started.output.splitlines() if line.startswith('zoo:')] == [
        'zoo: error: env.collector_env_num is 9 but there are 2 ranks: 9 % 2 = 1; use a multiple, e.g. 8 or 10.'
    ]
    assert not started.root.exists() and not (tmp_path / 'mine').exists()


def test_one_rank_is_a_run_of_one_process_bit_for_bit(tmp_path: Path) -> None:
    options = (*SMALL, 'policy.eval.eval_freq=512')
    started, code = Started.ran(tmp_path / 'a', 1, 'cartpole_ppo', *options)
    assert code == 0, started.output
    overrides = [*options, *QUICK, f'logger.root={tmp_path / "b"}']
    run = serial_pipeline('cartpole_ppo', overrides=overrides).run_dir
    assert not differing(*(load_checkpoint(folder).state['policy'] for folder in (started.run(), run)))
    assert rows(started.run()) == rows(run)


@pytest.mark.soak
def test_killed_rank_resumes_from_the_newest_checkpoint_in_its_own_folder(tmp_path: Path) -> None:
    words = 'cartpole_ppo', *PASSES, 'max_env_step=12000', *OFTEN
    started = Started(tmp_path, 2, *words, options=('--max-restarts=1',))
    started.wait_for_checkpoints(2)
    os.kill(started.ranks()[1], signal.SIGKILL)
    assert started.ended() == 0, started.output
    assert started.saved()[-1] > 12000 - 256
    _check_log_rises(started.run())
    assert 'the run continues from step_' in started.output
    assert started.output.count('run folder: ') == 1


@pytest.mark.soak
def test_ranks_end_with_the_agent_that_is_killed(tmp_path: Path) -> None:
    started = Started(tmp_path, 2, 'cartpole_ppo', *ENDLESS)
    started.wait_for_checkpoints(1)
    ranks = started.ranks()
    assert len(ranks) == 2
    os.kill(started.process.pid, signal.SIGKILL)
    try:
        assert left(ranks) == []
    finally:
        for pid in left(ranks, 0.0):
            os.kill(pid, signal.SIGKILL)
        started.process.wait()


@pytest.mark.soak
def test_signals_to_the_group_save_once_and_leave_no_process(tmp_path: Path) -> None:
    numbers = signal.SIGINT, signal.SIGTERM
    runs = [Started(tmp_path / number.name, 2, 'cartpole_ppo', *ENDLESS) for number in numbers]
    for number, started in zip(numbers, runs, strict=True):
        started.wait_for_checkpoints(1)
        ranks = started.ranks()
        assert len(ranks) == 2
        os.killpg(started.process.pid, number)
        assert started.ended() == 1  # torchrun's own exit code
        assert not left(ranks)
        assert started.output.count('continue with: zoo train --resume') == 1
        assert 'Traceback' not in started.output.partition('SignalException')[0].partition('Traceback')[2]
        last = started.saved()[-1]
        assert load_checkpoint(started.run()).meta['env_step'] == last
        assert [row['env_step'] for row in rows(started.run()) if 'learn/train_iter' in row][-1] == last


# --- one script of many trainings and runs ---

FAILED = 'a file', 'env', 'policy', 'three envs'

Seen = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the script has run `rank_cases`, then `rank_runs`."""

    def make(path: Path) -> None:
        words = *TORCHRUN[1:], '--nproc-per-node=2', '-m', 'tests.cluster.rank_runs', str(path)
        done = run_python(*words, cwd=ROOT, timeout=2 * PATIENCE, PYTHONPATH=str(ROOT), OMP_NUM_THREADS='1')
        assert done.returncode == 0, done.stderr

    return once(tmp_path_factory, 'script', make)


@pytest.fixture(scope='module')
def seen(folder: Path) -> Seen:
    """[what rank 0 saw, what rank 1 saw], each by name of the run."""
    return [torch.load(folder / f'seen_{rank}.pt', weights_only=False) for rank in (0, 1)]


@pytest.mark.soak
def test_ranks_are_equal_to_the_bit_after_every_round_of_every_run(seen: Seen) -> None:
    first, second = seen
    ended = [name for name in first if 'error' not in first[name]]
    assert sorted(set(first) - set(ended)) == sorted(FAILED)
    for name in ended:
        one, other = first[name], second[name]
        assert one['digests'] == other['digests'] and one['start'][:2] == other['start'][:2], name
        assert len(set(one['digests'].values())) == len(one['digests']) > 0, name  # each round changes the policy
        counters = 'env_step', 'train_iter', 'best_return', 'last_return', 'stop_reason', 'run_dir'
        assert [one[key] for key in counters] == [other[key] for key in counters], name


def test_checkpoints_hold_what_the_ranks_had_and_rank_0_alone_writes(seen: Seen) -> None:
    one, other = seen[0]['ppo'], seen[1]['ppo']
    steps = {name: digest for name, digest in one['checkpoints'].items() if name.startswith('step')}
    assert steps == {f'step_{step:09d}.safetensors': one['digests'][step] for step in (124, 247)}
    assert other['checkpoints'] == {}
    assert sorted(path.name for path in one['run_dir'].glob('sink_*')) == ['sink_0']
    assert load_checkpoint(one['run_dir']).meta['rank_num'] == 2
    saved = load_checkpoint(one['run_dir']).state['policy']
    assert not differing(saved, one['end']['policy']) and not differing(saved, other['end']['policy'])


def test_log_is_one_with_rising_env_steps(seen: Seen) -> None:
    for name in ('ppo', 'uneven', 'resets', 'off, second part'):
        lines = [row for row in rows(seen[0][name]['run_dir']) if 'learn/train_iter' in row]
        steps = [row['env_step'] for row in lines]
        assert steps == sorted(set(steps)) and steps[-1] == seen[0][name]['env_step'], name


def test_numbers_of_the_log_are_of_both_ranks_hand_worked(seen: Seen) -> None:
    first, *_, last = [row for row in rows(seen[0]['uneven']['run_dir']) if 'learn/train_iter' in row]
    # the 2 envs of rank 0 have episodes of 3 steps, the 2 of rank 1 of 7: in 16 steps 2 * 5 + 2 * 2 = 14 episodes end;
    # 14 + 4 first resets = 18 resets
    assert (first['env_step'], first['collect/episode'], first['env/reset'], first['learn/sample']) == (64, 14, 18, 64)
    assert (first['collect/return_min'], first['collect/return_max']) == (3, 7)
    assert first['collect/return_mean'] == pytest.approx((10 * 3 + 4 * 7) / 14)
    # in 64 steps of each env 2 * 21 + 2 * 9 = 60 episodes end
    assert (last['env_step'], last['collect/episode'], last['learn/sample']) == (256, 60, 256)
    assert first['learn/mine'] == 1  # only rank 1 gave this metric
    # rows that only reset an env are no steps: an env's 16 rows are 5 steps, reset, 5 steps, reset, 4 steps
    first = rows(seen[0]['resets']['run_dir'])[0]
    assert (first['env_step'], first['learn/sample']) == (4 * 14, 4 * 14)


def test_evaluation_is_shared_out_and_told_by_rank_0(seen: Seen) -> None:
    found = seen[0]['ppo']['evaluations']
    assert [step for step, *_ in found] == [124, 185, 247] and seen[1]['ppo']['evaluations'] == []
    for _, returns, sets in found:
        assert len(returns) == 5 and sets == {'short': 5}  # rank 0 has 3 of the 5 episodes, rank 1 has 2
    lines = [row for row in rows(seen[0]['ppo']['run_dir']) if 'eval/return_mean' in row]
    assert [row['eval/return_mean'] for row in lines] == [pytest.approx(sum(x) / 5) for _, x, _ in found]


@pytest.mark.parametrize(('name', 'piece'), [('ppg', 'memory'), ('off', 'memory'), ('off', 'buffer')])
def test_resume_with_two_ranks_gives_each_its_own_samples_and_the_bits_of_a_run_without(
    seen: Seen, name: str, piece: str
) -> None:
    for rank in (0, 1):
        before, after = seen[rank][f'{name}, first part'], seen[rank][f'{name}, second part']
        assert after['start'][0] == 128 and before['run_dir'] == after['run_dir']
        assert after['start'][2][piece] and not differing(before['end'][piece], after['start'][2][piece])
        for key in ('policy', 'memory', 'buffer'):
            assert not differing(seen[rank][name]['end'][key], after['end'][key])
    assert differing(seen[0][f'{name}, first part']['end'][piece], seen[1][f'{name}, first part']['end'][piece])


def test_one_process_that_continues_a_run_of_two_ranks_says_whose_samples_are_left_out(
    seen: Seen, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = ['max_env_step=320', f'logger.root={tmp_path}']
    assert serial_pipeline(resume=seen[0]['off']['run_dir'], overrides=overrides, trust=True).env_step > 256
    assert 'was written by 2 ranks and this run has 1' in caplog.text


def test_rank_files_go_with_their_step(seen: Seen) -> None:
    # keep_last is 2; ppg's auxiliary phase was at 192 and emptied its memory, so that step has no rank file
    for name, own in (('ppg', [256]), ('off', [192, 256])):
        files = {path.name for path in (seen[0][name]['run_dir'] / 'checkpoints').iterdir()}
        main = {f'step_{step:09d}.safetensors' for step in (192, 256)}
        assert files == main | {f'step_{step:09d}.rank_1.safetensors' for step in own}


def test_runners_of_two_ranks_end_with_the_bits_of_groups(seen: Seen) -> None:
    for rank in (0, 1):
        assert not differing(seen[rank]['runners']['end']['policy'], seen[rank]['groups']['end']['policy'])
        assert seen[rank]['runners']['env_step'] == seen[rank]['groups']['env_step']


@pytest.mark.parametrize(
    ('name', 'n_round', 'reason'),
    [
        ('max_train_iter', 2, ''),  # 4 gradient steps per round, at least 5 wanted
        ('stop on rank 1', 3, 'rank 1 wants it'),  # the first round with at least 128 env steps has 185
        ('rule', 3, 'enough'),  # rank 0's rule asks to stop after 3 rounds, rank 1's after 2
        ('stop_value', 2, 'policy.eval.stop_value is reached'),  # at the first evaluation, due from 64 env steps on
    ],
)
def test_ranks_stop_together_for_one_reason(seen: Seen, name: str, n_round: int, reason: str) -> None:
    for rank in (0, 1):
        assert len(seen[rank][name]['digests']) == n_round and seen[rank][name]['stop_reason'] == reason


def test_wall_time_is_that_of_rank_0(seen: Seen) -> None:
    assert all(len(each['wall_time']['digests']) == 1 for each in seen)
    assert all('seconds have passed' in each['wall_time']['stop_reason'] for each in seen)


def test_profile_is_of_rank_0(seen: Seen) -> None:
    run_dir = seen[0]['profile']['run_dir']
    assert (run_dir / 'profile.txt').read_text().count('profile of 2 iterations') == 1
    assert (run_dir / 'trace.json').stat().st_size > 0


def test_model_given_is_that_of_rank_0(seen: Seen) -> None:
    assert seen[0]['model']['start'][1] == seen[1]['model']['start'][1]  # each rank made it from other random numbers


def test_what_cannot_be_is_refused_by_all_ranks_before_anything_is_made(seen: Seen, folder: Path) -> None:
    for each in seen:
        assert each['three envs']['error'].startswith(
            'ConfigError: env.collector_env_num is 3 but there are 2 ranks: 3 % 2 = 1; use a multiple, e.g. 2 or 4.'
        )
        assert each['policy']['error'].startswith('UserError: a policy was given but 2 ranks train together')
    assert 'cannot be made (Not a directory)' in seen[0]['a file']['error']
    assert 'rank 1 waited' in seen[1]['a file']['error']


def test_error_of_an_env_ends_all_ranks_and_passes_through_on_its_own(seen: Seen, folder: Path) -> None:
    assert seen[1]['env']['error'] == 'ValueError: the wheel came off'
    assert 'RanksLostError: rank 0 waited for' in seen[0]['env']['error']
    # the error is in rollout 3; rank 0 alone does not save what the first two taught
    assert list(seen[0]['env']['digests']) == [64, 128] and 'end' not in seen[0]['env']
    assert not list((folder / 'env').rglob('*.safetensors'))


@pytest.fixture(scope='module')
def found(folder: Path) -> list[dict[str, Any]]:
    """What each rank saved after all cases, by rank."""
    return [torch.load(folder / f'rank_{rank}.pt', weights_only=True) for rank in range(SIZE)]


@pytest.mark.parametrize('name', CASES)
def test_two_ranks_end_as_one_process_of_twice_the_batch(name: str, found: list[dict[str, Any]]) -> None:
    one, ranks = in_one_process(CASES[name]), [each['cases'][name] for each in found]
    assert one.keys() == ranks[0].keys() - {'time'}
    for key in ('learn.train_iter', 'metric/n_epoch', 'metric/skipped_step'):
        assert one.get(key) == ranks[0].get(key)
    off = differences(one, ranks[0])
    worst = max(off, key=lambda key: off[key])
    print(f'\n{name}: at most {off[worst]:.1e} apart, in {worst}; {int(one["learn.train_iter"])} steps')
    assert off[worst] <= TOLERANCE, off


@pytest.mark.parametrize('name', [*CASES, *EQUAL_ONLY])
def test_ranks_are_equal_to_the_bit(name: str, found: list[dict[str, Any]]) -> None:
    one, other = (each['cases'][name] for each in found)
    assert set(differences(one, other).values()) == {0.0}
    steps = [key for key in one if key.startswith('metric/') and key.endswith('grad_norm')]
    assert steps and all(torch.equal(one[key], other[key]) for key in steps if 'accumulate' not in name)


def test_the_cases_show_what_they_are_for(found: list[dict[str, Any]]) -> None:
    cases = found[0]['cases']
    for name in ('target_kl', 'target_kl at minibatches'):
        assert 1 < cases[name]['metric/n_epoch'] < 8  # it stopped before the last pass
    adaptive = cases['adaptive rate and penalty']
    assert adaptive['learn.adaptive_rate.learning_rate'] != 1e-3 and adaptive['learn.penalty_weight.kl'] != 0.5
    assert cases['three normalisers']['normalizer.reward.count'] < SIZE * 256  # without rows that only reset
    assert 'metric/aux_kl_after' in cases['ppg with its auxiliary phase']


def test_sums_and_moments_are_of_all_ranks_and_the_same_bits_on_each(found: list[dict[str, Any]]) -> None:
    one, other = (each['operations'] for each in found)
    generators = [torch.Generator().manual_seed(rank) for rank in range(SIZE)]
    for a, b, n in zip(one['sums'], other['sums'], [n for n in (1, 7, 1000, 100_003) for _ in range(2)], strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, sum(torch.randn(n, generator=each) for each in generators), rtol=0, atol=1e-6)
    assert one['strided'].tolist() == [[3.0] * 4] * 2
    rows = torch.arange(6.0, dtype=torch.float64).view(3, 2)
    both = torch.cat((rows, rows + 10))
    for operations in (one, other):
        n, mean, var = operations['moments']
        assert n == 6 and torch.equal(mean, both.mean(0))
        torch.testing.assert_close(var, both.var(0, correction=0), rtol=0, atol=1e-12)
        n, mean, var = operations['empty']  # rank 0 has no rows
        assert n == 3 and torch.equal(mean, rows.mean(0) + 10)
        torch.testing.assert_close(var, rows.var(0, correction=0), rtol=0, atol=1e-12)
        assert operations['counts'][0].tolist() == [6, 1]
        assert operations['gather'] == [{'rank': 0}, {'rank': 1}] and operations['share'] == ['of 0', 'of 1']
        assert all(operations['copy'])


def test_steps_are_with_the_mean_gradient_and_skipped_by_all_hand_worked(found: list[dict[str, Any]]) -> None:
    for each in found:
        steps = each['operations']['steps']
        assert steps['seen'][0].tolist() == [3, 4] and steps['norms'][0] == 5  # the mean of (6, 0) and (0, 8)
        torch.testing.assert_close(steps['moved'], torch.full((2,), -0.1), rtol=0, atol=1e-6)  # Adam's first step is lr
        assert steps['norms'][1].isnan() and steps['skipped'] == 1  # also on rank 0, whose own gradient was finite
        assert torch.equal(steps['after'], steps['moved'])


def test_ranks_draw_as_often_as_the_one_with_fewest_draws(found: list[dict[str, Any]]) -> None:
    counts = list(zip(*(each['operations']['draws'] for each in found), strict=True))
    assert any(one[0] != other[0] for one, other in counts)  # without an agreement some counts differ
    for (alone, agreed), (other_alone, other_agreed) in counts:
        assert agreed == other_agreed == min(alone, other_alone)


def test_rank_that_does_not_come_is_said_after_the_time_out(folder: Path) -> None:
    late, gone = ((folder / name).read_text() for name in ('late', 'gone'))
    assert late.startswith(f'rank 0 waited for the sum of 2 ranks, but they did not come within {HANG_S:g} s')
    assert gone.startswith('rank 0 waited for what all ranks say of 2 ranks, but')
