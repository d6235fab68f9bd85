"""Ledger of served episodes: every message of an episode has a number, so that a step sent again is not counted twice.

A message that asks for an action also has the observation and the rewards since the action before: it completes the step
before. A rollout is full after n_sample steps. Messages then wait until the policy has learned from it, and get their actions
from the new policy.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zoo.core.data import Obs
from zoo.core.errors import UserError

logger = logging.getLogger(__name__)
N_ENDED = 100_000  # ended episodes whose last answer is kept
WAIT_S = 0.2  # seconds after which a waiting thread looks whether the server closes
LONGEST_NAME = 200  # characters of an episode's id


class UnknownEpisodeError(UserError):
    """An episode that this server does not know: it was never begun, has been silent for too long, or the server is new."""


class ServerClosedError(Exception):
    """The server closes: no message is answered any more."""


class PolicyFailedError(Exception):
    """The policy raised where it should act. A run that learns forgets the episode; a saved policy may be asked again."""


def check_episode_name(name: object) -> None:
    """Raises UserError unless it may be the id of an episode."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise UserError(f'episode_id must be a text of 1 to {LONGEST_NAME} characters')


class ServedAction(NamedTuple):
    """An action for a client. output: of the policy, [1, ...] each; answer: the action in a form that JSON has."""

    output: dict[str, Any]
    answer: Any


@dataclass
class ServedStep:
    """A step: what the policy saw and did, and then, when the next message has come, what it led to.

    obs, next_obs: [1, *O]; rollout: the number of the rollout in which the policy acted; slot: of its episode;
    is_cut: the next step of the slot does not follow it.
    """

    obs: Obs
    output: dict[str, Any]
    rollout: int
    slot: int
    next_obs: Obs = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    is_cut: bool = False


@dataclass
class ServedEpisode:
    """An episode that is played. slot: its number among those that are played at the same time; n_message: messages so far.

    answer: to the last message, None as long as that waits; last: the step whose outcome is not known; done: the last step of
    which it is; is_whole: it was served from its beginning.
    """

    slot: int
    trains: bool
    is_whole: bool
    n_message: int = 0
    answer: dict[str, Any] | None = None
    last: ServedStep | None = None
    done: ServedStep | None = None
    returned: float = 0.0
    length: int = 0
    seen_at: float = field(default_factory=time.monotonic)


class ServedRollout(NamedTuple):
    """The steps of a rollout, in order of time; returns and lengths of whole episodes that ended in it; slots that were lost."""

    steps: list[ServedStep]
    returns: list[float]
    lengths: list[int]
    lost: list[int]


class EpisodeLedger:
    """The episodes of all clients; its methods are called by one thread for each connection.

    Args: n_sample: steps of a rollout; act: the policy, for one observation [1, *O]; silence_s: seconds after which an episode
      without a message is forgotten.
    """

    def __init__(self, n_sample: int, act: Callable[[Obs], ServedAction], silence_s: float) -> None:
        self._n_sample = n_sample
        self._act = act
        self._silence_s = silence_s
        self._changed = threading.Condition()
        self._episodes: dict[str, ServedEpisode] = {}
        self._ended: OrderedDict[str, tuple[int, dict[str, Any]]] = OrderedDict()
        self._rollout = ServedRollout([], [], [], [])
        self._collect_iter = 0
        self._is_open = False  # whether steps are taken: not while the policy learns
        self._is_closed = False

    def fill(self, collect_iter: int) -> ServedRollout:
        """Waits until a rollout is full; returns it. From then on messages wait until the next call."""
        with self._changed:
            self._collect_iter = collect_iter
            self._is_open = True
            self._changed.notify_all()
            while len(self._rollout.steps) < self._n_sample:
                self._changed.wait(WAIT_S)
            self._is_open = False
            self._forget_silent()  # now, since while the policy learned no client could be heard
            full = self._rollout
            self._rollout = ServedRollout([], [], [], [])
            return full

    def close(self) -> int:
        """Ends all waiting; returns the number of steps that are in no whole rollout, and are dropped."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            return len(self._rollout.steps)

    def start(self, name: str, trains: bool = True, continues: bool = False) -> dict[str, Any]:
        """Begins an episode; of one that is known it says the number of the next message.

        Args: name: chosen by the client, unique; trains: the policy learns from it; continues: it has begun before.
        """
        check_episode_name(name)
        with self._changed:
            if name in self._ended:
                raise UserError(f'episode {name!r} has ended; begin another one')
            if name not in self._episodes:
                taken = {episode.slot for episode in self._episodes.values()}
                slot = next(slot for slot in range(len(taken) + 1) if slot not in taken)
                self._episodes[name] = ServedEpisode(slot, bool(trains), not continues)
            return {'step': self._episodes[name].n_message}

    def action(self, name: str, number: int, obs: Obs, reward: float) -> dict[str, Any]:
        """Completes the step before, acts on an observation, and returns {'action'}.

        Args: number: of the message in its episode, from 0 on; reward: since the action before.
        """
        with self._changed:
            known = self._known(name, number)
            if isinstance(known, dict):
                return known
            self._complete(known, obs, reward, is_over=False)
            self._wait_until_open()
            try:
                acted = self._act(obs)
            except Exception as error:  # else the message would wait for ever when it is sent again
                self._forget(name, known)
                raise PolicyFailedError(
                    f'the policy raised {type(error).__name__}: {error}; the log of the server says where'
                ) from error
            if known.trains:
                known.last = ServedStep(obs, acted.output, self._collect_iter, known.slot)
            return self._answer(known, {'action': acted.answer})

    def log_action(self, name: str, number: int, obs: Obs, reward: float) -> dict[str, Any]:
        """Completes the step before; the client itself acts on the observation, which the policy does not learn from."""
        with self._changed:
            known = self._known(name, number)
            if isinstance(known, dict):
                return known
            self._complete(known, obs, reward, is_over=False)
            if known.done is not None:
                known.done.is_cut = True
            return self._answer(known, {})

    def end(self, name: str, number: int, obs: Obs, reward: float, truncated: bool) -> dict[str, Any]:
        """Completes the last step of an episode. Args: obs: the last one, None only if it is terminal; truncated: it is not."""
        with self._changed:
            if obs is None and truncated:
                raise UserError(
                    'an episode that was truncated needs its last observation: its value counts for the rest'
                )
            if name in self._ended and self._ended[name][0] == number:
                return self._ended[name][1]
            known = self._known(name, number)
            if isinstance(known, dict):
                return known
            self._complete(known, obs, reward, is_over=True, truncated=truncated)
            if known.trains and known.is_whole and known.length:
                self._rollout.returns.append(known.returned)
                self._rollout.lengths.append(known.length)
            answer = self._answer(known, {})
            del self._episodes[name]
            self._ended[name] = number, answer
            while len(self._ended) > N_ENDED:
                self._ended.popitem(last=False)
            return answer

    def _known(self, name: str, number: int) -> ServedEpisode | dict[str, Any]:
        """The episode, if the message is its next one; the answer of before, if it was sent again.

        Raises: UnknownEpisodeError; UserError for a message that is neither.
        """
        episode = self._episodes.get(name)
        if episode is None:
            if name in self._ended:
                raise UserError(f'episode {name!r} has ended; begin another one')
            raise UnknownEpisodeError(f'episode {name!r} is not known here; begin it')
        episode.seen_at = time.monotonic()
        if number == episode.n_message - 1:
            while episode.answer is None:  # the first copy of the message waits for the policy
                self._wait()
            return episode.answer
        if number != episode.n_message:
            raise UserError(
                f'message {number} of episode {name!r} came but {episode.n_message} is the next one; a message is sent again '
                'until it is answered, and none is left out'
            )
        self._wait_until_open()
        if number != episode.n_message:  # another copy of it was first
            return self._known(name, number)
        episode.n_message += 1
        episode.answer = None
        return episode

    def _complete(
        self, episode: ServedEpisode, obs: Obs, reward: float, is_over: bool, truncated: bool = False
    ) -> None:
        """Completes the step whose outcome has come."""
        step = episode.last
        if episode.n_message > 1:  # the first message follows no action
            episode.returned += reward
        if step is None:
            return
        episode.last = None
        episode.length += 1
        step.reward = reward
        step.next_obs = step.obs if obs is None else obs
        step.terminated = is_over and not truncated
        step.truncated = is_over and truncated
        episode.done = step
        self._rollout.steps.append(step)
        if len(self._rollout.steps) == self._n_sample:
            self._is_open = False
            self._changed.notify_all()

    def _answer(self, episode: ServedEpisode, answer: dict[str, Any]) -> dict[str, Any]:
        episode.answer = answer
        self._changed.notify_all()
        return answer

    def _wait_until_open(self) -> None:
        while not self._is_open:
            self._wait()

    def _wait(self) -> None:
        if self._is_closed:
            raise ServerClosedError
        self._changed.wait(WAIT_S)

    def _forget_silent(self) -> None:
        """Forgets episodes whose clients have been silent for too long; their last action is no step."""
        now = time.monotonic()
        for name, episode in list(self._episodes.items()):
            if now - episode.seen_at > self._silence_s and (episode.answer is not None or episode.n_message == 0):
                logger.info('episode %r has been silent for %.0f s and is forgotten', name, now - episode.seen_at)
                self._forget(name, episode)

    def _forget(self, name: str, episode: ServedEpisode) -> None:
        if episode.done is not None:
            episode.done.is_cut = True
        self._rollout.lost.append(episode.slot)
        del self._episodes[name]
