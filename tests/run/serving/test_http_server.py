"""Messages over HTTP: their form, and what bad ones get."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest
import torch

from zoo.client import action_of, plain_value
from zoo.core.errors import UserError
from zoo.run.serving.http_server import StepServer, decoded, plain_action
from zoo.run.serving.ledger import EpisodeLedger, ServedAction


def test_arrays_of_messages_are_decoded_and_only_numbers_are_taken() -> None:
    array = np.arange(6, dtype='<i2').reshape(2, 3)
    message = {'array': base64.b64encode(array.tobytes()).decode(), 'dtype': '<i2', 'shape': [2, 3]}
    found = decoded({'image': message, 'list': [[1, 2], [3, 4]], 'number': 5})
    assert np.array_equal(found['image'], array) and found['image'].dtype == np.int16
    assert found['list'].tolist() == [[1, 2], [3, 4]] and found['number'] == 5
    with pytest.raises(UserError, match='only numbers and bools'):
        decoded({**message, 'dtype': 'O'})
    with pytest.raises(ValueError):
        decoded({**message, 'shape': [7, 3]})


def test_part_of_an_observation_may_be_named_array() -> None:
    found = decoded({'array': [1.0, 2.0], 'goal': 3})
    assert found['array'].tolist() == [1.0, 2.0] and found['goal'] == 3


@pytest.mark.parametrize('observation', [(3, np.array([0.5, 1.0], np.float32)), (np.array([1]), np.array([2]))])
def test_tuple_that_a_client_sends_comes_as_a_tuple(observation: tuple[Any, ...]) -> None:
    found = decoded(json.loads(json.dumps(plain_value(observation))))
    assert isinstance(found, tuple) and len(found) == 2
    for got, sent in zip(found, observation, strict=True):
        assert np.array_equal(got, sent)


def test_list_of_numbers_is_an_array_and_one_of_unequal_rows_a_tuple() -> None:
    sent = json.loads(json.dumps(plain_value([np.float32(1.0), 2.0])))
    assert decoded(sent).tolist() == [1.0, 2.0]
    found = decoded([3, [0.5, 1.0]])
    assert found[0] == 3 and found[1].tolist() == [0.5, 1.0]


def test_actions_are_numbers_lists_and_dicts() -> None:
    action = {'move': np.array([0.5, 1.0], np.float32), 'jump': np.int64(1)}
    assert json.loads(json.dumps(plain_action(action))) == {'move': [0.5, 1.0], 'jump': 1}
    mixed = plain_action((np.int64(2), np.array([3])))
    assert mixed == [2, [3]]
    number, array = action_of(mixed)
    assert number == 2 and array.tolist() == [3]


def act(obs: Any) -> ServedAction:
    if obs[0, 0] > 100:
        raise RuntimeError('too far')
    return ServedAction({}, 1)


@pytest.fixture
def server() -> Iterator[StepServer]:
    ledger = EpisodeLedger(1_000, act, 600.0)
    server = StepServer(
        ('127.0.0.1', 0), 'token', ledger, lambda raw: torch.as_tensor(raw).unsqueeze(0), lambda: {'env_step': 5}
    )
    server.start()
    threading.Thread(target=lambda: ledger.fill(0), daemon=True).start()
    yield server
    ledger.close()
    server.close()


def ask(server: StepServer, call: str, message: Any, method: str = 'POST', token: str = 'token') -> tuple[int, Any]:
    host, port = server.server_address[:2]
    with closing(http.client.HTTPConnection(str(host), port, timeout=20)) as connection:
        connection.request(method, call, json.dumps(message), {'Authorization': f'Bearer {token}'})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


@pytest.mark.many
@pytest.mark.parametrize(
    'call, message, code, words',
    [
        ('/v1/get_action', [1], 400, 'a message is a JSON object'),
        ('/v1/get_action', {}, 400, 'episode_id is missing'),
        ('/v1/get_action', {'episode_id': 'a'}, 400, 'step must be the number'),
        ('/v1/get_action', {'episode_id': 'a', 'step': 0}, 400, 'observation is missing'),
        ('/v1/get_action', {'episode_id': 'a', 'step': 0, 'reward': float('nan')}, 400, 'rewards must be finite'),
        ('/v1/get_action', {'episode_id': 'a', 'step': 0, 'reward': 1e39}, 400, 'also as 32-bit floats'),
        ('/v1/get_action', {'episode_id': 'a', 'step': 0, 'reward': 10**400}, 400, 'int too large'),
        ('/v1/get_action', {'episode_id': 'a', 'step': 0, 'observation': [1.0]}, 410, "episode 'a' is not known"),
        ('/v1/act', {'episode_id': 'a', 'step': 0, 'observation': [1.0]}, 400, "there is no call '/v1/act'"),
        ('/v1/start_episode', {'episode_id': ''}, 400, '1 to 200 characters'),
        ('/v1/start_episode', {'episode_id': 'a', 'training_enabled': 'false'}, 400, 'must be true or false'),
        ('/v1/end_episode', {'episode_id': 'a', 'step': 0, 'truncated': 'no'}, 400, 'must be true or false'),
    ],
)
def test_wrong_message_is_refused_in_a_sentence(
    server: StepServer, call: str, message: Any, code: int, words: str
) -> None:
    got, answer = ask(server, call, message)
    assert got == code and words in answer['error']


def test_messages_of_an_episode_are_answered_also_those_of_other_programs(server: StepServer) -> None:
    assert ask(server, '/v1/start_episode', {'episode_id': 'a'}) == (200, {'step': 0})
    message = {'episode_id': 'a', 'step': 0, 'observation': [1.0, 2.0]}
    assert ask(server, '/v1/get_action', message) == (200, {'action': 1})
    assert ask(server, '/v1/log_action', {**message, 'step': 1}) == (200, {})
    assert ask(server, '/v1/end_episode', {'episode_id': 'a', 'step': 2, 'reward': 1}) == (200, {})


def test_state_is_shown_to_those_who_have_the_token(server: StepServer) -> None:
    assert ask(server, '/v1/state', None, 'GET') == (200, {'env_step': 5})
    assert ask(server, '/v1/state', None, 'GET', token='x')[0] == 401
    assert ask(server, '/v1/other', None, 'GET')[0] == 404


def exchange(server: StepServer, text: str) -> bytes:
    """What the server answers to a text, until it closes the connection or is silent."""
    host, port = server.server_address[:2]
    found = b''
    with socket.create_connection((str(host), port), timeout=1.0) as connection:
        connection.sendall(text.encode())
        with suppress(TimeoutError):
            part = connection.recv(4096)
            while part:
                found += part
                part = connection.recv(4096)
    return found


@pytest.mark.parametrize('length', ['-1', 'abc', '9' * 20])
def test_length_that_is_no_number_of_bytes_is_refused_and_not_waited_for(server: StepServer, length: str) -> None:
    answer = exchange(server, f'POST /v1/get_action HTTP/1.1\r\nContent-Length: {length}\r\n\r\n')
    assert answer.startswith(b'HTTP/1.1 411') and answer.count(b'HTTP/1.1') == 1


@pytest.mark.long
def test_request_without_token_gets_one_answer(server: StepServer) -> None:
    assert exchange(server, 'GET /v1/other HTTP/1.1\r\n\r\n').count(b'HTTP/1.1') == 1


@pytest.mark.long
def test_message_of_a_hundred_thousand_brackets_is_refused_in_a_sentence(server: StepServer) -> None:
    body = '[' * 100_000
    head = f'Authorization: Bearer token\r\nContent-Length: {len(body)}'
    answer = exchange(server, f'POST /v1/get_action HTTP/1.1\r\n{head}\r\n\r\n{body}')
    assert answer.startswith(b'HTTP/1.1 400') and b'recursion' in answer


def test_policy_that_raises_is_told_to_the_client_which_does_not_wait(server: StepServer) -> None:
    ask(server, '/v1/start_episode', {'episode_id': 'a'})
    message = {'episode_id': 'a', 'step': 0, 'observation': [101.0]}
    code, answer = ask(server, '/v1/get_action', message)
    assert code == 500 and 'RuntimeError: too far' in answer['error']
    assert ask(server, '/v1/get_action', message)[0] == 410  # the episode is forgotten
