"""`zoo evolve`: a config and spaces of values -> a population of runs, its best member, and that one's settings."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from zoo.core.errors import UserError
from zoo.core.streams import columns
from zoo.tools.cli.choice import CHOICE, chosen, take_override, with_whole_keys
from zoo.tools.cli.output import argument, show

if TYPE_CHECKING:
    from zoo.tools.population.population import Population

ARGUMENTS = {
    'evolve': (
        *CHOICE,
        argument('--pop', metavar='N', help='members (8)'),
        argument(
            '--every',
            metavar='N',
            help='env steps of each member in a generation; rounded up to a whole number of rollouts (a 20th of max_env_step)',
        ),
        argument('--generations', metavar='N', help='generations (as many as max_env_step has)'),
        argument('--how', metavar='NAME', help='pbt or evolution: the rules below (pbt)'),
        argument('--select', metavar='RULE', help='truncation:0.25, tournament:2 or threshold (by --how)'),
        argument(
            '--mutate',
            metavar='KIND=P,...',
            help='relative probabilities of kinds of mutation, e.g. architecture=.2,activation=.1 (by --how)',
        ),
        argument('--jobs', default='1', metavar='N', help='processes, each with one torch thread (1)'),
        argument('--name', metavar='NAME', help='folder of the population in logger.root (<exp_name>_population)'),
        argument(
            '--keep',
            metavar='WHICH',
            help='checkpoints that stay: alive, those of the present members, or all (alive)',
        ),
        argument(
            '--callback',
            dest='callbacks',
            action='append',
            default=[],
            metavar='NAME',
            help='a class that is called at the events of the population, as module:Class or FILE.py:Class; may be repeated',
        ),
    )
}
NOTES = {
    'evolve': """KEY=SPACE words are those of zoo sweep, in quotes for the shell; a plain KEY=VALUE holds for all members:

  zoo evolve cartpole_ppo 'policy.learn.learning_rate=log(1e-5,1e-1)' --pop 8 --every 10000 --jobs 2
  zoo evolve cartpole_ppo --how evolution --mutate architecture=.2,activation=.1

A generation trains each member for --every env steps, then the members are compared by their evaluations.
  pbt        the worst quarter become copies of members of the best quarter; all values with a space change
  evolution  the best member stays, the other places go to winners of tournaments of two, with one mutation each

A config may have these words in a section `population`, with `members` for --pop and `spaces` by key; the command counts first.
The same command continues a population that was stopped or killed; with more --generations it is extended. What comes
out depends on the seed alone, not on --jobs. zoo plot FOLDER -o lineage.svg draws who descends from whom."""
}


def run_evolve(args: argparse.Namespace) -> None:
    """Trains the population, and prints its members and how to train the settings of the best one."""
    take_override(args)
    from zoo.tools.sweep.spaces import split_spaces

    spaces, args.overrides = split_spaces([*with_whole_keys(args.overrides, args.config)])
    config = chosen(
        args,
        'zoo evolve got no config and no --env; name a config (zoo list configs shows the bundled ones), or an env: '
        'zoo evolve --env CartPole-v1',
    )
    from zoo.tools.population.evolution import evolve
    from zoo.worker.env_watch import EnvWatch

    EnvWatch.owns_process = args.owns_process
    population = evolve(
        config,
        [*args.overrides, *(f'{key}={space}' for key, space in spaces.items())],
        pop=args.pop and _integer('pop', args.pop, 'e.g. --pop 8'),
        every=args.every and _integer('every', args.every, 'e.g. --every 10000'),
        generations=args.generations and _integer('generations', args.generations, 'e.g. --generations 20'),
        how=args.how,
        select=args.select,
        mutate=args.mutate,
        jobs=_integer('jobs', args.jobs, 'e.g. --jobs 2'),
        name=args.name,
        keep=args.keep,
        imports=args.imports,
        trust=args.imports,
        callbacks=args.callbacks,
    )
    show(args, *_shown(population, args.import_words))


def _integer(name: str, text: str, example: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UserError(f'--{name} is {text!r} but must be an integer >= 1; {example}') from error


def _shown(population: Population, more: list[str]) -> tuple[dict[str, Any], str]:
    """Returns the result as data, for --json, and as text."""
    from zoo.tools.population.population import env_step_words, member_rows
    from zoo.tools.population.schedule import BEST, SCHEDULE
    from zoo.tools.results.read import from_here

    members = population.members
    best = population.best
    folder = from_here(population.folder)
    lines = [columns(member_rows(population)), env_step_words(population), f'folder: {folder}']
    for member in members:
        if member.fitness is None:
            lines.append(f'{member.state}: {member.life}: {member.reason}')
    commands = {}
    if best is not None:
        for name, about in ((BEST, 'its last values'), (SCHEDULE, 'its values over the env steps')):
            commands[name] = shlex.join(['zoo', 'train', str(folder / name), *more])
            lines.append(f'train {about}: {commands[name]}')
        lines.append(f'evaluate the best: zoo eval {shlex.quote(str(from_here(best.run_dir)))}')
    data = {
        'folder': str(population.folder),
        'best': best and _as_data(best),
        'members': [_as_data(member) for member in members],
        'train': commands.get(BEST),
        'train_schedule': commands.get(SCHEDULE),
    }
    return data, '\n'.join(lines)


def _as_data(member: Any) -> dict[str, Any]:
    return {**member._asdict(), 'run_dir': str(member.run_dir)}
