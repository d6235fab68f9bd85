"""Runs as data: config, metrics and state of a run folder; runs that a command names; groups of runs by config."""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from zoo.agents.actors import kind_of
from zoo.agents.config import SHARED
from zoo.config.section import bad_keys, has_key, leaf_items, short_keys, value_at
from zoo.config.yaml_io import config_of_yaml, storable
from zoo.core.errors import UserError, did_you_mean, shown
from zoo.core.files import open_without_link, read_small
from zoo.core.streams import without_passwords
from zoo.run.base_config import LoggerConfig
from zoo.run.config import with_later_keys, without_derived_values
from zoo.run.folder import is_locked
from zoo.run.result import FEW, is_time

logger = logging.getLogger(__name__)
State = Literal['running', 'done', 'stopped', 'failed', 'killed']
ENDS: tuple[State, ...] = ('done', 'stopped', 'failed')
CONFIG = 'config.yaml'
METRICS = 'metrics.jsonl'
RESULT = 'result.json'
N_NAMED = 4  # most runs that a line of the log names
MAX_LINE = 1 << 20  # most characters of a line of the log: a metric takes about 40
MAX_ROW = 100_000
MAX_CELL = 20_000_000
"""Lines of a log that are kept, once for lines of evaluations and once for others; numbers in all its columns: 160 MB."""
DEFAULT_METRICS = ('eval/return_mean', 'collect/return_mean')
EMPTY = ('null', 'false', '[]', '{}', '', '0', '0.0', '["*"]')
KINDS: dict[str, Any] = {
    **dict.fromkeys(('seed', 'max_env_step'), (int, 'an integer')),
    **dict.fromkeys(('policy.type', 'env.id'), (str, 'a text')),
    **dict.fromkeys(('policy.collect', 'logger', 'agents', 'agents.policies'), (dict | None, 'a section')),
    'agents.train': (list | None, 'a list of names'),
    'policy.collect.n_sample': (int | None, 'an integer'),
    'policy.eval.stop_value': (int | float | None, 'a number'),
}
"""Types of the keys that are read without a schema, because another version of zoo may have written the config."""
OF_ONE_RUN = ('seed', 'logger', 'checkpoint', 'cluster', 'policy.device', 'policy.n_thread', 'keep_freed_memory')
"""Keys in which runs of one group may differ: the seed, and settings of where and how a run is computed and written."""


class Run:
    """The content of a run's folder at the time of reading.

    Attributes:
      path: the run folder; config: from config.yaml; result: from result.json, {} without one.
      columns: each metric by its name, float64 [n_line], NaN for a line of the log without it; always has 'env_step' and
        'wall_s'.
      exp_name, seed, policy_type: of its config; label: the name shared by runs with other seeds: exp_name without the end
        '_seed_3', which a sweep adds; env_id: the id of its env, with the game of a family: 'CartPole-v1', 'atari:pong'.
    """

    def __init__(
        self,
        path: Path,
        config: dict[str, Any],
        columns: dict[str, np.ndarray],
        result: dict[str, Any] | None = None,
        state: State = 'done',
    ) -> None:
        self.path = path
        self.config = config
        self.columns = columns
        self.result = result or {}
        self.state = state
        self.exp_name = str(config.get('exp_name', path.name))
        self.seed = int(config.get('seed', 0))
        self.label = self.exp_name.removesuffix(f'_seed_{self.seed}')
        self.policy_type = str(value_at(config, 'policy.type') or '')
        env = config.get('env') or {}
        if env.get('game'):
            self.env_id = f'{env.get("id", "")}:{env["game"]}'
        else:
            self.env_id = str(env.get('id', ''))

    def __repr__(self) -> str:
        return f'Run({str(self.path)!r}, {self.label}, seed {self.seed}, {self.state} at env step {self.env_step})'

    @property
    def env_step(self) -> int:
        """The env step of its end, or of the last line of its log while it runs."""
        return int(max(_known(self.result.get('env_step')), _last(self.columns['env_step'])))

    @property
    def is_solved(self) -> bool:
        """Whether it ended because an evaluation reached policy.eval.stop_value: its policy no longer changes."""
        return self.state == 'done' and _reached_stop(self.config, self.columns)

    @property
    def wall_s(self) -> float:
        """The known seconds of the whole run, evaluations included; 0.0 if none are known."""
        return max(_known(self.result.get('wall_s')), _last(self.columns['wall_s']), 0.0)

    @property
    def speed(self) -> float | None:
        """Env steps per second of wall_s; None if that is not known."""
        if self.wall_s > 0:
            return self.env_step / self.wall_s
        return None

    @property
    def reason(self) -> str:
        """The reason for which it failed or ended early; '' for none."""
        return str(self.result.get('error') or self.result.get('stop_reason') or '')

    @property
    def is_never_evaluated(self) -> bool:
        """Whether `last_and_best` are of training: the log has no return of an evaluation."""
        return DEFAULT_METRICS[0] not in self.columns

    @cached_property
    def last_and_best(self) -> tuple[float | None, float | None]:
        """The last and the best mean return of evaluations, or of training if there were none; None: no return yet."""
        metric = next((name for name in DEFAULT_METRICS if name in self.columns), None)
        values = []
        if metric is not None:
            values = self.curve(metric)[1].tolist()
        if values:
            return (values[-1], max(values))
        return (None, None)

    def curve(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns env steps [n] and values [n] of lines with the metric. Raises: UserError with close names if none has it."""
        if metric not in self.columns:
            resolve_metric([self], metric)
        values = self.columns[metric]
        there = ~np.isnan(values)
        return self.columns['env_step'][there], values[there]


def read_run(path: str | os.PathLike[str]) -> Run:
    """Reads the run of a folder, or of a checkpoint in it. Raises: UserError if there is none, or its config is unreadable."""
    folder = _folder_of(Path(path))
    config = storable(config_of_yaml(folder / CONFIG), hides=True)
    problem = next(_problems(config), '')
    if problem:
        raise UserError(f'{folder / CONFIG} is no config of a run: {problem}; name a folder that a run wrote')
    result = _json(folder / RESULT)
    columns = columns_of_log(folder / METRICS)
    return Run(folder, config, columns, result, _state(folder, config, columns, result))


def _problems(config: dict[str, Any]) -> Iterator[str]:
    """Yields sentences about entries that a config of a run cannot have, and that would break its readers."""
    if not all(isinstance(config.get(section), dict) for section in ('env', 'policy')):
        yield 'it has no env or no policy'
    yield from bad_keys(config)
    for key, (kind, words) in KINDS.items():
        value = value_at(config, key)
        is_right = isinstance(value, kind) and (not isinstance(value, int) or abs(value) < 2**63)
        if not is_right and (kind is str or has_key(config, key)):
            yield f'{key} is {shown(value)} but must be {words}'


def _state(folder: Path, config: dict[str, Any], columns: dict[str, np.ndarray], result: dict[str, Any]) -> State:
    """Returns the state. A run of an older zoo, without result.json, is done after its last rollout or at its stop_value."""
    if is_locked(folder):
        return 'running'
    if result:
        return next((known for known in ENDS if known == result.get('state')), 'killed')
    last = 0.0
    if len(columns['env_step']):
        last = columns['env_step'][-1]
    rollout = value_at(config, 'policy.collect.n_sample') or 0
    if _reached_stop(config, columns) or last + rollout > config.get('max_env_step', 0):
        return 'done'
    return 'stopped'


def _reached_stop(config: dict[str, Any], columns: dict[str, np.ndarray]) -> bool:
    stop_value = value_at(config, 'policy.eval.stop_value')
    returns = columns.get('eval/return_mean')
    return stop_value is not None and returns is not None and bool((returns >= stop_value).any())


def find_runs(paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Returns the run folders that paths name or contain at any depth, each once, sorted by name (names begin with the time).

    Raises: UserError, with names that are close, for a path that neither names nor contains a run.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if (path / CONFIG).is_file():
            inside = [path]
        else:
            inside = _runs_in(path)
        for folder in inside or [_folder_of(path)]:
            found.setdefault(folder.resolve(), folder)  # two paths may name one run
    return sorted(found.values(), key=lambda folder: (folder.name, str(folder)))


def resolve_metric(runs: Sequence[Run], name: str | None = None) -> str:
    """Returns the metric `name`; without a name, the mean return of evaluations, or of training if there were none.

    Raises: UserError, with names that are close, if no run has the metric.
    """
    known = {metric for run in runs for metric in run.columns}
    all_names = ', '.join(sorted(known))
    if name is None:
        name = next((metric for metric in DEFAULT_METRICS if metric in known), None)
        if name is None:
            raise UserError(
                f'{"this run has" if len(runs) == 1 else "these runs have"} no return in the log yet; choose another metric: '
                f'{all_names or "there is none"}'
            )
    if name not in known:
        raise UserError(f'no run has the metric {name!r}; {did_you_mean(name, known, f"there are {all_names}", str)}')
    return name


def curve_metric(runs: Sequence[Run], name: str | None = None) -> str:
    """Returns the metric whose curve shows a run best: `name`, or as `resolve_metric`, but of training if evaluations are few.

    They are few if half of the runs have less than FEW: a curve of two points says less than that of the training episodes. The log names it.
    Raises: UserError as `resolve_metric`.
    """
    metric = resolve_metric(runs, name)
    training = DEFAULT_METRICS[-1]
    n_each = [int(np.isfinite(run.columns[metric]).sum()) for run in runs if metric in run.columns]
    n_point = int(np.median(n_each))
    if name is not None or metric == training or n_point >= FEW or all(training not in run.columns for run in runs):
        return metric
    if n_point == 1:
        number = 'one evaluation'
    else:
        number = f'{n_point} evaluations'
    logger.info('a run has %s, so the curve is that of %s; --metric %s draws these', number, training, metric)
    return training


def curve_metrics(runs: Sequence[Run], names: str | Sequence[str] | None = None) -> list[str]:
    """Returns the metrics of a figure: those that are named, or that of `curve_metric`. Raises: UserError as `resolve_metric`."""
    if not names:
        return [curve_metric(runs)]
    if isinstance(names, str):
        names = [names]
    return [resolve_metric(runs, name) for name in names]


def groups(runs: Sequence[Run], by: Sequence[str] = ()) -> dict[str, list[Run]]:
    """Groups runs that differ only in the keys OF_ONE_RUN; returns the groups by label.

    A label is exp_name with 'key=value' for the keys `by`, and for the keys in which groups with the same name differ.
    """
    found: defaultdict[str, list[Run]] = defaultdict(list)
    flats: dict[str, dict[str, str]] = {}
    values: defaultdict[tuple[str, str], set[str]] = defaultdict(set)  # by name and key
    for run in runs:
        flat = _flat(run)
        identity = _identity(run)
        flats[identity] = flat
        found[identity].append(run)
        for key, text in flat.items():
            values[run.label, key].add(text)
    labels: defaultdict[str, list[str]] = defaultdict(list)  # identities by label
    for identity, members in found.items():
        name = members[0].label
        keys = [key for key in flats[identity] if len(values[name, key]) > 1]
        labels[_label(name, flats[identity], list(dict.fromkeys([*by, *keys])))].append(identity)
    return {
        label: sum((found[identity] for identity in same), [])
        for first, identities in labels.items()
        for label, same in _told_apart(first, {identity: flats[identity] for identity in identities}).items()
    }


def samples(runs: Sequence[Run]) -> list[Run]:
    """Returns one run for each config and seed: the newest one that is done, or else the newest.

    A run with a repeated seed has the same numbers, so it is no additional sample. The log names the runs that are left out.
    """
    ordered = sorted(runs, key=lambda run: (run.state == 'done', time_of(run.path), run.path.name))
    kept = {run.path for run in {(_identity(run), run.seed): run for run in ordered}.values()}
    left = [str(run.path) for run in runs if run.path not in kept]
    if left:
        named = [*left[:N_NAMED], *([f'{len(left) - N_NAMED} more'] if len(left) > N_NAMED else [])]
        logger.info('left out, since another run has the same config and seed: %s', ', '.join(named))
    return [run for run in runs if run.path in kept]


def _identity(run: Run) -> str:
    return json.dumps([run.label, _flat(run)], sort_keys=True)


def _told_apart(label: str, flats: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """Divides identities of one label by the values of keys that only some of them have; returns them by longer labels.

    A key with an empty value (null, false, an empty list) is ignored: another version of zoo may lack the key.
    """
    shared = set.intersection(*map(set, flats.values()))
    found: defaultdict[str, list[str]] = defaultdict(list)
    for identity, flat in flats.items():
        own = [key for key, text in flat.items() if key not in shared and text not in EMPTY]
        found[_label(label, flat, own)].append(identity)
    return found


def _label(name: str, flat: dict[str, str], keys: Sequence[str]) -> str:
    """Returns a name with 'key=value' of keys, which are shortened to their last word if it is unique."""
    return ' '.join([name, *(f'{word}={flat.get(key)}' for word, key in zip(short_keys(keys), keys, strict=True))])


def _flat(run: Run) -> dict[str, str]:
    """Returns the config as texts by dotted keys, without derived values and the keys in which runs of a group may differ.

    Keys that an older zoo did not have are there with their defaults, so that its runs are of one group with those of today.
    """
    is_whole = {'max_env_step', 'policy', 'env'} <= run.config.keys()
    # schedules derive from max_env_step
    if is_whole:
        config = without_derived_values(with_later_keys(run.config))
    else:
        config = run.config
    return {
        key: value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        for key, value in leaf_items(config)
        if key != 'exp_name' and not any(key == own or key.startswith(f'{own}.') for own in OF_ONE_RUN)
    }


def _folder_of(path: Path) -> Path:
    """Returns the run folder that a path is or lies in. Raises: UserError if there is none."""
    for folder in (path, *list(path.parents)[:2]):
        if (folder / CONFIG).is_file() and (folder == path or path.is_file()):
            return folder
    raise UserError(_no_run(path))


def _runs_in(path: Path) -> list[Path]:
    """The run folders below a path: a folder or a pipe with the name of a config makes none."""
    return [file.parent for file in path.rglob(CONFIG) if file.is_file()]


def _no_run(path: Path) -> str:
    """Returns a sentence that there is no run at a path, with what is close to it."""
    if path.is_dir():
        inside = sorted(_runs_in(path))
        if not inside:
            return f'no run at {path}: neither it nor a folder in it has a {CONFIG}; name the folder of a run, or train one'
        return f'{path} is no run but holds {len(inside)}; name one of them, e.g. {inside[-1]}'
    missing = next(part for part in (*reversed(path.parents), path) if not part.exists() or part == path)
    folders: list[str] = []
    with suppress(OSError):
        folders = [child.name for child in missing.parent.iterdir() if child.is_dir()]
    if missing == path:
        nothing = 'there is no file or folder of that name'
    else:
        nothing = f'there is nothing at {missing}'
    return f'no run at {path}; {did_you_mean(missing.name, folders, nothing, missing.parent.joinpath)}'


def columns_of_log(path: Path) -> dict[str, np.ndarray]:
    """The columns of a log. Of a very long one not all lines are kept, see `_rows`; nor more than MAX_CELL numbers."""
    rows = _rows(path)
    names = dict.fromkeys(['env_step', 'wall_s', *(name for row in rows for name in row)])
    most = max(MAX_CELL // max(len(rows), 1), 2)
    columns = {name: np.full(len(rows), np.nan) for name in itertools.islice(names, most)}
    for i, row in enumerate(rows):
        for name, x in row.items():
            if isinstance(x, int | float) and name in columns:
                columns[name][i] = x
    return columns


def _rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a log up to an incomplete one, of a run that is writing it or was killed; none without a file.

    At most some MAX_ROW lines: of a longer log every second one is kept, then every fourth and so on, those of evaluations
    before others, and the last one. Lines that are not kept are not parsed.
    """
    options: dict[str, Any] = {'encoding': 'utf-8', 'errors': 'replace', 'opener': open_without_link}
    kept: dict[bool, list[tuple[int, dict[str, Any]]]] = {
        False: [],
        True: [],
    }  # with numbers of lines; True: evaluations
    every = {False: 1, True: 1}
    count = {False: 0, True: 0}
    skipped: tuple[int, str] | None = None
    with suppress(OSError, ValueError, RecursionError), open(path, **options) as file:
        for number, line in enumerate(iter(partial(file.readline, MAX_LINE), '')):
            is_evaluation = '"eval/' in line
            count[is_evaluation] += 1
            if count[is_evaluation] % every[is_evaluation]:
                skipped = number, line
                continue
            skipped = None
            row = json.loads(line, parse_int=float)  # a number of 400 digits is infinite
            rows = kept[is_evaluation]
            if isinstance(row, dict):
                rows.append((number, {sys.intern(name): x for name, x in row.items()}))
            if len(rows) >= MAX_ROW:
                del rows[::2]
                every[is_evaluation] *= 2
    if skipped is not None:
        with suppress(ValueError, RecursionError):
            row = json.loads(skipped[1], parse_int=float)
            if isinstance(row, dict):
                kept[False].append((skipped[0], row))
    return [row for _, row in sorted(kept[False] + kept[True], key=lambda item: item[0])]


def _json(path: Path) -> dict[str, Any]:
    found = None
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(without_passwords(read_small(path).decode()))
    if isinstance(found, dict):
        return found
    return {}


def _known(value: object) -> float:
    if is_time(value):
        return value
    return 0.0


def _last(column: np.ndarray) -> float:
    """Returns the last finite number of a column; 0.0 if it has none."""
    known = column[np.isfinite(column)]
    if len(known):
        return float(known[-1])
    return 0.0


def named_runs(words: Sequence[str | os.PathLike[str]]) -> list[Run]:
    """Returns the `samples` of the runs that words name: run folders, folders with runs, names in the folder `runs`, 'last'.

    Raises: UserError as `find_runs`.
    """
    return samples([read_run(path) for path in find_runs([_place(word) for word in words])])


def readable_runs(words: Sequence[str]) -> list[Run]:
    """Reads the runs that words name, as `named_runs`; logs a warning for one that cannot be read.

    Raises: UserError if none can be read.
    """
    runs = []
    problems = []
    for path in find_runs([_place(word) for word in words]):
        try:
            runs.append(read_run(path))
        except UserError as error:
            problems.append(error)
    if not runs:
        raise problems[0]
    for problem in problems:
        logger.warning('%s', problem)
    return runs


def one_run(word: str) -> Path:
    """Returns the one run or file that a word names: the newest run of a folder with several, which is logged."""
    path = _place(word)
    if any((path / name).exists() for name in (CONFIG, 'checkpoints')):
        return path
    return _newest_in(path, word)


def _place(word: str | os.PathLike[str]) -> Path:
    """Returns the path that a word names, here or in the folder `runs`; for 'last', the newest run there."""
    path = Path(word)
    root = Path(LoggerConfig().root)
    if path == Path('last') and not path.exists():
        return _newest_in(root, word)
    if path.exists() or not (root / path).is_dir():
        return path
    return root / path


def _newest_in(folder: Path, word: str | os.PathLike[str]) -> Path:
    """Returns the newest run in a folder, preferably one with a checkpoint; the folder itself if it has no run."""
    runs = _runs_in(folder)
    if not runs:
        return folder
    newest = max(runs, key=lambda run: (any(run.glob('checkpoints/*.safetensors')), time_of(run)))
    logger.info('%s is %s, the newest of %d %s', word, newest, len(runs), 'run' if len(runs) == 1 else 'runs')
    return newest


def from_here(path: Path, root: Path | None = None) -> Path:
    """Returns a path relative to a folder that contains it, by default the current folder; other paths unchanged."""
    root = root or Path.cwd()
    if path.is_relative_to(root):
        return path.relative_to(root)
    return path


def time_of(folder: Path) -> float:
    """Returns the time of a run's last line in seconds since 1970; 0.0 if it is not known."""
    return next((file.stat().st_mtime for file in (folder / METRICS, folder) if file.exists()), 0.0)


def sides_of(words: Sequence[str | os.PathLike[str]]) -> dict[str, list[Run]]:
    """Returns the groups of runs to compare, by label.

    If there are two words, each is a separate side, even if both name runs of the same config; a word with runs of several
    configs gives several sides. The runs of one word, or of more than two, are grouped by config.
    Raises: UserError for fewer than two groups; as `named_runs`.
    """
    parts: list[Sequence[str | os.PathLike[str]]] = [words]
    if len(words) == 2:
        parts = [[word] for word in words]
    sides = [(label, part[0], runs) for part in parts for label, runs in groups(named_runs(part)).items()]
    labels = [label for label, _, _ in sides]
    found = {f'{label} ({word})' if labels.count(label) > 1 else label: runs for label, word, runs in sides}
    if len(found) < 2:
        label, _, runs = sides[0]
        if len(runs) == 1:
            what = 'the one run is'
        else:
            what = f'all {len(runs)} runs are'
        raise UserError(
            f'{what} of one config, {label}; name two to compare, e.g. zoo compare runs/cartpole_ppo runs/cartpole_ppg'
        )
    return found


def warn_of_other_returns(runs: Iterable[Run], metric: str) -> None:
    """Logs a warning if returns of runs are of other agents: one run has the sum over all, another the mean of a policy."""
    first: dict[str, Run] = {}
    if metric in DEFAULT_METRICS:
        for run in runs:
            first.setdefault(_return_of(run), run)
    if len(first) > 1:
        run, other = list(first.values())[:2]
        logger.warning(
            '%s of %s and of %s are returns of other agents (agents.score, or the only policy that learns): compare '
            '--metric eval/team_return_mean, or eval/agent/NAME/return_mean',
            metric,
            run.path,
            other.path,
        )


def _return_of(run: Run) -> str:
    """What says whose return is that of an episode: the score, or the agents of the only policy that learns; '' of one agent."""
    agents = run.config.get('agents') or {}
    policies = agents.get('policies') or {SHARED: {}}
    trained = agents.get('train') or [name for name, differs in policies.items() if kind_of(differs) is None]
    if agents.get('score') or len(trained) > 1:
        return f'score {agents.get("score") or "team"}'
    mapping = agents.get('mapping')
    if len(policies) == 1 or not isinstance(mapping, dict):
        return ''
    return f'agents without {sorted(str(pattern) for pattern, policy in mapping.items() if policy not in trained)}'


def check_same_env(runs: Iterable[Run], allow: bool = False) -> None:
    """Checks that runs are of one env, unless `allow`: returns of different envs cannot be compared. Raises: UserError."""
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.env_id, run)
    if len(first) > 1 and not allow:
        (env, run), (other_env, other), *_ = first.items()
        raise UserError(
            f'{run.path} is of the env {env} but {other.path} of {other_env}, and returns of different envs do not compare; '
            'name runs of one env, or add --allow-different-envs'
        )
