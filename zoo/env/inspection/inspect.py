"""A report about an env after some steps: problems, warnings, and facts that help to choose a config."""

from __future__ import annotations

import multiprocessing
import pickle
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from zoo.config.section import ConfigError
from zoo.core import processes
from zoo.core.errors import UserError, of_entry, show_error
from zoo.core.registry import TOOL_REGISTRY
from zoo.core.spaces import ACTION_MASK, Box, Dict, Leaf, Space, leaf_spaces, space_words
from zoo.env.adapter import env_spaces
from zoo.env.closing import close_in_time
from zoo.env.config import EnvConfig, env_config
from zoo.env.errors import (
    STOPS,
    EnvContractError,
    EnvError,
    EnvKwargsError,
    MissingExtraError,
    SeveralAgentsError,
    UnknownEnvError,
    raised_at,
)
from zoo.env.inspection.bounds import far_bounds
from zoo.env.inspection.check import EnvCheck, refused, version_findings
from zoo.env.inspection.copies import equal_copies
from zoo.env.inspection.family import (
    N_ENV,
    Finding,
    Recorder,
    check_vector,
    entry_name,
    layers,
    step_limit,
    step_limit_of,
)
from zoo.env.make import EnvMaker, env_name, make_env
from zoo.env.make_vector import make_vector_env, vectorization_of
from zoo.env.workers import WorkerVectorEnv
from zoo.env.wrappers import MaskEnv

# absolute values above which networks learn visibly slower; inputs and outputs near 1 are best
LARGE_OBS = 100.0
LARGE_REWARD = 100.0
LARGE_RETURN = 1000.0
MAX_PROBLEMS = 20
N_WORKER = 4
N_STEP = 100
N_WARM = 10
GAIN = 1.25  # a worker costs memory and a core: it has to win by more than the measurement varies


def scale_warnings(cfg: EnvConfig, name: str, seen: Recorder, obs_space: Space, action_space: Space) -> list[str]:
    """Sentences about observations, rewards and action bounds that are far from 1."""
    sentences = [
        *(_obs_warning(path, leaf, seen) for path, leaf in leaf_spaces(obs_space)),
        _reward_warning(seen),
        *_action_warnings(cfg, action_space),
    ]
    return [f'env {name!r}: {sentence}.' for sentence in sentences if sentence is not None]


def _obs_warning(path: str, leaf: Leaf, seen: Recorder) -> str | None:
    largest = 0.0
    if path in seen.obs:
        largest = seen.obs[path].largest
    if not isinstance(leaf, Box) or len(leaf.shape) > 2 or largest <= LARGE_OBS:  # images are scaled by the model
        return None
    return (
        f'the observations{of_entry(path)} reach {largest:.4g}, and networks learn slowly from numbers far beyond 1; '
        'set policy.model.obs_norm=true, or scale them in the env'
    )


def _reward_warning(seen: Recorder) -> str | None:
    largest = max(map(abs, seen.returns), default=0.0)
    if seen.reward.largest > LARGE_REWARD or largest > LARGE_RETURN:
        which = f'rewards reach {seen.reward.largest:.4g}'
        if largest > LARGE_RETURN:
            which = f'returns reach {largest:.4g}'
        return (
            f'the {which}, and a critic learns numbers of that size slowly; set policy.learn.reward_norm=true, or scale '
            'them in the env'
        )
    if seen.n_step and seen.reward.largest == 0:
        return (
            f'all rewards of {seen.n_step} random steps are 0, so a policy has nothing to begin with; reward steps on '
            'the way, or begin some episodes near the goal'
        )
    return None


def _action_warnings(cfg: EnvConfig, space: Space) -> Iterator[str]:
    if cfg.action_bins is not None:
        return
    far = far_bounds(space, cfg.action_mode)
    for bounds in far:
        yield bounds.sentence()
    paths_told = {bounds.path for bounds in far}
    for path, leaf in leaf_spaces(space):
        if isinstance(leaf, Box) and path not in paths_told and not np.isfinite([leaf.low, leaf.high]).all():
            yield (
                f'the actions{of_entry(path)} have no bounds on a side, so that a policy may send numbers of any size; '
                'give action_space finite bounds'
            )


def unbounded(space: Space, what: str) -> list[str]:
    """The paths of the Box leaves that lack a bound, '<what>' or '<what>.<entry>'."""
    leaves = [(path, leaf) for path, leaf in leaf_spaces(space) if isinstance(leaf, Box) and path != ACTION_MASK]
    paths = [path for path, leaf in leaves if not np.isfinite([leaf.low, leaf.high]).all()]
    return [entry_name(what, path) for path in paths]


class VectorizationChoice(NamedTuple):
    """The faster vectorization and the reason, as entries of a report."""

    vectorization: str  # 'sync', 'async' or 'batched'
    vectorization_why: str
    worker_ms: float | None  # time that one step of one worker costs the main process


def advise(cfg: EnvConfig, step_s: float, spaces: tuple[gymnasium.Space, gymnasium.Space]) -> VectorizationChoice:
    """Compares env.collector_env_num envs in turn with as many in processes.

    Args: step_s: seconds of one step of one env; spaces: of its observations and actions.
    """
    n_env = cfg.collector_env_num
    n_cpu = processes.n_core()
    try:
        worker_s = worker_seconds(spaces, min(n_env, N_WORKER), cfg.step_timeout)
    except STOPS:
        raise
    except BaseException as error:  # without processes, or with spaces that no shared memory takes
        return VectorizationChoice('sync', f'no worker process could be timed here ({show_error(error)})', None)
    in_turn = n_env * step_s
    at_once = n_env * (worker_s + step_s / min(n_env, n_cpu))
    is_async = in_turn > GAIN * at_once and n_cpu > 1
    cores = _count(n_cpu, 'core')
    why = (
        f'a step takes {1e3 * step_s:.3g} ms and a worker adds {1e3 * worker_s:.3g} ms: {n_env} envs step in '
        f'{1e3 * in_turn:.3g} ms one after the other, and in about {1e3 * at_once:.3g} ms in processes on {cores}'
    )
    if is_async:
        return VectorizationChoice('async', why, 1e3 * worker_s)
    if in_turn > at_once:
        why += ': about equal'
    return VectorizationChoice('sync', why, 1e3 * worker_s)


def worker_seconds(spaces: tuple[gymnasium.Space, gymnasium.Space], n_worker: int, timeout: float) -> float:
    """Seconds for one step of one worker, with `n_worker` workers whose envs do nothing."""
    maker = partial(_StillEnv, *spaces)
    with closing(
        WorkerVectorEnv([maker] * n_worker, gymnasium.vector.AutoresetMode.SAME_STEP, timeout, 'still')
    ) as env:
        env.reset(seed=0)
        action = env.action_space.sample()
        times = []
        for _ in range(N_WARM + N_STEP):
            start = time.perf_counter()
            env.step(action)
            times.append(time.perf_counter() - start)
    return statistics.median(times[N_WARM:]) / n_worker


class _StillEnv(gymnasium.Env):
    """Returns the same observation at every step, without work."""

    def __init__(self, observation_space: gymnasium.Space, action_space: gymnasium.Space) -> None:
        self.observation_space = observation_space
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._obs = self.observation_space.sample()
        return self._obs, {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._obs, 0.0, False, False, {}


def _limit_text(n_step: int | None) -> str:
    if n_step is None:
        return 'none'
    return f'{n_step} steps'


MASKS = {
    'none': 'none',
    'obs': "found: the entry 'action_mask' of the observations",
    'info': "found: the entry 'action_mask' of the infos",
    'method': 'found: the method action_masks()',
}
# for each fact, in the order of the report: its label, and the words for its value; a fact without words is left out
BEFORE_STEPS: dict[str, tuple[str, Callable[[Any], str | None]]] = {
    'kind': ('kind', str),
    'obs_space': ('observations', str),
    'action_space': ('actions', str),
    'wrappers': ('wrappers', ', '.join),
    'unbounded': ('without bounds', lambda paths: ', '.join(paths) or 'none'),
    'masks': ('action masks', MASKS.get),
    'time_limit': ('time limit', _limit_text),
}
AFTER_STEPS: dict[str, tuple[str, Callable[[Any], str | None]]] = {
    'picklable': ('picklable', {True: 'yes', False: 'no'}.get),
    'repeats': ('seeds', {True: 'repeat its episodes', False: 'do not repeat its episodes'}.get),
}


def _facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """The words for each fact that is known, by label, in the order of the report."""
    texts = {label: as_text(facts[key]) for key, (label, as_text) in BEFORE_STEPS.items() if key in facts}
    if facts.get('steps'):
        texts |= _values(facts)
        if 'time_limit' in facts and facts['time_limit'] is None and facts['episodes']['truncated']:
            longest = facts['episodes']['length_max']
            texts['time limit'] = f'no TimeLimit; the env truncates by itself, the longest episode had {longest} steps'
    if 'vectorization' in facts:
        texts['vectorization'] = f'{facts["vectorization"]}: {facts["vectorization_why"]}'
    texts |= {label: as_text(facts[key]) for key, (label, as_text) in AFTER_STEPS.items() if key in facts}
    return {label: text for label, text in texts.items() if text}


def _values(facts: Mapping[str, Any]) -> dict[str, str]:
    """The words for what the steps gave, by label."""
    keys = []
    for key in facts['info_keys']:
        if key not in facts['info_numbers']:
            key = f'{key} (no number)'
        keys.append(key)
    which = 'one env'
    if facts['envs'] != 1:
        which = f'{facts["envs"]} envs together'
    times = f'{facts["step_ms"]:.3g} ms for the step of an env, {facts["reset_ms"]:.3g} ms for a reset'
    return {
        **{f'{path} range': _range(seen) for path, seen in facts['obs'].items()},
        'reward range': _range(facts['reward']),
        'episodes': _episodes(facts['episodes']),
        'info at the end': ', '.join(keys) or 'none seen',
        'speed': f'{facts["steps_per_s"]:.4g} steps/s of {which}; {times}',
    }


def _range(seen: Mapping[str, float | None]) -> str:
    if seen['min'] is None:
        return 'no numbers'
    return f'{seen["min"]:.4g} to {seen["max"]:.4g}, mean {seen["mean"]:.4g}, std {seen["std"]:.4g}'


def _episodes(seen: Mapping[str, Any]) -> str:
    if not seen['count']:
        return 'none ended'
    return (
        f'{seen["count"]} ended ({seen["terminated"]} terminated, {seen["truncated"]} truncated) after '
        f'{seen["length_mean"]:.4g} steps on average, {seen["length_max"]} at most; returns {seen["return_min"]:.4g} to '
        f'{seen["return_max"]:.4g}, mean {seen["return_mean"]:.4g}'
    )


def _count(n: int, what: str) -> str:
    if n == 1:
        return f'1 {what}'
    return f'{n or "no"} {what}s'


@dataclass(frozen=True)
class EnvReport:
    """The report of `inspect_env`.

    Attributes:
      env: its name.
      problems: sentences about faults at which a run with env.check=true ends; none if the env keeps the contract.
      warnings: sentences about faults that do not end a run.
      facts: numbers, lists and text by name, times in ms; see docs/your_env.md. Empty if the env cannot be made.
    """

    env: str
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """The report for a terminal: a summary line, the problems, the warnings, then one fact per line."""
        counts = f'{_count(len(self.problems), "problem")}, {_count(len(self.warnings), "warning")}'
        steps = ''
        if 'steps' in self.facts:
            steps = f' in {_count(self.facts["steps"], "step")}'
        lines = [f'{self.env}: {counts}{steps}']
        lines += [f'problem: {sentence}' for sentence in self.problems]
        lines += [f'warning: {sentence}' for sentence in self.warnings]
        lines += [f'  {label:<17} {text}' for label, text in self.lines()]
        return '\n'.join(lines)

    def lines(self) -> Iterable[tuple[str, str]]:
        """The facts as (label, text)."""
        return _facts(self.facts).items()

    def to_json(self) -> dict[str, Any]:
        """The report in types of JSON; numbers are finite, or null."""
        return asdict(self)


def inspect_env(
    cfg: EnvConfig | Mapping[str, Any] | str | Callable[..., Any], n_step: int = 1000, limit_s: float = 60.0
) -> EnvReport:
    """Takes `n_step` random steps with an env, as `check_env` does, and reports all that it finds.

    It continues after a problem where it can. It times the env, and a worker process, to find the faster vectorization.
    Args:
      cfg: the section env, an id, or a class or function that makes an env.
      limit_s: seconds after which no more steps are begun; a slow env takes fewer than n_step.
    Raises: UserError if n_step is below 1 or no env has the id, its extra is missing, or it does not take env.kwargs.
    """
    if n_step < 1:
        raise UserError(f'inspect_env got n_step={n_step}, wanted 1 or more; leave it out for 1000 steps.')
    if isinstance(cfg, gymnasium.Env | gymnasium.vector.VectorEnv):
        raise UserError(
            f'inspect_env got an env, {type(cfg).__name__}, but makes envs itself, some in other processes; give its class or '
            'a function that makes it'
        )
    if isinstance(cfg, str) or callable(cfg):
        cfg = {'id': cfg}
    cfg = env_config(cfg)
    inspection = _Inspection(cfg, n_step, limit_s)
    try:
        if vectorization_of(cfg) == 'batched':
            inspection.batched()
        else:
            inspection.single()
    except (UnknownEnvError, MissingExtraError, EnvKwargsError, ConfigError):
        raise
    except SeveralAgentsError:
        report: EnvReport = TOOL_REGISTRY.get('inspect_agents')(cfg, n_step, limit_s)
        return report
    except STOPS:
        raise
    except BaseException as error:
        inspection.add_problem(_sentence(error))
    return inspection.report()


class _Inspection:
    """Collects the problems, warnings and facts of a report."""

    def __init__(self, cfg: EnvConfig, n_step: int, limit_s: float) -> None:
        self._cfg = cfg
        self._n_step = n_step
        self._limit_s = limit_s
        self._name = env_name(cfg)
        self._problems: dict[str, str] = {}  # by kind
        self._warnings: list[str] = []
        self._facts: dict[str, Any] = {}
        self._is_alone = False  # whether a process can have one env only

    def add_problem(self, sentence: str, kind: str = '') -> None:
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.setdefault(kind or sentence, sentence)

    def report(self) -> EnvReport:
        return EnvReport(self._name, [*dict.fromkeys(self._problems.values())], self._warnings, self._facts)

    def single(self) -> None:
        """Inspects one env."""
        cfg = self._cfg
        env = make_env(cfg)
        try:
            obs_space, action_space = env_spaces(env, self._name)
            self._facts |= {
                'kind': 'one env',
                'wrappers': [type(one).__name__ for one in layers(env) if not isinstance(one, MaskEnv)][:-1],
            }
            self._add_spaces(env, obs_space, action_space)
            self._facts['time_limit'] = step_limit(env)
            self._add_pickle()
            seen = Recorder(None, self._limit_s)
            check = EnvCheck(env, cfg, seen, self.add_problem)
            try:
                self._add_findings(check.run(self._n_step))
                self._add_seed_0(env)
                self._try_second()
            except STOPS:
                raise
            except BaseException as error:
                self.add_problem(_sentence(error))
            self._add_values(seen, obs_space, action_space)
        finally:
            close_in_time({f'env {self._name!r}': env.close}, cfg.step_timeout)
        self._warnings += [finding.sentence for finding in equal_copies(cfg)]
        self._add_speed(seen, (env.observation_space, env.action_space))

    def batched(self) -> None:
        """Inspects two envs that step together; a run has env.collector_env_num of them."""
        cfg = self._cfg
        with closing(make_vector_env(cfg, N_ENV)) as env:
            seen = Recorder(env.autoreset, self._limit_s)
            self._facts['kind'] = f'a vector of envs, {env.autoreset} autoreset'
            self._add_spaces(env, env.obs_space, env.action_space)
            limit = step_limit_of(cfg)
            if limit is not None:
                self._facts['time_limit'] = limit
            try:
                self._add_findings(check_vector(env, cfg, self._n_step, seen))
            finally:
                self._add_values(seen, env.obs_space, env.action_space)
        try:
            self._warnings += [finding.sentence for finding in version_findings(cfg)]
        except EnvContractError as error:
            self.add_problem(str(error))
        self._facts |= VectorizationChoice('batched', f'{self._name} steps all its envs at once', None)._asdict()

    def _add_spaces(self, env: object, obs_space: Space, action_space: Space) -> None:
        self._facts |= {
            'obs_space': space_words(obs_space),
            'action_space': space_words(action_space),
            'unbounded': [*unbounded(obs_space, 'obs'), *unbounded(action_space, 'action')],
            'masks': self._mask_source(obs_space, env),
        }

    def _mask_source(self, obs_space: Space, env: object) -> str:
        """The source of the masks: 'info', 'method' or 'obs'; 'none' if there are none."""
        for layer in layers(env):
            if isinstance(layer, MaskEnv):
                return layer.source
        has_mask = isinstance(obs_space, Dict) and ACTION_MASK in obs_space.spaces
        if has_mask and self._cfg.action_mask != 'off':
            return 'obs'
        return 'none'

    def _add_findings(self, findings: list[Finding]) -> None:
        self._facts['repeats'] = not any(finding.is_chance for finding in findings)
        for finding in findings:
            if finding.is_chance and self._cfg.check == 'strict':
                self.add_problem(refused(finding.sentence))
            else:
                self._warnings.append(finding.sentence)

    def _add_seed_0(self, env: gymnasium.Env) -> None:
        """Warns if the seed 0 alone is ignored, as by `if seed:`; other programs use it more than any other seed."""
        if not self._facts['repeats']:
            return
        fault = EnvCheck(env, self._cfg, report=self.add_problem, seed=0).seed_fault()
        if fault is not None:
            self._warnings.append(
                f'env {self._name!r}: the seed 0 is not honoured, though others are: {fault}; runs of zoo give envs other '
                'seeds; test `if seed is not None` in place of `if seed`.'
            )

    def _try_second(self) -> None:
        """Tries whether a second env can be made in the same process, as a run with env.vectorization=sync does."""
        cfg = self._cfg
        if vectorization_of(cfg) != 'sync':
            return
        try:
            second = make_env(cfg)
        except STOPS:
            raise
        except BaseException as error:
            self._is_alone = True
            self.add_problem(
                f'env {self._name!r}: one env can be made in a process, and a second one cannot ({show_error(error)} at '
                f'{raised_at(error)}); set env.vectorization=async, which gives each a process of its own.'
            )
            return
        close_in_time({f'env {self._name!r}': second.close}, cfg.step_timeout)

    def _add_values(self, seen: Recorder, obs_space: Space, action_space: Space) -> None:
        self._facts |= {'repeats': None, **self._facts, **seen.facts()}
        self._warnings += scale_warnings(self._cfg, self._name, seen, obs_space, action_space)

    def _add_speed(self, seen: Recorder, spaces: tuple[gymnasium.Space, gymnasium.Space]) -> None:
        if not seen.n_step:
            return
        if self._is_alone:
            why = 'a process can have one env only'
            self._facts |= VectorizationChoice('async', why, None)._asdict()
            return
        self._facts |= advise(self._cfg, seen.step_s / seen.n_step, spaces)._asdict()

    def _add_pickle(self) -> None:
        """Finds out whether the maker of the env can be pickled, which a process needs unless it is started by fork."""
        fault = None
        try:
            pickle.dumps(CloudpickleWrapper(EnvMaker(self._cfg)))
        except Exception as error:
            fault = show_error(error)
        self._facts['picklable'] = fault is None
        if fault is not None and multiprocessing.get_start_method() != 'fork':
            self._warnings.append(
                f'env {self._name!r}: what makes it cannot be sent to another process ({fault}), so env.vectorization=async '
                'is not possible; make it by a function of a module, and open files and devices in there.'
            )


def _sentence(error: BaseException) -> str:
    """The sentence about an exception: its text, or what the env's code raised and where."""
    if isinstance(error, EnvError | UserError):
        return str(error)
    sentence = f'its code raised {show_error(error)}'
    where, at = getattr(error, 'env_place', ('', ''))
    if where:
        sentence = f'{where}: {sentence}'
    if at:
        sentence = f'{sentence} at {at}'
    return f'{sentence}; fix it there.'
