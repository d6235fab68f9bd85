"""Serving of a saved policy: its actions, memory, messages that come twice, addresses and connections."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch

from tests.policy_envs import ONE_NUMBER, TWO_ACTIONS, make_policy
from tests.run.serving.clients import TOKEN
from zoo.client import PolicyClient, ServeError
from zoo.core.errors import UserError
from zoo.run.serving.acting import SavedPolicyActs, serve_policy
from zoo.run.serving.http_server import StepServer
from zoo.run.serving.ledger import UnknownEpisodeError

Serve = Callable[..., tuple[StepServer, PolicyClient]]
SEEN = np.linspace(-3, 3, 12, dtype=np.float32).reshape(12, 1)


def policy_of(**model: Any) -> Any:
    torch.manual_seed(1)
    policy = make_policy(ONE_NUMBER, TWO_ACTIONS, model={'hidden_sizes': [8], **model})
    with torch.no_grad():  # so that actions depend on the observation, and with a memory on those before
        for parameter in policy.model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return policy


@pytest.fixture
def serve() -> Iterator[Serve]:
    opened: list[Any] = []

    def begin(policy: Any, **options: Any) -> tuple[StepServer, PolicyClient]:
        server = serve_policy(policy, ('127.0.0.1', 0), TOKEN, **{'deterministic': True, **options})
        client = PolicyClient(server.url, TOKEN, patience=1.0)
        opened.extend((client, server))
        return server, client

    yield begin
    for each in opened:
        each.close()


@pytest.mark.parametrize('model', [{}, {'recurrent': {'cell': 'gru', 'hidden_size': 4}}])
def test_client_gets_the_actions_of_a_session_for_each_of_its_episodes(serve: Serve, model: dict[str, Any]) -> None:
    policy = policy_of(**model)
    _, client = serve(policy)
    session = policy.session()
    expected = [int(session.act(obs)) for obs in SEEN]
    assert len(set(expected)) == 2
    first, second = client.start_episode(), client.start_episode()
    found: dict[str, list[int]] = {first: [], second: []}
    for obs in SEEN:  # two episodes in turn: each has its own memory
        for name, actions in found.items():
            actions.append(int(client.get_action(name, obs)))
            client.log_returns(name, 1.0)
    assert found[first] == found[second] == expected
    client.end_episode(first, SEEN[0])
    with pytest.raises(ServeError, match='has ended; begin another one'):
        client.start_episode(first)


def test_actions_that_the_client_takes_itself_are_seen_by_the_memory(serve: Serve) -> None:
    policy = policy_of(recurrent={'cell': 'gru', 'hidden_size': 4})
    _, client = serve(policy)
    session = policy.session()
    expected = [int(session.act(obs)) for obs in SEEN][-1]
    name = client.start_episode()
    for obs in SEEN[:-1]:
        client.log_action(name, obs, 0)
    assert int(client.get_action(name, SEEN[-1])) == expected


def test_actions_that_the_client_takes_itself_draw_and_count_nothing() -> None:
    policy = policy_of()
    obs = torch.full((1, 1), 0.1)
    drawn = []
    for n_own in (0, 3):
        steps = SavedPolicyActs(policy, deterministic=False, seed=3)
        steps.start('a')
        for i in range(n_own):
            assert steps.log_action('a', i, obs, 0.0) == {}
        drawn.append([steps.action('a', n_own + i, obs, 0.0)['action'] for i in range(50)])
        assert steps.n_action == 50
    assert drawn[0] == drawn[1] and set(drawn[0]) == {0, 1}


def test_drawn_actions_have_the_probabilities_of_the_policy() -> None:
    policy = policy_of()
    steps = SavedPolicyActs(policy, deterministic=False, seed=3)
    steps.start('a')
    obs = torch.full((1, 1), 0.1)
    actions = [steps.action('a', i, obs, 0.0)['action'] for i in range(1_000)]
    share = policy.distribution(obs).log_prob(torch.ones(1, dtype=torch.int64)).exp().item()
    assert 0.02 < share < 0.98
    assert np.mean(actions) == pytest.approx(share, abs=0.05)  # three deviations of a share of .5 are .047


def test_message_that_comes_twice_moves_the_memory_once_and_gets_the_same_answer() -> None:
    policy = policy_of(recurrent={'cell': 'gru', 'hidden_size': 4})
    steps = SavedPolicyActs(policy, deterministic=True)
    session = policy.session()
    assert steps.start('a') == {'step': 0}
    for i, obs in enumerate(SEEN):
        expected = {'action': int(session.act(obs))}
        assert steps.action('a', i, torch.from_numpy(obs[None]), 0.0) == expected
        assert steps.action('a', i, torch.from_numpy(obs[None]), 0.0) == expected
    assert steps.n_action == 12 and steps.start('a') == {'step': 12}
    with pytest.raises(UserError, match='message 20 of episode .a. came but 12 is the next one'):
        steps.action('a', 20, torch.zeros(1, 1), 0.0)
    assert steps.end('a', 12, None, 0.0, False) == steps.end('a', 12, None, 0.0, False) == {}
    with pytest.raises(UnknownEpisodeError):
        steps.action('b', 0, torch.zeros(1, 1), 0.0)


def test_silent_episodes_are_forgotten_and_continue_as_new_ones(serve: Serve) -> None:
    _, client = serve(policy_of(), silence_s=0.0)
    name = client.start_episode()
    client.get_action(name, SEEN[0])
    client.start_episode()
    assert client.get_action(name, SEEN[1]) in (0, 1)


def test_observations_that_do_not_fit_are_refused_and_the_episode_goes_on(serve: Serve) -> None:
    _, client = serve(policy_of())
    name = client.start_episode()
    for wrong in (np.zeros(3, np.float32), SEEN, 'text', np.full(1, np.nan)):
        with pytest.raises(ServeError):
            client.get_action(name, wrong)
    assert client.get_action(name, SEEN[0]) in (0, 1)


def test_error_of_the_policy_is_said_once_and_not_tried_again(serve: Serve) -> None:
    policy = policy_of()
    _, client = serve(policy)
    name = client.start_episode()
    for parameter in policy.model.parameters():
        parameter.data = torch.zeros(0)  # no layer can be computed any more
    with pytest.raises(ServeError, match='the policy raised .*; the log of the server says where'):
        client.get_action(name, SEEN[0])


def test_state_counts_actions_and_episodes(serve: Serve) -> None:
    server, client = serve(policy_of())
    name = client.start_episode()
    client.get_action(name, SEEN[0])
    client.end_episode(name)
    with closing(http.client.HTTPConnection(*server.server_address[:2])) as connection:
        connection.request('GET', '/v1/state', headers={'Authorization': f'Bearer {TOKEN}'})
        found = json.loads(connection.getresponse().read())
    assert (found['action'], found['episode']) == (1, 1) and 'Discrete' in found['action_space']


@pytest.mark.parametrize('host', ['no-such-host.invalid', '192.0.2.1'])
def test_host_that_is_no_address_of_this_machine_is_said(host: str) -> None:
    with pytest.raises(UserError, match=f"--host is '{host}' but this machine has no such address"):
        serve_policy(policy_of(), (host, 0), TOKEN, deterministic=True)


def test_connections_beyond_the_limit_are_closed_until_another_one_ends(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepServer, 'max_connection', 1)
    server, first = serve(policy_of())
    first.start_episode()
    with closing(PolicyClient(server.url, TOKEN, patience=0.0)) as second:
        with pytest.raises(ServeError, match='no answer of'):
            second.start_episode()
        first.close()
    with closing(PolicyClient(server.url, TOKEN, patience=10.0)) as third:
        assert third.start_episode('x') == 'x'


def test_connection_for_which_no_thread_can_begin_takes_no_place(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StepServer, 'max_connection', 1)
    server, _ = serve(policy_of())
    before = threading.stack_size(2**47 - 2**16)  # more than a process may have
    try:
        with closing(PolicyClient(server.url, TOKEN, patience=0.0)) as refused:
            with pytest.raises(ServeError, match='no answer of'):
                refused.start_episode()
    finally:
        threading.stack_size(before)
    with closing(PolicyClient(server.url, TOKEN, patience=10.0)) as client:
        assert client.start_episode('x') == 'x'


def test_idle_connection_is_closed_and_its_client_opens_another(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('zoo.run.serving.http_server.MessageHandler.timeout', 0.05)
    server, client = serve(policy_of())
    name = client.start_episode()
    with closing(http.client.HTTPConnection(*server.server_address[:2])) as silent:
        silent.connect()
        assert silent.sock.recv(1) == b''  # closed by the server
    assert client.get_action(name, SEEN[0]) in (0, 1)
