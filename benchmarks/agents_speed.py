"""Training speed in envs of several agents; prints tables, and writes results/agents/speed.json.

    python benchmarks/agents_speed.py [--only NAME ...] [--rounds 20] [--venvs FOLDER] [--quick]

Works: `tag`, a cheap env of numpy (peers/tag_env.py) with 4 agents; `spread`, simple_spread of mpe2 with 3. Both have 16 copies,
one policy for all agents, two towers 64-64 of tanh, and 10 epochs of minibatches of 256, as PettingZoo's tutorial of
stable-baselines3 with SuperSuit has them; drivers are zoo, those two, and RLlib. `policies` compares two policies of 32 rows with one of 64, `critic` a central critic in C with the eager
one, both on tag. `table` is the time that tables of agents add to an env that does nothing.

Each driver is a process with one thread that trains one iteration at a time. The drivers of a work take turns, in every second
round backwards; RLlib takes part in every third round. Ratios are medians over rounds, with 95% intervals of the order
statistics. The first two rounds are dropped. CPU time is shown too: it tells whether other processes disturbed a run.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rounds import summary

from report import (
    HERE,
    PEERS_DIR,
    VENVS,
    git_commit,
    last_words,
    machine,
    one_thread_env,
    results_folder,
    table,
    today,
    versions,
    write_json,
)

LIBRARIES = ('torch', 'numpy', 'gymnasium', 'pettingzoo', 'mpe2', 'supersuit', 'stable-baselines3', 'ray')
N_WARMUP = 2  # rounds that are dropped
RLLIB_EVERY = 3  # rounds; one of RLlib takes as long as 20 of zoo
ZOO = 'zoo'
CRITIC = ('agents.state=concat', 'policy.model.critic_obs=[state, agent]')
TWO_POLICIES = (
    'agents.policies={a: {type: ppo}, b: {type: ppo}}',
    'agents.mapping={chaser_0: a, chaser_1: a, "*": b}',
)


class Driver(NamedTuple):
    """A library with settings. venv: its virtual environment; '': that of zoo. every: it takes part in every so many rounds."""

    label: str
    script: str
    venv: str = ''
    overrides: tuple[str, ...] = ()
    every: int = 1


class Work(NamedTuple):
    """A work for several drivers.

    env, n_agent, n_step: the env, its agents, and the steps of a rollout; wanted: how many times the time of the first driver each
    other one is to take.
    """

    title: str
    env: str
    n_agent: int
    n_step: int
    drivers: tuple[Driver, ...]
    wanted: tuple[str, ...]


SB3 = Driver('stable-baselines3 + SuperSuit', 'agents_sb3.py', 'sb3_agents')
RLLIB = Driver('RLlib', 'agents_rllib.py', 'rllib_agents', every=RLLIB_EVERY)
TAG = 'tag_env:Tag'
SPREAD = 'mpe2.simple_spread_v3:parallel_env'
N_COPY = 16
WORKS = {
    'tag': Work('tag, 4 agents', TAG, 4, 128, (Driver(ZOO, 'agents_zoo.py'), SB3, RLLIB), ('at least 5', 'at least 8')),
    'spread': Work(
        'simple_spread, 3 agents', SPREAD, 3, 64, (Driver(ZOO, 'agents_zoo.py'), SB3, RLLIB), ('at least 1.8', '')
    ),
    'policies': Work(
        'tag, one policy and two',
        TAG,
        4,
        128,
        (
            Driver('one policy of 64 rows', 'agents_zoo.py'),
            Driver('two policies of 32 rows', 'agents_zoo.py', overrides=TWO_POLICIES),
        ),
        ('at most 1.3',),
    ),
    'critic': Work(
        'tag, central critic',
        TAG,
        4,
        128,
        (
            Driver('native', 'agents_zoo.py', overrides=CRITIC),
            Driver('eager', 'agents_zoo.py', overrides=(*CRITIC, 'policy.learn.executor=eager')),
        ),
        ('at least 2.5',),
    ),
}
TABLE = 'table'
WANTED_US = 10.0  # microseconds that tables may add for each agent and step


class Round(NamedTuple):
    """Seconds of an iteration: by the clock; CPU time of the driver; of the update alone, NaN if the driver does not say."""

    wall_s: float
    cpu_s: float
    learn_s: float


class Trainer:
    """A process that trains one iteration per call of `round`."""

    def __init__(self, command: Sequence[str]) -> None:
        self._said = tempfile.TemporaryFile('w+')  # a pipe that nobody reads would be full some day
        self._process = subprocess.Popen(
            command,
            env=one_thread_env(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    def round(self) -> Round:
        """Trains one iteration. Raises: RuntimeError if the process ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write('\n')
            self._process.stdin.flush()
            return Round(*map(float, self._process.stdout.readline().split()))
        except (OSError, TypeError):
            self._process.wait()
            self._said.seek(0)
            raise RuntimeError(f'a driver ended before its rounds: {last_words(self._said.read())}') from None

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()
        self._said.close()


def python_of(driver: Driver, venvs: Path) -> Path:
    """The Python that runs a driver."""
    if not driver.venv:
        return Path(sys.executable)
    return venvs.absolute() / driver.venv / 'bin' / 'python'


def command_of(work: Work, driver: Driver, venvs: Path) -> list[str]:
    """The command of a driver."""
    options = {'env': work.env, 'copies': N_COPY, 'agents': work.n_agent, 'rollout': work.n_step}
    flags = [part for name, value in options.items() for part in (f'--{name}', str(value))]
    settings = [part for item in driver.overrides for part in ('--set', item)]
    return [str(python_of(driver, venvs)), str(PEERS_DIR / driver.script), *flags, *settings]


def take_rounds(
    trainers: Mapping[str, Callable[[], Round]], every: Mapping[str, int], n_round: int
) -> dict[str, dict[int, Round]]:
    """The rounds of each trainer by their numbers; those before N_WARMUP are taken by all, and dropped."""
    found: dict[str, dict[int, Round]] = {label: {} for label in trainers}
    for index in range(-N_WARMUP, n_round):
        order = list(trainers)
        if index % 2:
            order.reverse()
        for label in order:
            if index < 0:
                trainers[label]()
            elif index % every[label] == 0:
                found[label][index] = trainers[label]()
    return found


def compare(work: Work, drivers: Sequence[Driver], rounds: Mapping[str, Mapping[int, Round]]) -> dict[str, Any]:
    """The entry of a work in the results: speeds of all drivers, and how many times the time of the first each one takes."""
    first = drivers[0].label
    n_transition = N_COPY * work.n_agent * work.n_step
    entry: dict[str, Any] = {'title': work.title, 'drivers': {}, 'times': {}}
    for driver in drivers:
        own = rounds[driver.label]
        wall_s = statistics.median(x.wall_s for x in own.values())
        entry['drivers'][driver.label] = {
            'rounds': len(own),
            'iteration_ms': round(1e3 * wall_s, 2),
            'cpu_ms': round(1e3 * statistics.median(x.cpu_s for x in own.values()), 2),
            'learn_ms': None,
            'agent_step_per_s': round(n_transition / wall_s, 1),
            'settings': list(driver.overrides),
        }
        if says_learn_s(own):
            learn_s = statistics.median(x.learn_s for x in own.values())
            entry['drivers'][driver.label]['learn_ms'] = round(1e3 * learn_s, 2)
    for driver, wanted in zip(drivers[1:], work.wanted, strict=False):
        fields = [name for name in Round._fields if name != 'learn_s' or says_learn_s(rounds[driver.label])]
        entry['times'][driver.label] = {
            'wanted': wanted,
            **{name: ratio_of(rounds[first], rounds[driver.label], name) for name in fields},
        }
    return entry


def says_learn_s(rounds: Mapping[int, Round]) -> bool:
    """Whether a driver says how long its updates took."""
    return not any(math.isnan(x.learn_s) for x in rounds.values())


def ratio_of(first: Mapping[int, Round], other: Mapping[int, Round], field: str) -> dict[str, float]:
    """Times that the other trainer takes of the first one's seconds: median and 95% interval, over the rounds of both."""
    both = [index for index in other if index in first]
    pairs = [(getattr(other[index], field), getattr(first[index], field)) for index in both]
    return {name: x for name, x in summary(pairs).items() if name in ('ratio', 'low', 'high')}


def library_versions(venvs: Path) -> dict[str, dict[str, str]]:
    """The versions of the other libraries, by virtual environment."""
    found = {}
    for driver in (SB3, RLLIB):
        python = python_of(driver, venvs)
        if python.exists():
            code = f'import json, report; print(json.dumps(report.versions({LIBRARIES})))'
            done = subprocess.run(
                [python, '-c', code], env=one_thread_env(HERE), capture_output=True, text=True, check=True
            )
            found[driver.venv] = json.loads(done.stdout)
    return found


def without_paths(words: Sequence[str]) -> list[str]:
    """The words of a command; folders of this machine become FOLDER."""
    return ['FOLDER' if Path(word).is_absolute() else word for word in words]


def measure(work: Work, venvs: Path, n_round: int) -> dict[str, Any]:
    """Trains one work by all drivers that are installed."""
    drivers = [driver for driver in work.drivers if python_of(driver, venvs).exists()]
    trainers = {driver.label: Trainer(command_of(work, driver, venvs)) for driver in drivers}
    try:
        calls = {label: trainer.round for label, trainer in trainers.items()}
        rounds = take_rounds(calls, {driver.label: driver.every for driver in drivers}, n_round)
    finally:
        for trainer in trainers.values():
            trainer.close()
    entry = compare(work, drivers, rounds)
    entry['missing'] = [driver.label for driver in work.drivers if driver not in drivers]
    return entry


class Idle:
    """A parallel env of 4 agents that does nothing."""

    metadata = {'name': 'idle'}  # noqa: RUF012
    render_mode = None
    possible_agents = ('a', 'b', 'c', 'd')

    def __init__(self) -> None:
        self.agents = list(self.possible_agents)
        self._obs = {agent: np.arange(16, dtype=np.float32) for agent in self.agents}
        self._rewards = dict.fromkeys(self.agents, 1.0)
        self._ends = dict.fromkeys(self.agents, False)
        self._infos: dict[str, Any] = {agent: {} for agent in self.agents}

    def observation_space(self, agent: str) -> Any:
        from gymnasium.spaces import Box

        return Box(-np.inf, np.inf, (16,), np.float32)

    def action_space(self, agent: str) -> Any:
        from gymnasium.spaces import Discrete

        return Discrete(5)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        return self._obs, self._infos

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        return self._obs, self._rewards, self._ends, self._ends, self._infos

    def close(self) -> None:
        pass


def table_times(n_round: int) -> dict[str, float]:
    """Microseconds of CPU time per agent and step: of the env alone, of a table around it, and of the vector env of 16 tables that
    zoo collects from."""
    import torch

    from zoo.agents.games import make_game
    from zoo.agents.table import TableEnv
    from zoo.env.make_vector import make_vector_env
    from zoo.run.agents_roster import AgentsRoster
    from zoo.run.config import frozen_config, resolve_config

    torch.set_num_threads(1)
    cfg = frozen_config(resolve_config({'env': {'id': Idle, 'collector_env_num': N_COPY}, 'policy': {'type': 'ppo'}}))
    roster = AgentsRoster(cfg)
    idle = Idle()
    alone = TableEnv(make_game(cfg.env), roster.layout)
    alone.reset(seed=0)
    vector = make_vector_env(roster.env(cfg.env), N_COPY)
    vector.reset(0)
    block = vector.block(1)
    n_agent = len(idle.agents)
    actions = dict.fromkeys(idle.agents, 1)
    table_actions = {roster.layout.groups[0].entry: np.ones(n_agent, np.int64)}
    vector_actions = torch.ones((N_COPY, n_agent))

    def vector_step() -> None:
        vector.send(vector_actions)
        vector.receive(block, 0)

    calls: dict[str, tuple[Callable[[], Any], int]] = {
        'env': (lambda: idle.step(actions), n_agent),
        'table': (lambda: alone.step(table_actions), n_agent),
        'vector': (vector_step, n_agent * N_COPY),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(n_round):
        for name, (call, n_row) in calls.items():
            n_call = 6400 // n_row
            start = time.process_time()
            for _ in range(n_call):
                call()
            taken[name].append(1e6 * (time.process_time() - start) / (n_call * n_row))
    vector.close()
    return {name: round(statistics.median(times), 3) for name, times in taken.items()}


def tables_of(data: Mapping[str, Any]) -> str:
    """The results as tables in Markdown."""
    rows = []
    ratios = []
    for entry in data['works'].values():
        for label, x in entry['drivers'].items():
            speed = f'{x["agent_step_per_s"]:,.0f}'
            rows.append(
                (entry['title'], label, speed, x['iteration_ms'], x['cpu_ms'], x['learn_ms'] or '', x['rounds'])
            )
        first = next(iter(entry['drivers']))
        for label, x in entry['times'].items():
            cells = [
                f'{x[name]["ratio"]:.2f} ({x[name]["low"]:.2f} to {x[name]["high"]:.2f})' if name in x else ''
                for name in Round._fields
            ]
            ratios.append((entry['title'], f'{label} / {first}', *cells, x['wanted']))
    columns = ('work', 'driver', 'agent steps/s', 'ms an iteration', 'CPU ms', 'update ms', 'rounds')
    text = table(columns, rows) + '\n'
    text += table(('work', 'times', 'by the clock (95%)', 'CPU time', 'update alone', 'wanted'), ratios)
    if TABLE in data:
        times = data[TABLE]
        text += '\n' + table(
            ('CPU us an agent and step', 'env alone', 'in a table', 'in the vector of 16', 'wanted'),
            [('', times['env'], times['table'], times['vector'], f'at most {WANTED_US:.0f} more than the env')],
        )
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints and writes results/agents/speed.json; 1 if some work could not be measured."""
    names = [*WORKS, TABLE]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', choices=names, default=names, metavar='NAME', help=', '.join(names))
    parser.add_argument('--rounds', type=int, default=20)
    parser.add_argument(
        '--venvs', type=Path, default=VENVS, help='has sb3_agents and rllib_agents, see peers/README.md'
    )
    parser.add_argument('--quick', action='store_true', help='5 rounds, into the temporary folder')
    parser.add_argument('-o', '--results', type=Path, metavar='FOLDER', help='of agents/speed.json')
    words = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(words)
    if args.quick:
        args.rounds = 5
    path = results_folder(args.results, args.quick) / 'agents' / 'speed.json'
    data: dict[str, Any] = {
        'machine': machine(),
        'versions': versions(('torch', 'numpy', 'gymnasium', 'pettingzoo', 'mpe2')),
        'date': today(),
        'commit': git_commit(),
        'libraries': library_versions(args.venvs),
        'command': ' '.join(['python benchmarks/agents_speed.py', *without_paths(words)]),
        'works': {},
        'failed': {},
    }
    for name in args.only:
        if name == TABLE:
            data[TABLE] = table_times(15 * args.rounds)
        else:
            try:
                data['works'][name] = measure(WORKS[name], args.venvs, args.rounds)
            except RuntimeError as error:
                data['failed'][name] = str(error)
                print(f'{name}: {error}', file=sys.stderr)
        write_json(path, data)  # after each work, in case that a later one never ends
    print(tables_of(data))
    return int(bool(data['failed']))


if __name__ == '__main__':
    sys.exit(main())
