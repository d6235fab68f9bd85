"""benchmarks/population.py: env steps of forks, the table by hand, and a small comparison."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from population import main, spent, task_table


def repeat(seed: int, best: float, fresh: list[float]) -> dict[str, object]:
    return {'seed': seed, 'best': best, 'fresh': fresh, 'env_step': 1_000, 'eval_step': 500, 'wall_s': 2.0}


def test_wins_are_shares_of_repeats_above_random_search_of_the_same_seed() -> None:
    random = [repeat(0, 10.0, [1.0, 3.0]), repeat(1, 10.0, [5.0, 5.0])]  # means 2 and 5
    pbt = [repeat(1, 20.0, [6.0, 4.0]), repeat(0, 20.0, [9.0, 9.0])]  # a tie at seed 1, a win at seed 0
    lines = task_table({'random search': random, 'pbt': pbt, 'sweep': [repeat(0, 7.0, [1.0])]}).splitlines()
    cells = {line.split('|')[1].strip(): [cell.strip() for cell in line.split('|')[2:-1]] for line in lines}
    assert cells['pbt'][0] == '2'
    assert cells['pbt'][3] == '0.75'
    assert cells['random search'][3] == '-'
    assert cells['sweep'] == ['1', '7', '1', '0.00', '1,000', '500', '2 s']
    assert cells['pbt'][2].startswith('7 [')  # the mean of 9 and 5


def test_steps_of_a_fork_count_from_its_first_one(tmp_path: Path) -> None:
    for name, first, last in (('parent', 0, 300), ('child', 200, 500)):
        run = tmp_path / name
        run.mkdir()
        (run / 'result.json').write_text(json.dumps({'env_step': last}))
        rows = [{'env_step': step, 'eval/episode_len_mean': 7.0} for step in range(100, last + 1, 100)]
        (run / 'metrics.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
        if first:
            (run / 'fork.json').write_text(json.dumps({'env_step': first}))
    # 300 and 500 - 200; evaluations at 100, 200, 300 and at 300, 400, 500, of 10 episodes of 7 steps
    assert spent(tmp_path) == (600, 6 * 70)


@pytest.mark.soak
def test_a_small_comparison_spends_the_steps_and_continues(tmp_path: Path) -> None:
    words = ['--steps', '2048', '--members', '4', '--repeats', '1', '--fresh', '1', '--out', str(tmp_path)]
    main([*words, '--methods', 'random search', 'pbt'])
    record = json.loads((tmp_path / 'population.json').read_text())
    (methods,) = record['tasks'].values()
    for repeats in methods.values():
        assert 0.5 * 4 * 2048 <= repeats[0]['env_step'] <= 4 * 2048
    main([*words, '--methods', 'random search', 'pbt'])  # nothing is left to do
    assert json.loads((tmp_path / 'population.json').read_text())['tasks'] == record['tasks']
    assert '| pbt | 1 |' in (tmp_path / 'population.md').read_text()
