"""Seeds of several envs and of recreated ones, and the makers that give them to constructors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from zoo.env.seeded import SeededMaker, for_start, restart_seed, seeds_of


@pytest.mark.parametrize(
    ('seed', 'seeds'),
    [(7, [7, 8, 9]), (0, [0, 1, 2]), (None, [None, None, None]), ([4, None, 2], [4, None, 2]), ((1, 2, 3), [1, 2, 3])],
)
def test_seeds_of_an_int_count_up_as_in_gymnasium_and_lists_stay(seed: Any, seeds: list[Any]) -> None:
    assert seeds_of(seed, 3) == seeds


def test_restart_seed_depends_on_the_seed_and_the_number_of_restarts_alone() -> None:
    seeds = {restart_seed(seed, count) for seed in range(10) for count in range(1, 11)}
    assert len(seeds) == 100  # all differ
    assert restart_seed(3, 2) == restart_seed(3, 2)
    assert restart_seed(None, 2) is None
    assert all(isinstance(seed, int) and 0 <= seed < 2**31 for seed in seeds)


def test_restart_seed_is_half_of_the_first_word_of_its_seed_sequence() -> None:
    word = int(np.random.SeedSequence((5, 1)).generate_state(1)[0])
    assert restart_seed(5, 1) == word // 2  # 31 bits, since gymnasium takes no seed above 2**31 - 1 everywhere


def test_maker_gives_its_seed_first_and_another_one_each_time_that_the_env_is_made_again() -> None:
    seeds: list[int] = []
    maker: Any = SeededMaker(lambda seed: seeds.append(seed), 11)  # type: ignore[arg-type,func-returns-value]
    for _ in range(3):
        maker()
    assert seeds == [11, restart_seed(11, 1), restart_seed(11, 2)]


def test_maker_for_a_process_that_is_started_again_continues_the_seeds() -> None:
    seeds: list[int] = []
    maker: Any = SeededMaker(lambda seed: seeds.append(seed), 11)  # type: ignore[arg-type,func-returns-value]
    for_start(maker, 0)()
    for_start(maker, 1)()
    for_start(maker, 2)()
    assert seeds == [11, restart_seed(11, 1), restart_seed(11, 2)]


def test_maker_without_seeds_is_the_same_for_each_process() -> None:
    def make() -> None:
        pass

    assert for_start(make, 3) is make
