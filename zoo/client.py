"""Client of `zoo serve`: an env of its own, such as a game or a plant, asks for actions and sends rewards.

This file needs Python 3.9 or later and numpy, and no other part of zoo: it may be copied to the machine of the env.

    client = PolicyClient('http://127.0.0.1:8585', token='...')
    episode = client.start_episode()
    action = client.get_action(episode, observation)
    client.log_returns(episode, reward)          # as often as rewards come
    client.end_episode(episode, observation)     # truncated=True where only a limit ended it

Every message of an episode has a number. One that is not answered is sent again, with the same number, so that the server counts
no step twice, whatever fails in between.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import time
import urllib.parse
import uuid
from typing import Any  # noqa: UP035  # of Python 3.9

import numpy as np

RETRY_S = 0.1, 2.0  # seconds before a message is sent again: first, and at most


class ServeError(Exception):
    """The server refused a message, or could not be reached for longer than `patience`."""


class _UnknownEpisode(ServeError):
    """The server does not know the episode: it was started again, or has forgotten a silent episode."""


class _Episode:
    """The numbers of an episode: messages answered so far, and rewards since the last one."""

    def __init__(self, step: int, trains: bool) -> None:
        self.step = step
        self.trains = trains
        self.reward = 0.0


class PolicyClient:
    """Plays episodes with the policy of a `zoo serve`; of one thread, with as many episodes at a time as wanted.

    Args: address: of the server; token: None: that of the environment variable ZOO_SERVE_TOKEN; timeout: seconds until a message
      that is not answered is sent again; patience: seconds until a message that is never answered raises ServeError.
    Attributes: patience: as given; may be changed.
    """

    def __init__(
        self,
        address: str = 'http://127.0.0.1:8585',
        token: str | None = None,
        timeout: float = 60.0,
        patience: float = 600.0,
    ) -> None:
        if '//' not in address:
            address = f'http://{address}'
        parts = urllib.parse.urlsplit(address)
        kinds = {'http': http.client.HTTPConnection, 'https': http.client.HTTPSConnection}
        if parts.scheme not in kinds or not parts.hostname:
            raise ValueError(f'address is {address!r}; write it as http://HOST:PORT')
        self._make_connection = kinds[parts.scheme]
        self._place = parts.hostname, parts.port
        if token is None:
            token = os.environ.get('ZOO_SERVE_TOKEN', '')
        token = token.strip()  # a file ends with a line break
        if not token.isprintable():
            raise ValueError('token has a line break or another control character in it; give the text of one line')
        self._token = token
        self._timeout = timeout
        self.patience = patience
        self._connection: http.client.HTTPConnection | None = None
        self._episodes: dict[str, _Episode] = {}

    def start_episode(self, episode_id: str | None = None, training_enabled: bool = True) -> str:
        """Begins an episode; returns its id. training_enabled=False: the policy acts in it but does not learn from it.

        Args: episode_id: None: a new one; that of a running episode continues it, such as after a crash of this process.
        """
        name = episode_id or uuid.uuid4().hex
        message = {'episode_id': name, 'training_enabled': bool(training_enabled)}
        found = self._send('start_episode', message)
        self._episodes[name] = _Episode(found['step'], bool(training_enabled))
        return name

    def get_action(self, episode_id: str, observation: Any) -> Any:
        """The policy's action for an observation, in the form of the env: an int, an array, or a dict of these."""
        return action_of(self._step('get_action', episode_id, {'observation': plain_value(observation)})['action'])

    def log_action(self, episode_id: str, observation: Any, action: Any) -> None:
        """Says that the env takes an action of its own here. The policy learns from its own actions alone, so not from this one."""
        self._step('log_action', episode_id, {'observation': plain_value(observation)})

    def log_returns(self, episode_id: str, reward: float, info: Any = None) -> None:
        """Adds a reward for the last action; it is sent with the next message. info: not used."""
        self._known(episode_id).reward += float(reward)

    def end_episode(self, episode_id: str, observation: Any = None, truncated: bool = False) -> None:
        """Ends an episode. Args: observation: the last one, may be left out if it is terminal; truncated: ended by a limit alone."""
        message = {'observation': plain_value(observation), 'truncated': bool(truncated)}
        try:
            self._once('end_episode', episode_id, message)
        except _UnknownEpisode:
            pass  # the server was started again and has dropped the step: there is nothing to end
        del self._episodes[episode_id]

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; another call opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _known(self, name: str) -> _Episode:
        if name not in self._episodes:
            raise ServeError(f'episode {name!r} has not begun or has ended; call start_episode before')
        return self._episodes[name]

    def _step(self, call: str, name: str, message: dict[str, Any]) -> dict[str, Any]:
        """Sends a message of an episode; an episode that the server does not know continues as a new one."""
        try:
            return self._once(call, name, message)
        except _UnknownEpisode:
            episode = self._known(name)
            again = {'episode_id': name, 'training_enabled': episode.trains, 'continues': True}
            episode.step = self._send('start_episode', again)['step']
            episode.reward = 0.0  # of an action that the server has dropped
            return self._once(call, name, message)

    def _once(self, call: str, name: str, message: dict[str, Any]) -> dict[str, Any]:
        episode = self._known(name)
        whole = {'episode_id': name, 'step': episode.step, 'reward': episode.reward, **message}
        found = self._send(call, whole)
        episode.step += 1
        episode.reward = 0.0
        return found

    def _send(self, call: str, message: dict[str, Any]) -> dict[str, Any]:
        """Sends a message until it is answered. Raises: ServeError."""
        body = json.dumps(message).encode()
        headers = {'Authorization': f'Bearer {self._token}', 'Content-Type': 'application/json'}
        begin = time.monotonic()
        pause = RETRY_S[0]
        while True:
            try:
                if self._connection is None:
                    self._connection = self._make_connection(*self._place, timeout=self._timeout)
                    self._connection.connect()
                self._connection.request('POST', f'/v1/{call}', body, headers)
                response = self._connection.getresponse()
                code = response.status
                answer = json.loads(response.read())
                if code != 503:  # it closes, and may be started again
                    break
                reason = 'the server closes'
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = f'{type(error).__name__}: {error}'
            self.close()
            if time.monotonic() - begin > self.patience:
                raise ServeError(
                    f'no answer of {self._place[0]}:{self._place[1]} within {self.patience:g} s ({reason})'
                )
            time.sleep(pause)
            pause = min(2 * pause, RETRY_S[1])
        if code == 410:
            raise _UnknownEpisode(answer['error'])
        if code != 200:
            raise ServeError(answer['error'])
        return answer


def plain_value(value: Any) -> Any:
    """An observation as JSON has it."""
    if isinstance(value, dict):
        return {name: plain_value(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        array = np.ascontiguousarray(value)
        return {'array': base64.b64encode(array.tobytes()).decode(), 'dtype': array.dtype.str, 'shape': value.shape}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [plain_value(part) for part in value]
    return value


def action_of(value: Any) -> Any:
    """An action in the form of the env: lists are arrays, or tuples where their parts differ in shape."""
    if isinstance(value, dict):
        return {name: action_of(part) for name, part in value.items()}
    if isinstance(value, list):
        try:
            array = np.asarray(value)
        except ValueError:
            return tuple(action_of(part) for part in value)
        if array.dtype.kind == 'f':
            return array.astype(np.float32)
        return array
    return value
