"""Ray clusters: who can reach one, addresses without one, signals, and processes that a run leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.ray_runs import ONE, REPO, TWO, driver, names, processes_of, wait_for
from tests.processes import PATIENCE, left, wait_until
from zoo.core.errors import UserError

ray = pytest.importorskip('ray')

from zoo.cluster import ray_cluster  # noqa: E402

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings('ignore::ResourceWarning'),  # Ray leaves some resources open until exit
    pytest.mark.usefixtures('session'),
]

HANDLERS = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}  # before Ray starts


SOCKETS = """
import contextlib, os
from pathlib import Path
from tests.processes import descendants
from zoo.cluster import ray_cluster

assert ray_cluster.join(None, {'CPU': 1, 'GPU': 0}, None)
owners = {}  # of sockets
for pid in (os.getpid(), *descendants(os.getpid())):
    for fd in Path(f'/proc/{pid}/fd').glob('*'):
        with contextlib.suppress(OSError):
            owners[os.readlink(fd)] = pid
for family in ('tcp', 'tcp6'):
    for line in Path(f'/proc/net/{family}').read_text().splitlines()[1:]:
        _, place, _, state, *_, inode = line.split()[:10]
        if state == '0A' and f'socket:[{inode}]' in owners:
            print(place.partition(':')[0], owners[f'socket:[{inode}]'])
ray_cluster.leave()
"""


@pytest.mark.soak
def test_local_cluster_listens_on_the_loopback_interface_and_its_token_is_private(tmp_path: Path) -> None:
    (tmp_path / 'sockets.py').write_text(SOCKETS)
    (tmp_path / '.ray').mkdir()
    (tmp_path / '.ray' / 'auth_token').write_text('0' * 64)
    command = [sys.executable, str(tmp_path / 'sockets.py')]
    environment = {**os.environ, 'HOME': str(tmp_path), 'PYTHONPATH': str(REPO)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    found = [line.split() for line in done.stdout.splitlines()]
    assert len({pid for _, pid in found}) >= 3, done.stderr  # at least gcs, raylet and the process itself
    assert {address for address, _ in found} <= {'0100007F', '0000000000000000FFFF00000100007F'}
    assert (tmp_path / '.ray' / 'auth_token').stat().st_mode & 0o077 == 0


def test_handlers_of_signals_stay_those_of_the_caller(session: str) -> None:
    """`session` has started Ray, whose own handler of SIGTERM would end the process without saving."""
    assert {number: signal.getsignal(number) for number in HANDLERS} == HANDLERS


def test_machine_without_a_cluster_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**options: Any) -> None:
        raise ConnectionError('Could not find any running Ray instance. Please specify ...')  # Ray's own words

    monkeypatch.setattr(ray, 'is_initialized', lambda: False)
    monkeypatch.setattr(ray, 'init', init)
    with pytest.raises(
        UserError, match="is 'auto' but no Ray cluster runs on this machine; start one with `ray start --head`"
    ):
        ray_cluster.join('auto', {'CPU': 1}, None)


@pytest.mark.parametrize(
    ('address', 'words'),
    [
        ('127.0.0.1:1', "'127.0.0.1:1' cannot be joined: ConnectionRefusedError"),
        ('banana', "is 'banana' but must be host:port"),
        ('ray://head:10001', 'but must be host:port'),
    ],
)
def test_address_without_a_cluster_is_one_sentence(address: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, 'is_initialized', lambda: False)
    with pytest.raises(UserError, match=words):
        ray_cluster.join(address, {'CPU': 1}, None)


@pytest.mark.soak
def test_signals_to_a_run_leave_no_process(session: str, tmp_path: Path) -> None:
    """SIGTERM and SIGINT go to the process group, as schedulers and terminals send them; SIGKILL goes to the run alone.

    Two runs train, each with its own Ray cluster. Two runs are still starting, one of them on the cluster of these tests.
    """
    hangs = *ONE, 'env.id=tests.cluster.ray_runs:waiting_env'
    options = {
        'told': ONE,
        'killed': (TWO,),
        'starting': (*hangs, f'env.kwargs={{marker: {tmp_path}/marker}}'),
        'joined': (*hangs, f'env.kwargs={{marker: {tmp_path}/joined_marker}}', session),
    }
    drivers = {name: driver(tmp_path / name, *words) for name, words in options.items()}

    def said(name: str) -> str:
        return (tmp_path / name / 'log').read_text()

    try:
        wait_until(lambda: 'raylet' in names(tmp_path / 'starting'), drivers['starting'], lambda: said('starting'))
        os.killpg(drivers['starting'].pid, signal.SIGINT)
        wait_until((tmp_path / 'joined_marker').exists, drivers['joined'], lambda: said('joined'))
        os.killpg(drivers['joined'].pid, signal.SIGINT)
        for name in ('told', 'killed'):
            wait_for(tmp_path / name, drivers[name], '**/metrics.jsonl', 'env_step')
            assert {'gcs_server', 'raylet'} <= names(tmp_path / name)
        os.killpg(drivers['told'].pid, signal.SIGTERM)
        drivers['killed'].kill()
        codes = {name: process.wait(PATIENCE) for name, process in drivers.items()}
        assert codes == {'told': 143, 'killed': -signal.SIGKILL, 'starting': 130, 'joined': 130}, {
            name: said(name)[-2000:] for name in drivers
        }
        runner = int((tmp_path / 'joined_marker').read_text())  # unmarked: it inherits the cluster's environment
        for name in drivers:
            assert not left([*processes_of(tmp_path / name), runner]), names(tmp_path / name)
    finally:
        for process in drivers.values():
            process.kill()
            process.wait()
    assert said('told').count('finishing the update, then saving') == said('told').count('stopped by SIGTERM') == 1
    assert list(tmp_path.glob('told/**/checkpoints/*.safetensors'))
    for name in ('starting', 'joined'):
        assert said(name).count('stopped by Ctrl-C before the run began; nothing was saved') == 1, said(name)
        assert 'Traceback' not in said(name) and not list(tmp_path.glob(f'{name}/*/*'))
