"""The parts of a report below its summary: video, runs, settings, speed, machine, commands."""

from __future__ import annotations

import base64
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from zoo.config.section import differing_keys
from zoo.config.yaml_text import yaml_text
from zoo.results.plot import COLORS
from zoo.results.read import Run
from zoo.results.report_config import Setting, changed_settings, has_defaults, portable_config
from zoo.results.report_html import Html, block, code, html, join, paragraph, table
from zoo.results.report_needs import Needs, needs_of, started_by
from zoo.results.report_numbers import (
    PARTS,
    GroupNumbers,
    RunNumbers,
    duration,
    has_all_times,
    number,
    spread,
    steps,
    time_shares,
)
from zoo.results.report_video import Video

STATES = {
    'running': ('is still running', 'are still running'),
    'stopped': ('was stopped before its end', 'were stopped before their end'),
    'failed': ('failed', 'failed'),
    'killed': ('was killed', 'were killed'),
}
"""What is said of a run, and of several, in a state other than 'done'."""
MAX_COLUMNS = 4  # configs side by side in a table


def swatch(i: int, kind: str = 'line') -> Html:
    """The colour of a curve, or of a part of the time."""
    return html(
        '<span class="swatch" style="background:var(--$kind-$i)"></span>', kind=kind, i=i % len(COLORS['light'])
    )


def runs_table(groups: Sequence[GroupNumbers], last_words: str) -> Html:
    """A row for each run, and why runs ended early."""
    head = ('Run', 'Env steps', last_words, 'Highest', 'Time', 'Steps/s')
    rows: list[tuple[Any, ...]] = []
    for i, group in enumerate(groups):
        if len(groups) > 1:
            rows.append((html('$color$label', color=swatch(i), label=group.label),))
        rows += [_run_row(row) for row in group.runs]
    notes = state_sentences([row.run for group in groups for row in group.runs], with_reasons=True)
    return join([table(head, rows, 'numbers'), *(paragraph(note, 'note') for note in notes)])


def settings_tables(groups: Mapping[str, Sequence[Run]]) -> Html:
    """The settings that differ between the configs, then those that all have and that are not the defaults."""
    labels, configs = list(groups), [runs[0].config for runs in groups.values()]
    settings, differing = changed_settings(configs), differing_keys(configs)
    apart = [s for s in settings if any(key == s.key or key.startswith(f'{s.key}.') for key in differing)]
    alike = [s for s in settings if s not in apart]
    kind = 'settings' if len(labels) <= MAX_COLUMNS else 'settings stacked'
    parts = [paragraph(_about_defaults(configs, settings))]
    if apart:
        between = table(('Setting', *labels, 'Default'), [_setting_row(s) for s in apart], kind)
        parts.append(html('<h3>Between the configs</h3>$table', table=between))
    if alike:
        heading = html('<h3>In all of them</h3>') if apart else Html()
        parts += [heading, table(('Setting', 'Value', 'Default'), [_setting_row(s, n=1) for s in alike], 'settings')]
    return join(parts)


def speed_part(groups: Sequence[GroupNumbers]) -> Html:
    """Env steps per second, and the parts that the time went to."""
    return join(_speed(group, i if len(groups) > 1 else None) for i, group in enumerate(groups))


def machine_facts(runs: Sequence[Run]) -> Html:
    """Versions and machine, as the runs recorded them."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for run in runs:
        for name, words in _facts_of(run):
            found[name][words] = None
    if not found:
        return paragraph('The runs have not recorded them: a run writes them when it ends.')
    rows = (
        html('<dt>$name</dt><dd>$words</dd>', name=name, words=join(words, Html('<br>')))
        for name, words in found.items()
    )
    return html('<dl class="facts">$rows</dl>', rows=join(rows))


def commands(groups: Mapping[str, Sequence[Run]]) -> Html:
    """The commands that repeat the runs: those that started them, and one for each config that the page carries."""
    started = list(dict.fromkeys(line for runs in groups.values() for run in runs if (line := started_by(run))))
    parts = [paragraph('The runs were started with'), block('\n'.join(started))] if started else []
    needs = needs_of([run for group in groups.values() for run in group])
    words = ''.join(f' --import {shlex.quote(name)}' for name in needs.imports)
    parts.append(paragraph(_how_to_repeat(needs, bool(started))))
    for label, name in zip(groups, _file_names(groups.values()), strict=True):
        runs = groups[label]
        text = yaml_text(portable_config(runs[0].config, needs.names))
        link = html(
            '<a download="$name" href="data:text/yaml;base64,$data">$name</a>',
            name=name,
            data=base64.b64encode(text.encode()).decode(),
        )
        parts.append(block(f'zoo train {name} {_seed_words(runs)}{words}'))
        parts.append(
            html(
                '<details><summary>$link, the whole config of $label</summary>$text</details>',
                link=link,
                label=label,
                text=block(text),
            )
        )
    return join(parts)


def video_part(videos: Sequence[tuple[str, Video]]) -> Html:
    """Films of the policies, inside the page."""
    return join(
        html('<figure class="video">$film<figcaption>$words</figcaption></figure>', film=video.tag(words), words=words)
        for words, video in videos
    )


def _run_row(row: RunNumbers) -> tuple[Any, ...]:
    """The seed of a run with its state, unless it is done, and its folder; then its numbers."""
    run = row.run
    state = html('<span class="state $name">$name</span>', name=run.state) if run.state != 'done' else None
    folder = html('<span class="range folder">$folder</span>', folder=run.path.name)
    name = html('seed $seed $state$folder', seed=run.seed, state=state, folder=folder)
    speed = steps(row.speed) if row.wall_s > 0 else '–'
    return (name, steps(run.env_step), number(row.last), number(row.highest), duration(row.wall_s), speed)


def state_sentences(runs: Sequence[Run], with_reasons: bool) -> Iterator[str]:
    """Sentences on runs that are not done; or, with reasons, on runs that have said why they ended."""
    found: dict[tuple[tuple[str, str], str], int] = defaultdict(int)
    for run in runs:
        reason = str(run.result.get('error') or run.result.get('stop_reason') or '') if with_reasons else ''
        what = STATES.get(run.state, ('ended early', 'ended early'))
        if reason if with_reasons else run.state != 'done':
            found[what, reason] += 1
    for (what, reason), n in found.items():
        who = 'The run' if len(runs) == 1 else f'All {n} runs' if n == len(runs) else f'{n} of {len(runs)} runs'
        yield f'{who} {what[n > 1]}{": " if reason else ""}{reason}.'


def _about_defaults(configs: Sequence[Mapping[str, Any]], settings: Sequence[Setting]) -> Html | str:
    """A sentence where there is nothing to list, or where defaults are not known."""
    policies = {config['policy']['type']: has_defaults(config) for config in configs}
    if unknown := [code(name) for name, is_known in policies.items() if not is_known]:
        return html(
            'The defaults of $policies are not known: the code that registers it was not imported when this page was made. '
            'The whole config is at the end.',
            policies=join(unknown, ', '),
        )
    if settings:
        return 'These settings differ from the defaults.' if len(configs) == 1 else ''
    return html('All settings are the defaults of $policies.', policies=join(map(code, policies), ', '))


def _setting_row(setting: Setting, n: int | None = None) -> tuple[Any, ...]:
    """The key with its meaning, its value in each config (or in the first n), its default."""
    name = html('$key<span class="meaning">$meaning</span>', key=code(setting.key), meaning=setting.meaning)
    return (name, *map(code, setting.values[:n]), code(setting.default))


def _speed(group: GroupNumbers, i: int | None) -> Html:
    speeds = [row.speed for row in group.runs if row.wall_s > 0]
    shares = time_shares([row.run for row in group.runs])
    if not speeds:
        return Html()
    title = None if i is None else html('<h3>$color$label</h3>', color=swatch(i), label=group.label)
    text = f'{spread(speeds, steps)} env steps per second, evaluations and saving included.'
    bars = (
        html('<span style="width:$share%;background:var(--part-$i)"></span>', share=f'{100 * share:.2f}', i=k)
        for k, share in enumerate(shares.values())
    )
    words = (
        html('<li>$color$name $share</li>', color=swatch(k, 'part'), name=PARTS[name], share=f'{share:.0%}')
        for k, (name, share) in enumerate(shares.items())
    )
    bar = html('<div class="bar">$bars</div><ul class="parts">$words</ul>', bars=join(bars), words=join(words))
    is_part = shares and not all(has_all_times(row.run) for row in group.runs)
    note = 'The shares are of a part of the time: what a run did before it was last continued is not known in full.'
    return join([title, paragraph(text), bar if shares else None, paragraph(note if is_part else '', 'note')])


def _how_to_repeat(needs: Needs, is_started: bool) -> Html:
    """The sentence before the commands: what to install, what to save. Args: is_started: it follows what started the runs."""
    if not needs.packages and not needs.beside:
        alone = 'To repeat them from this page alone, save' if is_started else 'Save'
        return html('$alone the config, then run:', alone=alone)
    install = html('install $packages, ', packages=join(needs.packages, ', ')) if needs.packages else None
    if not needs.beside:
        return html('To repeat them, ${install}save the config, then run:', install=install)
    return html(
        'To repeat them, ${install}save the config, and beside it what is not in this page: $beside. Then run:',
        install=install,
        beside=join(needs.beside, ', '),
    )


def _facts_of(run: Run) -> Iterator[tuple[str, str]]:
    """Versions, machine and commit of a run, as its result.json has them."""
    versions, machine, commit = (run.result.get(name) for name in ('versions', 'machine', 'commit'))
    if isinstance(versions, dict) and versions:
        yield 'versions', ', '.join(f'{name} {value}' for name, value in versions.items())
    if isinstance(machine, dict) and machine:
        yield (
            'machine',
            ', '.join(f'{value} cores' if name == 'cores' else f'{value}' for name, value in machine.items()),
        )
    if commit:
        yield 'git commit', str(commit)


def _file_names(groups: Iterable[Sequence[Run]]) -> Iterator[str]:
    """A name for the config of each group, which no two have: 'cartpole_ppo.yaml', 'cartpole_ppo_2.yaml'."""
    used: set[str] = set()
    for runs in groups:
        stem = re.sub(r'[^A-Za-z0-9_.-]+', '_', runs[0].exp_name)[:60] or 'config'
        name = next(name for n in count(1) if (name := stem if n == 1 else f'{stem}_{n}') not in used)
        used.add(name)
        yield f'{name}.yaml'


def _seed_words(runs: Sequence[Run]) -> str:
    """The seeds of runs as `zoo train` takes them: 'seed=3', 'seed=0..4', 'seed=1,5,9'."""
    values = sorted({run.seed for run in runs})
    is_range = len(values) > 1 and values[-1] - values[0] == len(values) - 1
    return f'seed={values[0]}..{values[-1]}' if is_range else f'seed={",".join(map(str, values))}'
