"""CartPole learned from clients of `zoo serve --train`; writes serving.md, and a file for each seed in serving_raw/, in results/.

    python benchmarks/serving.py [--seeds 0 1 2] [--clients 2] [--kills 0]

Each client is a process that plays CartPole-v1 of its own and asks a server, which trains cartpole_ppo, for actions over HTTP. A run
ends when an evaluation (10 greedy episodes on the server) reaches 475, or after 100,000 env steps. With --kills N, kill -9 ends
the server and a client N times, in turn with the training, and starts them again; then an audit of the rollouts says whether a
step counted twice. Server and clients have one thread each.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from report import (
    RESULTS,
    git_commit,
    machine,
    one_thread_env,
    table,
    today,
    versions,
    versions_line,
    without_folders,
    write_json,
)

log = logging.getLogger('serving')
TOKEN = 'benchmark'
POLL_S = 0.05


class Audit:
    """Callback of the server: writes which observations each rollout had, at which env step."""

    def on_rollout(self, job: Any, rollout: Any) -> None:
        rows = [x.tobytes().hex() for x in rollout.data['obs'][:, 0].numpy()]
        with open(os.environ['SERVING_AUDIT'], 'a', encoding='utf-8') as file:
            file.write(json.dumps([job.env_step - len(rows), rows]) + '\n')


def play(address: str, seed: int) -> None:
    """Plays CartPole for ever."""
    import gymnasium

    from zoo.client import PolicyClient

    env = gymnasium.make('CartPole-v1')
    obs, _ = env.reset(seed=seed)
    with PolicyClient(address, TOKEN) as client:
        while True:
            episode = client.start_episode()
            is_over = is_cut = False
            while not (is_over or is_cut):
                obs, reward, is_over, is_cut, _ = env.step(client.get_action(episode, obs))
                client.log_returns(episode, float(reward))
            client.end_episode(episode, obs, truncated=not is_over)
            obs, _ = env.reset()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        return int(free.getsockname()[1])


class Processes:
    """A server and its clients, which may be killed and started again."""

    def __init__(self, folder: Path, seed: int, n_client: int) -> None:
        self.run_dir = folder / 'run'
        self.audit = folder / 'audit.jsonl'
        self.port = free_port()
        self._seed = seed
        self._n_started = 0
        self._environ = {
            **one_thread_env(Path(__file__).parent),
            'ZOO_SERVE_TOKEN': TOKEN,
            'SERVING_AUDIT': str(self.audit),
        }
        self.server = self.start_server()
        self.clients = [self.start_client() for _ in range(n_client)]

    def start_server(self) -> subprocess.Popen[bytes]:
        words = ['serve', 'cartpole_ppo', '--train', '--quiet', '--port', self.port, '--run-dir', self.run_dir]
        options = [f'seed={self._seed}', f'callbacks=[{Path(__file__).resolve()}:Audit]', 'checkpoint.freq=1024']
        return self._start(['-m', 'zoo', *words, *options])

    def start_client(self) -> subprocess.Popen[bytes]:
        self._n_started += 1
        seed = 1_000 * self._seed + self._n_started
        return self._start([Path(__file__).resolve(), 'client', f'http://127.0.0.1:{self.port}', seed])

    def _start(self, words: Sequence[object]) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, *map(str, words)], env=self._environ)

    def n_rollout(self) -> int:
        return len(self.audit.read_text(encoding='utf-8').splitlines()) if self.audit.exists() else 0

    def kill_some(self, after: int) -> None:
        """Kills the server and a client when there are `after` more rollouts, and starts them again."""
        target = self.n_rollout() + after
        while self.n_rollout() < target and self.server.poll() is None:
            time.sleep(POLL_S)
        if self.server.poll() is None:
            for process in (self.clients[0], self.server):
                process.send_signal(signal.SIGKILL)
                process.wait()
            self.clients[0] = self.start_client()
            self.server = self.start_server()

    def close(self) -> None:
        for process in (*self.clients, self.server):
            process.kill()
            process.wait()


def audited(path: Path) -> dict[str, int]:
    """Counts the rows that the last policy learned from, and those among them that came twice.

    A server that is started again continues at an env step; what came after that before is lost, and does not count.
    """
    kept: dict[int, list[str]] = {}
    for line in path.read_text(encoding='utf-8').splitlines():
        env_step, rows = json.loads(line)
        kept = {step: found for step, found in kept.items() if step < env_step}
        kept[env_step] = rows
    learned = [row for rows in kept.values() for row in rows]
    return {'rows': len(learned), 'rows_twice': len(learned) - len(set(learned))}


def train(seed: int, n_client: int, n_kill: int) -> dict[str, Any]:
    """Trains with one seed; returns what came of it."""
    with tempfile.TemporaryDirectory() as name:
        start = time.perf_counter()
        processes = Processes(Path(name), seed, n_client)
        try:
            for _ in range(n_kill):
                processes.kill_some(after=3)
            code = processes.server.wait()
        finally:
            processes.close()
        if code:
            raise SystemExit(f'seed {seed}: the server ended with code {code}')
        result = json.loads((processes.run_dir / 'result.json').read_text(encoding='utf-8'))
        names = ('env_step', 'last_return', 'best_return', 'stop_reason')
        return {
            'seed': seed,
            'clients': n_client,
            'kills': n_kill,
            **{name: result.get(name) for name in names},
            'wall_s': round(time.perf_counter() - start, 1),
            **audited(processes.audit),
        }


def report(data: Mapping[str, Any]) -> str:
    """The Markdown page, made from the data of all seeds."""
    rows = [
        [
            x['seed'],
            x['clients'],
            x['kills'],
            f'{x["env_step"]:,}',
            f'{x["best_return"]:.1f}',
            x['wall_s'],
            x['rows_twice'],
        ]
        for x in data['runs']
    ]
    columns = ['seed', 'clients', 'kill -9', 'env steps', 'return', 'seconds', 'steps that counted twice']
    text = [
        '# CartPole from clients that drive the loop\n',
        'Until an evaluation of 10 greedy episodes reaches 475; seconds with the start of all processes.\n',
        table(columns, rows),
        f'- machine: {data["machine"]}',
        f'- versions: {versions_line(data["versions"])}',
        f'- date: {data["date"]}, commit {data["commit"]}',
        f'- command: `{data["command"]}`',
    ]
    return '\n'.join(text) + '\n'


def main(argv: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ['client']:
        play(words[1], int(words[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2])
    parser.add_argument('--clients', type=int, default=2)
    parser.add_argument('--kills', type=int, nargs='+', default=[0, 3], help='of each run: one run for each number')
    parser.add_argument('--results', type=Path, default=RESULTS, help='folder of the files')
    args = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(message)s', stream=sys.stderr)
    facts = {
        'machine': machine(),
        'versions': versions(),
        'date': today(),
        'commit': git_commit(),
        'command': without_folders(' '.join(['python benchmarks/serving.py', *words])),
    }
    runs = []
    for n_kill in args.kills:
        for seed in args.seeds:
            runs.append(train(seed, args.clients, n_kill))
            log.info('%s', runs[-1])
            write_json(args.results / 'serving_raw' / f'seed{seed}_kills{n_kill}.json', {**facts, **runs[-1]})
    (args.results / 'serving.md').write_text(report({**facts, 'runs': runs}), encoding='utf-8')


if __name__ == '__main__':
    main()
