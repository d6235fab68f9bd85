"""Evolution of a population: generations of training, selection by fitness, and children that are forks with mutations."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from zoo.config.section import ConfigError
from zoo.config.user_code import load_code, names_code
from zoo.core.errors import CallbackError, RunError, UserError, did_you_mean, place_of, show_error, shown
from zoo.core.files import synced_together
from zoo.core.processes import Interrupted, catch_signals
from zoo.core.seeding import stream
from zoo.run.checkpoint.consent import Trust
from zoo.run.config import frozen_config, resolve_config
from zoo.run.folder import RunLock, is_locked, refuse_unwritable
from zoo.run.fork import begin_fork
from zoo.tools.population.members import ForkedMember, Stage, drop_checkpoints, folder_of, stage_of, stage_texts
from zoo.tools.population.mutation import MAX_TRIES, How, Mutation, drawn, mutate as draw_mutation
from zoo.tools.population.plan import Keep, PopulationPlan, make_population_plan, refuse_other_words
from zoo.tools.population.population import Population
from zoo.tools.population.schedule import write_best
from zoo.tools.population.stages import StageEnd, StageLog, StageTask, train_stage, train_stages
from zoo.tools.results.lineage import (
    MEMBERS,
    NAME,
    Beginning,
    Birth,
    Births,
    Generation,
    Lineage,
    StageResult,
    is_population,
)
from zoo.tools.sweep.team import Team, say_if_too_many

EVENTS = ('on_generation', 'on_mutation', 'on_fork', 'on_end')
"""Methods of a hook: `on_generation(population, generation)`, `on_mutation(member, mutation)`, which may return another mutation
or None for none, `on_fork(parent, child)` with two run folders, and `on_end(population)`."""
REMEDY = 'name another folder (--name); the same command continues this one'
logger = logging.getLogger(__name__)


def evolve(
    config: Any,
    spaces: Sequence[str] = (),
    *,
    pop: int | None = None,
    every: int | None = None,
    generations: int | None = None,
    how: How | None = None,
    select: str | None = None,
    mutate: str | None = None,
    jobs: int = 1,
    name: str | None = None,
    keep: Keep | None = None,
    imports: Sequence[str] = (),
    trust: Trust = (),
    callbacks: Sequence[Any] = (),
) -> Population:
    """Trains a population of runs of one config; worse members are replaced by changed copies of better ones.

    The same call continues a population that ended in any way; with more generations it is extended. What comes out depends
    on the seed of the config alone: not on `jobs`, and not on interruptions.

    Args:
      config: as for `serial_pipeline`; its section `population`, if it has one, may have the words from `every` to `keep` but
        `jobs` and `name`, `members` for pop, and `spaces`: arguments count first.
      spaces: 'key=value' overrides of all members, and 'key=space' with a space of `zoo.tools.sweep.spaces`; without a space,
        those of DEFAULT_SPACES for the policy of the config.
      pop: number of members, 8.
      every: env steps of each member in a generation, rounded up to a whole number of rollouts; None: a 20th of max_env_step.
      generations: number of generations; None: as many as fit into max_env_step.
      how: 'pbt', the default: truncation, all keys with a space change; 'evolution': tournaments, one mutation of any kind.
      select: a rule of SELECTION_REGISTRY in place of that of `how`, as 'truncation:0.25' or 'tournament:2'.
      mutate: weights of kinds of MUTATION_REGISTRY, as 'architecture=.2,hyper=.4', in place of those of `how`.
      jobs: processes, each with one torch thread; 1: this process.
      name: of the folder in logger.root; by default <exp_name>_population.
      keep: the checkpoints that stay: 'alive', the default: those of the present members, 'all': also those of members that were replaced.
      imports: modules or files that the processes import first; trust: as for `serial_pipeline`.
      callbacks: classes or objects with some of the methods of EVENTS.
    Raises: UserError, ConfigError before anything starts; RunError if all members failed; Interrupted after a signal, with all
      complete generations saved.
    """
    if type(jobs) is not int or jobs < 1:
        raise UserError(f'jobs is {jobs!r} but must be an integer >= 1, the processes on this machine; e.g. 2')
    if int(os.environ.get('WORLD_SIZE') or 1) > 1:
        raise UserError('a population starts its own processes, and torchrun started this one; run it without torchrun')
    hooks = PopulationHooks(callbacks)
    plan = make_population_plan(
        config,
        spaces,
        pop=pop,
        every=every,
        generations=generations,
        how=how,
        select=select,
        mutate=mutate,
        name=name,
        keep=keep,
        trust=trust,
    )
    with refuse_unwritable(plan.folder, REMEDY):
        (plan.folder / MEMBERS).mkdir(parents=True, exist_ok=True)
        lock = RunLock(plan.folder / MEMBERS)
    with closing(lock):
        lineage = Lineage(plan.folder / NAME)
        if is_population(plan.folder):
            lineage = Lineage.read(plan.folder)
        refuse_other_words(plan, lineage)
        evolution = _Evolution(plan, lineage, min(jobs, plan.n_member), imports, hooks)
        evolution.run()
        with refuse_unwritable(plan.folder, REMEDY):
            write_best(plan, lineage)
        hooks.tell('on_end', evolution.population)
        return evolution.population


class _Evolution:
    """The generations of a population, from the point where its lineage ends.

    Attributes: population: as it is now.
    """

    def __init__(
        self, plan: PopulationPlan, lineage: Lineage, jobs: int, imports: Sequence[str], hooks: PopulationHooks
    ) -> None:
        self._plan = plan
        self._lineage = lineage
        self._jobs = jobs
        self._hooks = hooks
        self._imports = list(imports)
        self._log = StageLog()
        self.population = Population(plan.folder, lineage)

    def run(self) -> None:
        """Trains the generations that are left. Raises: Interrupted; RunError if all members failed."""
        plan = self._plan
        lineage = self._lineage
        if lineage.beginning is None:
            self._add(Beginning(seed=plan.seed, n_member=plan.n_member, words=plan.words))
        if not self._is_over():
            logger.info(
                'population %s: %d members, generation %d of %d, %d env steps each',
                plan.folder,
                plan.n_member,
                len(lineage.generations) + 1,
                plan.n_generation,
                plan.every,
            )
        with ExitStack() as undo:
            received = undo.enter_context(catch_signals())
            team: Team | None = None
            if self._jobs > 1 and not self._is_over():
                say_if_too_many(self._jobs)
                team = Team(train_stage, self._imports)
                undo.enter_context(team.follow_signals())
            try:
                while not self._is_over():
                    self._generation(team, received)
            except Interrupted:
                logger.warning(
                    'the population was stopped after %d of %d generations; the same command continues it',
                    len(lineage.generations),
                    plan.n_generation,
                )
                raise

    def _generation(self, team: Team | None, received: list[int]) -> None:
        """Makes the members of the next generation, unless they are there, and trains them."""
        lineage = self._lineage
        generation = len(lineage.generations)
        stages = self._stages(generation, has_team=team is not None)
        tasks = (StageTask(self._plan.source, stage, self._plan.trust) for stage in stages)
        ends = train_stages(tasks, self._jobs, team, received, self._log)
        results = [_result(lineage.lives[life], ends[life]) for life in lineage.at_places]
        _refuse_no_success(results)
        self._add(Generation(generation=generation, members=results))
        self._say(results)
        self._hooks.tell('on_generation', self.population, generation)

    def _stages(self, generation: int, has_team: bool) -> Iterator[Stage]:
        """Yields the stages of a generation, by place. The lineage has its births, at the latest, after the last one.

        Args: has_team: other processes train a member while the next one is made here.
        """
        lineage = self._lineage
        if lineage.n_births > generation:
            drop_checkpoints(self._plan, lineage)
            yield from self._stages_of([lineage.lives[life] for life in lineage.at_places], generation)
            return
        births = self._births(generation)
        if has_team:
            members = []
            for birth in births:
                members.append(birth)
                yield from self._stages_of([birth], generation)
            self._add_births(generation, members)
        else:
            with synced_together():
                members = list(births)
            self._add_births(generation, members)
            yield from self._stages_of(members, generation)

    def _stages_of(self, members: Sequence[Birth], generation: int) -> Iterator[Stage]:
        for birth in members:
            env_step = birth.env_step
            if birth.life in self._lineage.lives:
                env_step = self._lineage.env_step_of(birth.life)
            yield stage_of(self._plan, birth, generation, env_step)

    def _add_births(self, generation: int, members: Sequence[Birth]) -> None:
        children = [birth for birth in members if birth.life not in self._lineage.lives]
        self._add(Births(generation=generation, children=children))
        drop_checkpoints(self._plan, self._lineage)

    def _births(self, generation: int) -> Iterator[Birth]:
        """Yields the life at each place in a generation; the folders of new ones are on the disk."""
        if generation == 0:
            return (self._founder(place) for place in range(self._plan.n_member))
        return self._children(generation)

    def _founder(self, place: int) -> Birth:
        """A member of the first generation, with values drawn from the spaces. Raises: ConfigError if all are refused."""
        plan = self._plan
        generator = np.random.default_rng(stream(plan.seed, 'founder', place))
        seed = _seed_of(plan, 0, place)
        refusal: ConfigError | None = None
        for _ in range(MAX_TRIES):
            values = {key: drawn(space, generator) for key, space in plan.spaces.items()}
            try:
                resolve_config(plan.source, stage_texts(plan, values, seed, 0))
            except ConfigError as error:
                refusal = error
            else:
                name = _life_name(place, 0)
                return Birth(place=place, life=name, parent=None, env_step=0, seed=seed, kind='founder', values=values)
        assert refusal is not None, 'there was a try'
        raise refusal

    def _children(self, generation: int) -> Iterator[Birth]:
        """Yields the life at each place after a selection: one that goes on, or a new one that replaces it."""
        plan = self._plan
        lineage = self._lineage
        results = lineage.generations[-1]
        fitness = [float('nan') if result.fitness is None else result.fitness for result in results]
        parents = plan.selection(fitness, np.random.default_rng(stream(plan.seed, 'select', generation)))
        at_places = list(lineage.at_places)
        for place, parent_place in enumerate(parents):
            if parent_place is None:
                yield lineage.lives[at_places[place]]
                continue
            parent = ForkedMember(plan, lineage, at_places[parent_place])
            generator = np.random.default_rng(stream(plan.seed, 'mutate', generation, place))
            mutation = draw_mutation(parent, plan.weights, generator)
            mutation = self._hooks.mutation(parent, mutation) or Mutation('none')
            is_unchanged = not mutation.overrides and mutation.change is None
            if parent_place == place and is_unchanged:
                yield parent.birth
            else:
                yield self._child(generation, place, parent, mutation)

    def _child(self, generation: int, place: int, parent: ForkedMember, mutation: Mutation) -> Birth:
        """Forks a member. What an interrupted command left of the child is replaced."""
        plan = self._plan
        values = parent.values_with(mutation.overrides)
        was = parent.birth.values
        changed = {key: (was.get(key), text) for key, text in values.items() if was.get(key) != text}
        seed = _seed_of(plan, generation, place)
        birth = Birth(
            place=place,
            life=_life_name(place, generation),
            parent=parent.birth.life,
            env_step=parent.env_step,
            seed=seed,
            kind=mutation.kind,
            values=values,
            changed=changed,
            exact=mutation.exact,
            refused=mutation.refused,
            note=mutation.note,
        )
        folder = folder_of(plan, birth.life)
        cfg = frozen_config(resolve_config(plan.source, stage_texts(plan, values, seed, generation)))
        with refuse_unwritable(folder, REMEDY):
            if is_locked(folder):
                RunLock(folder).close()  # says by whom
            if folder.exists():
                shutil.rmtree(folder)
        with synced_together():
            begin_fork(parent.checkpoint, folder, cfg, mutation.change)
        self._hooks.tell('on_fork', parent.folder, folder)
        return birth

    def _is_over(self) -> bool:
        """Whether all generations are trained, or the best member has reached policy.eval.stop_value."""
        lineage = self._lineage
        return len(lineage.generations) >= self._plan.n_generation or self.is_solved()

    def is_solved(self) -> bool:
        """Whether the last evaluation of a member has reached policy.eval.stop_value."""
        stop_value = self._plan.cfg.policy.eval.stop_value
        best = self.population.best
        return stop_value is not None and best is not None and best.fitness is not None and best.fitness >= stop_value

    def _add(self, event: Beginning | Births | Generation) -> None:
        with refuse_unwritable(self._plan.folder, REMEDY):
            self._lineage.add(event)

    def _say(self, results: Sequence[StageResult]) -> None:
        best = self.population.best
        failed = [result for result in results if result.fitness is None]
        words = ''
        if failed:
            words = f'; {len(failed)} failed, the first one ({failed[0].life}) so: {failed[0].reason}'
        scores = [result.fitness for result in results if result.fitness is not None]
        assert best is not None and best.fitness is not None, 'a member did not fail'
        logger.info(
            'generation %d of %d: best %.5g (%s), mean %.5g%s',
            len(self._lineage.generations),
            self._plan.n_generation,
            best.fitness,
            best.life,
            np.mean(scores),
            words,
        )


def _life_name(place: int, generation: int) -> str:
    return f'm{place:02d}_g{generation:02d}'


def _seed_of(plan: PopulationPlan, generation: int, place: int) -> int:
    return int(stream(plan.seed, 'member', generation, place).generate_state(1)[0])


def _result(birth: Birth, end: StageEnd) -> StageResult:
    result = StageResult(
        place=birth.place,
        life=birth.life,
        fitness=end.fitness,
        env_step=end.env_step,
        state='done',
        reason=end.reason,
        kl=end.kl,
    )
    if end.error:
        return result.model_copy(update={'state': 'failed', 'reason': end.error})
    if end.fitness is None:
        return result.model_copy(update={'reason': 'its mean return is no finite number'})
    return result


def _refuse_no_success(results: Sequence[StageResult]) -> None:
    """Raises: RunError if no member has a fitness: the generation is then trained again by the same command."""
    if all(result.fitness is None for result in results):
        raise RunError(
            f'all {len(results)} members failed, the first one so: {results[0].reason}; fix that, and the same command '
            'continues'
        )


class PopulationHooks:
    """The hooks of one population.

    Args: hooks: classes, objects, or names 'module:Class'.
    Raises: ConfigError for a hook without a method of EVENTS, or with a public one of another name that begins with on_.
    """

    def __init__(self, hooks: Sequence[Any]) -> None:
        self._hooks = [_made(hook) for hook in hooks]
        problems = [problem for hook in self._hooks for problem in _problems(hook)]
        if problems:
            raise ConfigError(problems)

    def tell(self, event: str, *args: object) -> None:
        """Calls a method of all hooks that have it. Raises: CallbackError."""
        for hook in self._hooks:
            method = getattr(hook, event, None)
            if method is not None:
                _called(hook, event, method, *args)

    def mutation(self, member: object, mutation: Any) -> Any:
        """The mutation that the hooks make of one; None: the child is not mutated. Raises: CallbackError."""
        for hook in self._hooks:
            method = getattr(hook, 'on_mutation', None)
            if method is not None and mutation is not None:
                mutation = _called(hook, 'on_mutation', method, member, mutation)
        return mutation


def _made(hook: Any) -> Any:
    if isinstance(hook, str):
        if not names_code(hook):
            raise ConfigError(f"--callback is {shown(hook)}, which is no 'module:Class' and no 'path/file.py:Class'")
        hook = load_code(hook, 'callback')
    if isinstance(hook, type):
        return hook()
    return hook


def _problems(hook: Any) -> Iterator[str]:
    names = [name for name in dir(hook) if name.startswith('on_')]
    if not names:
        yield f'the callback {shown(hook)} has none of the methods {", ".join(EVENTS)}; give it one'
    for name in names:
        if name not in EVENTS:
            hint = did_you_mean(name, EVENTS, f'the methods of a population are {", ".join(EVENTS)}', str)
            yield f'the callback {shown(hook)} has a method {name!r}, which no population calls: {hint}'


def _called(hook: Any, event: str, method: Any, *args: object) -> Any:
    try:
        return method(*args)
    except Exception as error:
        raise CallbackError(
            f'callback {shown(hook)} raised in {event} {show_error(error)} ({place_of(error)}); --debug shows the traceback'
        ) from error
