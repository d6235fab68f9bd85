"""The client file: what it needs, and how it sends messages again."""

from __future__ import annotations

import ast
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zoo.client
from zoo.client import PolicyClient, ServeError


def test_client_needs_only_the_standard_library_and_numpy() -> None:
    tree = ast.parse(Path(zoo.client.__file__).read_text(encoding='utf-8'), feature_version=(3, 9))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or '' for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.partition('.')[0] for name in names} - set(sys.stdlib_module_names) == {'numpy'}


@contextmanager
def server(script: list[tuple[int, dict[str, Any]] | None]) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """A server with ready answers (code, JSON); None: it drops the connection. Yields: its address, the messages that came."""
    came: list[tuple[str, dict[str, Any]]] = []

    class Scripted(BaseHTTPRequestHandler):
        protocol_version = 'HTTP/1.1'

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
            came.append((self.path, message))
            answer = script.pop(0)
            if answer is None:
                self.close_connection = True
                return
            body = json.dumps(answer[1]).encode()
            self.send_response(answer[0])
            self.send_header('Content-Length', str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    http = HTTPServer(('127.0.0.1', 0), Scripted)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f'127.0.0.1:{http.server_port}', came
    finally:
        http.shutdown()
        http.server_close()


@pytest.mark.long
def test_message_without_an_answer_is_sent_again_unchanged() -> None:
    script = [(200, {'step': 0}), None, (503, {'error': 'closes'}), (200, {'action': 1}), (200, {})]
    with server(script) as (address, came):
        client = PolicyClient(address, 't')
        name = client.start_episode()
        assert client.get_action(name, np.zeros(2, np.float32)) == 1
        client.log_returns(name, 1.5)
        client.end_episode(name, truncated=np.bool_(False))  # as gymnasium's wrappers give it
        client.close()
    assert came[1] == came[2] == came[3]
    assert came[1][1]['step'] == 0 and came[1][1]['reward'] == 0.0
    assert (came[4][1]['step'], came[4][1]['reward']) == (1, 1.5)


def test_episode_that_the_server_lost_continues_without_the_reward_of_the_lost_action() -> None:
    script = [
        (200, {'step': 0}),
        (200, {'action': 1}),
        (410, {'error': 'unknown'}),
        (200, {'step': 0}),
        (200, {'action': [0.5]}),
        (410, {'error': 'unknown'}),
    ]
    with server(script) as (address, came):
        client = PolicyClient(address, 't')
        name = client.start_episode('e')
        client.get_action(name, 0)
        client.log_returns(name, 5.0)
        action = client.get_action(name, 1)
        assert action.dtype == np.float32 and action.tolist() == [0.5]
        client.end_episode(name, 2)  # lost again: nothing is left to end
        client.close()
    assert came[3] == ('/v1/start_episode', {'episode_id': 'e', 'training_enabled': True, 'continues': True})
    assert came[4][1] == {'episode_id': 'e', 'step': 0, 'reward': 0.0, 'observation': 1}


def test_refusals_and_silence_are_errors_in_a_sentence() -> None:
    with server([(401, {'error': 'the token is missing or wrong'})]) as (address, _):
        client = PolicyClient(address, 'x')
        with pytest.raises(ServeError, match='token is missing'):
            client.start_episode()
        client.close()
    with pytest.raises(ServeError, match=r'no answer of 127.0.0.1:1 within 0 s \(ConnectionRefusedError'):
        PolicyClient('http://127.0.0.1:1', 'x', patience=0).start_episode()
    with pytest.raises(ServeError, match='call start_episode before'):
        PolicyClient('http://127.0.0.1:1', 'x').log_returns('e', 1.0)
    with pytest.raises(ValueError, match='write it as http://HOST:PORT'):
        PolicyClient('ftp://host', 'x')
    with pytest.raises(ValueError, match='token has a line break'):
        PolicyClient('http://127.0.0.1:1', 'x\ny')
