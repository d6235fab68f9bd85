"""HTTP server of a served run or policy: JSON messages of clients, with a token, for a ledger of episodes."""

from __future__ import annotations

import base64
import errno
import hmac
import json
import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import numpy as np

from zoo.core.data import Obs
from zoo.core.errors import UserError
from zoo.run.serving.ledger import PolicyFailedError, ServerClosedError, UnknownEpisodeError

logger = logging.getLogger(__name__)
Request = socket.socket | tuple[bytes, socket.socket]
MAX_BODY = 1 << 26  # bytes of a message
MAX_DIGITS = 15  # of the length of a message
PIECE = 1 << 16  # bytes that are read at once of a message that is not taken
KINDS = 'biuf'  # of the dtypes that a message may have: numbers and bools
ARRAY = {'array', 'dtype', 'shape'}  # of an array of a message
IDLE_S = 600.0  # seconds after which a connection without a message is closed; a client opens it again
POLL_S = 0.1  # seconds until the server sees that it is closed
MAX_CONNECTION = 1_000  # open at the same time, each with a thread of its own
MAX_REWARD = float(np.finfo(np.float32).max)  # a larger one would be learned from as infinite


def decoded(value: Any) -> Any:
    """A value of a message: arrays are {'array': base64, 'dtype', 'shape'}, or nested lists of numbers."""
    if isinstance(value, dict) and value.keys() == ARRAY:
        dtype = np.dtype(str(value['dtype']))
        if dtype.kind not in KINDS:
            raise UserError(f'an array of dtype {dtype} came but only numbers and bools are taken')
        flat = np.frombuffer(base64.b64decode(value['array'], validate=True), dtype)
        return flat.reshape([int(n) for n in value['shape']])
    if isinstance(value, dict):
        return {str(name): decoded(part) for name, part in value.items()}
    if isinstance(value, list):
        return _decoded_list(value)
    return value


def _decoded_list(values: list[Any]) -> Any:
    """An array; or a tuple, if the parts have different shapes or are encoded themselves."""
    if not any(isinstance(part, dict) for part in values):
        try:
            return np.asarray(values)
        except ValueError:  # different shapes
            pass
    return tuple(decoded(part) for part in values)


def _flag(message: Mapping[str, Any], name: str, default: bool) -> bool:
    value = message.get(name, default)
    if not isinstance(value, bool):
        raise UserError(f'{name} is {value!r} but must be true or false')
    return value


def plain_action(action: Any) -> Any:
    """An action of an env as JSON has it: numbers, lists, dicts."""
    if isinstance(action, Mapping):
        return {name: plain_action(part) for name, part in action.items()}
    if isinstance(action, tuple):
        return [plain_action(part) for part in action]
    return np.asarray(action).tolist()


class ServedSteps(Protocol):
    """Takes the messages of episodes, in threads of the server; `EpisodeLedger` is one, its methods say more."""

    def start(self, name: str, trains: bool = True, continues: bool = False) -> dict[str, Any]:
        """Begins an episode."""

    def action(self, name: str, number: int, obs: Obs, reward: float) -> dict[str, Any]:
        """Acts on an observation."""

    def log_action(self, name: str, number: int, obs: Obs, reward: float) -> dict[str, Any]:
        """The client acts by itself."""

    def end(self, name: str, number: int, obs: Obs, reward: float, truncated: bool) -> dict[str, Any]:
        """Ends an episode."""


class MessageHandler(BaseHTTPRequestHandler):
    """Answers the messages of one connection. `server` is a `StepServer`."""

    protocol_version = 'HTTP/1.1'  # a connection stays open
    timeout = IDLE_S
    disable_nagle_algorithm = True  # else a small answer may wait for 40 ms
    server: StepServer

    def do_GET(self) -> None:
        """`/v1/state` shows how far the run is."""
        if not self._is_allowed():
            return
        if self.path == '/v1/state':
            self._send(200, self.server.state())
        else:
            self._send(404, {'error': f'there is no {self.path}; GET /v1/state, or POST to a call of the client'})

    def do_POST(self) -> None:
        length = self.headers.get('Content-Length', '')
        if not length.isdecimal() or len(length) > MAX_DIGITS:
            self.close_connection = True  # nobody knows where the next message begins
            self._send(411, {'error': f'Content-Length is {length!r} but must be the number of bytes of the message'})
            return
        n_byte = int(length)
        if not self._is_allowed(n_byte):
            return
        if n_byte > MAX_BODY:
            self._skip(n_byte)
            self._send(413, {'error': f'the message has {n_byte} bytes, at most {MAX_BODY} are taken'})
            return
        try:
            message = json.loads(self.rfile.read(n_byte))
            if not isinstance(message, dict):
                raise UserError('a message is a JSON object')
            code = 200
            answer = self.server.answer(self.path, message)
        except UnknownEpisodeError as error:
            code = 410
            answer = {'error': str(error)}
        except (UserError, ValueError, TypeError, OverflowError, RecursionError) as error:
            code = 400
            answer = {'error': str(error) or type(error).__name__}
        except ServerClosedError:
            code = 503
            answer = {'error': 'the server closes'}
        except PolicyFailedError as error:
            logger.exception('the policy did not act for %s', self.client_address)
            code = 500
            answer = {'error': str(error)}
        self._send(code, answer)

    def _skip(self, n_byte: int) -> None:
        """Reads a message that is not taken, without keeping it: a client that still sends would not read the answer."""
        while n_byte > 0 and self.rfile.read(min(n_byte, PIECE)):
            n_byte -= PIECE

    def _is_allowed(self, n_byte: int = 0) -> bool:
        """Whether the request has the token; else it is answered. Args: n_byte: of the message that follows."""
        given = self.headers.get('Authorization', '').removeprefix('Bearer ')
        if hmac.compare_digest(given.encode(), self.server.token.encode()):
            return True
        self._skip(n_byte)
        self._send(401, {'error': 'the token is missing or wrong; the server shows the file with it when it begins'})
        return False

    def _send(self, code: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        try:
            self.send_response(code)
            self.send_header('Content-Type', 'application/json')
            self.send_header('Content-Length', str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:  # the client has gone; if it sends the message again, it gets the same answer
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug(format, *args)


class StepServer(ThreadingHTTPServer):
    """Serves the calls of clients for a ledger, in threads of their own.

    A connection beyond `max_connection` is closed at once: its client tries again.

    Args: address: (host, port), port 0: a free one; token: what requests must have; ledger: gets the steps; read: makes an
      observation [1, *O] of the policy from a decoded one; state: facts of the run for /v1/state.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128  # connections that wait to be accepted: clients begin together
    max_connection = MAX_CONNECTION

    def __init__(
        self,
        address: tuple[str, int],
        token: str,
        ledger: ServedSteps,
        read: Callable[[Any], Obs],
        state: Callable[[], dict[str, Any]],
    ) -> None:
        super().__init__(address, MessageHandler)
        self.token = token
        self.state = state
        self._ledger = ledger
        self._read = read
        self._places = threading.Semaphore(self.max_connection)
        self._thread = threading.Thread(target=self.serve_forever, args=(POLL_S,), name='zoo serve', daemon=True)

    @property
    def url(self) -> str:
        """The address of the server."""
        host, port = self.server_address[:2]
        return f'http://{host!s}:{port}'

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def wait(self) -> None:
        """Waits until `close` is called, elsewhere."""
        self._thread.join()

    def close(self) -> None:
        """Stops answering."""
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()

    def process_request(self, request: Request, client_address: object) -> None:
        if self._places.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except BaseException:  # no thread could begin, which would have given the place back
                self._places.release()
                raise
            return
        logger.warning('%d connections are open, so that of %s is closed', self.max_connection, client_address)
        self.shutdown_request(request)

    def process_request_thread(self, request: Request, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle of a message is none of ours; anything else is a mistake."""
        if isinstance(sys.exc_info()[1], OSError):
            logger.debug('%s has gone', client_address)
        else:
            logger.exception('a message of %s failed', client_address)

    def answer(self, path: str, message: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a message. Raises: UserError, ValueError, TypeError or OverflowError for one that is not valid."""
        name = message.get('episode_id')
        if not isinstance(name, str):
            raise UserError('episode_id is missing')
        if path == '/v1/start_episode':
            trains = _flag(message, 'training_enabled', True)
            return self._ledger.start(name, trains, _flag(message, 'continues', False))
        number = message.get('step')
        if type(number) is not int or number < 0:
            raise UserError('step must be the number of the message in its episode, from 0 on')
        reward = float(message.get('reward', 0.0))
        if not abs(reward) <= MAX_REWARD:
            raise UserError(f'the reward is {reward}; rewards must be finite numbers, also as 32-bit floats')
        obs = None
        if message.get('observation') is not None:
            obs = self._read(decoded(message['observation']))
        if path == '/v1/end_episode':
            return self._ledger.end(name, number, obs, reward, _flag(message, 'truncated', False))
        if obs is None:
            raise UserError('observation is missing')
        if path == '/v1/get_action':
            return self._ledger.action(name, number, obs, reward)
        if path == '/v1/log_action':
            return self._ledger.log_action(name, number, obs, reward)
        raise UserError(
            f'there is no call {path!r}; the calls are /v1/start_episode, get_action, log_action and end_episode'
        )


def open_server(
    address: tuple[str, int],
    token: str,
    ledger: ServedSteps,
    read: Callable[[Any], Obs],
    state: Callable[[], dict[str, Any]],
    port_key: str,
) -> StepServer:
    """A server that listens. Args: as StepServer; port_key: what sets the port, for messages. Raises: UserError if it cannot."""
    host, port = address
    try:
        return StepServer(address, token, ledger, read, state)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise UserError(
                f'--host is {host!r} but this machine has no such address ({error.strerror}); use 127.0.0.1, or 0.0.0.0 for '
                'all networks'
            ) from error
        raise UserError(
            f'port {port} of {host} cannot be served ({error.strerror}); set {port_key} to another one, or to 0 for a free one'
        ) from error
