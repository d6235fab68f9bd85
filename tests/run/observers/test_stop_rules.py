"""Stop rules: their thresholds, configs and order, their state in a resume, and refused rules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.policy_envs import job_config
from zoo import StopRule
from zoo.config.section import ConfigError
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import load_checkpoint
from zoo.run.config import resolve_config
from zoo.run.observers.stop_rules import StopRuleError, StopRules

HERE = __name__
JOB: Any = SimpleNamespace(wall_s=10.0, n_iteration=4, train_iter=32, env_step=256)


def evaluated(rules: StopRules, *returns: float) -> list[bool]:
    """Returns, for each evaluation, whether the rules stop the run after it."""
    answers = []
    for value in returns:
        rules.see(JOB, {'learn/train_iter': 1.0})
        rules.see(JOB, {'eval/return_mean': value})
        answers.append(rules.reason(JOB) is not None)
    return answers


def high(metrics: Any) -> bool:
    return metrics.get('eval/return_mean', 0) >= 2


def at_second(metrics: Any) -> bool:
    return metrics.get('collect/iter', 0) == 2


def late(job: Any, *, n: int = 3) -> str | None:
    return f'{job.n_iteration} is enough' if job.n_iteration >= n else None


def both(job: Any, metrics: Any) -> Any:
    return torch.tensor(job.n_iteration == 4 and 'eval/return_mean' in metrics)


def wrong(state: Any) -> bool:
    return True


def broken(metrics: Any) -> bool:
    return bool(metrics['no_such_metric'])


class Third(StopRule):
    """Rule that stops the run at the n-th line of the log."""

    def __init__(self, *, n: int = 3) -> None:
        self.n, self.seen = n, 0

    def see(self, job: Any, metrics: Any) -> None:
        self.seen += 1

    def reason(self, job: Any) -> str | None:
        return 'that was the third' if self.seen >= self.n else None

    def state_dict(self) -> dict[str, Any]:
        return {'seen': self.seen}

    def load_state_dict(self, state: Any) -> None:
        self.seen = state['seen']


@pytest.mark.parametrize(
    ('rule', 'answers'),
    [
        (f'{HERE}:high', [False, True]),
        ({'type': f'{HERE}:late', 'n': 4}, [True, True]),
        ({'type': f'{HERE}:late', 'n': 5}, [False, False]),
        (f'{HERE}:both', [True, True]),
        (f'{HERE}:Third', [False, True]),
        ({'type': f'{HERE}:Third', 'n': 5}, [False, False]),
    ],
)
def test_own_function_or_class_is_asked(rule: Any, answers: list[bool]) -> None:
    assert evaluated(StopRules([rule]), 1, 2) == answers


def _after(n: int, job: Any) -> bool:
    return bool(job.n_iteration >= n)


class _After:
    def __init__(self, n: int) -> None:
        self._n = n

    def __call__(self, job: Any) -> bool:
        return _after(self._n, job)


@pytest.mark.parametrize('make', [_After, lambda n: partial(_after, n)], ids=['objects', 'partials'])
def test_two_objects_of_a_class_are_two_rules(make: Any, tmp_path: Path) -> None:
    result = serial_pipeline(job_config(tmp_path, stop=[make(2), make(3)]))
    assert result.env_step == 2 * 64 and result.stop_reason.endswith('says so')


def test_object_without_a_hash_is_refused_in_a_sentence(tmp_path: Path) -> None:
    @dataclass
    class Rule(_After):
        n: int

    with pytest.raises(ConfigError, match=r'Rule, whose objects have no hash; write `@dataclass\(eq=False\)`'):
        serial_pipeline(job_config(tmp_path, stop=[Rule(2)]))
    job = resolve_config(job_config(tmp_path, stop=[Rule]))  # the class itself has a hash
    assert job.stop[0].endswith('Rule')


def test_two_lambdas_are_two_rules(tmp_path: Path) -> None:
    rules = [lambda metrics: False, lambda metrics: 'the second']
    config = resolve_config(job_config(tmp_path, stop=rules))
    assert StopRules(config.stop).reason(JOB) is None
    assert evaluated(StopRules(config.stop), 1) == [True]


def test_function_of_other_arguments_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"'.*:wrong', which takes \(state\) but is called with job, metrics or both"):
        StopRules([f'{HERE}:wrong'])


@pytest.mark.parametrize(
    ('stop', 'words'),
    [
        ([{'type': 'patiance', 'n': 1}], "unknown stop rule 'patiance': did you mean 'patience'"),
        ([{'type': 'wall_time'}], 'stop.s is missing'),
        ([{'type': 'wall_time', 's': 0}], 'stop.s is 0'),
        ([{'type': 'bound', 'metric': 'a'}], 'has neither above nor below'),
        ([{'type': 'iterations', 'm': 3}], 'the keys of stop are n, type'),
        (['no_such_module_here:f'], "names the module 'no_such_module_here', which is not found"),
        ('patience', 'stop is .patience.* must be a list'),
    ],
)
def test_config_with_a_wrong_rule_is_refused_with_the_right_word(stop: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        resolve_config(job_config(tmp_path, stop=stop))


def run(root: Path, stop: list[Any], **sections: Any) -> Any:
    """Runs at most 16 rounds of 64 env steps, with an evaluation after each; every episode has the same return."""
    config = job_config(root, max_env_step=1024, policy={'eval': {'eval_freq': 64}}, **sections)
    return serial_pipeline({**config, 'stop': stop})


def test_run_ends_by_rule_with_its_reason_in_log_and_result(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level('INFO'):
        result = run(tmp_path, [{'type': 'iterations', 'n': 3}])
    assert (result.env_step, result.stop_reason) == (192, '3 rounds are done')
    assert 'the run ends after this round: 3 rounds are done' in caplog.text


@pytest.mark.slow
def test_run_without_rules_has_no_reason_and_no_state(tmp_path: Path) -> None:
    result = run(tmp_path, [])
    assert (result.env_step, result.stop_reason) == (1024, '')
    assert 'stop' not in load_checkpoint(result.run_dir).state


def test_run_on_a_plateau_of_five_evaluations_ends_at_the_fifth(tmp_path: Path) -> None:
    result = run(tmp_path, [{'type': 'patience', 'n': 5}])
    assert result.env_step == 6 * 64  # the first is the best; none of the five after it is better


@pytest.mark.slow
def test_resume_counts_on_and_a_rule_that_holds_ends_it_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = run(tmp_path, [f'{HERE}:Third', {'type': 'patience', 'n': 5}])
    assert first.env_step == 2 * 64  # 2 lines a round: line 3 is in round 2
    again = serial_pipeline(resume=first.run_dir)
    assert again.env_step == first.env_step and again.stop_reason == 'that was the third'
    assert 'this run ends by a stop rule: that was the third' in caplog.text
    last = serial_pipeline(resume=first.run_dir, overrides=['stop=[{type: patience, n: 5}]'])
    assert last.env_step == 6 * 64


def test_rule_that_raises_ends_the_run_by_its_name_and_the_run_is_saved(tmp_path: Path) -> None:
    with pytest.raises(StopRuleError, match=r'stop rule .*:broken raised KeyError.*test_stop_rules.py:\d+'):
        run(tmp_path, [f'{HERE}:broken'])
    (run_dir,) = (tmp_path / 'run').iterdir()
    assert list(run_dir.glob('checkpoints/step_*.safetensors'))


def test_state_goes_to_the_rule_of_its_name() -> None:
    first = StopRules([{'type': 'patience', 'n': 3}])
    evaluated(first, 5, 5, 5)
    second = StopRules([{'type': 'wall_time', 's': 99}, {'type': 'patience', 'n': 3}])
    second.load_state_dict(first.state_dict())
    assert evaluated(second, 5) == [True]


def bound(metric: str) -> dict[str, Any]:
    return {'type': 'bound', 'metric': metric, 'above': 5.0}


def patience(metric: str) -> dict[str, Any]:
    return {'type': 'patience', 'metric': metric, 'n': 1}


@pytest.mark.parametrize(('rule', 'values'), [(bound, (9.0,)), (patience, (1.0, 1.0))])
def test_state_goes_to_the_rule_of_its_metric(rule: Any, values: tuple[float, ...]) -> None:
    first = StopRules([rule('eval/return_mean'), rule('learn/kl')])
    for value in values:  # the first rule wants to stop, the second one does not
        first.see(JOB, {'eval/return_mean': value})
    state = first.state_dict()
    swapped = StopRules([rule('learn/kl'), rule('eval/return_mean')])
    swapped.load_state_dict(state)
    assert swapped.reason(JOB) == first.reason(JOB) is not None and 'eval/return_mean' in str(swapped.reason(JOB))
    for kept, holds in (('learn/kl', False), ('learn/value_loss', False), ('eval/return_mean', True)):
        second = StopRules([rule(kept)])
        second.load_state_dict(state)
        assert (second.reason(JOB) is not None) == holds, kept


@pytest.mark.parametrize(('n_then', 'n_now', 'is_taken'), [(1, 1, True), (2, 1, False), (1, 2, False), (2, 2, False)])
def test_state_of_an_older_version_without_metric_is_taken_where_it_is_clear_whose_it_is(
    n_then: int, n_now: int, is_taken: bool
) -> None:
    metrics = ['eval/return_mean', 'learn/kl']
    rules = StopRules([bound(metric) for metric in metrics[:n_now]])
    rules.load_state_dict({str(i): {'rule': 'bound', 'value': 9.0} for i in range(n_then)})
    assert (rules.reason(JOB) is not None) == is_taken


@pytest.mark.slow
def test_function_of_metrics_keeps_its_answer_over_a_resume(tmp_path: Path) -> None:
    first, second, old = (StopRules([f'{HERE}:high', f'{HERE}:late']) for _ in range(3))
    assert evaluated(first, 1, 2, 1) == [True] * 3  # 'high' remembers that it said stop; 'late' has no state
    second.load_state_dict(first.state_dict())
    assert second.reason(JOB) == first.reason(JOB) and 'high says so' in str(second.reason(JOB))
    old.load_state_dict({'0': {'rule': f'{HERE}:high'}, '1': {'rule': f'{HERE}:late'}})
    assert 'enough' in str(old.reason(JOB))
    with pytest.raises(TypeError, match='should be a text'):
        old.load_state_dict({'0': {'rule': f'{HERE}:high', 'answer': 3}})
    ended = run(tmp_path, [f'{HERE}:at_second'])
    again = serial_pipeline(resume=ended.run_dir, max_env_step=2048)
    assert again.env_step == ended.env_step == 2 * 64 and again.stop_reason == ended.stop_reason


# --- each rule at its threshold and not before ---


@pytest.mark.parametrize(
    ('options', 'returns', 'stops_at'),
    [
        ({'n': 5}, [1, 3, 3, 3, 2, 3, 1], 7),  # 3, 3, 2, 3, 1: five without a new best
        ({'n': 2}, [1, 1, 2, 2, 2], 5),  # a new best begins the count again
        ({'n': 2, 'min_eval': 5}, [1, 1, 1, 1, 1], 5),
        ({'n': 2, 'min_delta': 0.5}, [1, 1.5, 1.5], 3),
        ({'n': 2}, [1, float('nan'), float('nan')], 3),  # NaN is never a new best
    ],
)
def test_patience_stops_at_the_last_evaluation_without_a_new_best(
    options: dict[str, Any], returns: list[float], stops_at: int
) -> None:
    rules = StopRules([{'type': 'patience', **options}])
    assert evaluated(rules, *returns) == [False] * (stops_at - 1) + [True]
    if options == {'n': 5}:
        assert rules.reason(JOB) == '5 evaluations in a row had no eval/return_mean above 3'


@pytest.mark.parametrize(
    ('rule', 'stops'),
    [
        ({'type': 'wall_time', 's': 10.0}, True),
        ({'type': 'wall_time', 's': 10.1}, False),
        ({'type': 'iterations', 'n': 4}, True),
        ({'type': 'iterations', 'n': 5}, False),
        ({'type': 'train_iter', 'n': 32}, True),
        ({'type': 'train_iter', 'n': 33}, False),
        ({'type': 'env_step', 'n': 256}, True),
        ({'type': 'env_step', 'n': 257}, False),
    ],
)
def test_counts_stop_at_their_number_and_not_before(rule: dict[str, Any], stops: bool) -> None:
    assert (StopRules([rule]).reason(JOB) is not None) == stops


def test_reason_of_wall_time_has_the_digits_that_it_is_about() -> None:
    assert StopRules([{'type': 'wall_time', 's': 0.5}]).reason(JOB) == '10.00 of 0.50 seconds have passed'
    assert StopRules([{'type': 'wall_time', 's': 10.0}]).reason(JOB) == '10 of 10 seconds have passed'


@pytest.mark.parametrize(
    ('bound', 'value', 'stops'),
    [
        ({'above': 0.1}, 0.11, True),
        ({'above': 0.1}, 0.1, False),
        ({'below': 0.1}, 0.09, True),
        ({'below': 0.1}, 0.1, False),
        ({'above': 0.1, 'below': 0.0}, float('nan'), False),
    ],
)
def test_bound_stops_beyond_it_only(bound: dict[str, float], value: float, stops: bool) -> None:
    rules = StopRules([{'type': 'bound', 'metric': 'learn/kl', **bound}])
    assert rules.reason(JOB) is None
    rules.see(JOB, {'learn/kl': value})
    assert (rules.reason(JOB) is not None) == stops


def test_bound_on_a_metric_that_no_line_has_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    rules = StopRules([{'type': 'bound', 'metric': 'learn/train_itre', 'above': 1}])
    evaluated(rules, 1, 2, 3)
    (record,) = caplog.records
    assert "had the metric 'learn/train_itre' so far: did you mean learn/train_iter?" in record.getMessage()


class _Counts(StopRule):
    """Rule that counts lines with numpy, like rules that take a mean or a maximum."""

    def __init__(self) -> None:
        self.n = np.int64(0)

    def see(self, job: Any, metrics: Any) -> None:
        self.n += 1

    def reason(self, job: Any) -> str | None:
        return None

    def state_dict(self) -> dict[str, Any]:
        return {'n': self.n}


def test_rule_may_keep_numbers_of_numpy(tmp_path: Path) -> None:
    result = serial_pipeline(job_config(tmp_path, stop=[_Counts]))
    assert load_checkpoint(result.run_dir).state['stop']['0']['n'] == 5  # 4 rollouts and the last evaluation
