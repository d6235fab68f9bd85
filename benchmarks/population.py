"""What populations find, against random search, sweeps and the default config at equal env steps; writes population.md.

    python benchmarks/population.py [--task cartpole ...] [--repeats 5] [--fresh 5] [--members 8] [--jobs 1] [--out FOLDER]
    python benchmarks/population.py --methods --agilerl PYTHON ...    # AgileRL's evolution alone, in an environment that has it
    python benchmarks/population.py --rates [--repeats 3]      # the single test of learning rates from 1e-6 to 1

Every method gets members * steps env steps of training in each repeat, and evaluates a run ten times over 10 episodes. Two numbers
are reported: the return of the best member over 100 fresh episodes, and that of its config or schedule, trained again with seeds
that no method saw. A repeat has its own seed. Each result is written when it is there; with the same --out the command continues.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from report import (
    HERE,
    REPO,
    RESULTS,
    git_commit,
    last_json_line,
    last_words,
    machine,
    metric_rows,
    one_thread_env,
    table,
    today,
    write_json,
)
from zoo import evaluate, load_policy, serial_pipeline
from zoo.tools.population import evolve
from zoo.tools.population.mutation import drawn
from zoo.tools.results.statistics import interval, iqm
from zoo.tools.sweep import sweep
from zoo.tools.sweep.spaces import split_spaces

SPACES = [
    'policy.learn.learning_rate=log(1e-5,1e-1)',
    'policy.learn.clip_ratio=uniform(.1,.4)',
    'policy.learn.entropy_weight=log(1e-5,.1)',
]
RATES = ['policy.learn.learning_rate=log(1e-6,1)']
N_EPISODE = 100
FRESH_SEED = 100_000  # of runs and episodes that no method saw
N_GENERATION = 10
MAX_TRIALS = 60
SOLVED = 475
log = logging.getLogger('population')


class Task(NamedTuple):
    """A config, its env's id, and the env steps of a member."""

    config: str
    env_id: str
    member_steps: int


TASKS = {
    'cartpole': Task('cartpole_ppo', 'CartPole-v1', 50_000),
    'pendulum': Task('pendulum_ppo', 'Pendulum-v1', 100_000),
    'lunarlander': Task('lunarlander_ppo', 'LunarLander-v3', 200_000),
}
AGILERL = 'AgileRL: evolution'


class Work(NamedTuple):
    """One repeat of a method. n_member: runs of `task.member_steps` env steps that it may spend; every: between evaluations."""

    task: Task
    folder: Path
    seed: int
    n_member: int
    jobs: int
    every: int

    @property
    def fixed(self) -> list[str]:
        """Overrides of all runs."""
        return [
            'policy.eval.stop_value=null',
            f'policy.eval.eval_freq={self.every}',
            'policy.eval.n_episode=10',
            'logger.tensorboard=false',
            'logger.console=off',
            f'logger.root={self.folder}',
        ]


class Best(NamedTuple):
    """What a method found: the run of its best member, and a config, with overrides, to train again."""

    run: Path
    config: Any
    overrides: list[str]


def train(work: Work, overrides: Sequence[str], seed: int, steps: int, config: Any = None) -> tuple[Path, float]:
    """Trains one run; returns its folder and the mean return of its last evaluation."""
    texts = [*work.fixed, *overrides, f'seed={seed}', f'max_env_step={steps}']
    result = serial_pipeline(config or work.task.config, overrides=texts)
    last = result.last_return
    return Path(result.run_dir), float('-inf') if last is None else last


def default_long(work: Work) -> Best:
    """The default config, one run of all steps."""
    rarely = work._replace(every=work.every * work.n_member)
    run, _ = train(rarely, [], work.seed, work.n_member * work.task.member_steps)
    return Best(run, work.task.config, [])


def default_many(work: Work) -> Best:
    """The default config, with as many seeds as there are members; the best one."""
    runs = [train(work, [], work.seed + i, work.task.member_steps) for i in range(work.n_member)]
    return Best(max(runs, key=lambda run: run[1])[0], work.task.config, [])


def random_search(work: Work) -> Best:
    """As many runs as members, with values drawn from the spaces; the best one."""
    generator = np.random.default_rng(work.seed)
    spaces = split_spaces(SPACES)[0]
    tried = []
    for i in range(work.n_member):
        texts = [f'{key}={drawn(space, generator)}' for key, space in spaces.items()]
        run, last = train(work, texts, work.seed + i, work.task.member_steps)
        tried.append((last, i, run, texts))
    _, _, run, texts = max(tried)
    return Best(run, work.task.config, texts)


def swept(work: Work, pruner: Any) -> Best:
    """`zoo sweep` with TPE, with trials until all steps are spent."""
    steps = work.task.member_steps
    texts = [*SPACES, *work.fixed, f'seed={work.seed}', f'max_env_step={steps}', 'exp_name=sweep']
    n = work.n_member
    found = sweep(work.task.config, texts, n=n, metric='last', pruner=pruner, jobs=work.jobs)
    # a whole trial must still fit
    while n < MAX_TRIALS and spent(work.folder)[0] + steps <= work.n_member * steps * 1.01:
        n += 1
        found = sweep(work.task.config, texts, n=n, metric='last', pruner=pruner, jobs=work.jobs)
    assert found.best is not None and found.best_file is not None, 'a trial was complete'
    folder = next(path.parent for path in work.folder.rglob('result.json') if is_of_trial(path, found.best.number))
    return Best(folder, found.best_file, [])


def is_of_trial(path: Path, number: int) -> bool:
    """Whether a file is of a trial of a sweep."""
    return any(part.startswith(f'trial_{number:03d}') for part in path.parts)


def population(work: Work, how: Any, mutate: str = '') -> Best:
    """A population; its best member, and its schedule."""
    steps = work.task.member_steps
    texts = [*SPACES, *work.fixed, f'seed={work.seed}', f'max_env_step={steps}']
    found = evolve(
        work.task.config,
        texts,
        pop=work.n_member,
        every=work.every,
        how=how,
        mutate=mutate,
        jobs=work.jobs,
        keep='all',
    )
    assert found.best is not None, 'a member did not fail'
    schedule = found.folder / 'schedule.yaml'
    if not schedule.exists():
        schedule = found.folder / 'best.yaml'
    return Best(found.best.run_dir, schedule, [])


METHODS: dict[str, Callable[[Work], Best]] = {
    'default, one long run': default_long,
    'default, 8 seeds': default_many,
    'random search': random_search,
    'sweep: TPE, median pruner': lambda work: swept(work, 'median'),
    'sweep: TPE, halving': lambda work: swept(work, 'halving'),
    'pbt': lambda work: population(work, 'pbt'),
    'evolution without architecture': lambda work: population(work, 'evolution', 'architecture=0'),
    'evolution': lambda work: population(work, 'evolution'),
}


def spent(folder: Path) -> tuple[int, int]:
    """Env steps of training, and of evaluation, of all runs below a folder; a fork counts from its first step on."""
    trained = 0
    evaluated = 0.0
    for path in folder.rglob('result.json'):
        run = path.parent
        first = 0
        if (run / 'fork.json').exists():
            first = json.loads((run / 'fork.json').read_text())['env_step']
        rows = [row for row in metric_rows(run) if row['env_step'] > first]
        trained += json.loads(path.read_text())['env_step'] - first
        evaluated += sum(10 * row.get('eval/episode_len_mean', 0.0) for row in rows)
    return trained, round(evaluated)


def mean_return(run: Path, seed: int) -> float:
    """The mean return of the newest policy of a run over fresh episodes."""
    policy = load_policy(run)
    config = policy.run.config
    assert config is not None, 'it is of a run'
    return float(np.mean(evaluate(policy, config['env'], N_EPISODE, seed=seed).returns))


def repeat(name: str, task: Task, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Runs a method once, and trains what it found again."""
    if name == AGILERL:
        return repeat_of_agilerl(task, seed, args)
    with tempfile.TemporaryDirectory() as path:
        every = task.member_steps // N_GENERATION
        work = Work(task, Path(path) / 'method', seed, args.members, args.jobs, every)
        start = time.perf_counter()
        best = METHODS[name](work)
        wall_s = time.perf_counter() - start
        trained, evaluated = spent(work.folder)
        again = work._replace(folder=Path(path) / 'again', every=task.member_steps)  # its evaluations choose nothing
        fresh = []
        for i in range(args.fresh):
            fresh_seed = FRESH_SEED + seed * 100 + i
            run, _ = train(again, best.overrides, fresh_seed, task.member_steps, best.config)
            fresh.append(mean_return(run, fresh_seed))
        return {
            'seed': seed,
            'best': mean_return(best.run, FRESH_SEED + seed),
            'fresh': fresh,
            'env_step': trained,
            'eval_step': evaluated,
            'wall_s': round(wall_s, 1),
        }


def repeat_of_agilerl(task: Task, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """AgileRL's evolution in a Python that has it, with its own settings; see peers/population_search_agilerl.py."""
    command = [
        str(args.agilerl),
        str(HERE / 'peers' / 'population_search_agilerl.py'),
        *('--env', task.env_id, '--seed', str(seed), '--best-seed', str(FRESH_SEED + seed)),
        *('--steps', str(task.member_steps), '--pop', str(args.members), '--generations', str(N_GENERATION)),
        *('--fresh-seeds', *(str(FRESH_SEED + seed * 100 + i) for i in range(args.fresh))),
    ]
    done = subprocess.run(command, env=one_thread_env(REPO), capture_output=True, text=True, check=False)
    record = last_json_line(done.stdout)
    if done.returncode or record is None:
        raise SystemExit(f'{AGILERL} failed: {last_words(done.stderr)}')
    return record


def rates(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Populations whose learning rates begin between 1e-6 and 1, on CartPole, one for each seed."""
    found = []
    for seed in range(args.repeats):
        with tempfile.TemporaryDirectory() as path:
            task = TASKS['cartpole']
            work = Work(task, Path(path), seed, args.members, args.jobs, task.member_steps // N_GENERATION)
            texts = [*RATES, *work.fixed, f'seed={seed}', f'max_env_step={work.task.member_steps}']
            result = evolve(
                work.task.config,
                texts,
                pop=args.members,
                every=work.every,
                jobs=args.jobs,
                keep='all',
            )
            assert result.best is not None, 'a member did not fail'
            key = RATES[0].partition('=')[0]
            born = [float(member.values[key]) for member in result.generation(0)]
            record = {
                'seed': seed,
                'fitness': result.best.fitness,
                'fresh': mean_return(result.best.run_dir, FRESH_SEED + seed),
                'first_rates': born,
                'last_rates': [float(member.values[key]) for member in result.members],
                'best_rate': float(result.best.values[key]),
            }
        found.append(record)
        print(json.dumps(record), flush=True)
    return found


def page(record: dict[str, Any]) -> str:
    """The results as Markdown."""
    parts = [
        f"""# Populations against other searches

`python benchmarks/population.py` made this page on {today()} (commit {record['commit']}; {record['machine']}).
Every method may train for {record['members']} times the env steps of a member in each repeat. "best" is the mean return of
the best member over {N_EPISODE} fresh episodes; "trained again" is that of its config or schedule with new seeds, for the env
steps of one member, which is what a user keeps. AgileRL has the settings of its own manifest, which is for 2M env steps of
LunarLander, and draws its actions. Both are interquartile means over the repeats with a 95% interval. "wins" is the share of repeats in which a method
is above random search of the same repeat in "trained again", a tie counted as half.
"""
    ]
    if record['busy']:
        parts.append('The machine did other work at the same time: the wall times say nothing.\n')
    for name, methods in record['tasks'].items():
        parts.append(f'## {name}\n\n{task_table(methods)}\n')
    if record.get('rates'):
        rows = [
            [r['seed'], f'{r["fitness"]:.4g}', f'{r["fresh"]:.4g}', span(r['first_rates']), span(r['last_rates'])]
            for r in record['rates']
        ]
        columns = ['seed', 'best member', 'over 100 fresh episodes', 'first rates', 'last rates']
        parts.append(f'## Learning rates from 1e-6 to 1 on CartPole, pbt\n\n{table(columns, rows)}\n')
    return '\n'.join(parts)


def span(values: Sequence[float]) -> str:
    """The least, the median and the greatest of some numbers."""
    return f'{min(values):.1e} .. {float(np.median(values)):.1e} .. {max(values):.1e}'


def task_table(methods: dict[str, list[dict[str, Any]]]) -> str:
    """The table of a task: one line for each method."""
    random = {r['seed']: float(np.mean(r['fresh'])) for r in methods.get('random search', [])}
    rows = []
    for name, repeats in methods.items():
        again = [float(np.mean(r['fresh'])) for r in repeats]
        pairs = [(x, random[r['seed']]) for x, r in zip(again, repeats, strict=True) if r['seed'] in random]
        wins = '-'
        if pairs and name != 'random search':
            wins = f'{np.mean([(x > y) + 0.5 * (x == y) for x, y in pairs]):.2f}'
        steps = round(float(np.mean([r['env_step'] for r in repeats])))
        counted = [r['eval_step'] for r in repeats if r['eval_step'] is not None]  # AgileRL does not count them
        eval_steps = f'{round(float(np.mean(counted))):,}' if counted else '-'
        wall_s = float(np.mean([r['wall_s'] for r in repeats]))
        best = with_interval([r['best'] for r in repeats])
        rows.append([name, len(repeats), best, with_interval(again), wins, f'{steps:,}', eval_steps, f'{wall_s:.0f} s'])
    columns = ['method', 'repeats', 'best', 'trained again', 'wins', 'env steps', 'of evaluation', 'wall time']
    return table(columns, rows)


def with_interval(values: Sequence[float]) -> str:
    """The interquartile mean of some numbers, with its interval if there are two or more."""
    middle = float(iqm(values))
    if len(values) < 2:
        return f'{middle:.4g}'
    low, high = interval(values)
    return f'{middle:.4g} [{float(low):.4g}, {float(high):.4g}]'


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--task', choices=TASKS, nargs='+', default=['cartpole'])
    parser.add_argument('--methods', choices=METHODS, nargs='*', default=list(METHODS))
    parser.add_argument('--agilerl', type=Path, help='a Python with AgileRL, whose evolution joins the methods')
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--fresh', type=int, default=5, help='seeds with which a result is trained again')
    parser.add_argument('--members', type=int, default=8)
    parser.add_argument('--steps', type=int, help='env steps of a member; by default those of TASKS')
    parser.add_argument('--jobs', type=int, default=1)
    parser.add_argument('--rates', action='store_true', help='the test of learning rates alone')
    parser.add_argument(
        '--busy', action='store_true', help='say that the machine did other work, so that times mean nothing'
    )
    parser.add_argument('--out', type=Path, default=RESULTS)
    args = parser.parse_args(words)
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / 'population.json'
    record: dict[str, Any] = {'tasks': {}}
    if file.exists():
        record = json.loads(file.read_text())
    record |= {'commit': git_commit(), 'machine': machine(), 'members': args.members, 'busy': args.busy}
    if args.rates:
        record['rates'] = rates(args)
    else:
        compare(record, file, args)
    write_json(file, record)
    (args.out / 'population.md').write_text(page(record))


def compare(record: dict[str, Any], file: Path, args: argparse.Namespace) -> None:
    """Adds the repeats that the record does not have yet; a repeat of all methods before the next one."""
    for name_of_task in args.task:
        task = TASKS[name_of_task]
        if args.steps:
            task = task._replace(member_steps=args.steps)
        key = f'{task.config}, {args.members} x {task.member_steps:,} env steps'
        methods = {name: record['tasks'].get(key, {}).get(name, []) for name in [*METHODS, AGILERL]}
        record['tasks'][key] = methods
        for seed in range(args.repeats):
            for name in [*args.methods, *([AGILERL] if args.agilerl else [])]:
                if all(r['seed'] != seed * 1_000 for r in methods[name]):
                    methods[name].append(repeat(name, task, seed * 1_000, args))
                    print(key, name, json.dumps(methods[name][-1]), flush=True)
                    write_json(file, record)
        record['tasks'][key] = {name: repeats for name, repeats in methods.items() if repeats}
    (args.out / 'population.md').write_text(page(record))


if __name__ == '__main__':
    main()
