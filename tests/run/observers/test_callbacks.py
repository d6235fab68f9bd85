"""Callbacks: the order and the arguments of the events, refused callbacks, requests to stop, callbacks that raise."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, get_ident
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.policy_envs import differing, job_config, rows, run_config
from zoo import POLICY_REGISTRY, Callback
from zoo.backend import native
from zoo.config.section import ConfigError
from zoo.config.user_code import load_code
from zoo.core.errors import CallbackError, RunError, UserError
from zoo.pipeline import serial_pipeline
from zoo.run.checkpoint.file import load_checkpoint
from zoo.run.checkpoint.manager import CheckpointManager, SaveError
from zoo.run.config import resolve_config
from zoo.run.job import SerialJob
from zoo.run.observers.callbacks import EVENTS, Callbacks

HERE = __name__


NOTED: dict[str, Callable[..., Any]] = {
    'on_start': lambda job: job.env_step,
    'on_rollout': lambda job, rollout: tuple(rollout.data['reward'].shape),
    'on_samples': lambda job, samples: len(samples['adv']),
    'on_gradient': lambda job, optimizers, loss: len(optimizers),
    'on_update': lambda job, metrics: job.train_iter,
    'on_evaluate': lambda job, evaluation: len(evaluation.returns),
    'on_checkpoint': lambda job, path: path.name,
    'on_end': lambda job, result: result.env_step,
}
LOG: list[tuple[str, Any]] = []


def noting(event: str) -> Callable[..., None]:
    return lambda self, *args: LOG.append((event, NOTED[event](*args)))


Notes = type('Notes', (Callback,), {event: noting(event) for event in NOTED})
"""Callback that notes every event, with a number or a name that identifies it."""


@pytest.fixture
def notes() -> list[tuple[str, Any]]:
    LOG.clear()
    return LOG


def test_every_event_comes_in_its_order(tmp_path: Path, notes: list[tuple[str, Any]]) -> None:
    cfg = job_config(tmp_path, max_env_step=128, callbacks=[f'{HERE}:Notes'], checkpoint=dict(freq=64))
    cfg['policy']['eval']['eval_freq'] = 100
    serial_pipeline(cfg)
    # 2 rollouts of 16 x 4; 64 / 32 minibatches x 2 epochs = 4 steps each; one evaluation, at 128 >= 100, with the best file
    rollout = [('on_rollout', (16, 4)), ('on_samples', 64), *[('on_gradient', 1)] * 4]
    assert notes == [
        ('on_start', 0),
        *rollout,
        ('on_update', 4),
        ('on_checkpoint', 'step_000000064.safetensors'),
        *rollout,
        ('on_update', 8),
        ('on_checkpoint', 'best.safetensors'),
        ('on_evaluate', 2),
        ('on_checkpoint', 'step_000000128.safetensors'),
        ('on_checkpoint', 'step_000000128.safetensors'),  # at the end of the run
        ('on_end', 128),
    ]


def test_gradients_of_two_runs_in_two_threads_are_shown_to_their_own_callbacks(tmp_path: Path) -> None:
    """A barrier in on_gradient makes the runs alternate, so that each is in the middle of its steps when the other takes one."""
    turn = Barrier(2, timeout=60)

    def train(seed: int) -> set[int]:
        seen: set[int] = set()

        def on_gradient(job: Any, optimizers: Any, loss: Any) -> None:
            seen.add(job.cfg.seed)
            seen.add(get_ident())
            turn.wait()

        serial_pipeline(job_config(tmp_path, seed=seed), callbacks=[on_gradient])
        return seen - {get_ident()}

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(train, [1, 2])) == [{1}, {2}]


def test_run_that_continues_in_a_new_folder_begins_before_its_first_checkpoint(finished: Path, notes: Any) -> None:
    """In a new folder the resumed policy counts as the best one, and is saved at once."""
    serial_pipeline(resume=finished, overrides=['exp_name=other'], callbacks=[Notes])
    told = [value for event, value in notes if event in ('on_start', 'on_checkpoint')]
    assert told == [256, 'best.safetensors', 'step_000000256.safetensors']


@pytest.mark.slow
def test_resume_makes_the_callbacks_of_the_config_again(tmp_path: Path, notes: list[tuple[str, Any]]) -> None:
    first = serial_pipeline(job_config(tmp_path, max_env_step=128, callbacks=[f'{HERE}:Notes']))
    notes.clear()
    serial_pipeline(resume=first.run_dir, max_env_step=192)
    assert notes[0] == ('on_start', 128) and notes[-1] == ('on_end', 192)
    assert load_checkpoint(first.run_dir).meta['config']['callbacks'] == [f'{HERE}:Notes']


def test_class_object_and_function_are_called_in_the_same_way_after_those_of_the_config(
    tmp_path: Path, notes: list[tuple[str, Any]]
) -> None:
    def on_start(job: Any) -> None:
        notes.append(('function', job.env_step))

    class Other:
        def __init__(self, name: str = 'class') -> None:
            self._name = name

        def on_start(self, job: Any) -> None:
            notes.append((self._name, job.env_step))

    cfg = job_config(tmp_path, max_env_step=64, callbacks=[Notes])
    serial_pipeline(cfg, callbacks=[on_start, Other, Other('object')], policy=None)
    assert [name for name, _ in notes[:4]] == ['on_start', 'function', 'class', 'object']


def test_samples_changed_in_place_are_what_is_learned_from(tmp_path: Path) -> None:
    def on_samples(job: Any, samples: Any) -> None:
        samples['adv'].zero_()
        samples['return_'].copy_(samples['value'])

    result = serial_pipeline(job_config(tmp_path, policy=dict(learn=dict(adv_norm='off'))), callbacks=[on_samples])
    assert rows(result.run_dir)[0]['learn/policy_loss'] == 0.0  # return_ = value: every advantage is 0


def test_gradient_set_to_zero_leaves_the_parameters_still(tmp_path: Path) -> None:
    def on_gradient(job: Any, optimizers: Any, loss: Any) -> None:
        for optimizer in optimizers:
            assert torch.equal(torch.cat([g.flatten() for g in optimizer.cut(optimizer.grad).values()]), optimizer.grad)
            optimizer.grad.zero_()

    result = serial_pipeline(job_config(tmp_path), callbacks=[on_gradient])
    fresh = SerialJob(resolve_config(job_config(tmp_path / 'b')))
    a, b = (policy.state_dict()['model'] for policy in (result.policy, fresh.policy))
    fresh.close()
    assert result.train_iter == 16 and all(torch.equal(a[name], b[name]) for name in a)


def test_on_gradient_sees_the_loss_that_is_logged(tmp_path: Path) -> None:
    seen: list[float] = []

    def on_gradient(job: Any, optimizers: Any, loss: Any) -> None:
        assert not loss.requires_grad and loss.dim() == 0
        seen.append(float(loss))

    cfg = job_config(tmp_path, max_env_step=64, policy=dict(learn=dict(value_weight=0.5, entropy_weight=0.0)))
    line = rows(serial_pipeline(cfg, callbacks=[on_gradient]).run_dir)[0]
    want = line['learn/policy_loss'] + 0.5 * line['learn/value_loss']
    assert len(seen) == 4 and sum(seen) / 4 == pytest.approx(want, rel=1e-5, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['ppg', 'ppo_offpolicy', 'ppg_offpolicy'])
def test_on_gradient_is_called_for_every_step_of_other_policies(name: str, tmp_path: Path, notes: Any) -> None:
    result = serial_pipeline(run_config(tmp_path, name), callbacks=[Notes])
    assert [event for event, _ in notes].count('on_gradient') == result.train_iter > 0


def test_on_gradient_leaves_acting_in_c_where_the_executor_is_auto(
    tmp_path: Path, notes: list[tuple[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO')
    with SerialJob(resolve_config(job_config(tmp_path)), callbacks=[Notes]) as job:
        job.iteration()
        assert job.cfg.policy.learn.executor == 'auto' and job.cfg.policy == job.policy.cfg
        acts_in_c = job.policy.executor_name.startswith('native')
    assert sum(event == 'on_gradient' for event, _ in notes) == 4  # all steps are eager
    assert acts_in_c == (native.missing() == '')
    why = f'updates run eagerly: callback {HERE}:Notes has on_gradient'
    assert not acts_in_c or why in caplog.text


@pytest.mark.slow
def test_policy_of_a_run_with_on_gradient_may_be_trained_on_with_it(
    tmp_path: Path, notes: list[tuple[str, Any]]
) -> None:
    policy = serial_pipeline(job_config(tmp_path / 'a', max_env_step=64), callbacks=[Notes]).policy
    notes.clear()
    serial_pipeline(job_config(tmp_path / 'b', max_env_step=64), policy=policy, callbacks=[Notes])
    assert sum(event == 'on_gradient' for event, _ in notes) == 4
    plain = serial_pipeline(job_config(tmp_path / 'c', max_env_step=64)).policy
    if plain.executor_name != 'eager':
        with pytest.raises(UserError, match="the policy given has the executor 'native"):
            serial_pipeline(job_config(tmp_path / 'd'), policy=plain, callbacks=[Notes])


@pytest.mark.parametrize(
    ('key', 'value', 'words'),
    [
        ('executor', 'native', ', which shows nobody its gradients; use auto or eager, or'),
        ('executor', 'graph', ''),
        ('compile', 'on', ''),
    ],
)
def test_on_gradient_with_another_executor_is_refused(key: str, value: str, words: str, tmp_path: Path) -> None:
    words = f"callback {HERE}:Notes has on_gradient but policy.learn.{key} is '{value}'{words}"
    with pytest.raises(UserError, match=words):
        serial_pipeline(job_config(tmp_path, policy=dict(learn={key: value})), callbacks=[Notes])


def test_on_gradient_with_a_policy_that_shows_none_is_refused(tmp_path: Path) -> None:
    POLICY_REGISTRY.register('silent_test', force=True)(
        type('Silent', (POLICY_REGISTRY.get('ppo'),), {'announces_gradients': False})
    )
    with pytest.raises(
        UserError, match=r"steps of policy 'silent_test' show nobody.*gradient_ready\(optimizers, loss\)"
    ):
        serial_pipeline(job_config(tmp_path, policy=dict(type='silent_test')), callbacks=[Notes])


def test_on_gradient_that_no_step_calls_is_refused_after_the_first_round(tmp_path: Path) -> None:
    class OwnStep(POLICY_REGISTRY.get('ppo')):  # type: ignore[misc]
        def _forward_learn(self, batch: Any) -> Any:
            optimizer = self.optimizers['all']
            optimizer.zero_grad()
            self._model.compute_actor_critic(batch['obs'])['value'].mean().backward()
            optimizer.step()
            self.n_own = getattr(self, 'n_own', 0) + 1
            return {'loss': torch.zeros(())}

        def _get_train_iter(self) -> int:
            return getattr(self, 'n_own', 0)

        def _monitor_vars_learn(self) -> list[str]:
            return ['loss']

    POLICY_REGISTRY.register('own_step_test', force=True)(OwnStep)
    with pytest.raises(UserError, match='none of the first 1 gradient steps called'):
        serial_pipeline(job_config(tmp_path, policy=dict(type='own_step_test')), callbacks=[Notes])


def test_metrics_of_on_update_are_in_the_log(tmp_path: Path) -> None:
    def on_update(job: Any, metrics: Any) -> Any:
        metrics['written'] = torch.tensor(2.5)
        return {'returned': 7, 'policy_loss_twice': 2 * metrics['policy_loss']}

    line = rows(serial_pipeline(job_config(tmp_path), callbacks=[on_update]).run_dir)[0]
    assert line['learn/written'] == 2.5 and line['learn/returned'] == 7
    assert line['learn/policy_loss_twice'] == pytest.approx(2 * line['learn/policy_loss'])


@pytest.mark.parametrize('event', ['on_start', 'on_samples', 'on_gradient', 'on_checkpoint'])
def test_stop_ends_the_run_after_the_present_round(event: str, tmp_path: Path) -> None:
    first = SimpleNamespace(**{event: lambda job, *rest: job.stop()})
    result = serial_pipeline(job_config(tmp_path, checkpoint=dict(freq=64)), callbacks=[first])
    want = 0 if event == 'on_start' else 64
    assert result.env_step == want and result.train_iter == want // 16
    assert load_checkpoint(result.run_dir).meta['env_step'] == want
    assert result.last_return is not None  # the last policy is evaluated, as at the end of any run
    assert serial_pipeline(resume=result.run_dir).env_step == 256  # a request to stop is not saved


def test_reason_to_stop_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def on_rollout(job: Any, rollout: Any) -> None:
        job.stop('the pole is boring')
        job.stop('again')

    caplog.set_level('INFO')
    serial_pipeline(job_config(tmp_path), callbacks=[on_rollout])
    assert [x.message for x in caplog.records if 'ends after this round' in x.message] == [
        'the run ends after this round: the pole is boring'
    ]


def raising(event: str, at: int = 1) -> Any:
    """Returns a callback that raises at its at-th call of this event."""
    n_call = 0

    def method(job: Any, *rest: Any) -> None:
        nonlocal n_call
        n_call += 1
        if n_call == at:
            raise ZeroDivisionError('no\nsense')

    return SimpleNamespace(**{event: method})


@pytest.mark.many
@pytest.mark.parametrize(
    ('event', 'want'),
    [
        ('on_start', 0),
        ('on_rollout', 128),
        ('on_samples', 128),
        ('on_update', 128),
        ('on_evaluate', 256),
        ('on_checkpoint', 128),
        ('on_end', 256),
    ],
)
def test_callback_that_raises_is_named_with_its_event_and_the_run_is_saved(
    event: str, want: int, tmp_path: Path
) -> None:
    ended: list[Any] = []
    on_end = SimpleNamespace(on_end=lambda job, result: ended.append(result))
    at = 1 if event in ('on_start', 'on_evaluate', 'on_end') else 2
    cfg = job_config(tmp_path, checkpoint=dict(freq=64, keep_best=False))
    words = rf'callback types:SimpleNamespace raised in {event} ZeroDivisionError: no sense \(test_callbacks.py:\d+\)'
    with pytest.raises(CallbackError, match=words) as error:
        serial_pipeline(cfg, callbacks=[raising(event, at), on_end])
    assert isinstance(error.value, RunError) and isinstance(error.value.__cause__, ZeroDivisionError)
    assert ended == []  # after an error no callback is called
    run_dir = next(tmp_path.glob('run/*'))
    assert load_checkpoint(run_dir).meta['env_step'] == want
    assert serial_pipeline(resume=run_dir, max_env_step=320).env_step == 320


@pytest.mark.slow
@pytest.mark.parametrize('at', [3, 7, 10])  # in round 1, in round 2, in the auxiliary phase of round 2
def test_run_whose_callback_raised_in_an_update_is_saved_and_resumed(at: int, tmp_path: Path) -> None:
    cfg = run_config(tmp_path, 'ppg')
    with pytest.raises(CallbackError, match='in on_gradient'):
        serial_pipeline(cfg, callbacks=[raising('on_gradient', at)])
    run_dir = next(tmp_path.glob('run/*'))
    saved = load_checkpoint(run_dir).meta['env_step']
    assert not load_checkpoint(run_dir).state.get('memory')  # otherwise the resume would repeat the interrupted phase
    result = serial_pipeline(resume=run_dir, max_env_step=saved + 512)
    assert result.env_step == saved + 512


def test_run_that_cannot_be_saved_after_a_callback_raised_says_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> Any:
        raise SaveError('the disk is full')

    monkeypatch.setattr(CheckpointManager, 'save', full)
    with pytest.raises(
        SaveError, match='the disk is full; it had failed: callback types:SimpleNamespace raised in on_rollout'
    ):
        serial_pipeline(job_config(tmp_path), callbacks=[raising('on_rollout')])


def test_constructor_that_raises_is_named(tmp_path: Path) -> None:
    def construct(self: Any) -> None:
        raise OSError('no file')

    with pytest.raises(CallbackError, match=r'Broken raised when it was made OSError: no file'):
        serial_pipeline(job_config(tmp_path), callbacks=[callback('Broken', '__init__', construct, on_start=NOTHING)])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('event', 'answer', 'words'),
    [
        (
            'on_rollout',
            True,
            r'returned True from on_rollout, whose answer nothing reads; call job.stop\(\) to end the run',
        ),
        ('on_samples', {}, r'returned \{\} from on_samples, whose answer nothing reads; change its argument in place'),
        ('on_update', True, 'returned True from on_update; return a dict of metrics, or None'),
        ('on_update', {'a': 'b'}, "gave a metric in on_update that the log cannot take: metric 'a' is 'b' but must be"),
        (
            'on_update',
            {'a': torch.ones(2, 2)},
            "gave a metric in on_update that the log cannot take: metric 'a' is tensor",
        ),
        ('on_update', {3: 1.0}, 'named a metric 3 in on_update; give it a text as name'),
    ],
)
def test_answer_that_nothing_reads_is_refused(event: str, answer: Any, words: str, tmp_path: Path) -> None:
    item = SimpleNamespace(**{event: lambda job, *rest: answer})
    with pytest.raises(CallbackError, match=f'callback types:SimpleNamespace {words}'):
        serial_pipeline(job_config(tmp_path), callbacks=[item])


def test_metric_that_is_a_list_has_a_name_for_each_entry(tmp_path: Path) -> None:
    class Shares:
        def on_update(self, job: Any, metrics: Any) -> dict[str, Any]:
            return {'share': [0.25, 0.75], 'size': torch.tensor([3, 5])}

    result = serial_pipeline(job_config(tmp_path), callbacks=[Shares])
    row = next(row for row in rows(result.run_dir) if 'learn/share/0' in row)
    found = [row[f'learn/{name}'] for name in ('share/0', 'share/1', 'size/0', 'size/1')]
    assert found == [0.25, 0.75, 3.0, 5.0] and 'learn/share' not in row


class CountsSteps:
    """Logs the steps of each runner, its index + 1 twice, and how often it was called; on runners and without."""

    def __init__(self) -> None:
        self.n = 0

    def on_runner_rollout(self, runner: Any, columns: Any) -> None:
        self.n += 1
        runner.log('rows', columns['reward'].numel(), reduce='sum', lifetime=True)
        runner.log('sum', 2 * runner.group + 1, reduce='sum')
        runner.log('mean', 2 * runner.group + 1)
        runner.log('calls', self.n, reduce='max')
        runner.log('reward', columns['reward'], reduce='histogram')
        assert columns['obs'].shape[:2] == columns['action'].shape[:2] == columns['terminated'].shape


RUNNERS = {'runner_num': 2, 'engine': 'inline'}


def test_numbers_of_runners_are_reduced_together(tmp_path: Path) -> None:
    result = serial_pipeline(job_config(tmp_path, cluster=RUNNERS), callbacks=[CountsSteps()])
    lines = [row for row in rows(result.run_dir) if 'own/sum' in row]
    assert len(lines) == 4  # 256 env steps, 64 a rollout
    assert [row['own/sum'] for row in lines] == [4.0] * 4 and lines[0]['own/mean'] == 2.0  # runners log 1 and 3
    assert [row['own/rows'] for row in lines] == [64.0, 128.0, 192.0, 256.0]
    assert [row['own/calls'] for row in lines] == [1.0, 2.0, 3.0, 4.0]  # each runner has its own copy
    again = serial_pipeline(resume=result.run_dir, overrides=['max_env_step=320'], callbacks=[CountsSteps()])
    assert next(row for row in rows(again.run_dir) if row.get('own/rows', 0) > 256)['own/rows'] == 320.0


def test_event_of_runners_is_called_in_a_run_without_them_and_changes_no_bit(tmp_path: Path) -> None:
    plain = serial_pipeline(job_config(tmp_path))
    told = serial_pipeline(job_config(tmp_path), callbacks=[CountsSteps()])
    lines = [row for row in rows(told.run_dir) if 'own/sum' in row]
    assert [row['own/rows'] for row in lines] == [64.0, 128.0, 192.0, 256.0] and lines[0]['own/sum'] == 1.0
    rewards = [row['own/reward_p50'] for row in lines]
    assert all(row['own/reward_min'] <= x <= row['own/reward_max'] for x, row in zip(rewards, lines, strict=True))
    assert not differing(plain.policy.state_dict(), told.policy.state_dict())


def test_callback_that_raises_in_a_runner_is_named(tmp_path: Path) -> None:
    class Breaks:
        def on_runner_rollout(self, runner: Any, columns: Any) -> None:
            runner.log('learn/x', 1.0)

    with pytest.raises(
        CallbackError, match="Breaks raised in on_runner_rollout UserError: job.log got the name 'learn/x'"
    ):
        serial_pipeline(job_config(tmp_path, cluster=RUNNERS), callbacks=[Breaks()])


ALL = ', '.join(EVENTS)
NO_NAME = "which is no 'module:Class' and no 'path/file.py:Class'; name a class by one of them."


def callback(name: str, method: str = '', function: Any = lambda self, *args: None, **more: Any) -> type:
    """A class derived from Callback with this method."""
    return type(name, (Callback,), {method: function, **more} if method else more)


NOTHING = noting('on_start')


def on_strat(job: Any) -> None: ...


@pytest.mark.parametrize(
    ('spec', 'problem'),
    [
        (callback('Misspelt', 'on_rolout'), f"Misspelt has a method that nothing would call: there is no event 'on_rolout'; did you mean 'on_rollout'? "
         f'the events are {ALL}.'),
        (callback('Nothing', 'helper'), f'Nothing has nothing to call; give it one of the methods {ALL}.'),
        (Callback, f'Callback has nothing to call; give it one of the methods {ALL}.'),
        (3, f'int has nothing to call; give it one of the methods {ALL}.'),
        (callback('TooFew', 'on_update', lambda self, metrics: None), 'TooFew must have on_update as a method that takes (job, metrics).'),
        (type('Value', (), {'on_start': 3}), 'Value must have on_start as a method that takes (job).'),
        (callback('Needs', '__init__', lambda self, path: None, on_start=NOTHING), 'Needs has a constructor that needs arguments; give defaults to all, or pass an object in Python: '
         'serial_pipeline(..., callbacks=[...]).'),
        (on_strat, f"on_strat is a function, which is called at the event of its name: there is no event 'on_strat'; did you "
         f"mean 'on_start'? the events are {ALL}."),
        (lambda job: None, f"<lambda> is a function, which is called at the event of its name: there is no event '<lambda>'; the "
         f'events are {ALL}.'),
    ],
)  # fmt: skip
def test_what_cannot_be_a_callback_is_refused_in_one_sentence(spec: Any, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        serial_pipeline(job_config(tmp_path), callbacks=[spec])
    (got,) = error.value.problems
    assert got.startswith('callback ') and got.endswith(problem.rpartition(' on_strat is')[2])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ('spec', 'problem'),
    [
        ('no_such_module:A', "callbacks[0] names the module 'no_such_module', which is not found; check the spelling, "
         "install the package that has it, or name its file, 'path/file.py:name'."),
        (f'{HERE}:Note', f"callbacks[0] is '{HERE}:Note' but '{HERE}' has no 'Note': did you mean 'Notes' or 'notes'?"),
        ('os:system', "callbacks[0] is 'os:system' but that is <built-in function system>; name a class, or a function of "
         'an event.'),
        ('Notes', f"callbacks[0] is 'Notes', {NO_NAME}"),
        ('a:b:c', f"callbacks[0] is 'a:b:c', {NO_NAME}"),
        (3, None),
        (None, None),
    ],
)  # fmt: skip
def test_name_of_no_callback_is_refused_when_the_config_is_resolved(spec: Any, problem: str | None) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_config(job_config('runs', callbacks=[spec]))
    if problem is None:
        assert error.value.problems[0].startswith(f'callbacks is [{spec}]')
    else:
        assert error.value.problems == [problem]


@pytest.mark.slow
def test_callback_in_a_file_is_named_by_its_path_and_stored_with_the_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / 'callback_of_test.py').write_text(
        'class Count:\n    n = 0\n    def on_rollout(self, job, rollout):\n        Count.n += 1\n'
    )
    monkeypatch.chdir(tmp_path)
    result = serial_pipeline(job_config(tmp_path), overrides=['callbacks=[./callback_of_test.py:Count]'])
    count = load_code('callback_of_test.py:Count', 'test')
    n, stored = count.n, resolve_config(result.run_dir / 'config.yaml').callbacks
    assert n > 0 and stored == [f'{tmp_path}/callback_of_test.py:Count']
    with pytest.raises(ConfigError, match=r"callbacks\[0\] is 'callback_of_test.py:Cuont'.*did you mean 'Count'"):
        resolve_config(job_config(tmp_path, callbacks=['./callback_of_test.py:Cuont']))
    sys.modules.pop('callback_of_test')


def test_object_in_a_config_is_refused_since_no_checkpoint_holds_it() -> None:
    with pytest.raises(ConfigError, match='callbacks is'):
        resolve_config(job_config('runs', callbacks=[Notes()]))


@pytest.mark.parametrize('value', ['a:B', {'a': 1}, Notes])
def test_argument_that_is_no_list_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match='callbacks is .* but must be a list of classes, objects or functions'):
        serial_pipeline(job_config(tmp_path), callbacks=value)


def test_event_that_is_not_overridden_is_not_called() -> None:
    callbacks = Callbacks([callback('Ends', 'on_end', lambda self, job, result: None)])
    assert [event for event in EVENTS if callbacks.names(event)] == ['on_end']
