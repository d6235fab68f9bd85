"""Data-parallel runs: agreement of ranks, here threads, on counters, stops and metrics."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tests.thread_ranks import on_ranks
from zoo.core.ranks import ALONE, Ranks
from zoo.run.data_parallel import Agreement
from zoo.worker.evaluator import Evaluation, joined_evaluations
from zoo.worker.infos import InfoTally


def parts(returns: Any = (), lengths: Any = (), infos: dict[str, Any] | None = None) -> Any:
    """Returns the parts of a run that `Agreement` reads."""
    tally = InfoTally()
    tally.values.update(infos or {})
    episodes = SimpleNamespace(n_episode=0, n_reset=0, returns=returns, lengths=lengths, infos=tally)
    collector = SimpleNamespace(env_step=100, episodes=episodes, agent_step=None)
    return SimpleNamespace(collector=collector, learners={'': SimpleNamespace(n_sample=0)})


def agreement(ranks: Ranks, own: Any) -> Agreement:
    return Agreement(ranks, own)


def counters(own: Any) -> tuple[int, ...]:
    episodes = own.collector.episodes
    return own.collector.env_step, episodes.n_episode, episodes.n_reset, own.learners[''].n_sample


def test_counters_are_the_sum_of_what_each_rank_added() -> None:
    def work(ranks: Ranks) -> list[tuple[int, ...]]:
        own, found = parts(), []
        own.learners[''].n_sample = 100
        counted = agreement(ranks, own)
        for n_step in (60 + ranks.rank, 64 - ranks.rank):  # 60 and 61, then 64 and 63
            own.collector.env_step += n_step
            own.collector.episodes.n_episode += 2 + ranks.rank
            own.collector.episodes.n_reset += 1
            own.learners[''].n_sample += 32
            counted.count()
            found.append(counters(own))
        return found

    # env steps: 100 of both ranks + 60 + 61 = 221, + 64 + 63 = 348; each time 2 + 3 episodes, 1 + 1 resets, 32 + 32 samples
    assert on_ranks(work) == [[(221, 5, 2, 164), (348, 10, 4, 228)]] * 2


def test_samples_of_each_of_several_learners_are_added_up() -> None:
    def work(ranks: Ranks) -> list[int]:
        own = parts()
        own.learners['prey'] = SimpleNamespace(n_sample=1000)
        counted = agreement(ranks, own)
        own.learners[''].n_sample += 32
        own.learners['prey'].n_sample += 5 + ranks.rank
        counted.count()
        return [learner.n_sample for learner in own.learners.values()]

    assert on_ranks(work) == [[64, 1011]] * 2  # 32 + 32; 1000 of both ranks + 5 + 6


def test_counters_that_a_resume_sets_are_not_counted_twice() -> None:
    def work(ranks: Ranks) -> int:
        own = parts()
        own.collector.env_step = 1000
        counted = agreement(ranks, own)
        own.collector.env_step += 8
        counted.count()
        return int(own.collector.env_step)

    assert on_ranks(work) == [1016] * 2


@pytest.mark.parametrize(
    ('wanted', 'received', 'answer', 'after'),
    [
        ((False, False), ([], []), None, ([], [])),
        ((False, True), ([], []), 0, ([], [])),
        ((False, False), ([], [15]), 15, ([15], [15])),
        ((True, False), ([], [2]), 2, ([2], [2])),
        ((False, False), ([2], [15]), 15, ([2], [15])),
    ],
)
def test_a_signal_or_wish_of_one_rank_stops_all(
    wanted: tuple[bool, ...], received: tuple[list[int], ...], answer: int | None, after: tuple[list[int], ...]
) -> None:
    signals = [list(each) for each in received]

    def work(ranks: Ranks) -> int | None:
        return agreement(ranks, parts()).stops(wanted[ranks.rank], signals[ranks.rank])

    assert on_ranks(work) == [answer] * 2 and signals == list(after)


def test_one_process_agrees_with_itself() -> None:
    alone = agreement(ALONE, parts())
    assert (alone.stops(False, []), alone.stops(True, []), alone.stops(False, [15])) == (None, 0, 15)
    assert alone.first('why') == 'why' and alone.metrics({'loss': 1}) == {'loss': 1}


def test_all_ranks_have_the_first_reason() -> None:
    def work(ranks: Ranks) -> str:
        return agreement(ranks, parts()).first(['', 'enough', 'more'][ranks.rank])

    assert on_ranks(work, 3) == ['enough'] * 3


def test_metrics_are_means_and_extremes_of_the_ranks_that_have_them() -> None:
    given = [
        {'loss': 1.0, 'ratio_max': 3.0, 'reward_min': -1.0},
        {'loss': 4.0, 'ratio_max': 2.0, 'reward_min': -7.0},
        {'mine': 5},
    ]
    found = on_ranks(lambda ranks: agreement(ranks, parts()).metrics(given[ranks.rank]), 3)
    want = {'loss': 2.5, 'ratio_max': 3.0, 'reward_min': -7.0, 'mine': 5.0}
    assert [{name: float(x) for name, x in each.items()} for each in found] == [want] * 3


def test_last_episodes_are_those_of_all_ranks() -> None:
    given = [([1.0, 2.0], [3, 4], {'won': [1.0]}), ([5.0], [6], {'won': [0.0], 'lives': [2.0]})]

    def work(ranks: Ranks) -> tuple[Any, ...]:
        returns, lengths, infos = agreement(ranks, parts(*given[ranks.rank])).episodes()
        return list(returns), list(lengths), {key: list(values) for key, values in infos.values.items()}

    assert on_ranks(work) == [([1.0, 2.0, 5.0], [3, 4, 6], {'won': [1.0, 0.0], 'lives': [2.0]})] * 2


def test_one_process_reads_its_episodes_without_copies() -> None:
    alone = parts([1.0, 2.0], [3, 4], {'won': [1.0]})
    returns, lengths, infos = agreement(ALONE, alone).episodes()
    episodes = alone.collector.episodes
    assert returns is episodes.returns and lengths is episodes.lengths and infos is episodes.infos
    assert (list(returns), list(lengths)) == ([1.0, 2.0], [3, 4])
    assert infos.metrics() == {'info/won_mean': 1.0}


def test_evaluations_are_joined_in_the_order_of_the_ranks() -> None:
    own = [
        Evaluation(
            [1.0, 2.0], [10, 20], [False, True], {'won': [1.0, 0.0]}, {'hard': Evaluation([7.0], [1], [False], {})}
        ),
        Evaluation([3.0], [30], [False], {'lives': [2.0]}, {'hard': Evaluation([8.0], [2], [True], {})}),
    ]
    for found in [
        joined_evaluations(own),
        *on_ranks(lambda ranks: joined_evaluations(ranks.gather(own[ranks.rank]))),
    ]:
        assert (list(found.returns), list(found.lengths), list(found.cut)) == (
            [1, 2, 3],
            [10, 20, 30],
            [False, True, False],
        )
        assert found.return_mean == 2.0
        assert list(found.sets['hard'].returns) == [7, 8] and list(found.sets['hard'].cut) == [False, True]
        assert found.infos['won'][:2] == [1.0, 0.0] and math.isnan(found.infos['won'][2])
        assert [math.isnan(x) for x in found.infos['lives']] == [True, True, False]
