"""Ray with several nodes on one machine: three nodes, one of them killed, and 64 runners; writes results/cluster_nodes.md.

    python benchmarks/cluster_nodes.py [--rollouts 12]

The nodes are raylets on the loopback that declare two CPUs each. 64 processes with torch are too many for a
small machine, so eight processes have eight runners each, whose envs sleep for 2 ms a step. Nothing here is timed. The checks:
the runners are on the right nodes, each rollout is used once, counters are exact and few requests are in flight.
"""

from __future__ import annotations

import argparse
import collections
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import RESULTS, git_commit, machine, metric_rows, table, today, versions, versions_line

os.environ.setdefault('RAY_DEDUP_LOGS_SKIP_REGEX', '.')  # hides Ray's messages about nodes killed on purpose
sys.path.append(str(Path(__file__).resolve().parent / 'peers'))

import slow_env  # noqa: E402, F401  registers SlowCartPole-v1

import zoo.cluster.remote_collector as engines  # noqa: E402
from zoo import serial_pipeline  # noqa: E402
from zoo.cluster import ray_cluster  # noqa: E402, F401  before ray: it sets variables that ray reads
from zoo.cluster.messages import Lost, Reply, Request  # noqa: E402
from zoo.cluster.ray_engine import RayEngine  # noqa: E402

import ray  # noqa: E402  # isort: skip
from ray.cluster_utils import Cluster  # noqa: E402  # isort: skip

N_STEP = 16
PROCESSES, PER_PROCESS = 8, 8


class Watched(RayEngine):
    """A Ray engine that records its requests, its replies and the nodes of its runners."""

    newest: Watched | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.keys: collections.Counter[tuple[int, int, int]] = collections.Counter()
        self.n_lost = self.n_out = self.most_out = self.n_byte = 0
        self.moves: list[dict[int, str]] = []
        Watched.newest = self

    def ask(self, request: Request) -> None:
        super().ask(request)
        self.n_out = len(self._due)
        self.most_out = max(self.most_out, self.n_out)

    def wait(self, timeout: float) -> list[Reply | Lost]:
        found = super().wait(timeout)
        for item in found:
            if isinstance(item, Lost):
                self.n_lost += 1
            else:
                self.keys[item.group, item.collect_iter, item.attempt] += 1
                self.n_byte = item.n_byte
        nodes = {group: actor.place[2] for group, actor in self.actors.items() if actor.place is not None}
        if not self.moves or nodes != self.moves[-1]:
            self.moves.append(nodes)
        return found


class At:
    """A callback that calls `do` once, after so many rollouts."""

    def __init__(self, rollout: int, do: Any) -> None:
        self._left, self._do = rollout, do

    def on_rollout(self, job: Any, rollout: Any) -> None:
        self._left -= 1
        if self._left == 0:
            self._do()


def run(n_runner: int, n_rollout: int, at: At, *overrides: str) -> tuple[Any, Watched, list[dict[str, Any]]]:
    """Trains one run on Ray; returns its result, its engine and its metrics."""
    with tempfile.TemporaryDirectory() as root:
        always = [
            'cluster.engine=ray',
            f'cluster.runner_num={n_runner}',
            'env.id=SlowCartPole-v1',
            f'env.collector_env_num={n_runner}',
            f'policy.collect.n_step={N_STEP}',
            f'max_env_step={n_runner * N_STEP * n_rollout}',
            f'policy.learn.batch_size={n_runner * N_STEP // 2}',
            'policy.eval.stop_value=null',
            'policy.eval.n_episode=1',
            'logger.freq=1',
            f'logger.root={root}',
        ]
        result = serial_pipeline('cartpole_ppo', overrides=[*always, *overrides], callbacks=[at])
        assert Watched.newest is not None
        return result, Watched.newest, metric_rows(result.run_dir)


def nodes(n_rollout: int) -> list[str]:
    """Trains with four runners on three nodes, kills one node in the middle; returns the lines of its section."""
    engines.make_engine = lambda cluster, run_id: Watched(cluster, run_id)
    cluster = Cluster(initialize_head=True, head_node_args={'num_cpus': 2, 'include_dashboard': False})
    others = [cluster.add_node(num_cpus=2) for _ in range(2)]
    names = {node.node_id: f'node {i}' for i, node in enumerate([cluster.head_node, *others])}
    try:
        at = At(n_rollout // 2, lambda: cluster.remove_node(others[1], allow_graceful=False))
        result, engine, rows = run(4, n_rollout, at, f'cluster.address={cluster.address}')
    finally:
        cluster.shutdown()
    places = [[names[place[group]] if group in place else '-' for group in range(4)] for place in engine.moves]
    wanted = 4 * N_STEP * n_rollout
    assert result.env_step == wanted, (result.env_step, wanted)
    assert len(set(places[0])) == 3 and 'node 2' not in places[-1], places
    check_counters(engine, rows, 4, n_rollout)
    lines = [
        '## Three nodes, four runners of one CPU each, the last node killed',
        '',
        table(['runner', 'at the start', 'at the end'], [[i, places[0][i], places[-1][i]] for i in range(4)]),
        '',
        f'Node 2 was killed after rollout {n_rollout // 2} of {n_rollout}. Runners lost: {engine.n_lost}. The run ended by '
        f'itself with {result.env_step} env steps, wanted {wanted}.',
    ]
    return lines


def many(n_rollout: int, lag: int) -> list[Any]:
    """Trains with 64 runners in 8 processes, kills one process; returns a row of the table."""
    engines.make_engine = lambda cluster, run_id: Watched(cluster, run_id, runners_per_process=PER_PROCESS)
    n_runner = PROCESSES * PER_PROCESS

    def kill() -> None:
        assert Watched.newest is not None
        os.kill(Watched.newest.pids()[0][1], signal.SIGKILL)

    overrides = ['cluster.runner_cpu=0.25', f'cluster.max_lag={lag}', 'cluster.restart_limit=100']
    overrides += ['policy.learn.correction=decoupled'] if lag > 1 else []
    result, engine, rows = run(n_runner, n_rollout, At(n_rollout // 2, kill), *overrides)
    wanted = n_runner * N_STEP * n_rollout
    assert result.env_step == wanted, (result.env_step, wanted)
    check_counters(engine, rows, n_runner, n_rollout)
    bound = (lag + 2) * n_runner
    assert engine.most_out <= bound, (engine.most_out, bound)
    oldest = max((row['collect/lag_max'] for row in rows if 'collect/lag_max' in row), default=0)
    assert oldest <= lag
    flight = f'{engine.most_out * engine.n_byte / 1e6:.2f}'
    used = f'{result.env_step} of {wanted}'
    return [lag, used, sum(engine.keys.values()), engine.n_lost, int(oldest), engine.most_out, bound, flight]


def check_counters(engine: Watched, rows: Sequence[dict[str, Any]], n_runner: int, n_rollout: int) -> None:
    """Asserts that every rollout of every runner arrived, none twice, and that env steps rise strictly in the log."""
    assert max(engine.keys.values()) == 1, 'a reply came twice'
    came = {(group, i) for group, i, _ in engine.keys}
    assert came >= {(group, i) for group in range(n_runner) for i in range(n_rollout)}
    steps = [row['env_step'] for row in rows if 'collect/lag_max' in row]
    assert all(a < b for a, b in zip(steps, steps[1:], strict=False)), steps
    assert steps, 'the log has rollouts'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rollouts', type=int, default=12, help='of each run')
    n_rollout = parser.parse_args().rollouts
    lines = [
        '# Runners on several nodes of Ray',
        '',
        f'`python benchmarks/cluster_nodes.py --rollouts {n_rollout}`, {today()}, zoo {git_commit()}, {machine()}, '
        f'{versions_line(versions(("torch", "ray", "gymnasium")))}. All on one machine: the nodes are raylets on its loopback. '
        'Every number is a count, none a time; the command fails if one is not as wanted.',
        '',
        *nodes(n_rollout),
        '',
        f'## {PROCESSES * PER_PROCESS} runners of an env that sleeps 2 ms a step',
        '',
        f'Not 64 processes: {PROCESSES} processes with {PER_PROCESS} runners each, one env a runner. One process is killed '
        f'with -9 after rollout {n_rollout // 2}, which loses {PER_PROCESS} runners at once. No reply came twice, and every '
        'rollout of every runner came.',
        '',
    ]
    columns = [
        'max_lag',
        'env steps',
        'replies',
        'runners lost',
        'oldest weights',
        'most in flight',
        'bound',
        'MB in flight',
    ]
    lines.append(table(columns, [many(n_rollout, lag) for lag in (0, 1, 4)]))
    (RESULTS / 'cluster_nodes.md').write_text('\n'.join(lines) + '\n', encoding='utf-8')
    assert not ray.is_initialized()


if __name__ == '__main__':
    main()
