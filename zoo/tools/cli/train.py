"""`zoo train`: a config, an env or a run to continue -> a trained policy; or several, one for each seed or value."""

from __future__ import annotations

import argparse
import logging
import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zoo.core.errors import UserError
from zoo.core.processes import collection_paused
from zoo.tools.cli.choice import CHOICE, chosen, words_of
from zoo.tools.cli.output import argument, has_better, in_brackets, show
from zoo.tools.cli.parser import PROFILED

N_EVALUATION = 10  # that a hint recommends
logger = logging.getLogger('zoo')

ARGUMENTS = {
    'train': (
        *CHOICE,
        argument(
            '--resume',
            metavar='RUN',
            help='a run folder or checkpoint file to continue; last, or a name in runs/; with --run-dir a new run begins there '
            'with its state',
        ),
        argument(
            '--run',
            '--run-dir',
            dest='run_dir',
            metavar='DIR',
            help='the folder of the run; if it has a checkpoint the run continues from its newest one, so that the same command '
            'can be started again and again; torchrun takes --run for its own --run-path: write --run-dir there',
        ),
        argument(
            '--seeds',
            type=int,
            metavar='N',
            help='N runs, with the seeds from that of the config on; several values of a key make several runs too: seed=0..4 '
            'policy.learn.learning_rate=1e-3,3e-4',
        ),
        argument('--jobs', type=int, metavar='N', help='of several runs, those that train at a time (default 1)'),
        argument(
            '--profile',
            type=int,
            metavar='N',
            help=f'time the parts of N iterations (default {PROFILED}) after 2 to warm up, and trace the next 3; '
            'the run then continues',
        ),
    )
}


def run_train(args: argparse.Namespace) -> int:
    """Trains, and prints the result and the command that evaluates it."""
    with collection_paused(args.owns_process):
        config = chosen(args)
        from zoo.pipeline import serial_pipeline
        from zoo.run.checkpoint.consent import consent_words
        from zoo.worker.env_watch import EnvWatch
    if config is None and args.resume is None and args.run_dir is None:
        raise UserError(
            'zoo train got no config, no --env and no --resume; name a config (zoo list configs shows the bundled ones), '
            'or an env: zoo train --env CartPole-v1'
        )
    if args.quiet and not any(text.startswith('logger.console=') for text in args.overrides):
        args.overrides = [*args.overrides, 'logger.console=off']
    several = _several(args, config)
    if several is not None:
        return several
    _refuse_populations(args)
    hint = evaluations_hint(config, args.overrides)
    if hint:
        logger.info('%s', hint)
    EnvWatch.owns_process = args.owns_process
    resumed = resumed_run(args.resume)
    result = serial_pipeline(
        config,
        resume=resumed,
        overrides=args.overrides,
        profile=args.profile,
        trust=args.trust or args.imports,
        run_dir=args.run_dir,
    )
    if os.environ.get('WORLD_SIZE', '1') != '1' and os.environ.get('RANK') != '0':
        return 0  # rank 0 prints the result
    early = ''
    if result.stop_reason:
        early = f'it ended early: {result.stop_reason}\n'
    best, last = (f'{x:.4g}' if x is not None else '-' for x in (result.best_return, result.last_return))
    command = f'zoo eval {shlex.quote(str(result.run_dir))}{consent_words()}'
    best_policy = ''
    if has_better(result.run_dir, result.best_return, result.last_return):
        best_policy = f'the policy of its best evaluation: {command} --best\n'
    text = (
        f'{result.env_step} env steps in {result.wall_s:.1f} s; return{in_brackets(result.return_of)}: last {last}, best {best}\n'
        f'{early}'
        f'run folder: {result.run_dir}\n{best_policy}evaluate it: {command}'
    )
    names = ('env_step', 'train_iter', 'best_return', 'last_return', 'stop_reason')
    data = {
        'run_dir': str(result.run_dir),
        **{name: getattr(result, name) for name in names},
        'wall_s': round(result.wall_s, 3),
        'env_step_per_s': round(result.env_step_per_s, 1),
    }
    show(args, data, text)
    return 0


def _refuse_populations(args: argparse.Namespace) -> None:
    """Raises: UserError if an option names the folder of a population, which has many runs."""
    for option, word in (('--resume', args.resume), ('--run-dir', args.run_dir)):
        if word is not None and (Path(word) / 'lineage.jsonl').is_file():
            raise UserError(
                f'{option} is {word}, a population: name a member, e.g. {Path(word) / "best"}, or continue it by the zoo evolve '
                'command that began it'
            )


def resumed_run(name: str | None) -> Path | None:
    """The run that --resume names; None without the option."""
    if name is None:
        return None
    from zoo.tools.results.read import one_run  # only a resume loads it

    return one_run(name)


def evaluations_hint(config: object, overrides: Sequence[str]) -> str:
    """Returns a sentence if a run has so few evaluations that its curve says little; else ''.

    '' also for overrides that the config refuses, and for a config that is not bundled: its file would run twice.
    """
    from zoo.config.source import bundled_configs
    from zoo.run.config import resolve_config
    from zoo.run.result import FEW

    if not isinstance(config, str) or config not in bundled_configs() or os.environ.get('RANK', '0') != '0':
        return ''
    try:
        cfg = resolve_config(config, list(overrides))
    except UserError:
        return ''  # the run itself says what is wrong
    n = math.ceil(cfg.max_env_step / cfg.policy.eval.eval_freq)
    n_rollout = cfg.max_env_step // (cfg.policy.collect.n_step * cfg.env.collector_env_num)
    if n >= FEW or n_rollout < N_EVALUATION:
        return ''
    from zoo.tools.sweep.plan import finer_freq

    if n == 1:
        found = 'one evaluation'
    else:
        found = f'{n} evaluations'
    return f'this run has {found}; policy.eval.eval_freq={finer_freq(cfg.max_env_step / N_EVALUATION):_} gives a curve'


def _several(args: argparse.Namespace, config: Any) -> int | None:
    """Trains the runs of --seeds and of keys with several values, logs a line when one ends, and prints a table of all.

    Returns: 1 if one failed, else 0; None if there is only one run.
    """
    may_be_several = (',' in text or '..' in text or text.startswith('seed=') for text in args.overrides)
    if args.seeds is None and args.jobs is None and not any(may_be_several):
        return None
    from zoo.tools.sweep.batch import grid_of, outcome_words, outcomes_shown, train_many

    members, fixed = grid_of(args.overrides)
    if args.seeds is not None:
        from zoo.run.config import resolve_config

        first = 0
        if config is not None:
            first = resolve_config(config, [*fixed, *members[0].overrides]).seed
        members, fixed = grid_of(args.overrides, args.seeds, first)
    if args.seeds is None and len(members) == 1:
        if args.jobs is not None:
            raise UserError(f'--jobs {args.jobs} is for several runs, and this is one; add e.g. --seeds 5')
        return None
    for option, value in (('--resume', args.resume), ('--profile', args.profile)):
        if value is not None:
            raise UserError(
                f'{option} is for one run, and these are {len(members)}; leave it out, or give one seed and value'
            )
    if config is None:
        raise UserError('several runs need a config or --env; name one (zoo list configs shows the bundled ones)')
    from zoo.worker.env_watch import EnvWatch

    EnvWatch.owns_process = args.owns_process
    words = ['zoo', 'train', *words_of(args), *(['--trust'] if args.trust else []), *fixed]
    outcomes = train_many(
        config,
        members,
        fixed,
        jobs=1 if args.jobs is None else args.jobs,
        run_dir=args.run_dir,
        trust=args.trust or args.imports,
        imports=args.imports,
        command=words,
        on_end=lambda outcome, n_ended: logger.info('%d of %d: %s', n_ended, len(members), outcome_words(outcome)),
    )
    show(args, *outcomes_shown(outcomes))
    if any(outcome.state != 'done' for outcome in outcomes):
        return 1
    return 0
