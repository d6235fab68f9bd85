"""Returns of PPO and PPG on images: trains Procgen and Atari, writes benchmarks/results/pixels.md.

    python benchmarks/pixels.py [--only starpilot_ppo ...] [--runs FOLDER] [--record | --table]

The runs take hours: each is one `zoo train` with one thread, one after the other. An unfinished run continues from its newest
checkpoint. A run with a limit in minutes gets SIGINT, after which it saves and ends. Then every run folder is recorded,
finished or not, in results/pixels_raw/, and so are the returns of random actions.
Needs the extras procgen and atari. --record: train nothing, for example while runs continue elsewhere; --table: only rebuild
pixels.md from the raw files.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pixel_records import last_checkpoint, progress, record_random, record_run
from pixel_runs import RUNS, command_of, resolved
from pixel_tables import page

from report import (
    PACKAGES,
    REPO,
    RESULTS,
    git_commit,
    holds,
    machine,
    one_thread_env,
    today,
    versions,
    write_json,
)
from zoo.run.checkpoint.file import Checkpoint

RAW = RESULTS / 'pixels_raw'
ORIGIN = 'origin.json'  # next to the folders of a run: commit, machine and versions of each training
SHARE_OF_LIMIT = 0.95  # a run is finished after this share of its minutes: start-up and the last round take the rest

log = logging.getLogger('pixels')


def newest_folder(name: str, runs: Path) -> Path | None:
    """The run folder that was made last; None if there is none."""
    return max((path.parent for path in (runs / name).glob('*/config.yaml')), default=None)


def is_finished(name: str, checkpoint: Checkpoint | None) -> bool:
    """Whether a run has ended by its last checkpoint: its minutes are over, or no whole rollout is left."""
    if checkpoint is None:
        return False
    at, config, minutes = progress([], checkpoint), checkpoint.meta['config'], RUNS[name].minutes
    if minutes is not None and at.wall_s >= SHARE_OF_LIMIT * 60 * minutes:
        return True
    return at.env_step + config['policy']['collect']['n_sample'] > config['max_env_step']


def train(name: str, runs: Path) -> bool:
    """Starts or resumes a run unless it is finished; returns whether it ended without an error."""
    run_dir = newest_folder(name, runs)
    checkpoint = None if run_dir is None else last_checkpoint(run_dir)
    if is_finished(name, checkpoint):
        log.info('%s is finished: %s', name, run_dir)
        return True
    command = command_of(name, runs) if checkpoint is None else ['zoo', 'train', '--resume', str(run_dir)]
    minutes, spent_s = RUNS[name].minutes, progress([], checkpoint).wall_s
    write_origin(runs / name / ORIGIN)
    log.info('%s: %s', name, ' '.join(command))
    code = run_for([sys.executable, '-m', *command], None if minutes is None else 60 * minutes - spent_s)
    if code:
        log.error('%s failed (exit code %d)', name, code)
    return not code


def run_for(command: Sequence[str], limit_s: float | None) -> int:
    """Runs a command, sends SIGINT after limit_s seconds; returns its exit code, 0 if the SIGINT ended it."""
    with subprocess.Popen(command, cwd=REPO, env=one_thread_env()) as child:
        try:
            return child.wait(limit_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGINT)
            code = child.wait()
            return 0 if code == 128 + signal.SIGINT else code


def write_origin(path: Path) -> None:
    """Adds this commit, machine and versions to the file, unless an entry with the same values (but the date) is there."""
    here = {'commit': git_commit(), 'date': today(), 'machine': machine(), 'versions': packages()}
    before = read_origin(path)
    if all({**here, 'date': one.get('date')} != one for one in before):
        write_json(path, [*before, here])


def read_origin(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding='utf-8')) if path.exists() else []


def packages() -> dict[str, str]:
    return versions((*(name for name in PACKAGES if name not in ('mujoco', 'box2d')), 'envpool', 'ale-py'))


def record(name: str, runs: Path) -> None:
    """Records the newest folder of a run, if any, and random actions in its game, if they have no record yet."""
    run, env = RUNS[name], resolved(name).to_dict()['env']
    game = env['game'] or env['id']
    path = RAW / f'random_{game.lower()}.json'
    if not path.exists() or not holds(env, json.loads(path.read_text())['env']):
        write_json(path, {'game': game, **record_random(env, run.n_random), 'commit': git_commit(), 'date': today()})
    run_dir = newest_folder(name, runs)
    if run_dir is None:
        log.warning('%s has no folder in %s: nothing to record', name, runs)
        return
    found = record_run(run_dir, run.n_episode)
    write_json(
        RAW / f'{name}.json',
        {
            'run': name,
            'game': game,
            'finished': is_finished(name, last_checkpoint(run_dir)),
            **found,
            'origin': read_origin(run_dir.parent / ORIGIN),
            'recorded': {'date': today(), 'commit': git_commit()},
        },
    )
    log.info('%s: recorded at %d env steps', name, found['env_step'])


def write_page() -> None:
    """Rebuilds pixels.md from the raw files."""
    records = {name: json.loads(path.read_text()) for name in RUNS if (path := RAW / f'{name}.json').exists()}
    randoms = {(found := json.loads(path.read_text()))['game']: found for path in RAW.glob('random_*.json')}
    stale = [name for name, found in records.items() if not holds(resolved(name).to_dict(), found['resolved'])]
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / 'pixels.md').write_text(page(records, randoms, stale), encoding='utf-8')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', choices=RUNS, default=list(RUNS), help='runs to train and record')
    parser.add_argument('--runs', type=Path, default=REPO / 'runs' / 'pixels', help='where run folders are made')
    parser.add_argument('--record', action='store_true', help='train nothing, record what is there')
    parser.add_argument('--table', action='store_true', help='only rebuild pixels.md from the raw files')
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    runs = args.runs.absolute()
    done = True
    for name in () if args.table else args.only:
        done = (args.record or train(name, runs)) and done
        record(name, runs)
    write_page()
    return 0 if done else 1


if __name__ == '__main__':
    sys.exit(main())
