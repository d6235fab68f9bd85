"""Populations from end to end: equal whatever interrupts them, mutated values in force, failed members replaced."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pytest import MonkeyPatch

from tests.forked import run_python
from tests.policy_envs import differing, rows
from tests.tools.population.small import LR, MARK, SPACES, FillDisk, final_states, small, written
from zoo.config.section import ConfigError, value_at
from zoo.config.yaml_io import config_of_yaml
from zoo.core.errors import RunError, UserError
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint import load_checkpoint
from zoo.run.folder import RunLock
from zoo.run.fork import fork
from zoo.run.job import SerialJob
from zoo.tools.population.evolution import evolve
from zoo.tools.population.population import Population
from zoo.tools.results.lineage import NAME
from zoo.tools.sweep.spaces import DEFAULT_SPACES, parse_space

SMALL = 'tests.tools.population.small'
LR_SPACE = f'{LR}=log(1e-4,1e-2)'


@pytest.mark.long
def test_members_are_ordinary_runs_and_children_forks_of_better_ones(tmp_path: Path) -> None:
    population = evolve(small(tmp_path), SPACES, pop=4, every=64, generations=3)
    lineage = population.lineage
    assert [len(results) for results in lineage.generations] == [4, 4, 4]
    children = [birth for birth in lineage.lives.values() if birth.parent is not None]
    assert children  # ceil(.25 * 4) = 1 at each of the two selections
    for child in children:
        generation = int(child.life[-2:]) - 1
        fitness = [result.fitness for result in lineage.generations[generation]]
        lives = [result.life for result in lineage.generations[generation]]
        assert fitness[lives.index(child.parent)] == max(fitness) and fitness[child.place] == min(fitness)
        folder = tmp_path / 'small_population' / 'members' / child.life
        config = config_of_yaml(folder / 'config.yaml')
        assert value_at(config, LR) == float(child.values[LR]) and config['seed'] == child.seed
        assert json.loads((folder / 'fork.json').read_text())['env_step'] == child.env_step
    assert population.best in population.members
    assert (population.folder / 'best').resolve() == population.best.run_dir


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ('way', 'jobs'),
    [('', 2), ('KillInStage', 1), ('KillInSelection', 1), ('KillInSelection', 2), ('KillAfterGeneration', 1)],
)
def test_population_ends_bit_equal_whatever_interrupts_it(
    way: str, jobs: int, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    """One job in this process without interruption is the reference for all other ways."""
    mark = tmp_path / 'mark'
    monkeypatch.setenv(MARK, str(mark))
    kills_run = way == 'KillInStage'
    callbacks = [f'{SMALL}:{way}'] if kills_run else []
    mark.touch()
    reference = evolve(small(tmp_path / 'a', callbacks=callbacks), [*SPACES, 'seed=3'], pop=4, every=128, generations=4)
    config = written(tmp_path / 'small.yaml', small(tmp_path / 'b', callbacks=callbacks))
    words = ['evolve', config, *SPACES, 'seed=3', '--pop', 4, '--every', 128, '--generations', 4, '--quiet']
    words += ['--jobs', jobs]
    if way:
        if not kills_run:
            words += ['--callback', f'{SMALL}:{way}']
        mark.unlink()
        killed = run_python('-m', 'zoo', *words, PYTHONPATH=str(Path(__file__).parents[3]))
        assert killed.returncode == -9 and mark.exists(), killed.stderr
    done = run_python('-m', 'zoo', *words, PYTHONPATH=str(Path(__file__).parents[3]))
    assert done.returncode == 0, done.stderr
    population = Population.open(tmp_path / 'b' / 'small_population')
    assert (population.folder / NAME).read_bytes() == (reference.folder / NAME).read_bytes()
    states, wanted = final_states(population), final_states(reference)
    assert states.keys() == wanted.keys() and len(population.lineage.lives) > 4
    assert [differing(states[life], wanted[life]) for life in wanted] == [[]] * 4


@pytest.mark.long
def test_longer_population_continues_as_if_it_had_been_so_from_the_start(tmp_path: Path) -> None:
    whole = evolve(small(tmp_path / 'a'), SPACES, pop=4, every=64, generations=4)
    evolve(small(tmp_path / 'b'), SPACES, pop=4, every=64, generations=2)
    extended = evolve(small(tmp_path / 'b'), SPACES, pop=4, every=64, generations=4)
    assert (whole.folder / NAME).read_bytes() == (extended.folder / NAME).read_bytes()
    assert [*map(differing, final_states(whole).values(), final_states(extended).values())] == [[]] * 4


@pytest.mark.long
def test_same_call_on_a_population_that_is_done_trains_nothing(tmp_path: Path) -> None:
    first = evolve(small(tmp_path), SPACES, pop=4, every=64, generations=2)
    before = {path: path.stat().st_mtime_ns for path in first.folder.glob('members/*/checkpoints/*')}
    again = evolve(small(tmp_path), SPACES, pop=4, every=64, generations=2)
    assert {path: path.stat().st_mtime_ns for path in first.folder.glob('members/*/checkpoints/*')} == before
    assert again.members == first.members


@pytest.mark.long
@pytest.mark.parametrize('name', ['ppo', 'ppg'])
def test_mutated_values_are_in_force_at_the_first_step_after_a_fork(name: str, tmp_path: Path) -> None:
    """For each key of the default spaces: in config.yaml, in the first line of the log, and in the numbers of the step.

    Other libraries restore the values of the parent with its state, silently.
    """
    config = small(tmp_path, max_env_step=128, policy=dict(type=name, model=dict(hidden_sizes=[8])))
    config['policy'] |= dict(
        collect=dict(n_step=16), eval=dict(n_episode=1), learn=dict(entropy_weight=0.01, batch_size=32)
    )
    parent = serial_pipeline(config).run_dir
    for key, text in DEFAULT_SPACES[name].items():
        space = parse_space(key, text)
        assert space is not None
        value = space.probes()[-1]
        folder = tmp_path / key
        fork(parent, folder, [f'{key}={value}', 'max_env_step=192'])
        with SerialJob(
            config_of_yaml(folder / 'config.yaml'), checkpoint=load_checkpoint(folder), run_dir=folder
        ) as job:
            job.iteration()
            policy: Any = job.policy
        wanted = float(value)
        assert value_at(config_of_yaml(folder / 'config.yaml'), key) == wanted != value_at(parent_config(parent), key)
        assert value_at({'policy': policy.cfg}, key) == wanted
        line = next(row for row in rows(folder) if row['env_step'] > 128 and 'learn/train_iter' in row)
        last = key.rpartition('.')[2]
        assert line.get(f'learn/{last}', wanted) == pytest.approx(wanted, rel=1e-6)
        if last in ('entropy_weight', 'clip_ratio', 'learning_rate'):  # the log has the numbers that the steps received
            assert f'learn/{last}' in line
        if last == 'learning_rate':
            assert next(iter(policy.optimizers.values())).lr == pytest.approx(wanted, rel=1e-6)


def parent_config(run_dir: Path) -> dict[str, Any]:
    return config_of_yaml(run_dir / 'config.yaml')


# --- kinds of runs and of mutations ---


@pytest.mark.long
def test_members_may_be_runs_of_several_agents(tmp_path: Path) -> None:
    agents = dict(policies=dict(p={}, q={}), mapping={'a': 'p', 'b': 'q'})
    config = small(tmp_path, 'tests.tools.population.small:TwoPoles', agents=agents)
    config['env']['vectorization'] = 'sync'
    lineage = evolve(config, SPACES, pop=4, every=64, generations=3, select='truncation:0.5').lineage
    children = [birth for birth in lineage.lives.values() if birth.parent is not None]
    assert children and all(result.state == 'done' for results in lineage.generations for result in results)
    folder = tmp_path / 'small_population' / 'members' / lineage.at_places[children[-1].place]
    names = sorted(path.name.partition('.')[2] for path in (folder / 'checkpoints').glob('step_*'))
    assert names == sorted(['q.safetensors', 'safetensors'] * 2)  # of the beginning and the end of the generation


@pytest.mark.long
def test_copies_have_other_networks_weights_and_activations(tmp_path: Path) -> None:
    """Each of the three kinds makes children that train; a grown network is that of its config."""
    mutate = 'architecture=1,parameters=1,activation=1,none=0,hyper=0'
    population = evolve(small(tmp_path), SPACES, pop=6, every=64, generations=4, how='evolution', mutate=mutate)
    lineage = population.lineage
    assert all(result.state == 'done' for results in lineage.generations for result in results)
    kinds = {birth.kind for birth in lineage.lives.values()}
    assert kinds == {'founder', 'architecture', 'parameters', 'activation'}
    for member in population.members:
        sizes = value_at(config_of_yaml(member.run_dir / 'config.yaml'), 'policy.model.hidden_sizes')
        model = load_checkpoint(member.run_dir).state['policy']['model']
        layers = [x for name, x in model.items() if name.startswith('actor_encoder.') and name.endswith('.weight')]
        assert [len(x) for x in layers] == sizes
        assert member.values.get('policy.model.hidden_sizes', '[8]').replace(' ', '') == str(sizes).replace(' ', '')


@pytest.mark.long
def test_best_member_never_falls_where_nothing_is_learned(tmp_path: Path) -> None:
    """With a rate of 1e-12 the elite stays as it is, and each evaluation plays the same episodes: start states by one seed."""
    env = 'tests.tools.population.small:SameStart'
    population = evolve(small(tmp_path, env), [f'{LR}=1e-12', 'max_env_step=512'], pop=4, every=64, **ELITISM)
    best = [max(result.fitness or 0 for result in results) for results in population.lineage.generations]
    assert len(best) == 8 and best == sorted(best)


ELITISM: dict[str, Any] = dict(how='evolution', mutate='none=0,hyper=0,parameters=1,architecture=0')


# --- members that fail ---


def odd(root: Path) -> dict[str, Any]:
    return small(root, 'tests.tools.population.small:Odd')


@pytest.mark.long
def test_failed_member_is_replaced_and_never_copied(tmp_path: Path) -> None:
    texts = ['env.kwargs.fault=choice(none,raises)']
    population = evolve(odd(tmp_path), texts, pop=6, every=64, generations=2, mutate='none=1,explore=0')
    first, second = population.lineage.generations
    failed = [result.place for result in first if result.state == 'failed']
    assert 0 < len(failed) < 6  # of 6 coins
    assert all('ValueError: by hand' in first[place].reason and first[place].fitness is None for place in failed)
    for place in failed:
        assert second[place].life == f'm{place:02d}_g01'
        assert population.lineage.lives[second[place].life].values['env.kwargs.fault'] == 'none'
    assert all(result.state == 'done' and math.isfinite(result.fitness or math.nan) for result in second)


@pytest.mark.long
@pytest.mark.parametrize('how', ['pbt', 'evolution'])
def test_member_whose_fitness_is_nan_is_worst_replaced_and_never_copied(how: Any, tmp_path: Path) -> None:
    """The best member of the first generation has the fitness nan instead: null in the file, as JSON has no nan."""
    options: dict[str, Any] = dict(pop=4, every=64, how=how, select='truncation:0.5' if how == 'pbt' else None)
    first = evolve(small(tmp_path), [LR_SPACE], generations=1, **options)
    best = first.best
    assert best is not None
    *before, last = (first.folder / NAME).read_text().splitlines()
    line = json.loads(last)
    line['members'][best.place]['fitness'] = None
    (first.folder / NAME).write_text('\n'.join([*before, json.dumps(line), '']))
    lineage = evolve(small(tmp_path), [LR_SPACE], generations=2, **options).lineage
    children = [birth for birth in lineage.lives.values() if birth.parent is not None]
    assert lineage.at_places[best.place] == f'm{best.place:02d}_g01'
    assert children and all(birth.parent != best.life for birth in children)


def test_population_of_which_all_members_fail_says_why_and_continues_once_it_is_mended(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r'all 4 members failed, the first one so: .*by hand.*; fix that, and the same'):
        evolve(odd(tmp_path), [LR_SPACE, 'env.kwargs.fault=raises'], pop=4, every=64, generations=1)
    lineage = Population.open(tmp_path / 'small_population').lineage
    assert len(lineage.lives) == 4 and lineage.generations == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a megabyte in memory; only root may mount one."""
    folder = tmp_path / 'disk'
    folder.mkdir()
    mount = ['mount', '-t', 'tmpfs', '-o', 'size=1m', 'zoo_test', str(folder)]
    if shutil.which('mount') is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip('this user mounts no file system')
    yield folder
    subprocess.run(['umount', '-l', str(folder)], check=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ('event', 'sentence'),
    [
        (
            'on_generation',
            r'm0\d_g01 cannot be written \(No space left on device\); make that possible, or name another',
        ),
        (
            'on_fork',
            r'small_population cannot be written \(No space .*, or name .*; the same command continues this one',
        ),
    ],
    ids=['before a selection', 'in a selection'],
)
def test_population_on_a_full_disk_says_so_and_ends_equal_with_room(
    event: str, sentence: str, small_disk: Path, tmp_path: Path, monkeypatch: MonkeyPatch
) -> None:
    options: dict[str, Any] = dict(pop=4, every=64, generations=3, callbacks=[f'{SMALL}:FillDisk'])
    undisturbed = evolve(small(tmp_path), [LR_SPACE], **options)
    monkeypatch.setattr(FillDisk, 'event', event)
    with pytest.raises((UserError, RunError), match=sentence):
        evolve(small(small_disk), [LR_SPACE], **options)
    folder = small_disk / undisturbed.folder.name
    (folder / 'filler').unlink()
    monkeypatch.setattr(FillDisk, 'event', '')
    mended = evolve(small(small_disk), [LR_SPACE], **options)
    events = [(each.folder / NAME).read_text().splitlines()[1:] for each in (mended, undisturbed)]
    assert events[0] == events[1]
    assert differing(final_states(mended), final_states(undisturbed)) == []


# --- words that no population takes ---


@pytest.mark.parametrize(
    ('texts', 'options', 'sentence'),
    [
        ([LR_SPACE], dict(pop=1), 'a population of 1 has nothing to select from'),
        ([LR_SPACE], dict(pop=10_001), 'pop is 10,001, and a population has at most 10,000 members; e.g. pop=8'),
        ([LR_SPACE], dict(pop=3), 'truncation needs a population of 4 or more, and --pop is 3'),
        ([LR_SPACE], dict(how='evolution', select='tournament:9', pop=4), 'a tournament of 9 is larger than the'),
        (
            [LR_SPACE],
            dict(every=1000),
            '--every is 1000 but max_env_step is 640: no generation would end; use --every 32',
        ),
        ([LR_SPACE], dict(every=0), 'every is 0 but must be an integer >= 1'),
        ([LR_SPACE], dict(generations=0), 'generations is 0 but must be an integer >= 1'),
        ([LR_SPACE], dict(jobs=0), 'jobs is 0 but must be an integer >= 1'),
        ([LR_SPACE], dict(how='asha'), "how is 'asha' but must be one of pbt, evolution"),
        ([LR_SPACE], dict(keep='none'), "keep is 'none' but must be one of alive, all"),
        ([LR_SPACE], dict(select='best'), "unknown selection 'best'"),
        ([LR_SPACE], dict(mutate='hypr=1'), "unknown mutation 'hypr'"),
        ([LR_SPACE], dict(mutate='hyper=-1'), "the mutation hyper has the weight '-1' but needs a number >= 0"),
        ([LR_SPACE], dict(mutate='explore=0'), 'all mutations have the weight 0'),
        (['seed=choice(1,2)'], {}, 'seed can have no space in a population: each member has a seed of its own'),
        (['policy.eval.n_episode=int(1,9)'], {}, 'policy.eval.n_episode can have no space in a population'),
        (
            ['policy.model.activation=choice(tanh,relu)'],
            {},
            'policy.model.activation can have no space in a population',
        ),
        ([f'{LR}=log(1e-4,1e-2,5)'], {}, 'has a number of points, which only a grid takes'),
        ([f'{LR}=uniform(-1,1)'], {}, 'policy.learn.learning_rate'),
        ([LR_SPACE], dict(name='a/b'), 'exp_name'),
    ],
)
def test_words_that_no_population_takes_are_refused_before_anything_is_written(
    texts: list[str], options: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        evolve(small(tmp_path), texts, **options)
    problems = error.value.problems if isinstance(error.value, ConfigError) else [str(error.value)]
    assert any(sentence in problem for problem in problems) and all('\n' not in problem for problem in problems)
    assert list(tmp_path.iterdir()) == []


def test_architecture_of_a_cnn_or_of_memory_is_refused(tmp_path: Path) -> None:
    config = small(tmp_path)
    config['policy'] = dict(type='ppo', model=dict(recurrent=dict(cell='lstm')))
    with pytest.raises(ConfigError, match='networks with a memory'):
        evolve(config, [LR_SPACE], how='evolution', mutate='architecture=.5')
    images = small(tmp_path, env='tiny_bricks')
    images['policy'] = dict(type='ppo')
    with pytest.raises(ConfigError, match='have the encoder'):
        evolve(images, [LR_SPACE], how='evolution', mutate='architecture=.5')
    assert list(tmp_path.iterdir()) == []


def test_other_words_in_the_same_folder_are_named(tmp_path: Path) -> None:
    evolve(small(tmp_path), [LR_SPACE], pop=4, every=64, generations=1)
    sentence = (
        r'holds another population: it has pop=4, and this one 5; it has seed=0, and this one 1; it has '
        r'env.collector_env_num=4, and this one 8 and 3 more differences; to continue that one'
    )
    texts = [LR_SPACE.replace('1e-4', '1e-5'), 'seed=1', 'env.collector_env_num=8', 'policy.learn.clip_ratio=.1']
    with pytest.raises(UserError, match=sentence):
        evolve(small(tmp_path), texts, pop=5, every=128, generations=1)
    free = ['logger.freq=100', 'policy.eval.stop_value=1e9', 'checkpoint.freq=77', LR_SPACE]
    evolve(small(tmp_path), free, pop=4, every=64, generations=1)


def test_population_in_use_is_refused_by_its_lock(tmp_path: Path) -> None:
    folder = evolve(small(tmp_path), [LR_SPACE], pop=4, every=64, generations=1).folder
    with closing(RunLock(folder / 'members')), pytest.raises(UserError, match='is in use by process'):
        evolve(small(tmp_path), [LR_SPACE], pop=4, every=64, generations=1)


def test_few_episodes_and_a_rounded_generation_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level('INFO'):
        evolve(small(tmp_path), [LR_SPACE, 'policy.eval.n_episode=1'], pop=4, every=65, generations=1)
    assert 'a generation takes 128 env steps, not 65: a whole number of rollouts, each of 64' in caplog.messages
    assert any('by the mean return of 1 episode, which selects by luck' in message for message in caplog.messages)


@pytest.mark.long
def test_lineage_has_the_divergence_of_children_whose_policy_changed(tmp_path: Path) -> None:
    mutate = 'architecture=2,parameters=1,none=0,hyper=1'
    population = evolve(
        small(tmp_path),
        [*SPACES],
        pop=6,
        every=64,
        generations=5,
        how='evolution',
        mutate=mutate,
        select='tournament:2',
    )
    lineage = population.lineage
    first = {}  # of each life, in its first generation
    later = []
    for results in lineage.generations:
        for result in results:
            if result.life in first:
                later.append(result.kl)
            else:
                first[result.life] = result.kl
    assert set(later) <= {None}
    kinds = {life: lineage.lives[life].kind for life in first}
    assert {'architecture', 'parameters', 'hyper'} <= set(kinds.values())
    for life, kl in first.items():
        if kinds[life] in ('architecture', 'parameters'):
            assert kl is not None and kl >= -1e-6
            if lineage.lives[life].exact:
                assert kl == pytest.approx(0, abs=1e-6)
        else:
            assert kl is None
    for life in lineage.lives.keys() - set(lineage.at_places):  # those of parents go after the next generation
        assert not (population.folder / 'members' / life / 'checkpoints').exists() or life in {
            birth.parent for birth in lineage.lives.values()
        }


@pytest.mark.soak
@pytest.mark.long
def test_best_fitness_of_members_that_do_not_learn_never_falls_with_an_elite(tmp_path: Path) -> None:
    config = small(tmp_path, max_env_step=64 * 20)
    # all episodes begin alike, so greedy members have one return
    config['env']['reset_options'] = dict(low=0.02, high=0.02)
    config['policy']['learn'] = dict(batch_size=32, epoch_per_collect=1, learning_rate=dict(start=0.0, end=0.0))
    config['policy']['eval'] = dict(n_episode=10)
    words = dict(
        pop=5, every=64, generations=20, how='evolution', mutate='none=.1,architecture=.4,parameters=.5,hyper=0'
    )
    lineage = evolve(config, ['policy.learn.clip_ratio=uniform(.1,.3)'], **words).lineage
    best = [max(result.fitness for result in results if result.fitness is not None) for results in lineage.generations]
    assert len(best) == 20
    assert all(after >= before for before, after in zip(best, best[1:], strict=False))
    assert best[-1] > best[0]  # mutations alone find better members
