"""A script of several runs under torchrun: ranks stay equal, count as one run, stop together, and say what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.policy_envs import differing, rows
from zoo.run.checkpoint import load_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group('torchrun')]

ROOT = Path(__file__).parents[2]
FAILED = 'a file', 'env', 'policy', 'three envs'

Seen = list[dict[str, dict[str, Any]]]


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the script has run."""
    path = tmp_path_factory.mktemp('ranks')
    torchrun = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=2']
    done = subprocess.run(
        [*torchrun, '-m', 'tests.cluster.rank_runs', str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, 'PYTHONPATH': str(ROOT), 'OMP_NUM_THREADS': '1'},
    )
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture(scope='module')
def seen(folder: Path) -> Seen:
    """What rank 0 and rank 1 saw of each run."""
    return [torch.load(folder / f'seen_{rank}.pt', weights_only=False) for rank in (0, 1)]


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
    # 2 envs of rank 0 have episodes of 3 steps, 2 of rank 1 of 7: 16 steps are 2 * 5 + 2 * 2 whole episodes,
    # after the first reset of 4 envs
    assert (first['env_step'], first['collect/episode'], first['env/reset'], first['learn/sample']) == (64, 14, 18, 64)
    assert (first['collect/return_min'], first['collect/return_max']) == (3, 7)
    assert first['collect/return_mean'] == pytest.approx((10 * 3 + 4 * 7) / 14)
    # after 64 steps 2 * 21 + 2 * 9
    assert (last['env_step'], last['collect/episode'], last['learn/sample']) == (256, 60, 256)
    assert first['learn/mine'] == 1  # that only rank 1 gave
    # reset rows are no steps: of 16 rows of an env 2 are, after 5 steps each, and at first 4 envs have none before
    first = rows(seen[0]['resets']['run_dir'])[0]
    assert (first['env_step'], first['learn/sample']) == (4 * 14, 4 * 14)


def test_evaluation_is_shared_out_and_told_by_rank_0(seen: Seen) -> None:
    found = seen[0]['ppo']['evaluations']
    assert [step for step, *_ in found] == [124, 185, 247] and seen[1]['ppo']['evaluations'] == []
    for _, returns, sets in found:
        assert len(returns) == 5 and sets == {'short': 5}  # 3 of rank 0 and 2 of rank 1
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


def test_rank_files_go_with_their_step(seen: Seen) -> None:
    # keep_last is 2; ppg's phase was at 192, after which it keeps nothing
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
        ('max_train_iter', 2, ''),  # 4 steps a round, at least 5
        ('stop on rank 1', 3, 'rank 1 wants it'),  # in the first round after 128 env steps, which has 185
        ('rule', 3, 'enough'),  # rank 0's rule says so after 3, that of rank 1 after 2
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
    assert seen[0]['model']['start'][1] == seen[1]['model']['start'][1]  # both were made from other random numbers


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
    # in the 3rd rollout: what the first two taught is not saved by one rank alone
    assert list(seen[0]['env']['digests']) == [64, 128] and 'end' not in seen[0]['env']
    assert not list((folder / 'env').rglob('*.safetensors'))
