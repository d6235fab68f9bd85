"""`zoo bench`: the benchmarks of the repository on this machine, from a checkout or an installed wheel."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.core.errors import UserError, did_you_mean
from zoo.core.files import refuse_failure
from zoo.core.streams import columns, write_line
from zoo.tools.cli.output import argument

KINDS = {
    'learning': 'the returns that the bundled configs reach, compared with their targets, over several seeds',
    'speed': 'env steps per second on matched work, compared with other libraries where they are installed',
    'kernels': 'time and error of each loss and of gae, compared with what the memory of the device allows',
    'cluster': 'what runners and ranks gain, compared with other libraries where they are installed',
}
TAKEN = {
    'learning': ('repeats', 'scale', 'jobs', 'force'),
    'speed': ('repeats', 'scale', 'venvs'),
    'kernels': (),
    'cluster': ('repeats', 'scale', 'venvs'),
}
"""The options of each benchmark, in addition to --only, --quick and -o, which all benchmarks have."""

ARGUMENTS = {
    'bench': (
        argument('kind', nargs='?', metavar='BENCHMARK', help=', '.join(KINDS)),
        argument('--list', action='store_true', help='list the parts of the benchmark, and measure nothing'),
        argument('--only', nargs='+', metavar='NAME', help='parts of the benchmark (all)'),
        argument('--quick', action='store_true', help='a look: seconds to minutes, with numbers that mean little'),
        argument(
            '-o',
            '--output',
            type=Path,
            metavar='FOLDER',
            help='where results go (./zoo_bench; in a checkout benchmarks/results; with --quick a temporary folder)',
        ),
        argument('--repeats', type=int, metavar='N', help='runs of each; of learning: seeds'),
        argument('--scale', type=float, metavar='X', help='factor of the env steps (1)'),
        argument('--jobs', type=int, metavar='N', help='learning: runs at a time (2)'),
        argument('--force', action='store_true', help='learning: run again what has results'),
        argument(
            '--venvs', type=Path, metavar='FOLDER', help='speed, cluster: of virtual environments with other libraries'
        ),
    )
}


def run_bench(args: argparse.Namespace) -> int:
    """Runs a benchmark; without one, lists them; with --list, lists its parts."""
    if args.kind is None:
        for option in ('list', 'only', 'quick', 'output', 'repeats', 'scale', 'jobs', 'force', 'venvs'):
            if getattr(args, option):
                named = f'zoo bench {" or zoo bench ".join(KINDS)}'
                raise UserError(f'--{option} is given but no benchmark; name one: {named}')
        write_line(columns(KINDS.items()))
        write_line('zoo bench BENCHMARK --list shows its parts, --only NAME measures one, --quick takes a short look')
        return 0
    if args.kind not in KINDS:
        do = did_you_mean(args.kind, KINDS, f'they are {", ".join(KINDS)}', 'zoo bench {}'.format)
        raise UserError(f'there is no benchmark {args.kind!r}; {do}')
    benchmark = _module(args.kind)
    if args.list:
        write_line(columns(benchmark.PARTS.items()))
        return 0
    words = _words(args, benchmark.PARTS)
    folder = _module('report').results_folder(args.output, args.quick)
    with refuse_failure(f'{folder} cannot be made a folder', 'name another one: -o FOLDER'):
        folder.mkdir(parents=True, exist_ok=True)  # first, so that an error comes before hours of work
    code: int = benchmark.main(words, program=f'zoo bench {args.kind}')
    write_line(f'results: {folder}')
    return code


def _words(args: argparse.Namespace, parts: Mapping[str, str]) -> list[str]:
    """Returns the options as words of the benchmark's own command line. Raises: UserError for an option that it lacks."""
    kind = args.kind
    words = []
    if args.quick:
        words = ['--quick']
    for name in args.only or []:
        if name not in parts:
            do = did_you_mean(name, parts, f'zoo bench {kind} --list names them')
            raise UserError(f'zoo bench {kind} has no part {name!r}; {do}')
    if args.only:
        words += ['--only', *args.only]
    if args.output:
        words += ['-o', str(args.output)]
    for option in dict.fromkeys(option for options in TAKEN.values() for option in options):
        value = getattr(args, option)
        if value is None or value is False:
            continue
        if option not in TAKEN[kind]:
            having = [other for other in KINDS if option in TAKEN[other]]
            raise UserError(f'zoo bench {kind} does not take --{option} (of {", ".join(having)}); leave it out')
        if option in ('repeats', 'jobs', 'scale') and value <= 0:
            raise UserError(f'--{option} is {value} but must be positive; e.g. --{option} 1')
        if value is True:
            words += [f'--{option}']
        else:
            words += [f'--{option}', str(value)]
    return words


def _module(name: str) -> Any:
    """Imports a file of the benchmarks; puts their folder on sys.path, as Python does for a script.

    Raises: UserError if zoo was installed without its benchmarks.
    """
    checkout = Path(__file__).resolve().parents[3]
    folders = [str(checkout / 'benchmarks')]
    if not (checkout / 'setup.py').exists() or not (checkout / 'benchmarks' / 'report.py').exists():
        spec = importlib.util.find_spec('zoo_benchmarks')  # the package that a wheel installs next to zoo
        folders = []
        if spec and spec.submodule_search_locations:
            folders = [*spec.submodule_search_locations]
    if not folders:
        raise UserError(
            "zoo's benchmarks (the package zoo_benchmarks) are not installed; install zoo again from its checkout: pip install ."
        )
    if folders[0] not in sys.path:
        sys.path.insert(0, folders[0])
    return importlib.import_module(name)
