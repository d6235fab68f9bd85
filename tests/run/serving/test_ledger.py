"""The ledger of served episodes: each step once, whatever is sent again; rollouts of a fixed size; cuts and ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from zoo.core.errors import UserError
from zoo.run.serving.ledger import EpisodeLedger, ServedAction, ServedRollout, ServerClosedError, UnknownEpisodeError


def obs(number: float) -> Tensor:
    return torch.tensor([[number]])


class Counted:
    """A policy whose n-th action is n."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self, obs: Tensor) -> ServedAction:
        self.n += 1
        return ServedAction({'action': torch.tensor([self.n])}, self.n)


def filling(ledger: EpisodeLedger, play: Callable[[], Any], collect_iter: int = 0) -> ServedRollout:
    """The rollout that `play` fills in another thread."""
    with ThreadPoolExecutor() as pool:
        done = pool.submit(play)
        found = ledger.fill(collect_iter)
        if not done.running():
            done.result()
    return found


def opened(n_sample: int = 1_000, silence_s: float = 600.0) -> tuple[EpisodeLedger, Counted]:
    """A ledger that takes steps, whose rollout never is full."""
    act = Counted()
    ledger = EpisodeLedger(n_sample, act, silence_s)
    threading.Thread(target=lambda: ledger.fill(0), daemon=True).start()
    ledger.start('first')
    ledger.action('first', 0, obs(0), 0.0)  # waits until it takes steps
    return ledger, act


def test_message_sent_again_gets_the_answer_of_before_and_counts_once() -> None:
    act = Counted()
    ledger = EpisodeLedger(3, act, 600.0)

    def play() -> None:
        ledger.start('a')
        first = ledger.action('a', 0, obs(0), 0.0)
        for _ in range(3):
            assert ledger.action('a', 0, obs(0), 0.0) == first == {'action': 1}
        ledger.action('a', 1, obs(1), 10.0)
        assert ledger.action('a', 1, obs(1), 10.0) == {'action': 2}
        assert ledger.start('a') == {'step': 2}  # of a client that was started again
        ledger.action('a', 2, obs(2), 20.0)
        ledger.end('a', 3, obs(3), 30.0, truncated=False)
        ledger.end('a', 3, obs(3), 30.0, truncated=False)

    found = filling(ledger, play)
    assert [step.reward for step in found.steps] == [10.0, 20.0, 30.0]
    assert [float(step.obs) for step in found.steps] == [0, 1, 2]
    assert [float(step.next_obs) for step in found.steps] == [1, 2, 3]
    assert [int(step.output['action']) for step in found.steps] == [1, 2, 3]
    assert [step.terminated for step in found.steps] == [False, False, True]
    assert act.n == 3


def test_messages_wait_while_the_policy_learns_and_get_the_actions_of_the_new_one() -> None:
    ledger = EpisodeLedger(1, Counted(), 600.0)
    answers = []

    def play() -> None:
        ledger.start('a')
        answers.append(ledger.action('a', 0, obs(0), 0.0))
        answers.append(ledger.action('a', 1, obs(1), 1.0))  # it fills the rollout, and waits for the next
        ledger.end('a', 2, obs(2), 1.0, truncated=True)

    with ThreadPoolExecutor() as pool:
        done = pool.submit(play)
        first = ledger.fill(0)
        assert len(answers) == 1
        second = ledger.fill(1)
        done.result()
    assert [step.rollout for step in first.steps + second.steps] == [0, 1]
    assert second.steps[0].truncated and not second.steps[0].terminated


def test_copies_of_one_message_in_two_threads_are_one_step() -> None:
    ledger = EpisodeLedger(2, Counted(), 600.0)

    def play() -> None:
        ledger.start('a')
        ledger.action('a', 0, obs(0), 0.0)
        with ThreadPoolExecutor(4) as pool:
            for number in (1, 2):
                copies = [pool.submit(ledger.action, 'a', number, obs(number), 1.0) for _ in range(4)]
                if number == 1:
                    assert {copy.result()['action'] for copy in copies} == {2}
                else:
                    ledger.close()

    found = filling(ledger, play)
    assert [float(step.obs) for step in found.steps] == [0, 1]


def test_number_that_is_neither_the_next_nor_the_last_one_is_refused() -> None:
    ledger, _ = opened()
    with pytest.raises(UserError, match='message 2 of episode .first. came but 1 is the next one'):
        ledger.action('first', 2, obs(0), 0.0)
    with pytest.raises(UnknownEpisodeError):
        ledger.action('other', 0, obs(0), 0.0)
    with pytest.raises(UserError, match='needs its last observation'):
        ledger.end('first', 1, None, 0.0, truncated=True)  # type: ignore[arg-type]
    ledger.end('first', 1, None, 0.0, truncated=False)  # type: ignore[arg-type]
    with pytest.raises(UserError, match='has ended'):
        ledger.action('first', 2, obs(0), 0.0)
    with pytest.raises(UserError, match='has ended'):
        ledger.start('first')
    with pytest.raises(UserError, match='1 to 200 characters'):
        ledger.start('x' * 201)


def test_steps_of_an_episode_that_trains_nothing_and_actions_of_the_client_are_in_no_rollout() -> None:
    ledger = EpisodeLedger(2, Counted(), 600.0)

    def play() -> None:
        ledger.start('quiet', trains=False)
        ledger.action('quiet', 0, obs(90), 0.0)
        ledger.end('quiet', 1, obs(91), 5.0, truncated=False)
        ledger.start('a')
        ledger.action('a', 0, obs(0), 0.0)
        ledger.log_action('a', 1, obs(1), 1.0)
        ledger.action('a', 2, obs(2), 1.0)
        ledger.end('a', 3, obs(3), 1.0, truncated=False)

    found = filling(ledger, play)
    assert [float(step.obs) for step in found.steps] == [0, 2]
    assert [step.is_cut for step in found.steps] == [True, False]
    assert found.returns == [3.0] and found.lengths == [2]


def test_slot_is_free_after_the_end_and_an_episode_that_goes_on_is_no_whole_one() -> None:
    ledger = EpisodeLedger(3, Counted(), 600.0)

    def play() -> None:
        for name in ('a', 'b'):
            ledger.start(name, continues=name == 'b')
            ledger.action(name, 0, obs(0), 0.0)
        ledger.end('b', 1, obs(1), 1.0, truncated=False)
        ledger.start('c')
        ledger.action('c', 0, obs(0), 0.0)
        ledger.end('a', 1, obs(1), 2.0, truncated=False)
        ledger.end('c', 1, obs(1), 3.0, truncated=False)

    found = filling(ledger, play)
    assert [step.slot for step in found.steps] == [1, 0, 1]
    assert found.returns == [2.0, 3.0]


def test_silent_episode_is_forgotten_and_its_last_action_is_no_step() -> None:
    ledger = EpisodeLedger(1, Counted(), 0.0)

    def play() -> None:
        ledger.start('a')
        ledger.action('a', 0, obs(0), 0.0)
        ledger.start('b')
        ledger.action('b', 0, obs(0), 0.0)
        ledger.end('b', 1, obs(1), 1.0, truncated=False)

    assert filling(ledger, play).lost == [0]  # the slot of 'a', which is silent for longer than 0 s
    with pytest.raises(UnknownEpisodeError):
        ledger.action('a', 1, obs(1), 1.0)


def test_closed_ledger_answers_nobody_and_says_what_it_drops() -> None:
    ledger, _ = opened()
    ledger.action('first', 1, obs(1), 1.0)
    assert ledger.close() == 1
    late = EpisodeLedger(1, Counted(), 600.0)
    late.start('a')
    late.close()
    with pytest.raises(ServerClosedError):
        late.action('a', 0, obs(0), 0.0)


def test_truncated_end_without_observation_is_refused_and_the_message_before_still_has_its_answer() -> None:
    ledger, _ = opened()
    with pytest.raises(UserError, match='needs its last observation'):
        ledger.end('first', 1, None, 1.0, truncated=True)
    with ThreadPoolExecutor() as pool:
        again = pool.submit(ledger.action, 'first', 0, obs(0), 0.0)
        try:
            assert again.result(timeout=10.0) == {'action': 1}
        finally:
            ledger.close()
