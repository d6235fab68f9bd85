"""Mutations: shares of kinds, factors, spaces, choices, schedules, refusals; the toy of Jaderberg et al."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from torch import nn

from tests.tools.population.members import LR, TrainedMember, config, trained
from zoo import MODEL_REGISTRY
from zoo.config.section import ConfigError, value_at
from zoo.model.actor_critic import VAC
from zoo.model.config import VACConfig
from zoo.run.checkpoint import Checkpoint
from zoo.run.config import frozen_config, resolve_config
from zoo.tools.population.mutation import (
    DEFAULT_WEIGHTS,
    FACTORS,
    MUTATION_REGISTRY,
    Mutation,
    drawn,
    moved,
    multiplied_integer,
    mutate,
    parse_weights,
    why_not_kind,
)
from zoo.tools.population.selection import truncation
from zoo.tools.sweep.spaces import Space, parse_space, split_spaces

N_DRAW = 10_000
EPOCHS = 'policy.learn.epoch_per_collect'


def member(
    texts: Sequence[str] = (), overrides: Sequence[str] = (), env_step: int = 0, kwargs: dict[str, Any] | None = None
) -> TrainedMember:
    """A member that has not been trained; texts: its spaces."""
    source = dict(
        max_env_step=100_000, env=dict(id='CartPole-v1', kwargs=kwargs or {}), policy=dict(type='ppo', learn={})
    )
    cfg = frozen_config(resolve_config(source, overrides))
    return TrainedMember(
        cfg.to_dict(), cfg, split_spaces(texts)[0], Checkpoint(path=Path('none'), state={}, meta={'env_step': env_step})
    )


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def space_of(text: str) -> Space:
    space = parse_space('key', text)
    assert space is not None
    return space


@pytest.mark.slow
def test_kinds_are_drawn_by_their_weights_without_those_that_are_impossible() -> None:
    recurrent = member(overrides=['policy.model.recurrent={cell: gru}'])  # its architecture stays
    generator = rng()
    weights = {'none': 0.4, 'architecture': 0.2, 'activation': 0.1, 'hyper': 0.2}  # hyper: it has no space
    kinds = Counter(mutate(recurrent, weights, generator).kind for _ in range(N_DRAW))
    assert kinds['none'] / N_DRAW == pytest.approx(0.8, abs=0.01)  # .4 of .5
    assert kinds['activation'] / N_DRAW == pytest.approx(0.2, abs=0.01)
    assert set(kinds) == {'none', 'activation'}


def test_numbers_are_multiplied_by_exactly_one_of_two_factors() -> None:
    one = member([f'{LR}=log(1e-6,1)'], [f'{LR}=.003'])
    generator = rng()
    values = Counter(moved(one, LR, generator, FACTORS) for _ in range(N_DRAW))
    assert set(values) == {'0.0024', '0.0036'}
    assert values['0.0024'] / N_DRAW == pytest.approx(0.5, abs=0.01)


@pytest.mark.long
def test_explored_values_are_drawn_from_their_space_in_a_quarter() -> None:
    from scipy import stats  # not above: half a second in every process of the suite

    one = member([f'{LR}=log(1e-6,1)'], [f'{LR}=.003'])
    generator = rng()
    values = []
    for _ in range(1_000):
        mutation = mutate(one, DEFAULT_WEIGHTS['pbt'], generator)
        assert mutation.kind == 'explore'
        values.append(float(mutation.overrides[0].removeprefix(f'{LR}=')))
    anew = [value for value in values if value not in (0.0024, 0.0036)]
    assert len(anew) / len(values) == pytest.approx(0.25, abs=0.055)  # 4 standard deviations
    logs = np.log(anew)
    assert stats.kstest(logs, stats.uniform(np.log(1e-6), np.log(1) - np.log(1e-6)).cdf).pvalue > 0.01


@pytest.mark.long
@pytest.mark.parametrize(
    ('text', 'cdf'),
    [
        ('log(1e-5,.1)', lambda x: (np.log(x) - np.log(1e-5)) / (np.log(0.1) - np.log(1e-5))),
        ('uniform(-1,3)', lambda x: (x + 1) / 4),
        ('uniform(0,1000)', lambda x: x / 1000),
    ],
)
def test_drawn_numbers_pass_a_test_against_their_space(text: str, cdf: Any) -> None:
    from scipy import stats  # not above: half a second in every process of the suite

    space = space_of(text)
    generator = rng()
    values = np.array([float(drawn(space, generator)) for _ in range(N_DRAW)])
    assert space.low <= values.min() <= values.max() <= space.high
    assert stats.kstest(values, cdf).pvalue > 0.01


@pytest.mark.parametrize('text', ['int(1,10)', 'choice(a,b,c,d)'])
def test_drawn_integers_and_choices_are_equally_likely(text: str) -> None:
    from scipy import stats  # not above: half a second in every process of the suite

    generator = rng()
    counts = Counter(drawn(space_of(text), generator) for _ in range(N_DRAW))
    known = {'int(1,10)': {str(i) for i in range(1, 11)}, 'choice(a,b,c,d)': set('abcd')}
    assert set(counts) == known[text]
    assert stats.chisquare(list(counts.values())).pvalue > 0.01


@pytest.mark.parametrize(
    ('value', 'factor', 'moved_to'),
    [
        (1, 1.5, 2),  # 1.5 rounds to 2
        (1, 0.75, 1),  # .75 rounds to 1, so 0, which is cut to 1
        (2, 0.75, 1),  # 1.5 rounds to 2, so 1 away
        (4, 1.2, 5),  # 4.8; cut off it would be 4
        (1, 1.2, 2),
        (2, 1.2, 3),
        (5, 1.5, 8),  # 7.5
        (8, 1.5, 10),  # 12, cut
        (10, 1.2, 10),
        (10, 0.8, 8),
        (2, 0.8, 1),
    ],
)
def test_integers_are_rounded_and_move_by_at_least_1(value: int, factor: float, moved_to: int) -> None:
    assert multiplied_integer(value, factor, space_of('int(1,10)')) == moved_to


@pytest.mark.slow
def test_integer_goes_from_1_to_10_and_returns() -> None:
    generator = rng()
    value = 1
    visited = []
    for _ in range(1_000):
        now = member([f'{EPOCHS}=int(1,10)'], [f'{EPOCHS}={value}'])
        mutation = MUTATION_REGISTRY.get('hyper')(now, generator)
        assert mutation is not None
        value = int(mutation.overrides[0].removeprefix(f'{EPOCHS}='))
        visited.append(value)
        if 10 in visited and 1 in visited[visited.index(10) :]:
            break
    assert 1 in visited[visited.index(10) :]
    assert set(visited) <= set(range(1, 11))


@pytest.mark.slow
def test_values_stay_in_their_spaces() -> None:
    generator = rng()
    spaces = [f'{LR}=log(1e-3,2e-3)', f'{EPOCHS}=int(2,3)', 'policy.collect.gae_lambda=uniform(.8,1)']
    one = member(spaces, [f'{LR}=.0019', f'{EPOCHS}=3', 'policy.collect.gae_lambda=.99'])
    for _ in range(100):
        values = dict(text.split('=') for text in mutate(one, {'explore': 1}, generator).overrides)
        assert list(values) == [text.partition('=')[0] for text in spaces]
        for key, text in values.items():
            assert one.spaces[key].low <= float(text) <= one.spaces[key].high


def test_discounts_move_by_their_distance_from_1() -> None:
    key = 'policy.collect.discount_factor'
    one = member([f'{key}=uniform(.9,.9999)'], [f'{key}=.99'])
    generator = rng()
    values = {moved(one, key, generator, FACTORS) for _ in range(100)}
    assert values == {'0.992', '0.988'}  # 1 - .01 * .8, 1 - .01 * 1.2


def test_value_that_no_factor_moves_is_drawn() -> None:
    key = 'policy.learn.entropy_weight'
    one = member([f'{key}=uniform(0,1)'], [f'{key}=0.'])
    assert len({moved(one, key, rng(seed), FACTORS) for seed in range(20)}) == 20
    null = member(['policy.learn.target_kl=log(1e-3,1)'])  # null by default
    assert 1e-3 <= float(moved(null, 'policy.learn.target_kl', rng(), FACTORS)) <= 1


@pytest.mark.parametrize(
    ('space', 'value', 'others'),
    [
        ('choice(32,256,64,128)', '64', {'32', '128'}),  # numbers are in order
        ('choice(32,256,64,128)', '32', {'64'}),
        ('choice(32,256,64,128)', '256', {'128'}),
        ('choice(64,128)', '32', {'64', '128'}),  # it has none of them
    ],
)
def test_ordered_choice_moves_to_a_neighbour(space: str, value: str, others: set[str]) -> None:
    key = 'policy.learn.batch_size'
    one = member([f'{key}={space}'], [f'{key}={value}', 'policy.collect.n_sample=1024'])
    generator = rng()
    assert {moved(one, key, generator, FACTORS) for _ in range(10)} == others


def test_other_choice_is_any_other_one() -> None:
    key = 'policy.learn.adv_norm'
    one = member([f'{key}=choice(off,batch,minibatch)'], [f'{key}=batch'])
    generator = rng()
    assert {moved(one, key, generator, FACTORS) for _ in range(10)} == {'off', 'minibatch'}


def test_schedule_is_replaced_by_a_number_near_its_value_now() -> None:
    schedule = f'{LR}={{start: 1e-3, end: 0}}'
    one = member([f'{LR}=log(1e-6,1)'], [schedule], env_step=50_000)  # half of 100,000
    generator = rng()
    assert {moved(one, LR, generator, FACTORS) for _ in range(50)} == {'0.0004', '0.0006'}


def test_start_of_a_schedule_keeps_the_schedule() -> None:
    key = f'{LR}.start'
    one = member([f'{key}=log(1e-6,1)'], [f'{LR}={{start: 1e-3, end: 1e-5}}'], env_step=50_000)
    mutation = MUTATION_REGISTRY.get('hyper')(one, rng())
    assert mutation is not None
    child = one.resolve(mutation.overrides)
    rate = value_at(child, LR)
    assert rate['start'] in (0.0008, 0.0012)
    assert rate['end'] == 1e-5


@pytest.mark.slow
def test_refused_values_are_drawn_again() -> None:
    # of a rollout of 1,024 samples, 300 and 700 are no minibatch
    key = 'policy.learn.batch_size'
    one = member([f'{key}=choice(64,300,700,x,y)'], [f'{key}=64', 'policy.collect.n_sample=1024'])
    both = member([f'{key}=choice(300,64,700)', f'{LR}=log(1e-6,1)'], [f'{key}=64', 'policy.collect.n_sample=1024'])
    mutation = MUTATION_REGISTRY.get('hyper')(both, rng())
    assert mutation is not None
    assert mutation.overrides[0].startswith(LR)
    refused = MUTATION_REGISTRY.get('hyper')(one, rng())
    assert refused is not None
    assert refused.overrides == ()
    assert 'policy.learn.batch_size is' in refused.refused


def test_activation_becomes_another_one_and_says_what_that_means() -> None:
    generator = rng()
    one = member()
    mutations = [mutate(one, {'activation': 1}, generator) for _ in range(100)]
    names = {mutation.overrides[0].removeprefix('policy.model.activation=') for mutation in mutations}
    assert names == {'relu', 'elu', 'gelu', 'silu'}
    assert all('another policy' in mutation.note for mutation in mutations)
    assert all(mutation.change is None for mutation in mutations)


@pytest.fixture(scope='module')
def learned() -> Iterator[TrainedMember]:
    with TemporaryDirectory() as path:
        yield trained(config(Path(path), {'type': 'ppo'}), [f'{LR}=log(1e-6,1)'])


def test_architecture_is_a_change_of_the_config_and_of_the_state(learned: TrainedMember) -> None:
    mutation = mutate(learned, {'architecture': 1}, rng(1))
    assert mutation.kind == 'architecture'
    child = learned.resolve(mutation.overrides)
    assert mutation.change is not None
    state = mutation.change(learned.checkpoint.state)
    widths = [len(x) for name, x in state['policy']['model'].items() if 'actor_encoder' in name and 'bias' in name]
    assert widths == list(child.policy.model.hidden_sizes) != [64, 64]


def test_equal_generators_give_equal_mutations(learned: TrainedMember) -> None:
    for kind in ('architecture', 'parameters', 'hyper', 'explore', 'activation'):
        first, second = (mutate(learned, {kind: 1}, rng(7)) for _ in range(2))
        assert first.overrides == second.overrides
        if first.change is not None and second.change is not None:
            one, two = (mutation.change(learned.checkpoint.state)['policy']['model'] for mutation in (first, second))
            assert all((x == two[name]).all() for name, x in one.items())


def test_model_of_a_user_gives_its_own_mutations(learned: TrainedMember) -> None:
    name = 'own_mutations_model'

    class Own(VAC):
        config = VACConfig

        @classmethod
        def mutations(cls, cfg: VACConfig) -> dict[str, Mutation]:
            return {'twice as wide': Mutation('', (f'policy.model.hidden_sizes={[2 * n for n in cfg.hidden_sizes]}',))}

    MODEL_REGISTRY.register(name, force=True, module=Own)
    one = member(overrides=[f'policy.model.type={name}'])
    assert why_not_kind('architecture', one.config, {}) == ''
    mutation = mutate(one, {'architecture': 1}, rng())
    assert mutation.kind == 'architecture'
    assert mutation.note == 'twice as wide'
    assert mutation.overrides == ('policy.model.hidden_sizes=[128, 128]',)


def test_model_of_a_user_without_mutations_keeps_its_architecture() -> None:
    class Plain(VAC, nn.Module):
        config = VACConfig

    MODEL_REGISTRY.register('plain_model', force=True, module=Plain)
    one = member(overrides=['policy.model.type=plain_model'])
    assert 'class method `mutations`' in why_not_kind('architecture', one.config, {})
    assert mutate(one, {'architecture': 1}, rng()).kind == 'none'


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('architectur=.2', "did you mean 'architecture'"),
        ('hyper=-1', 'needs a number >= 0'),
        ('hyper', 'needs a number >= 0'),
        ('hyper=nan', 'needs a number >= 0'),
        ('none=0,architecture=0,parameters=0,activation=0,hyper=0', 'no member would change'),
    ],
)
def test_bad_weights_are_sentences(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_weights(text, 'evolution')


def test_weights_of_a_text_replace_those_of_the_rules() -> None:
    weights = parse_weights('architecture=.3, activation=.1', 'evolution')
    assert weights == {'none': 0.4, 'architecture': 0.3, 'parameters': 0.2, 'activation': 0.1, 'hyper': 0.2}
    assert parse_weights('', 'pbt') == {'explore': 1.0}


def test_kind_without_keys_is_a_sentence() -> None:
    assert 'no key to change' in why_not_kind('explore', member().config, {})
    assert (
        'no key policy.model.activation' in why_not_kind('activation', member(overrides=['policy.type=dqn']).config, {})
        or why_not_kind('activation', member(overrides=['policy.type=dqn']).config, {}) == ''
    )


START = 0.9
RATE = 0.05
N_STEP = 400
EVERY = 4


def toy(is_selected: bool, is_mutated: bool, seed: int) -> float:
    """The best quality of two members that climb 1.2 - h0 x^2 - h1 y^2, and are judged by 1.2 - x^2 - y^2.

    Source: Jaderberg et al. 2017, arXiv:1711.09846, figure 2. Weights h are env.kwargs, so that they go through configs.
    """
    texts = ['env.kwargs.h0=uniform(0,1)', 'env.kwargs.h1=uniform(0,1)']
    members = [member(texts, kwargs={'h0': 1.0, 'h1': 0.0}), member(texts, kwargs={'h0': 0.0, 'h1': 1.0})]
    points = [np.array([START, START]), np.array([START, START - 0.01])]  # not equal: equal members stay
    generator = rng(seed)
    best = -np.inf
    for step in range(1, N_STEP + 1):
        for one, point in zip(members, points, strict=True):
            kwargs = one.config.env.kwargs
            point -= RATE * 2 * np.array([kwargs['h0'], kwargs['h1']]) * point
        quality = [float(1.2 - (point**2).sum()) for point in points]
        best = max(best, *quality)
        if step % EVERY or not is_selected:
            continue
        for place, parent in enumerate(truncation(quality, generator)):
            if parent is not None:
                points[place] = points[parent].copy()
                if is_mutated:
                    source = members[parent]
                    mutation = mutate(source, {'explore': 1}, generator)
                    members[place] = source._replace(config=source.resolve(mutation.overrides))
    return best


@pytest.mark.slow
@pytest.mark.parametrize('seed', range(5))
def test_toy_is_solved_with_selection_and_exploration(seed: int) -> None:
    assert toy(is_selected=True, is_mutated=True, seed=seed) > 1.18


def test_toy_is_not_solved_without_selection() -> None:
    # each member sees one of x and y; the other stays at .9: 1.2 - .81 = .39
    assert toy(is_selected=False, is_mutated=False, seed=0) < 0.5
