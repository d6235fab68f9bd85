"""`zoo sweep`: a config and spaces of values -> the trials, best ones first, and the best config."""

from __future__ import annotations

import argparse

from zoo.core.errors import UserError
from zoo.core.streams import columns
from zoo.tools.cli.choice import CHOICE, chosen, take_override, with_whole_keys
from zoo.tools.cli.output import argument, show

N_NEW_SEED = 5  # seeds that the last line recommends
ARGUMENTS = {
    'sweep': (
        *CHOICE,
        argument(
            '--n', '--trials', metavar='N', help='trials in all, those before it was continued included (20; grid: all)'
        ),
        argument(
            '--seeds', default='1', metavar='N', help='runs of each trial, with seeds from that of the config (1)'
        ),
        argument('--jobs', default='1', metavar='N', help='processes, each with one torch thread (1)'),
        argument(
            '--metric',
            metavar='NAME',
            help='what a run is measured by: steps, best, last or auc, see below; e.g. --metric last',
        ),
        argument('--sampler', default='tpe', metavar='NAME', help='tpe, random or grid (tpe)'),
        argument('--pruner', default='median', metavar='NAME', help='median or halving (median)'),
        argument(
            '--prune',
            action=argparse.BooleanOptionalAction,
            default=True,
            help='end trials early that are worse than others',
        ),
        argument('--storage', metavar='FILE', help='journal of the trials (<logger.root>/<name>/journal.log)'),
        argument('--name', metavar='NAME', help='folder of the sweep in logger.root (<exp_name>_sweep)'),
    )
}
NOTES = {
    'sweep': """KEY=SPACE words, in quotes for the shell:
  'policy.learn.learning_rate=log(1e-4,1e-2)'      even in the logarithm
  'policy.learn.clip_ratio=uniform(.1,.4)'         even
  'policy.learn.epoch_per_collect=int(1,10)'       integers
  'policy.learn.batch_size=choice(64,128,256)'     or '{64,128,256}'
  'policy.learn.learning_rate=log(1e-4,1e-2,5)'    5 points, for --sampler grid
A plain KEY=VALUE holds for all trials. Without a space, those of the policy are tried, for ppo learning_rate, clip_ratio,
entropy_weight and gae_lambda; docs/sweeps.md lists them for each policy.

What is compared (--metric): steps, the env steps until policy.eval.stop_value is reached, fewer being better (trials that
never reach it rank behind all others, by their return); best or last, the mean return of the best or last evaluation; auc,
the mean return over the env steps. By default steps if policy.eval.stop_value is set, else best. Each is the mean over
--seeds runs.

The same command continues a sweep that was stopped or killed. Run it on several machines at once, with --storage on a disk
that they share: together they do --n trials."""
}


def run_sweep(args: argparse.Namespace) -> None:
    """Sweeps, and prints the trials and how to train the best config."""
    take_override(args)
    from zoo.tools.sweep.spaces import split_spaces

    spaces, args.overrides = split_spaces([*with_whole_keys(args.overrides, args.config)])
    config = chosen(
        args,
        'zoo sweep got no config and no --env; name a config (zoo list configs shows the bundled ones), or an env: '
        'zoo sweep --env CartPole-v1',
    )
    from zoo.tools.sweep.sweep import as_data, sweep, table, tie_words, train_command
    from zoo.worker.env_watch import EnvWatch

    EnvWatch.owns_process = args.owns_process
    result = sweep(
        config,
        [*args.overrides, *(f'{key}={space}' for key, space in spaces.items())],
        n=None if args.n is None else _integer('n', args.n),
        seeds=_integer('seeds', args.seeds),
        jobs=_integer('jobs', args.jobs),
        metric=args.metric,
        sampler=args.sampler,
        pruner=args.pruner if args.prune else None,
        storage=args.storage,
        name=args.name,
        imports=args.imports,
    )
    lines = [columns(table(result))]
    n_trial = result.plan.n_trial
    n_running = sum(row.state == 'running' for row in result.rows)
    if n_running:  # all of them in other processes
        lines.append(
            f'another process still works on {n_running} of {n_trial} trials; the same command shows the table when '
            f'{"it is" if n_running == 1 else "they are"} done'
        )
    n = result.n_left - n_running
    if n > 0:
        lines.append(f'{n} of {n_trial} trials are not done; the same command continues the sweep')
    lines.append(f'folder: {result.plan.folder}')
    command = train_command(result, args.import_words)
    if command is not None:
        first = result.plan.seed + result.plan.n_seed
        new_seeds = f'seed={first}..{first + N_NEW_SEED - 1}'
        lines += [
            *tie_words(result),
            f'before you trust the best, train it with new seeds: {command} {new_seeds}',
            f'train the best: {command}',
        ]
    show(args, as_data(result) | {'train': command}, '\n'.join(lines))


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UserError(f'--{name} is {text!r} but must be an integer >= 1; e.g. --{name} 3') from error
