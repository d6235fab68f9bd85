"""benchmarks/speed.py: the verdicts of its tables, and that all drivers are asked for the same work."""

from __future__ import annotations

import pytest
from speed_runs import take_turns
from speed_tables import by_label, fastest_reference, memory_cell, part_rows, return_rows, target_row, verdict
from speed_works import PEERS, WORKS, arguments, left_out, peer_drivers, zoo_drivers

WORK = WORKS[0]._replace(wanted=(2.5, 4.0))  # multiples of the faster of stable-baselines3 and CleanRL


def run(label: str, speed: float, seed: int = 0, **more) -> dict:
    return {'label': label, 'env_step_per_s': speed, 'seed': seed, 'peak_rss_mb': 300.0, 'final_return': None, **more}


def test_target_row_takes_medians_against_the_fastest_reference():
    # medians: CleanRL 12 beats stable-baselines3 10; Tianshou 99 is no reference; eager 27/12 = 2.25, best 60/12 = 5
    speeds = {'stable-baselines3': (9, 10, 40), 'CleanRL': (12, 12, 1), 'Tianshou': (99, 99, 99)}
    speeds |= {'zoo eager': (27, 26, 100), 'zoo best': (60, 60, 60)}
    groups = by_label([run(label, speed) for label, values in speeds.items() for speed in values])
    assert fastest_reference(WORK, groups) == ('CleanRL', 12)
    assert target_row(WORK, groups)[1:8] == ['CleanRL: 12', '2.25', '2.5', 'missed by 10%', '5.00', '4', 'met']


def test_target_row_without_a_reference_says_so():
    row = target_row(WORK, by_label([run('zoo eager', 5.0), run('Tianshou', 1.0)]))
    assert row[1:8] == ['not measured', 'not measured', '2.5', '', 'not measured', '4', '']


@pytest.mark.parametrize('got, said', [(2.5, 'met'), (2.0, 'missed by 20%'), (7.0, 'met')])
def test_verdict_names_the_share_of_what_was_wanted(got, said):
    assert verdict(got, 2.5) == said


@pytest.mark.parametrize('peak, said', [(400, '-10 and +100: met'), (401, '-10 and +101: missed')])
def test_memory_cell_compares_the_largest_peaks(peak, said):
    groups = by_label(
        [run('stable-baselines3', 1, peak_rss_mb=mb) for mb in (300, 290)]
        + [run('zoo eager', 1, peak_rss_mb=290), run('zoo best', 1, peak_rss_mb=peak)]
    )
    assert memory_cell(groups) == said


def test_part_rows_sum_to_the_time_of_the_clock():
    parts = {'env': 1.0, 'act': 2.0, 'sample': 0.5, 'learn': 5.0, 'log': 0.5, 'evaluate': 0.0}
    runs = [run('zoo eager', 1, wall_s=10.0, part_s=parts, iteration_s=0.1, slowest_iteration_s=0.3)]
    assert part_rows(WORK, by_label(runs)) == [[WORK.title, 'zoo eager', '10%', '20%', '5%', '50%', '5%', '10%', '3.0']]


def test_return_rows_are_no_worse_if_the_interval_reaches_the_baselines():
    returns = {'stable-baselines3': (100, 110, 120), 'zoo eager': (50, 60, 115), 'zoo best': (10, 20, 30)}
    order = [(label, seed) for label in returns for seed in (2, 1, 0)]
    runs = [run(label, 1, seed, final_return=returns[label][seed]) for label, seed in order]
    rows = {row[1]: row for row in return_rows(WORK, by_label(runs))}
    assert rows['zoo eager'][2] == '50 60 115'  # in the order of seeds, not of runs
    assert [rows[label][-1] for label in returns] == ['', 'yes', 'no']


def test_peers_that_are_not_installed_are_left_out_in_one_sentence(tmp_path):
    (tmp_path / 'cleanrl' / 'bin').mkdir(parents=True)
    (tmp_path / 'cleanrl' / 'bin' / 'python').touch()
    found, missing = peer_drivers(WORK, ['sb3', 'cleanrl', 'tianshou'], tmp_path)
    assert [driver.label for driver in found] == ['CleanRL']
    guide = 'benchmarks/peers/README.md tells how to'
    assert missing == [f'stable-baselines3, Tianshou are left out: not installed in {tmp_path}; {guide}']
    assert left_out([], tmp_path) == []


def test_take_turns_runs_every_second_round_backwards():
    assert take_turns(['a', 'b'], 3) == [(0, 'a'), (0, 'b'), (1, 'b'), (1, 'a'), (2, 'a'), (2, 'b')]


@pytest.mark.parametrize('work', WORKS, ids=lambda work: work.name)
def test_works_are_whole_rollouts_of_whole_minibatches_with_time_on_the_clock(work):
    assert work.batch % work.minibatch == 0
    for scale in (0.01, 1.0):
        steps = work.scaled_steps(scale)
        assert steps % work.batch == 0 and steps > work.warmup * work.batch
    assert set(work.reference) <= set(work.peers) <= set(PEERS)


@pytest.mark.parametrize('work', WORKS, ids=lambda work: work.name)
def test_zoo_drivers_name_the_executor_unless_the_key_is_omitted(work):
    eager, *best = zoo_drivers(work, [])
    assert all('policy.learn.executor=eager' in setting for setting in eager.settings)
    # the C code runs no convolutions
    wanted = 'policy.learn.executor=eager' if work.image else 'policy.learn.executor=native'
    assert all(wanted in setting for driver in best for setting in driver.settings)
    omitted = zoo_drivers(work, ['policy.learn.executor'])
    assert not any(item.startswith('policy.learn.executor') for d in omitted for s in d.settings for item in s)


@pytest.mark.parametrize('work', WORKS, ids=lambda work: work.name)
def test_zoo_at_its_best_on_a_gpu_is_compiled_and_captured(work):
    eager, *best = zoo_drivers(work, [], 'cuda')
    assert eager == zoo_drivers(work, [])[0]
    for setting in (setting for driver in best for setting in driver.settings):
        assert setting[:2] == ('policy.learn.executor=graph', 'policy.learn.compile=on')
        assert len({item.partition('=')[0] for item in setting}) == len(setting)


def test_arguments_name_the_env_as_the_library_calls_it():
    work = next(work for work in WORKS if work.name == 'pong_8x128')
    zoo = zoo_drivers(work, [])[0]
    line = arguments(work, zoo, ('a=1',), 2048, 2, 3)
    assert line[line.index('--env') + 1] == 'atari/Pong' and line[-3:] == ['--image', '--set', 'a=1']
    line = arguments(work, zoo._replace(library='sb3'), (), 2048, 2, 3)
    assert line[line.index('--env') + 1] == 'PongNoFrameskip-v4' and line[-1] == '--image'
