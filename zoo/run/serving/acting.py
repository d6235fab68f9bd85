"""Serving of a saved policy: it acts for clients and learns nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from zoo.core.action_map import first_row
from zoo.core.data import Obs
from zoo.core.errors import UserError
from zoo.policy.base import Policy
from zoo.policy.inference import Session
from zoo.run.serving.http_server import ServedSteps, StepServer, open_server, plain_action
from zoo.run.serving.ledger import N_ENDED, PolicyFailedError, UnknownEpisodeError, check_episode_name
from zoo.run.serving.served_collector import read_one

logger = logging.getLogger(__name__)
SILENCE_S = 600.0


@dataclass
class PlayedEpisode:
    """An episode that a client plays. n_message: messages so far; answer: to the last one."""

    session: Session
    n_message: int = 0
    answer: dict[str, Any] = field(default_factory=dict)
    seen_at: float = field(default_factory=time.monotonic)


class SavedPolicyActs(ServedSteps):
    """Acts with a policy in the episodes of clients, each of which has a session, so a memory, of its own.

    Args: deterministic: the likeliest actions, else they are drawn, by a generator with this seed; silence_s: seconds after which
      an episode without a message is forgotten. Calls are answered one after the other.
    """

    def __init__(self, policy: Policy, deterministic: bool, seed: int = 0, silence_s: float = SILENCE_S) -> None:
        self._policy = policy
        self._deterministic = deterministic
        self._generator = torch.Generator(device=policy.device).manual_seed(seed)
        self._silence_s = silence_s
        self._lock = threading.Lock()
        self._episodes: dict[str, PlayedEpisode] = {}
        self._ended: OrderedDict[str, int] = OrderedDict()  # the number of the last message
        self.n_action = 0
        self.n_episode = 0

    def start(self, name: str, trains: bool = True, continues: bool = False) -> dict[str, Any]:
        check_episode_name(name)
        with self._lock:
            self._forget_silent()
            if name in self._ended:
                raise UserError(f'episode {name!r} has ended; begin another one')
            if name not in self._episodes:
                self._episodes[name] = PlayedEpisode(self._policy.session())
            return {'step': self._episodes[name].n_message}

    def action(self, name: str, number: int, obs: Obs, reward: float) -> dict[str, Any]:
        def act(episode: PlayedEpisode) -> dict[str, Any]:
            action = self._act(episode, obs, self._deterministic)
            self.n_action += 1
            return {'action': plain_action(action)}

        return self._answered(name, number, act)

    def log_action(self, name: str, number: int, obs: Obs, reward: float) -> dict[str, Any]:
        """The client acts by itself; a policy with a memory sees the observation. Nothing is drawn or counted."""

        def see(episode: PlayedEpisode) -> dict[str, Any]:
            self._act(episode, obs, deterministic=True)
            return {}

        return self._answered(name, number, see)

    def end(self, name: str, number: int, obs: Obs, reward: float, truncated: bool) -> dict[str, Any]:
        with self._lock:
            if self._ended.get(name) == number:
                return {}
        answer = self._answered(name, number, lambda episode: {})
        with self._lock:
            self._episodes.pop(name, None)
            self._ended[name] = number
            self.n_episode += 1
            while len(self._ended) > N_ENDED:
                self._ended.popitem(last=False)
        return answer

    def state(self) -> dict[str, Any]:
        """Facts for GET /v1/state."""
        return {
            'action': self.n_action,
            'episode': self.n_episode,
            'obs_space': str(self._policy.obs_space),
            'action_space': str(self._policy.action_space),
        }

    def _answered(self, name: str, number: int, answer: Callable[[PlayedEpisode], dict[str, Any]]) -> dict[str, Any]:
        """Answers the next message of an episode; one that was sent again gets the answer of before."""
        with self._lock:
            episode = self._episodes.get(name)
            if episode is None and name in self._ended:
                raise UserError(f'episode {name!r} has ended; begin another one')
            if episode is None:
                raise UnknownEpisodeError(f'episode {name!r} is not known here; begin it')
            episode.seen_at = time.monotonic()
            if number == episode.n_message - 1:
                return episode.answer
            if number != episode.n_message:
                raise UserError(
                    f'message {number} of episode {name!r} came but {episode.n_message} is the next one; a message is sent '
                    'again until it is answered, and none is left out'
                )
            episode.answer = answer(episode)
            episode.n_message += 1
            return episode.answer

    def _act(self, episode: PlayedEpisode, obs: Obs, deterministic: bool) -> Any:
        try:
            actions = episode.session.act(obs, deterministic=deterministic, generator=self._generator)
        except UserError:
            raise
        except Exception as error:  # else the client would send the message again and again
            raise PolicyFailedError(
                f'the policy raised {type(error).__name__}: {error}; the log of the server says where'
            ) from error
        return first_row(actions)

    def _forget_silent(self) -> None:
        now = time.monotonic()
        for name, episode in list(self._episodes.items()):
            if now - episode.seen_at > self._silence_s:
                logger.info('episode %r has been silent for %.0f s and is forgotten', name, now - episode.seen_at)
                del self._episodes[name]


def serve_policy(
    policy: Policy,
    address: tuple[str, int],
    token: str,
    deterministic: bool,
    seed: int = 0,
    silence_s: float = SILENCE_S,
) -> StepServer:
    """Begins to serve a policy; returns the server, whose `close` ends it. Args: as SavedPolicyActs. Raises: UserError."""
    steps = SavedPolicyActs(policy, deterministic, seed, silence_s)
    server = open_server(address, token, steps, lambda raw: read_one(policy, raw), steps.state, '--port')
    server.start()
    return server
