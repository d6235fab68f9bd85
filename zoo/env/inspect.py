"""All that can be found out about an env in some steps: problems, warnings, and facts that help to choose a config."""

from __future__ import annotations

import multiprocessing
import pickle
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.vector.utils import CloudpickleWrapper

from zoo.config.section import ConfigError
from zoo.core.errors import UserError, show_error
from zoo.core.spaces import ACTION_MASK, Dict, Space
from zoo.env.adapter import env_spaces
from zoo.env.check import is_vector, refused
from zoo.env.check_family import N_ENV, Finding, check_vector
from zoo.env.check_single import EnvCheck
from zoo.env.check_wrappers import layers, step_limit
from zoo.env.closing import close_in_time
from zoo.env.config import EnvConfig, env_config
from zoo.env.errors import EnvError, EnvKwargsError, MissingExtraError, UnknownEnvError
from zoo.env.inspect_speed import advise
from zoo.env.inspect_text import report_text
from zoo.env.inspect_values import Recorder, scale_warnings, space_words, unbounded
from zoo.env.make import EnvMaker, env_name, make_env
from zoo.env.make_vector import make_vector_env, vectorization_of
from zoo.env.wrappers import MaskEnv

MAX_PROBLEMS = 20


@dataclass(frozen=True)
class EnvReport:
    """What `inspect_env` found.

    Attributes:
      env: its name.
      problems: sentences about what a run with env.check=true would end at; none of an env that keeps the contract.
      warnings: sentences about what a run can live with.
      facts: numbers, lists and text by name, times in ms; see docs/your_env.md. Of an env that cannot be made: none.
    """

    env: str
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        """The report in lines, for a terminal."""
        return report_text(self.env, self.problems, self.warnings, self.facts)

    def to_json(self) -> dict[str, Any]:
        """The report in what JSON has: numbers are finite, or null."""
        return {'env': self.env, 'problems': self.problems, 'warnings': self.warnings, 'facts': self.facts}


def inspect_env(cfg: Any, n_step: int = 1000, limit_s: float = 60.0) -> EnvReport:
    """Takes `n_step` random steps with an env, as `check_env` does, and reports all that it finds.

    It continues after a problem where it can. It times the env, and a worker process, to say which vectorization pays.
    Args:
      cfg: the section env, an id, or a class or function that makes an env.
      limit_s: seconds after which no more steps are begun; a slow env takes fewer than n_step.
    Raises: UserError if n_step is below 1 or no env has the id, its extra is missing, or it does not take env.kwargs.
    """
    if n_step < 1:
        raise UserError(f'inspect_env got n_step={n_step}, wanted 1 or more; leave it out for 1000 steps.')
    cfg = _config_of(cfg)
    inspection = _Inspection(cfg, n_step, limit_s)
    try:
        (inspection.family if is_vector(cfg) else inspection.single)()
    except (UnknownEnvError, MissingExtraError, EnvKwargsError, ConfigError):
        raise
    except (Exception, SystemExit) as error:
        inspection.add_problem(_sentence(error))
    return inspection.report()


def _config_of(env: Any) -> EnvConfig:
    """The section of an env that was given as one, as an id, or as what makes it. Raises: UserError for an env itself."""
    if isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv):
        raise UserError(
            f'inspect_env got an env, {type(env).__name__}, but makes envs itself, some in other processes; give its class or '
            'a function that makes it'
        )
    return env_config({'id': env} if isinstance(env, str) or callable(env) else env)


class _Inspection:
    """Collects what becomes a report."""

    def __init__(self, cfg: EnvConfig, n_step: int, limit_s: float) -> None:
        self._cfg, self._n_step, self._limit_s = cfg, n_step, limit_s
        self._name = env_name(cfg)
        self._problems: dict[str, str] = {}  # by kind
        self._warnings: list[str] = []
        self._facts: dict[str, Any] = {}

    def add_problem(self, sentence: str, kind: str = '') -> None:
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.setdefault(kind or sentence, sentence)

    def report(self) -> EnvReport:
        return EnvReport(self._name, [*dict.fromkeys(self._problems.values())], self._warnings, self._facts)

    def single(self) -> None:
        """Looks at one env."""
        cfg = self._cfg
        env = make_env(cfg)
        try:
            obs_space, action_space = env_spaces(env, self._name)
            self._facts |= {'kind': 'one env', 'wrappers': [type(layer).__name__ for layer in layers(env)][:-1]}
            self._add_spaces(env, obs_space, action_space)
            self._facts['time_limit'] = step_limit(env)
            self._add_pickle()
            seen = Recorder(None, self._limit_s)
            check = EnvCheck(env, cfg, seen, self.add_problem)
            try:
                self._add_findings(check.run(self._n_step))
            except (Exception, SystemExit) as error:
                self.add_problem(_sentence(error))
            self._add_values(seen, obs_space, action_space)
        finally:
            close_in_time({f'env {self._name!r}': env.close}, cfg.step_timeout)
        self._add_speed(seen, (env.observation_space, env.action_space))

    def family(self) -> None:
        """Looks at two envs that step together, of which a run has as many as env.collector_env_num says."""
        cfg = self._cfg
        with closing(make_vector_env(cfg, N_ENV)) as env:
            seen = Recorder(env.autoreset, self._limit_s)
            self._facts['kind'] = f'a vector of envs, {env.autoreset} autoreset'
            self._add_spaces(env, env.obs_space, env.action_space)
            if cfg.max_episode_steps is not None:
                self._facts['time_limit'] = cfg.max_episode_steps
            try:
                self._add_findings(check_vector(env, cfg, self._n_step, seen))
            finally:
                self._add_values(seen, env.obs_space, env.action_space)
        why = f'{self._name} steps all its envs at once'
        self._facts |= {'vectorization': 'batched', 'vectorization_why': why, 'worker_ms': None}

    def _add_spaces(self, env: Any, obs_space: Space, action_space: Space) -> None:
        self._facts |= {
            'obs_space': space_words(obs_space),
            'action_space': space_words(action_space),
            'unbounded': [*unbounded(obs_space, 'obs'), *unbounded(action_space, 'action')],
            'masks': self._mask_source(obs_space, env),
        }

    def _mask_source(self, obs_space: Space, env: Any) -> str:
        """'info', 'method' or 'obs', where the masks are; 'none'."""
        for layer in layers(env):
            if isinstance(layer, MaskEnv):
                return layer.source
        has_mask = isinstance(obs_space, Dict) and ACTION_MASK in obs_space.spaces
        return 'obs' if has_mask and self._cfg.action_mask != 'off' else 'none'

    def _add_findings(self, findings: list[Finding]) -> None:
        self._facts['repeats'] = not any(is_chance for _, is_chance in findings)
        for sentence, is_chance in findings:
            if is_chance and self._cfg.check == 'strict':
                self.add_problem(refused(sentence))
            else:
                self._warnings.append(sentence)

    def _add_values(self, seen: Recorder, obs_space: Space, action_space: Space) -> None:
        self._facts |= {'repeats': None, **self._facts, **seen.facts()}
        self._warnings += scale_warnings(self._cfg, self._name, seen, obs_space, action_space)

    def _add_speed(self, seen: Recorder, spaces: tuple[gymnasium.Space, gymnasium.Space]) -> None:
        if not seen.n_step:
            return
        if vectorization_of(self._cfg) == 'batched':
            why = f'gymnasium has a batched version of {self._name}, which steps all its envs at once'
            self._facts |= {'vectorization': 'batched', 'vectorization_why': why, 'worker_ms': None}
            return
        advice = advise(self._cfg, seen.step_s / seen.n_step, spaces)
        self._facts |= {
            'vectorization': advice.vectorization,
            'vectorization_why': advice.why,
            'worker_ms': advice.worker_ms,
        }

    def _add_pickle(self) -> None:
        """Whether another process can be given what makes the env: all but those begun by fork need that."""
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
    """What was raised in the env, and where."""
    if isinstance(error, EnvError | UserError):
        return str(error)
    where, at = getattr(error, 'env_place', ('', ''))
    return (
        f'{where + ": " if where else ""}its code raised {show_error(error)}{" at " + at if at else ""}; mend it there.'
    )
