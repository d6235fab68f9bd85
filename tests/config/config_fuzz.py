"""Changes random keys of a config, passes it to zoo as a dict, a file or overrides, and trains if zoo accepts it.

    python -m tests.config.config_fuzz FOLDER SEED N

The keys come from the schema, so new keys are covered automatically. Prints each kind of failure once; the last line is
JSON: the number of cases by outcome, and the kinds of failure. Not a failure: a UserError or RunError whose problems are
one line each; a config that resolves and, unless it would take too long, trains one iteration and saves.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import itertools
import json
import logging
import math
import os
import signal
import sys
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import hypothesis
import yaml
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from zoo.config.section import Section, fields_of, is_section, sections_of
from zoo.core.errors import RunError, UserError, shown
from zoo.core.registry import BUFFER_REGISTRY, MODEL_REGISTRY, POLICY_REGISTRY
from zoo.run.checkpoint.file import load_checkpoint
from zoo.run.checkpoint.schema import saved_run
from zoo.run.config import job_schema, resolve_config
from zoo.run.job import SerialJob

LIMIT_S = 60
BASE: dict[str, Any] = {
    'exp_name': 'fuzz',
    'max_env_step': 1_000,
    'env': {'id': 'CartPole-v1', 'collector_env_num': 2, 'evaluator_env_num': 1, 'vectorization': 'sync'},
    'policy': {
        'model': {'hidden_sizes': [8]},
        'learn': {'batch_size': 8},
        'collect': {'n_step': 8},
        'eval': {'n_episode': 1},
    },
    'logger': {'console': 'off', 'tensorboard': False},
}
PPG = {'policy': {'learn': {'aux_freq': 1, 'aux_batch_size': 8}}}
DRAW = {'n_sample': 16, 'update_per_collect': 2}
BUFFERS: dict[str, dict[str, Any]] = {
    'rollout': {},
    'replay': {'size': 64, **DRAW},
    'multi': {'size': 64, 'policy': DRAW, 'value': DRAW},
}
ENVS = ('CartPole-v1', 'Pendulum-v1')  # discrete and continuous actions
SLOW = {  # keys whose large values are valid but slow: configs that pass are trained with these values
    'policy.learn.epoch_per_collect': 1,
    'policy.learn.actor_epoch_per_collect': 1,
    'policy.learn.critic_epoch_per_collect': 1,
    'policy.learn.aux_train_epoch': 1,
    'policy.learn.compile': 'off',
    'buffer.update_per_collect': 1,
    'buffer.policy.update_per_collect': 1,
    'buffer.value.update_per_collect': 1,
}
MOST_ROWS = 4_096  # larger rollouts are resolved but not trained
"""Larger rollouts that fit in memory are valid, but slow."""


class Case(NamedTuple):
    """A config to try: the env, the types of its sections, the changed keys, and the form in which zoo gets it."""

    env: str
    policy: str
    model: str
    buffer: str
    changes: dict[str, Any]
    form: Literal['dict', 'yaml', 'python', 'overrides']


class TooLong(BaseException):
    """Raised if a case does not end in time."""


TEXTS = st.one_of(
    st.sampled_from(
        ['', ' ', 'auto', 'none', 'off', 'a\nb', '\x00', '\x1b[31m', '\ud800', '../x', 'x' * 300, 'x' * 5_000]
    ),
    st.sampled_from(['os:system', 'no.such:thing', 'CartPole-v1', 'mlp', 'cuda:99', '1e-3', '[' * 3_000, '1' * 10_000]),
    st.text(max_size=8),
)
INTS = st.one_of(
    st.sampled_from([0, 1, 2, 3, 4, 8, 16, 64, -1, -5, 10**9, 2**31, 2**53, 2**62, 2**63, 2**64, 10**30]),
    st.builds(pow, st.just(10), st.just(5_000)),  # Python refuses to print this number
    st.integers(),
)
FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, 1e-320, 1e-30, 0.5, 1.0, 2.0, 1e30, 1e300, math.inf, -math.inf, math.nan, -1.0]),
    st.floats(),
)
LEAVES = st.one_of(st.none(), st.booleans(), INTS, FLOATS, TEXTS)
JUNK = st.recursive(
    st.one_of(LEAVES, st.sampled_from([b'x', {1, 2}, 1j, print, object])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(TEXTS, st.integers(0, 3)), inner, max_size=3)
    ),
    max_leaves=6,
)
UNKNOWN_KEYS = st.one_of(TEXTS, st.sampled_from(['lr', 'items', 'policy.learn.lr', 'gamma', 'type', 'model']))


def fitting(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, inside its range or close to it."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return fitting(args[0])
    if origin in (Union, types.UnionType):
        return st.one_of([fitting(arg) for arg in args])
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (list, tuple):
        return st.lists(fitting(args[0]), max_size=3)
    if isinstance(annotation, type) and issubclass(annotation, Section):
        fields = {key: fitting(field.annotation) for key, field in annotation.model_fields.items()}
        return st.fixed_dictionaries({}, optional=fields)
    simple = {
        bool: st.booleans(),
        int: st.sampled_from([1, 2, 3, 4, 8, 16, 32, 100, 10**9]),
        float: st.sampled_from([1e-8, 1e-3, 0.1, 0.5, 0.9, 1.0, 2.0, 10.0, 1e30]),
        str: TEXTS,
        type(None): st.none(),
    }
    return simple.get(annotation, JUNK)


def all_kinds() -> Iterator[tuple[str, str, str]]:
    """All policies, each with every model and buffer that it accepts."""
    for policy, model, buffer in itertools.product(
        *(r.names() for r in (POLICY_REGISTRY, MODEL_REGISTRY, BUFFER_REGISTRY))
    ):
        made = POLICY_REGISTRY.get(policy)
        if (made.takes_separate_draws or buffer != 'multi') and (
            not made.takes_separate_draws or model == made.default_model()
        ):
            yield policy, model, buffer


@functools.cache
def fields_in(policy: str, model: str, buffer: str) -> dict[str, FieldInfo]:
    """All keys of the schema, by path."""
    named = {'policy': {'type': policy, 'model': {'type': model}}, 'buffer': {'type': buffer}}
    return dict(fields_of(job_schema(named)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """One to three changed keys, and sometimes one more key that may not exist."""
    kinds = draw(st.sampled_from(list(all_kinds())))
    fields = fields_in(*kinds)
    changes = {}
    n_change = draw(st.sampled_from([1, 1, 2, 3]))
    for path in draw(st.lists(st.sampled_from(sorted(fields)), min_size=1, max_size=n_change, unique=True)):
        field = fields[path]
        suitable = fitting(field.annotation) if not is_section(field) else fitting(sections_of(field.annotation)[0])
        changes[path] = draw(JUNK if draw(st.integers(0, 2)) == 2 else suitable)
    if draw(st.integers(0, 9)) == 0:
        section = draw(st.sampled_from(['', *(f'{path}.' for path, field in fields.items() if is_section(field))]))
        changes[section + draw(UNKNOWN_KEYS)] = draw(JUNK)
    return Case(
        draw(st.sampled_from(ENVS)), *kinds, changes, draw(st.sampled_from(['dict', 'yaml', 'python', 'overrides']))
    )


def merged(data: Any, more: Any) -> Any:
    """Nested dicts merged into one; the second takes precedence."""
    if not isinstance(data, dict) or not isinstance(more, dict):
        return more
    return {**data, **{key: merged(data.get(key), value) for key, value in more.items()}}


def put(data: dict[str, Any], path: str, value: Any) -> None:
    """Sets the value at a dotted path; a parent that is not a dict is replaced by a dict."""
    *parents, last = path.split('.')
    for key in parents:
        data[key] = data[key] if isinstance(data.get(key), dict) else {}
        data = data[key]
    data[last] = value


def given(case: Case, folder: Path) -> tuple[Any, list[str]]:
    """The source and the overrides of a case, as `resolve_config` takes them."""
    data = copy.deepcopy(merged(BASE, PPG) if case.policy.startswith('ppg') else BASE)
    put(data, 'env.id', case.env)
    put(data, 'policy.type', case.policy)
    put(data, 'policy.model.type', case.model)
    data['buffer'] = {'type': case.buffer, **copy.deepcopy(BUFFERS.get(case.buffer, {}))}
    if case.form == 'overrides':
        return data, [f'{path}={_text(value)}' for path, value in case.changes.items()]
    for path, value in case.changes.items():
        put(data, path, value)
    if case.form == 'dict':
        return data, []
    path = folder / f'fuzz_{case.form}.{"py" if case.form == "python" else "yaml"}'
    path.unlink(missing_ok=True)
    text = f'from math import inf, nan\nconfig = {_source(data)}\n' if case.form == 'python' else yaml.dump(data)
    path.write_text(text, encoding='utf-8', errors='surrogatepass')
    return path, []


def _text(value: Any) -> str:
    try:
        return value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True, width=10**9).strip()
    except (yaml.YAMLError, ValueError):
        return f'{type(value).__name__} that no text is of'


def _source(value: Any) -> str:
    """Python source of nested data; functions and classes are written by name."""
    if isinstance(value, dict):
        return f'{{{", ".join(f"{_source(k)}: {_source(v)}" for k, v in value.items())}}}'
    if isinstance(value, list):
        return f'[{", ".join(map(_source, value))}]'
    if isinstance(value, int) and abs(value) > 10**4_000:
        return '10**5000'
    return value.__name__ if callable(value) else repr(value)


class Fuzz:
    """Tries cases and records the results: the number of cases by outcome, and failures by kind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ends: Counter[str] = Counter()
        self.failures: dict[str, str] = {}

    def try_case(self, case: Case) -> None:
        """Runs one case and records its outcome."""
        try:
            with _deadline():
                end = self._run(case)
        except (Exception, TooLong) as error:
            end = 'failure'
            place = traceback.extract_tb(error.__traceback__)[-1]
            kind = f'{type(error).__name__} at {place.filename}:{place.lineno}: {shown(str(error))}'
            if kind not in self.failures:
                lines = ''.join(traceback.format_exception(error))
                self.failures[kind] = f'{shown(case, 600)}\n{lines[-2_500:]}'
                print(f'--- {kind}\n{self.failures[kind]}', flush=True)
        self.ends[end] += 1

    def _run(self, case: Case) -> str:
        try:
            source, overrides = given(case, self._folder)
        except (
            yaml.YAMLError,
            ValueError,
        ):  # this file cannot be written: a lone surrogate, an object, a number of 5,001 digits
            source, overrides = given(case._replace(form='dict'), self._folder)
        try:
            cfg = resolve_config(source, overrides)
        except (UserError, RunError) as error:
            _check_sentences(error)
            return 'refused'
        try:
            return 'trained' if self._train(cfg) else 'resolved'
        except (UserError, RunError) as error:
            _check_sentences(error)
            return 'refused later'

    def _train(self, cfg: Any) -> bool:
        """Trains one iteration and reads its checkpoint; returns False, untrained, if that would take too long."""
        if cfg.policy.collect.n_step * cfg.env.collector_env_num > MOST_ROWS or cfg.env.collector_env_num > 64:
            return False
        if (
            min(cfg.env.evaluator_env_num, cfg.policy.eval.n_episode) > 64
            or cfg.policy.learn.get('executor') == 'graph'
        ):
            return False
        for path, few in SLOW.items():
            section = cfg
            for key in path.split('.')[:-1]:
                section = section.get(key) or {}
            if (last := path.split('.')[-1]) in section:
                section[last] = few
        cfg.policy.eval.n_episode = 1
        cfg.logger.root = cfg.logger.root if len(cfg.logger.root) > 20 else str(self._folder)
        with SerialJob(cfg) as job:
            if not job.done:
                job.iteration()
            job.save()
        saved_run(load_checkpoint(job.run_dir))
        return True


def _check_sentences(error: Exception) -> None:
    """Asserts that each problem is one printable line of limited length."""
    problems = getattr(error, 'problems', [str(error)])
    for problem in problems:
        assert problem and problem.isprintable(), f'{problem!r:.300} is no line'
        assert len(problem) < 2_000, f'{problem!r:.300} is too long'


@contextlib.contextmanager
def _deadline() -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        raise TooLong(f'more than {LIMIT_S} s')

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run_cases(folder: Path, seed: int, n: int) -> Fuzz:
    """Tries n cases in `folder`, which becomes the current one; the same seed gives the same cases."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter('ignore')
    os.chdir(folder)
    fuzz = Fuzz(folder)

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=n,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(cases())
    def each(case: Case) -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            fuzz.try_case(case)

    each()
    return fuzz


if __name__ == '__main__':
    found = run_cases(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps({'ends': found.ends, 'faults': list(found.failures)}))
