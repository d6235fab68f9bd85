"""The report page: numbers worked by hand, its text, that it loads nothing, and that names of runs are never markup."""

from __future__ import annotations

import base64
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_runs import SHORT, made_run, write_run
from tests.tools.results.made_runs import METRIC, swept, whole_run
from zoo.config.section import plain
from zoo.config.yaml_io import parse_yaml
from zoo.core.errors import UserError
from zoo.pipeline import serial_pipeline
from zoo.run.config import resolve_config
from zoo.tools.results.read import Run, read_run
from zoo.tools.results.report import (
    PARTS,
    duration,
    has_all_times,
    number,
    numbers_of,
    report,
    seeds,
    spread,
    steps,
    time_shares,
    write_report,
)

pytest.importorskip('matplotlib')


def test_numbers_are_the_last_and_highest_of_each_run_and_their_average() -> None:
    runs = [made_run([10, 20, 40], values, seed=i) for i, values in enumerate(([1, 9, 5], [1, 2, 3], [0, 1, 4]))]
    [group] = numbers_of({'a': runs}, METRIC, 'mean')
    assert [(row.last, row.highest) for row in group.runs] == [(5, 9), (3, 3), (4, 4)]
    assert group.last == 4 and group.highest == pytest.approx(16 / 3)
    assert 3 <= group.low < 4 < group.high <= 5
    assert group.runs[0].run.wall_s == 40 and group.runs[0].run.speed == 1.0  # one step a second


def test_numbers_of_runs_without_the_metric_are_unknown() -> None:
    runs = [made_run([1, 2], [5, 6]), made_run([1, 2], [0, 0], metric='other')]
    [group] = numbers_of({'a': runs}, METRIC, 'iqm')
    assert (group.last, group.n_with) == (6, 1) and group.runs[1].last is None
    [group] = numbers_of({'a': runs}, None, 'iqm')
    assert group.last is group.low is group.highest is None


def test_number_of_steps_of_a_run_without_lines_is_zero() -> None:
    [group] = numbers_of({'a': [made_run([], [])]}, METRIC, 'iqm')
    assert group.runs[0].run.env_step == 0 and group.last is None and group.runs[0].run.speed is None


def test_time_shares_are_the_mean_over_runs_and_add_up_to_one() -> None:
    runs = [made_run([1], [1]), made_run([1], [1])]
    for run, share_env in zip(runs, (0.2, 0.6), strict=True):
        run.columns.update({f'time/share_{name}': np.array([0.0]) for name in PARTS})
        run.columns |= {'time/share_env': np.array([share_env]), 'time/share_learn': np.array([1 - share_env])}
    shares = time_shares(runs)
    assert shares['env'] == pytest.approx(0.4) and shares['learn'] == pytest.approx(0.6) and shares['act'] == 0
    assert time_shares([made_run([1], [1])]) == {}


def test_time_and_shares_of_a_run_that_has_ended_are_those_of_all_of_it() -> None:
    run = made_run([1_000], [1])  # its last log line is at 1,000 s
    run.columns.update({f'time/share_{name}': np.array([1.0 if name == 'learn' else 0.0]) for name in PARTS})
    seconds = {**dict.fromkeys(PARTS, 0), 'learn': 900, 'evaluate': 300}
    run.result.update(env_step=1_000, wall_s=1_250.0, seconds=seconds)
    [group] = numbers_of({'a': [run]}, METRIC, 'iqm')
    assert (group.runs[0].run.wall_s, group.runs[0].run.speed) == (1_250, 0.8)
    assert time_shares([run]) == {**dict.fromkeys(PARTS, 0), 'learn': 0.75, 'evaluate': 0.25}
    run.result['seconds'] = {'learn': 'much'}
    assert time_shares([run])['learn'] == 1


def test_shares_of_a_run_that_continues_add_its_last_process_to_those_before() -> None:
    run = made_run([400], [1])  # its last log line is at 400 s
    run.columns.update({f'time/share_{name}': np.array([1.0 if name == 'learn' else 0.0]) for name in PARTS})
    run.result.update(state='running', seconds={}, timed_s=0.0)
    assert time_shares([run])['learn'] == 1 and has_all_times(run)
    run.result.update(seconds={**dict.fromkeys(PARTS, 0), 'env': 80, 'learn': 20}, timed_s=100.0)
    shares = time_shares([run])  # learn: 20 s, and the 300 s since then
    assert shares == {**dict.fromkeys(PARTS, 0), 'env': pytest.approx(0.2), 'learn': pytest.approx(0.8)}
    assert has_all_times(run)
    run.result['n_killed'] = 1
    assert not has_all_times(run)


def test_times_of_a_run_that_has_ended_are_all_if_they_are_as_long_as_it() -> None:
    run = made_run([400], [1])
    for timed_s, has_all in ((None, False), ('x', False), (100.0, False), (399.0, True), (401.0, True)):
        run.result.update(state='done', wall_s=400.0, timed_s=timed_s)
        assert has_all_times(run) is has_all


@pytest.mark.parametrize(
    ('words_of', 'rows'),
    [
        (duration, {0.04: '0.0 s', 9.94: '9.9 s', 9.96: '10 s', 59.4: '59 s', 59.6: '1 min', 200: '3 min 20 s'}),
        (duration, {3599.4: '59 min 59 s', 3600: '1 h', 7199: '2 h', 7500: '2 h 5 min', math.nan: '–'}),
        (steps, {7: '7', 950: '950', 999.6: '1k', 40_670: '40.7k', 999_999: '1M', 1.5e6: '1.5M', 2e9: '2G'}),
        (number, {0.96637: '0.9664', 475.25: '475.2', -12345.6: '-12,346', 0: '0', None: '–', math.inf: '–'}),
    ],
)
def test_numbers_are_in_words_that_one_reads(words_of: Any, rows: dict[Any, str]) -> None:
    assert {value: words_of(value).replace('\u00a0', ' ') for value in rows} == rows


def test_seeds_are_a_range_where_they_are_one() -> None:
    rows = {(3,): 'seed 3', (3, 3): 'seed 3', (1, 0): 'seeds 0 and 1', (0, 1, 2): 'seeds 0 to 2'}
    rows |= {(1, 5, 9): 'seeds 1, 5 and 9', tuple(range(0, 20, 2)): '10 seeds'}
    assert {given: seeds([made_run([1], [1], seed=seed) for seed in given]) for given in rows} == rows


def test_spread_is_one_value_where_all_look_alike() -> None:
    assert spread([1.01, 1.02], lambda x: f'{x:.1f}') == '1.0' and spread([3, 1, 2], str) == '1 to 3'


VOID = {'meta', 'link', 'img', 'br', 'input'}


GIF = b'GIF89a\x01\x00\x01\x00\x00\x00\x00;'


NASTY = '</title><script>alert(1)</script><img src=x onerror=alert(2)> "a" \'b\' $palette {{ palette }} {% raw %} 日本'


class Page(HTMLParser):
    """The content of a page: its text, its elements with their attributes, and whether all are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open
        self.text = ' '.join(' '.join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if 'style' not in self._open:
            self.words.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(runs: list[Run], metric: str | None = None, **options: Any) -> Page:
    return Page(report(runs, metric, **options))


def test_time_and_speed_of_two_runs_are_their_medians() -> None:
    runs = [whole_run(seed=0), whole_run(seed=1)]
    for run, wall_s in zip(runs, (1000.0, 4000.0), strict=True):  # 4,000 env steps each: 4/s and 1/s
        run.columns['wall_s'] = run.columns['wall_s'] * wall_s / 4000
    text = page_of(runs).text.replace('\u00a0', ' ')
    assert re.search(r'Time\s*41 min 40 s\s*of a run, median', text)  # 2,500 s
    assert re.search(r'Speed\s*2\s*env steps per second', text)  # 2.5 rounds to the even number 2


def test_return_of_drawn_actions_is_not_that_of_the_greedy_policy() -> None:
    page = page_of([whole_run(0, 'made', (1.0, 3.0, 2.0), 'policy.eval.deterministic=false')])
    assert 'The mean return in an evaluation is 2 at the end.' in page.text


def test_page_of_one_run_says_what_how_good_and_how_long() -> None:
    page = page_of([whole_run(seed=3)])
    assert 'made on CartPole-v1' in page.text and 'in one run with seed 3, for 4,000 env steps' in page.text
    assert 'The mean return of the greedy policy in an evaluation is 2 at the end.' in page.text
    assert '1 h 7 min' in page.text.replace('\u00a0', ' ')  # 4,000 s
    assert 'interval' not in page.text.split('Curves')[0]  # one run has no interval
    assert 'seed 3' in page.text.split('Runs')[1] and 'max_env_step' in page.text
    assert 'zoo train made.yaml seed=3' in page.text


@pytest.mark.slow
def test_page_of_several_runs_has_average_and_interval_and_a_row_for_each() -> None:
    page = page_of([whole_run(seed=i, values=[0, 0, x]) for i, x in enumerate((1.0, 2.0, 3.0, 4.0, 9.0))])
    # interquartile mean of five: (0.75 * 2 + 3 + 0.75 * 4) / 2.5
    assert 'is 3 (interquartile mean of 5 runs, 95% interval ' in page.text and 'with seeds 0 to 4' in page.text
    # its folder is named 4; 4,000 steps, 4,000 s
    assert 'seed 4 4 4k 9 9 1 h 7 min 1 ' in page.text.replace('\u00a0', ' ')
    assert 'zoo train made.yaml seed=0..4' in page.text


@pytest.mark.slow
def test_page_of_two_configs_compares_them() -> None:
    runs = [whole_run(0, 'first', (1, 2, 3)), whole_run(0, 'second', (1, 2, 8), 'policy.collect.gae_lambda=0.5')]
    page = page_of(runs)
    assert 'The highest mean return of the greedy policy in an evaluation at the end is that of second: 8.' in page.text
    between = page.text.split('Between the configs')[1].split('In all of them')[0]
    assert 'policy.collect.gae_lambda' in between and '0.95 0.5 0.95' in between and 'max_env_step' not in between
    assert 'first: 1 run' in page.text and 'second: 1 run' in page.text  # the legend


@pytest.mark.slow
def test_page_has_a_figure_for_each_env() -> None:
    text = report([whole_run(0, 'a'), whole_run(0, 'b', env='Acrobot-v1')])
    page = Page(text)
    labels = [str(e['aria-label']) for e in page.named('svg')]
    assert sum(label.startswith('eval/return_mean of 1 config') for label in labels) == 4  # per env: wide and narrow
    colours = [set(re.findall(r'var\(--line-\d\)', svg)) for svg in re.findall('<svg.*?</svg>', text, re.DOTALL)]
    assert colours == [{'var(--line-0)'}, {'var(--line-0)'}, {'var(--line-1)'}, {'var(--line-1)'}]  # as in the tables
    assert 'The highest' not in page.text  # returns of two envs cannot be compared
    assert 'CartPole-v1 and Acrobot-v1' in page.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ('metric', 'state', 'said'),
    [
        ('collect/return_mean', 'done', ['The mean return of recent training episodes is 2 at the end.']),
        ('learn/entropy', 'done', ['No return is known yet', 'No run has logged a return yet.']),
        (None, 'killed', ['for 0 env steps', 'The run was killed.']),  # without a log line
    ],
)
def test_page_without_evaluations_says_so(metric: str | None, state: Any, said: list[str]) -> None:
    run = whole_run(metric=metric or '')
    columns = run.columns if metric else {'env_step': np.empty(0), 'wall_s': np.empty(0)}
    page = page_of([Run(run.path, run.config, columns, {}, state)])
    assert all(words in page.text for words in said)


@pytest.mark.slow
def test_page_says_which_runs_failed_and_why() -> None:
    good, bad = whole_run(), whole_run(seed=1)
    bad = Run(bad.path, bad.config, bad.columns, {'stop_reason': 'the disk is full'}, 'failed')
    page = page_of([good, bad])
    assert '1 of 2 runs failed.' in page.text and '1 of 2 runs failed: the disk is full.' in page.text


@pytest.mark.slow
def test_page_loads_nothing_and_has_no_script(tmp_path: Path) -> None:
    (tmp_path / 'a.gif').write_bytes(GIF)
    page = page_of([whole_run(), whole_run(1)], video=tmp_path / 'a.gif')
    tags = {tag for tag, _ in page.elements}
    assert not tags & {'script', 'link', 'iframe', 'object', 'embed', 'base', 'form'}
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith('on')]
        for name in ('src', 'href', 'xlink:href', 'action', 'poster'):
            assert re.match('(data:|#)', attributes.get(name) or '#')
    policy = next(e['content'] for e in page.named('meta') if e.get('http-equiv') == 'Content-Security-Policy')
    assert str(policy).startswith("default-src 'none'")


@pytest.mark.slow
def test_ids_are_unique_and_all_references_lead_to_one_and_curves_have_the_colours_of_the_page() -> None:
    text = report([whole_run(0, 'a'), whole_run(0, 'b')])
    ids = [e['id'] for _, e in Page(text).elements if e.get('id')]
    assert len(ids) == len(set(ids)) > 50
    assert set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text)) <= {(x, '') for x in ids} | {('', x) for x in ids}
    svgs = re.findall(r'<svg.*?</svg>', text, re.DOTALL)
    assert not re.findall('#[0-9a-f]{6}', ''.join(svgs)) and 'var(--line-1)' in svgs[0] and 'var(--plot-ink)' in svgs[0]


@pytest.mark.long
@pytest.mark.slow
def test_names_with_tags_quotes_and_dollars_are_only_text(tmp_path: Path) -> None:
    run = whole_run()
    run.config['exp_name'] = run.config['env']['id'] = run.config['policy']['type'] = NASTY
    run.config['env']['kwargs'] = {NASTY: NASTY}
    result = {'state': NASTY, 'stop_reason': NASTY, 'versions': {NASTY: NASTY}, 'machine': {'cpu': NASTY}}
    result |= {'command': ['zoo', 'train', NASTY]}
    folder = tmp_path / 'a"b\'c <script>alert(3)<script>'
    write_run(folder, run)
    (folder / 'result.json').write_text(json.dumps(result))
    plain_page, page = page_of([whole_run()]), page_of([read_run(folder)], title=NASTY)
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in plain_page.elements} | {'dl', 'dt', 'dd'}
    assert page.text.startswith(NASTY) and '<script>alert(3)<script>' in page.text
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith('on')]


@pytest.mark.slow
def test_page_of_a_sweep_has_its_order_its_metric_and_the_tried_values(tmp_path: Path) -> None:
    page = page_of(swept(tmp_path, 4, n_tied=2))
    assert page.text.startswith('made_sweep: a sweep of 4 trials on CartPole-v1')
    assert 'The best is trial 3: 1,000 steps to 450 with clip_ratio=0.4 . It ties with 1 other' in page.text
    assert 'Compared: env steps until the goal, best first' in page.text
    table = page.text.partition('Trial clip_ratio Steps to the goal')[2].partition('Curves')[0]
    assert re.findall(r'trial (\d) (0\.\d) ([\d,]+) steps', table) == [
        (str(i), f'0.{i + 1}', f'{4 - i},000') for i in (3, 2, 1, 0)
    ]


@pytest.mark.long
@pytest.mark.slow
def test_page_of_a_long_sweep_has_few_colors_and_one_part_on_speed(tmp_path: Path) -> None:
    page = page_of(swept(tmp_path, 9))
    marks = {e['style'].partition('--')[2][:-1] for e in page.named('span') if e.get('class') == 'swatch'}
    assert {mark for mark in marks if not mark.startswith('part-')} == {'line-0', 'line-1', 'line-2', 'plot-other'}
    assert 'the 6 others' in page.text and page.text.count('env steps per second, evaluations') == 1


@pytest.mark.slow
@pytest.mark.parametrize('content', ['', '[]', '{"name": 3}', '{"trials": [{"label": "trial_x"}]}', '[' * 99_999])
def test_runs_with_a_damaged_list_of_trials_are_several_configs(content: str, tmp_path: Path) -> None:
    runs = swept(tmp_path, 2)
    (tmp_path / 'trials.json').write_text(content)
    assert page_of(runs).text.startswith('trial_000 and trial_001 on CartPole-v1')


@pytest.mark.long
@pytest.mark.slow
def test_two_configs_are_compared_in_a_sentence() -> None:
    one, other = ([whole_run(i, name, (1, 2, first + i)) for i in range(4)] for name, first in (('a', 10), ('b', 20)))
    # all 16 pairs: b is higher; 2 of the 70 ways to split 8 runs into 4 and 4 are like that
    said = 'b is higher than a in 100% of the pairs of runs (95% interval 100% to 100%): a clear difference'
    assert f'{said} (chance alone gives such a difference in 2.9% of cases).' in page_of(one + other).text
    assert 'a and b have one run each, which says nothing about their difference' in page_of(one[:1] + other[:1]).text


@pytest.mark.slow
def test_configs_that_tie_are_none_of_them_called_the_best() -> None:
    runs = [whole_run(0, name, (1, 2, last)) for name, last in (('a', 500), ('b', 500), ('c', 3))]
    said = '2 of 3 configs have the highest mean return of the greedy policy in an evaluation at the end, 500.'
    assert said in page_of(runs).text


@pytest.mark.long
def test_curve_of_few_evaluations_is_that_of_training(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level('INFO')
    run = whole_run()
    run.columns['collect/return_mean'] = np.array([4.0, 5.0, 6.0])
    text = page_of([run]).text
    assert 'The runs have few evaluations, so this is the return of the training episodes.' in text
    assert 'The mean return of the greedy policy in an evaluation is 2 at the end.' in text
    assert caplog.messages == [
        'a run has 3 evaluations, so the curve is that of collect/return_mean; --metric eval/return_mean draws these'
    ]
    assert 'few evaluations' not in page_of([run], METRIC).text


@pytest.mark.slow
def test_config_in_the_page_is_the_whole_one_and_names_no_folder_for_runs() -> None:
    run = whole_run(2, 'a name with spaces', (1, 2, 3), 'logger.root=/home/me/runs', 'policy.learn.clip_ratio=0.3')
    page = page_of([run])
    link = next(e for e in page.named('a') if e.get('download'))
    assert link['download'] == 'a_name_with_spaces.yaml' and '/home/me' not in page.text
    config = parse_yaml(base64.b64decode(str(link['href']).partition('base64,')[2]).decode())
    again = plain(resolve_config(config, ['logger.root=/home/me/runs']))
    assert again == run.config


@pytest.mark.slow
def test_configs_of_one_experiment_are_named_by_what_differs_and_saved_as_different_files() -> None:
    runs = [whole_run(0, 'same', (1, 2, i), f'policy.collect.gae_lambda=0.{i}') for i in (1, 2)]
    page = page_of(runs)
    assert 'gae_lambda=0.1: 1 run' in page.text and 'same gae_lambda' not in page.text
    assert [e['download'] for e in page.named('a')] == ['same.yaml', 'same_2.yaml']
    assert 'zoo train same_2.yaml seed=0' in page.text


@pytest.mark.long
@pytest.mark.slow
def test_command_that_started_a_run_is_shown_as_the_shell_reads_it() -> None:
    run = whole_run()
    run.result['command'] = ['zoo', 'train', 'made', 'env.kwargs={a: 1}']
    assert "started with zoo train made 'env.kwargs={a: 1}' To" in page_of([run]).text
    run.result['command'] = ['python', '-c', 'from multiprocessing.spawn import spawn_main']  # zoo started it itself
    assert 'spawn' not in page_of([run]).text


@pytest.mark.long
@pytest.mark.slow
def test_page_says_what_else_is_needed_to_repeat_a_run() -> None:
    alone = whole_run()
    assert 'Save the config, then run: zoo train made.yaml seed=0 made.yaml' in page_of([alone]).text
    alone.result['command'] = ['zoo', 'train', 'made']
    assert 'To repeat them from this page alone, save the config, then run:' in page_of([alone]).text
    run = whole_run()
    run.config['env']['id'] = '/home/me/my_env.py:MyEnv'
    run.config['init_from'] = 'runs/first'
    run.result['command'] = ['zoo', 'train', 'made', '--import', '/home/me/my parts.py', '--import=my_module']
    text = page_of([run]).text.split('Repeat it')[1]
    assert (
        'To repeat them, save the config, and beside it what is not in this page: the file my_env.py , the file my parts.py , '
        'the module my_module , the checkpoint that init_from names. Then run: '
        "zoo train made.yaml seed=0 --import 'my parts.py' --import my_module made.yaml"
    ) in text
    alone.result['command'] = ['python', 'mine.py']
    assert 'what the Python program gave besides the config' in page_of([alone]).text


@pytest.mark.long
@pytest.mark.slow
def test_shares_of_time_of_a_resumed_run_are_of_all_of_it_or_the_page_says_that_they_are_not(tmp_path: Path) -> None:
    config, first, note = 'cartpole_ppo', tmp_path / 'first', 'The shares are of a part of the time'
    words = [*SHORT, 'logger.tensorboard=false', 'logger.console=off', 'logger.freq=1024']
    serial_pipeline(config, overrides=words, run_dir=first)
    before = read_run(first).result['seconds']
    serial_pipeline(config, overrides=[*words, 'max_env_step=6_144'], run_dir=first)
    run = read_run(first)
    seconds = run.result['seconds']
    assert all(seconds[name] > before[name] for name in ('env', 'act', 'learn', 'evaluate'))
    assert run.result['timed_s'] == pytest.approx(run.wall_s, rel=0.05)
    page = page_of([run])
    share = seconds['learn'] / sum(seconds.values())
    assert f'learning {share:.0%}' in page.text and note not in page.text
    other = serial_pipeline(resume=first, overrides=['exp_name=other', f'logger.root={tmp_path}', 'max_env_step=7_168'])
    assert note in page_of([read_run(other.run_dir)]).text  # it began in another folder


@pytest.mark.slow
def test_files_of_one_name_in_two_folders_are_two_files_in_the_list_the_configs_and_the_commands() -> None:
    runs = [whole_run(0, folder) for folder in ('one', 'two')]
    for run, folder in zip(runs, ('one', 'two'), strict=True):
        run.config['env']['id'] = f'/home/me/{folder}/my_env.py:MyEnv'
    runs[0].result['command'] = ['zoo', 'train', 'my.yaml', '--import', 'my_env.py', '--import', 'parts.py']
    page = page_of(runs)
    text = page.text.split('Repeat it')[1]
    assert (
        'beside it what is not in this page: the file one/my_env.py , the file two/my_env.py , the file parts.py . Then run: '
        'zoo train one.yaml seed=0 --import one/my_env.py --import parts.py'
    ) in text
    links = [str(e['href']) for e in page.named('a') if e.get('download')]
    ids = [parse_yaml(base64.b64decode(link.partition('base64,')[2]).decode())['env']['id'] for link in links]
    assert ids == ['one/my_env.py:MyEnv', 'two/my_env.py:MyEnv'] and '/home/me' not in text


def installed(folder: Path, module: str, name: str, version: str, url: str = '') -> None:
    """Writes a package as pip installs it. Args: url: the source if it is not a package index."""
    (folder / module).mkdir(parents=True)
    (folder / module / '__init__.py').write_text('raise RuntimeError("a report imports nothing")')
    info = folder / f'{name.replace("-", "_")}-{version}.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text(f'Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n')
    (info / 'top_level.txt').write_text(f'{module}\n')
    if url:
        (info / 'direct_url.json').write_text(json.dumps({'url': url, 'dir_info': {'editable': True}}))


@pytest.mark.long
@pytest.mark.slow
def test_installed_packages_are_to_be_installed_and_modules_of_ones_own_to_lie_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path, 'mazes_of_others', 'mazes-of-others', '1.2')
    installed(tmp_path, 'mine_to_edit', 'mine-to-edit', '0.1', f'file://{tmp_path}')
    monkeypatch.syspath_prepend(str(tmp_path))
    run = whole_run()
    run.config['env']['id'] = 'mazes_of_others.envs:Maze-v0'
    run.config['env']['kwargs'] = {'activation': 'torch.nn:ReLU', 'separator': 'os:sep'}
    run.result['command'] = ['zoo', 'train', 'made', '--import', 'mazes_of_others.extra']
    text = page_of([run]).text.split('Repeat it')[1]
    package = 'To repeat them, install the package mazes-of-others (1.2 where this page was made), save the config'
    assert f'{package}, then run: zoo train made.yaml seed=0 --import mazes_of_others.extra made.yaml' in text
    run.result['command'] = ['zoo', 'train', 'made', '--import', 'mine_to_edit', '--import', 'my_module']
    text = page_of([run]).text.split('Repeat it')[1]
    beside = 'the module mine_to_edit , the module my_module . Then run:'
    assert f'{package}, and beside it what is not in this page: {beside}' in text


@pytest.mark.slow
def test_versions_and_machine_are_said_once_where_all_runs_have_the_same() -> None:
    runs = [whole_run(seed) for seed in (0, 1, 2)]
    for run, cores in zip(runs, (2, 2, 4), strict=True):
        machine = {'cpu': 'Some CPU', 'cores': cores, 'system': 'Linux 6'}
        run.result.update(versions={'zoo': '1.0', 'torch': '2.10'}, machine=machine, commit='abc')
    text = page_of(runs).text.split('Versions and machine')[1]
    assert text.startswith(
        ' versions zoo 1.0, torch 2.10 machine Some CPU, 2 cores, Linux 6 Some CPU, 4 cores, Linux 6 git commit abc'
    )


@pytest.mark.long
@pytest.mark.slow
def test_newest_video_of_each_config_is_in_the_page_and_one_too_many_bytes_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = []
    for name, data in (('good', GIF), ('bad', b'no picture')):
        run = read_run(write_run(tmp_path / name, whole_run(7, name)))
        (run.path / 'videos').mkdir()
        (run.path / 'videos' / 'step_2000.gif').write_bytes(data)
        runs.append(run)
    how = 'zoo video RUN -o agent.mp4'
    page = page_of(runs)
    assert how in page_of(runs[1:]).text and how not in page.text
    [image] = page.named('img')
    assert image['alt'] == 'good, seed 7, after 2,000 env steps'
    assert 'step_2000.gif is no gif file; name another file; the report is without it' in caplog.text


def test_write_report_leaves_the_old_page_where_it_cannot_write(tmp_path: Path) -> None:
    write_report(tmp_path / 'a.html', 'old \udcff')
    assert (tmp_path / 'a.html').read_text() == 'old ?'
    with pytest.raises(UserError, match='cannot be written'):
        write_report(tmp_path / 'no' / 'a.html', 'new')


MP4 = b'\x00\x00\x00\x18ftypmp42' + bytes(16)


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'data', 'tag'), [('a.mp4', MP4, 'video'), ('a.GIF', GIF, 'img')])
def test_read_video_is_shown_by_the_element_of_its_kind_with_its_bytes(
    tmp_path: Path, name: str, data: bytes, tag: str
) -> None:
    (tmp_path / f'a "film"{name}').write_bytes(data)
    page = report([whole_run()], video=tmp_path / f'a "film"{name}')
    shown = page.partition('<figure class="video">')[2].strip()
    assert shown.startswith(f'<{tag} ') and f'="a &#34;film&#34;{name}"' in shown
    assert base64.b64decode(shown.partition('base64,')[2].partition('"')[0]) == data
