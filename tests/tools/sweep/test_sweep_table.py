"""The rows and text of a sweep's table, and the content of best.yaml, from trials made by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.tools.sweep.tiny import LR, config
from zoo.run.config import resolve_config
from zoo.tools.sweep.plan import make_plan
from zoo.tools.sweep.study import SweepResult, TrialRow
from zoo.tools.sweep.sweep import as_data, best_config, doubts, n_tied, ranked, table, tie_words, train_command


def run(best: float, solved: int | None, wall_s: float) -> dict[str, Any]:
    return {'best_return': best, 'solved_at': solved, 'wall_s': wall_s, 'env_step': 512}


def row(number: int, state: Any, value: float | None = None, runs: Any = ()) -> TrialRow:
    return TrialRow(number, state, value, {LR: f'{number}e-4'}, list(runs), '')


def test_complete_trials_come_first_by_value_then_the_others_by_number() -> None:
    rows = [row(0, 'pruned'), row(1, 'complete', 5.0), row(2, 'lost'), row(3, 'complete', 9.0), row(4, 'pruned')]
    assert [r.number for r in ranked(rows, minimises=True)] == [1, 3, 0, 4, 2]
    assert [r.number for r in ranked(rows, minimises=False)] == [3, 1, 0, 4, 2]


def test_trials_of_equal_value_are_sorted_by_return_then_by_area_and_the_rest_tie() -> None:
    areas = {'auc': 400.0}, {'auc': 410.0}
    rows = [
        row(0, 'complete', 512.0, [run(480.0, 512, 1.0) | areas[1]]),
        row(1, 'complete', 512.0, [run(500.0, 512, 1.0) | areas[0]]),
        row(2, 'complete', 512.0, [run(500.0, 512, 1.0) | areas[1]]),
        row(3, 'complete', 256.0, [run(475.0, 256, 1.0) | areas[0]]),
        row(4, 'complete', 512.0, [run(500.0, 512, 1.0) | areas[1]]),
    ]
    best_first = ranked(rows, minimises=True)
    assert [r.number for r in best_first] == [3, 2, 4, 1, 0] and n_tied(best_first, minimises=True) == 1
    assert n_tied(best_first[1:], minimises=True) == 2


def test_trials_are_not_told_apart_by_an_area_that_only_some_of_them_have() -> None:
    # the runs of an older zoo have no area: one that has it is no better for that
    rows = [
        row(0, 'complete', 67.0, [run(67.0, None, 1.0)]),
        row(1, 'pruned', None, [run(60.0, None, 1.0)]),
        row(2, 'complete', 67.0, [run(67.0, None, 1.0) | {'auc': 51.0}]),
        row(3, 'complete', 67.0, [run(70.0, None, 1.0)]),
    ]
    best_first = ranked(rows, minimises=False)
    assert [r.number for r in best_first] == [3, 0, 2, 1] and n_tied(best_first, minimises=False) == 1
    assert n_tied(best_first[1:], minimises=False) == 2


def test_trials_that_tie_with_the_best_are_counted_with_what_tells_them_apart(tmp_path: Path) -> None:
    plan = make_plan(config(tmp_path, stop_value=20.0), [f'{LR}=log(1e-4,1e-2)'])
    rows = [row(i, 'complete', 256.0, [run(20.0, 256, 1.0)]) for i in range(2)] + [row(2, 'pruned')]
    [said] = tie_words(SweepResult(plan, rows, rows[0], tmp_path / 'best.yaml', 0))
    # each rollout of 64 steps of 4 envs is evaluated: 256 env steps, so that no eval_freq is finer
    assert said.startswith('the first 2 of 3 trials tie (256 steps to 20)') and said.endswith(
        '--seeds 3 with another --name'
    )
    rare = make_plan(config(tmp_path, stop_value=20.0), [f'{LR}=log(1e-4,1e-2)', 'policy.eval.eval_freq=4000'])
    # 4000 / 5 = 800 env steps between evaluations
    [said] = tie_words(SweepResult(rare, rows, rows[0], tmp_path / 'best.yaml', 0))
    assert 'policy.eval.eval_freq=800 ' in said
    assert tie_words(SweepResult(plan, rows[1:], rows[1], tmp_path / 'best.yaml', 0)) == []


@pytest.mark.parametrize(
    ('max_env_step', 'rules', 'said'),
    [
        # one rollout of 256 env steps: no eval_freq gives a second evaluation, ten rollouts give ten
        (256, {}, 'evaluated once, with one seed: no trial can be pruned.*one rollout.*max_env_step=2_560 --seeds 3$'),
        (
            256,
            {'seeds': 2},
            'each run of a trial is evaluated once: their order may be luck.*max_env_step=2_560$',
        ),
        (256, {'pruner': None}, 'evaluated once, with one seed: their order'),
        (2048, {}, 'one seed.*--seeds 3'),
        (2048, {'seeds': 2}, '^$'),
    ],
)
def test_doubts_about_the_order_name_the_words_that_end_them(
    max_env_step: int, rules: Any, said: str, tmp_path: Path
) -> None:
    plan = make_plan(config(tmp_path, max_env_step), [f'{LR}=log(1e-4,1e-2)'], **rules)
    assert re.search(said, doubts(plan))


def test_doubts_about_a_rare_evaluation_name_a_finer_one(tmp_path: Path) -> None:
    plan = make_plan(config(tmp_path, 4000), [f'{LR}=log(1e-4,1e-2)', 'policy.eval.eval_freq=5000'])
    assert doubts(plan).endswith('set policy.eval.eval_freq=400 --seeds 3')  # 4000 / 10


def test_cells_are_means_over_seeds_and_seconds_are_sums(tmp_path: Path) -> None:
    plan = make_plan(config(tmp_path, stop_value=20.0), [f'{LR}=log(1e-4,1e-2)'], seeds=2)
    used = {'cpu_s': 3.0, 'memory_mb': 240.0}, {'cpu_s': 4.5, 'memory_mb': 260.4}  # row 2 is of an older zoo
    rows = [row(1, 'complete', 300.0, [run(20.0, 200, 1.0) | used[0], run(30.0, 400, 2.0) | used[1]])]
    rows += [row(2, 'complete', 900.0, [run(20.0, 200, 1.0), run(10.0, None, 1.5)]), row(3, 'refused')]
    cells = table(SweepResult(plan, rows, rows[0], tmp_path / 'best.yaml', 0))
    assert cells[1] == ('1', 'complete', '1e-4', '25.0', '300', '3.0', '7.5', '260', '')
    assert cells[2] == ('2', 'complete', '2e-4', '15.0', '200 (1 of 2 seeds)', '2.5', '-', '-', '')
    assert cells[3] == ('3', 'refused', '3e-4', '-', '-', '-', '-', '-', '')


def test_best_config_lists_differences_and_resolves_to_the_same(tmp_path: Path) -> None:
    source = config(tmp_path)
    source['policy']['learn']['clip_ratio'] = {'start': 0.2, 'end': 0.1}
    source['policy']['collect'] = {'n_sample': 256}
    texts = [f'{LR}=log(1e-4,1e-2)', 'policy.model.hidden_sizes=choice([32,32],[64])', 'seed=4']
    plan = make_plan(source, texts)
    values = {LR: '0.0012', 'policy.model.hidden_sizes': '[32,32]'}
    found = best_config(plan, TrialRow(0, 'complete', 1.0, values, [], ''))
    assert found['policy']['model'] == {'hidden_sizes': [32, 32]} and found['seed'] == 4
    assert found['policy']['collect'] == {'n_sample': 256} and 'buffer' not in found
    assert resolve_config(found) == plan.resolve(values)


def test_command_that_trains_the_best_is_quoted_for_a_shell_and_has_what_is_to_be_imported(tmp_path: Path) -> None:
    result = SweepResult(make_plan(config(tmp_path), []), [], None, Path.cwd() / 'a sweep' / 'best.yaml', 0)
    assert train_command(result) == "zoo train 'a sweep/best.yaml'"
    words = train_command(result, ['--import', 'my policy.py'])
    assert words == "zoo train 'a sweep/best.yaml' --import 'my policy.py'"


def test_without_a_complete_trial_there_is_no_command(tmp_path: Path) -> None:
    plan = make_plan(config(tmp_path), [])
    data = as_data(SweepResult(plan, [row(0, 'failed')], None, None, 19))
    assert data['train'] is None and data['best'] is None and data['n_left'] == 19
