"""Served runs: what they learn from, what survives a crash of the client or of the server, tokens, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.run.serving.clients import TOKEN, play, served_config
from zoo.client import PolicyClient, ServeError
from zoo.core.errors import UserError
from zoo.run.checkpoint import load_checkpoint
from zoo.run.serving.served_job import ServedJob, token_in


class Tickets:
    """Remembers which steps each rollout had: (episode, step) of all its rows, in order."""

    def __init__(self) -> None:
        self.rollouts: list[list[tuple[int, int]]] = []

    def on_rollout(self, job: Any, rollout: Any) -> None:
        self.rollouts.append([(int(a), int(b)) for a, b in rollout.data['obs'][:, 0].tolist()])

    @property
    def all(self) -> list[tuple[int, int]]:
        return [row for rows in self.rollouts for row in rows]


OPEN: list[PolicyClient] = []


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv('ZOO_SERVE_TOKEN', TOKEN)
    yield
    while OPEN:
        OPEN.pop().close()


def client_of(job: Any, token: str = TOKEN, **options: Any) -> PolicyClient:
    client = PolicyClient(job.server.url, token, **{'patience': 5.0, **options})
    OPEN.append(client)
    return client


def in_thread(function: Any, *args: Any) -> threading.Thread:
    def run() -> None:
        try:
            function(*args)
        except ServeError:  # the run is over
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Any]:
    tickets = Tickets()
    with ServedJob(served_config(tmp_path), callbacks=[tickets]) as served:
        served.start()
        served.tickets = tickets  # type: ignore[attr-defined]
        yield served


def test_rollouts_have_every_step_of_all_clients_once_and_in_order(job: Any) -> None:
    players = [in_thread(play, client_of(job), first, 20) for first in (0, 100, 200)]
    for _ in range(3):
        job.iteration()
    assert job.env_step == 48 and job.done
    assert len(set(job.tickets.all)) == 48
    for client in range(3):  # the steps of one client are those that it took, without a gap
        own = sorted(row for row in job.tickets.all if row[0] // 100 == client)
        assert own == [(client * 100 + i // 4, i % 4) for i in range(len(own))]
    assert set(job.collector.episodes.returns) == {4.0}
    assert set(job.collector.episodes.lengths) == {4}
    assert len(players) == 3


def test_client_that_is_started_again_continues_its_episode_and_counts_no_step_twice(job: Any) -> None:
    def crash_and_continue() -> None:
        before = client_of(job)
        name = before.start_episode('plant')
        for step in range(6):
            before.get_action(name, np.array([1, step], np.float32))
            before.log_returns(name, 1.0)
        # `before` is gone; nothing of its memory is left but the id. Its last action had the observation (1, 5).
        again = client_of(job)
        again.start_episode(name)
        again.log_returns(name, 1.0)
        for step in range(6, 40):
            again.get_action(name, np.array([1, step], np.float32))
            again.log_returns(name, 1.0)

    in_thread(crash_and_continue)
    job.iteration()
    job.iteration()
    assert job.tickets.all == [(1, step) for step in range(32)]


def test_server_that_is_started_again_continues_from_its_checkpoint_and_counts_no_step_twice(tmp_path: Path) -> None:
    first = Tickets()
    job: Any = ServedJob(served_config(tmp_path, max_env_step=64), callbacks=[first])
    job.start()
    port = job.server.server_address[1]
    client = client_of(job, timeout=5.0, patience=20.0)
    player = in_thread(play, client, 0, 40)
    job.iteration()
    path = job.save()
    job.iteration()  # not saved: lost with the server
    job.server.close()  # as if it had been killed: its ledger is never asked again
    job.collector.ledger.close()
    second = Tickets()
    cfg = served_config(tmp_path, max_env_step=64)
    cfg['pipeline']['port'] = port
    with ServedJob(cfg, checkpoint=load_checkpoint(path), callbacks=[second], run_dir=tmp_path / 'again') as again:
        again.start()
        assert again.env_step == 16
        while not again.done:
            again.iteration()
        assert again.env_step == 64
    learned = first.rollouts[0] + second.all  # of the policy that is left
    assert len(learned) == len(set(learned)) == 64
    assert not set(first.rollouts[1]) & set(second.all)
    client.patience = 0.0  # there is no server any more
    player.join()
    job.close()


def test_requests_without_the_token_are_refused(job: Any) -> None:
    with pytest.raises(ServeError, match='token is missing or wrong'):
        client_of(job, 'another').start_episode()


def test_token_is_made_in_the_run_folder_where_only_the_user_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv('ZOO_SERVE_TOKEN')
    with ServedJob(served_config(tmp_path)) as job:
        job.start()
        path = job.run_dir / 'serve_token'
        assert path.stat().st_mode & 0o777 == 0o600
        assert client_of(job, path.read_text()).start_episode('x') == 'x'  # with the line break of the file


def test_empty_token_file_is_written_again_since_it_would_let_all_in(tmp_path: Path) -> None:
    (tmp_path / 'serve_token').touch()  # of a process that was killed while it wrote it
    token, path = token_in(tmp_path)
    assert len(token) >= 32 and path.read_text().strip() == token
    assert path.stat().st_mode & 0o777 == 0o600


def test_observation_that_does_not_fit_is_refused_in_a_sentence_and_the_episode_goes_on(job: Any) -> None:
    def play_wrong(found: list[str]) -> None:
        client = client_of(job)
        name = client.start_episode()
        for wrong in (np.zeros(3, np.float32), np.zeros((2, 2), np.float32), 'text', np.full(2, np.nan)):
            try:
                client.get_action(name, wrong)
            except ServeError as error:
                found.append(str(error))
        for step in range(20):
            client.get_action(name, np.array([7, step], np.float32))

    found: list[str] = []
    in_thread(play_wrong, found)
    job.iteration()
    assert len(found) >= 3
    assert job.tickets.all == [(7, step) for step in range(16)]


@pytest.mark.parametrize(
    'change, sentence',
    [
        (dict(env=dict(ready_num=2)), 'clients step and reset the envs'),
        (dict(env=dict(reset_every=2)), 'clients step and reset the envs'),
        (dict(policy=dict(model=dict(recurrent=dict(cell='gru')), collect=dict(n_step=16))), 'has a memory'),
        (dict(cluster=dict(runner_num=2)), 'clients take the steps of a served run'),
    ],
)
def test_settings_that_clients_cannot_serve_are_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    cfg = served_config(tmp_path)
    for name, section in change.items():
        for key, value in section.items():
            cfg.setdefault(name, {})[key] = value
    with pytest.raises(UserError, match=sentence):
        ServedJob(cfg)


def test_port_that_is_taken_is_said(job: Any, tmp_path: Path) -> None:
    cfg = served_config(tmp_path)
    cfg['pipeline']['port'] = job.server.server_address[1]
    with ServedJob(cfg) as other, pytest.raises(UserError, match='set pipeline.port to another one'):
        other.start()


CLIENT = """
import sys, numpy as np
from zoo.client import PolicyClient
from tests.run.serving.clients import play
client = PolicyClient(sys.argv[1], 'a-token', timeout=5.0, patience=120.0)
play(client, int(sys.argv[2]), 10_000)
"""
AUDIT = """
import json
class Audit:
    def on_rollout(self, job, rollout):
        rows = rollout.data['obs'][:, 0].tolist()
        with open({path!r}, 'a') as file:
            file.write(json.dumps([job.env_step, rows]) + chr(10))
"""


@pytest.mark.soak
def test_killed_clients_and_servers_count_no_step_twice(tmp_path: Path) -> None:
    audit = tmp_path / 'audit.jsonl'
    (tmp_path / 'audit.py').write_text(AUDIT.format(path=str(audit)))
    config = served_config(tmp_path, max_env_step=1_600, checkpoint=dict(freq=16))
    config['pipeline']['port'] = 8971
    config['callbacks'] = [f'{tmp_path}/audit.py:Audit']
    (tmp_path / 'config.yaml').write_text(json.dumps(config))
    folder = tmp_path / 'run'
    command = [sys.executable, '-m', 'zoo', 'serve', str(tmp_path / 'config.yaml'), '--train', '--run-dir', str(folder)]
    environ = {**os.environ, 'PYTHONPATH': os.getcwd(), 'OMP_NUM_THREADS': '1'}

    def steps() -> int:
        return len(audit.read_text().splitlines()) if audit.exists() else 0

    def start_client(number: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, '-c', CLIENT, 'http://127.0.0.1:8971', str(number * 100_000)]
        return subprocess.Popen(words, env=environ)

    n_client = 2
    clients = [start_client(i) for i in range(n_client)]
    try:
        for n_kill in range(5):
            server = subprocess.Popen(command, env=environ)  # that of before has ended
            if n_kill == 4:
                assert server.wait(300) == 0
                break
            target = steps() + 7
            while steps() < target and server.poll() is None:
                time.sleep(0.05)
            if server.poll() is not None:
                break
            clients[0].send_signal(signal.SIGKILL)
            clients[0].wait()
            clients[0] = start_client(n_client)
            n_client += 1
            server.send_signal(signal.SIGKILL)
            server.wait()
    finally:
        for process in (*clients, server):
            process.kill()
            process.wait()
    kept: dict[int, list[Any]] = {}
    for line in audit.read_text().splitlines():  # a server that begins again at env step n replaces what came after n
        env_step, rows = json.loads(line)
        kept = {step: found for step, found in kept.items() if step < env_step}
        kept[env_step] = rows
    learned = [tuple(row) for found in kept.values() for row in found]
    assert len(learned) == len(set(learned)) == 1_600
