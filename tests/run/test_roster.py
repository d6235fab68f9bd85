"""Two policies in one run, each for its rows of one vector env: bits, metrics, checkpoints, resume."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.policy_envs import differing, flat, job_config
from tests.run.two_policies import PREY, TwoPolicies, two_config
from zoo import load_policy, serial_pipeline
from zoo.core.errors import UserError
from zoo.run.checkpoint import CheckpointError, load_checkpoint
from zoo.run.job import SerialJob


@pytest.fixture(name='run', scope='module')
def _run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Begins new episodes with each rollout, as a resume does, and saves after each."""
    config = two_config(tmp_path_factory.mktemp('two'), checkpoint=dict(freq=1, keep_last=10), env=dict(reset_every=1))
    return serial_pipeline(config)


def lines_of(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / 'metrics.jsonl').read_text().splitlines()]


def training_lines(run_dir: Path) -> list[dict[str, Any]]:
    return [line for line in lines_of(run_dir) if 'learn/policy_loss' in line]


def steps_of_run(run_dir: Path) -> list[Path]:
    """The main checkpoints, the oldest first."""
    return sorted(path for path in (run_dir / 'checkpoints').glob('step_*') if path.name.count('.') == 1)


def test_first_of_two_policies_is_bit_equal_to_a_run_alone(tmp_path: Path) -> None:
    # alone: the 4 envs of the first half of the rows, with half of the env steps
    alone = serial_pipeline(job_config(tmp_path / 'alone', 'CartPole-v1', env=dict(vectorization='sync')))
    both = serial_pipeline(two_config(tmp_path / 'both'))
    assert not differing(both.policy.state_dict(), alone.policy.state_dict())
    for own, shared in zip(training_lines(alone.run_dir), training_lines(both.run_dir), strict=True):
        names = [name for name in own if name.startswith('learn/')]
        assert {name: shared[name] for name in names} == {name: own[name] for name in names}


def test_second_policy_learns_under_its_own_names(run: Any) -> None:
    lines = training_lines(run.run_dir)
    assert len(lines) == 4
    last = lines[-1]
    assert {'learn/prey/policy_loss', 'learn/prey/entropy', 'learn/prey/train_iter', 'learn/prey/sample'} <= last.keys()
    # every third round has an auxiliary phase of ppg; ppo has none
    assert ['learn/prey/behavioral_cloning_loss' in line for line in lines] == [False, False, True, False]
    assert not any('learn/behavioral_cloning_loss' in line for line in lines)
    assert run.train_iter == last['learn/train_iter'] + last['learn/prey/train_iter']
    assert run.policies.keys() == {'', PREY} and run.policies[''] is run.policy
    first, prey = (load_checkpoint(path).state['counter']['sample'] for path in files_of(steps_of_run(run.run_dir)[-1]))
    assert (first, prey) == (last['learn/sample'], last['learn/prey/sample'])


def files_of(main: Path) -> list[Path]:
    return [main, main.with_name(f'{main.stem}.{PREY}.safetensors')]


def test_evaluations_have_a_part_for_each_policy(tmp_path: Path) -> None:
    class Named(TwoPolicies):
        def __init__(self) -> None:
            super().__init__(['hunter', PREY])

    with job_of(tmp_path, Named()) as job:
        metrics = job.evaluate().metrics()
    assert metrics['return_mean'] == (metrics['hunter/return_mean'] + metrics['prey/return_mean']) / 2


def job_of(root: Path, roster: TwoPolicies, checkpoint: Any = None, **sections: Any) -> SerialJob:
    class Job(SerialJob):
        def roster(self) -> TwoPolicies:
            return roster

    return Job(two_config(root, **sections), checkpoint=checkpoint)


def test_roster_of_one_agent_is_not_replaced_in_an_env_of_several(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'Job\.roster returned a TwoPolicies, .*; return an AgentsRoster'):
        job_of(tmp_path, TwoPolicies(), env=dict(id='tests.agents.envs:Clockwork'))


def test_events_are_told_with_their_learner(tmp_path: Path) -> None:
    seen = []

    def on_samples(job: Any, samples: Any) -> None:
        seen.append((job.learner.name, job.policy is job.learners[job.learner.name].policy, len(samples['obs'])))

    serial_pipeline(two_config(tmp_path, max_env_step=128), callbacks=[on_samples])
    assert seen == [('', True, 64), (PREY, True, 64)]


def test_on_gradient_sees_the_steps_of_both(tmp_path: Path) -> None:
    seen = []

    def on_gradient(job: Any, optimizers: Any, loss: Any) -> None:
        seen.append(job.learner.name)

    run = serial_pipeline(two_config(tmp_path, max_env_step=128), callbacks=[on_gradient])
    assert len(seen) == run.train_iter and set(seen) == {'', PREY}
    assert seen == sorted(seen)  # '' first


def test_resume_from_the_middle_is_bit_equal_to_the_run(run: Any, tmp_path: Path) -> None:
    resumed = serial_pipeline(resume=steps_of_run(run.run_dir)[1], overrides=[f'logger.root={tmp_path}'])
    assert resumed.run_dir != run.run_dir and resumed.env_step == run.env_step
    ends = [steps_of_run(x.run_dir)[-1] for x in (run, resumed)]
    for before, after in zip(*map(files_of, ends), strict=True):
        one, other = load_checkpoint(before), load_checkpoint(after)
        for state in (one.state, other.state):
            del state['counter']['wall_s']
        assert not differing(one.state, other.state)
        assert one.meta['train_iter'] == other.meta['train_iter'] > 0


def test_checkpoint_of_each_policy_loads_alone(run: Any) -> None:
    main, prey = files_of(steps_of_run(run.run_dir)[-1])
    for path, name, kind in ((main, '', 'ppo'), (prey, PREY, 'ppg')):
        for fields in ('eval', 'all'):
            policy = load_policy(path, fields=fields)
            assert policy.cfg.type == kind
            own = flat(policy.state_dict()['model'])
            assert not differing(own, flat(run.policies[name].state_dict()['model']))
    assert load_policy(run.run_dir).cfg.type == 'ppo'
    assert load_policy(run.run_dir / 'checkpoints' / f'best.{PREY}.safetensors').cfg.type == 'ppg'


def test_two_policies_of_one_run_have_other_random_numbers(run: Any) -> None:
    first, prey = (load_checkpoint(path).meta['config']['seed'] for path in files_of(steps_of_run(run.run_dir)[-1]))
    assert first == 0 != prey


def test_files_of_a_learner_go_with_their_step(tmp_path: Path) -> None:
    run = serial_pipeline(two_config(tmp_path, checkpoint=dict(freq=1, keep_last=2)))
    steps = steps_of_run(run.run_dir)
    want = {path.name for step in steps for path in files_of(step)} | {'best.safetensors', f'best.{PREY}.safetensors'}
    assert len(steps) == 2 and {path.name for path in (run.run_dir / 'checkpoints').iterdir()} == want


@pytest.mark.parametrize(
    ('names', 'said'),
    [
        (['', 'other'], ["policy 'prey' of the checkpoint is not used", "policy 'other' is not in the checkpoint"]),
        ([''], ["policy 'prey' of the checkpoint is not used"]),
    ],
)
def test_resume_says_which_policies_begin_again_or_are_gone(
    names: list[str], said: list[str], run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = load_checkpoint(run.run_dir)
    caplog.set_level(logging.INFO, 'zoo')
    with job_of(tmp_path, TwoPolicies(names), checkpoint) as job:
        assert list(job.learners) == names and job.learners[''].train_iter == checkpoint.meta['train_iter']
        assert all(job.learners[name].train_iter == 0 for name in names[1:])
    assert [x.split(':')[0] for x in caplog.messages if x.startswith('policy ')] == said


def test_file_of_another_step_is_refused(run: Any, tmp_path: Path) -> None:
    folder = shutil.copytree(run.run_dir, tmp_path / 'run')
    early, late = (files_of(steps_of_run(folder)[i])[1] for i in (0, -1))
    shutil.copy(early, late)
    with pytest.raises(
        CheckpointError, match=r'prey.safetensors is of env step \d+ but step_\d+.safetensors next to it'
    ):
        serial_pipeline(resume=folder)
    late.unlink()
    with pytest.raises(CheckpointError, match='does not exist'):
        serial_pipeline(resume=folder)


def test_opponent_that_does_not_learn_stays_as_it_is(tmp_path: Path) -> None:
    class Frozen(TwoPolicies):
        def learns(self, name: str) -> bool:
            return name != PREY

    with job_of(tmp_path, Frozen()) as job:
        before = {name: flat(learner.policy.state_dict()['model']) for name, learner in job.learners.items()}
        before = {name: {key: x.clone() for key, x in state.items()} for name, state in before.items()}
        job.iteration()
        after = {name: flat(learner.policy.state_dict()['model']) for name, learner in job.learners.items()}
    assert differing(before[''], after['']) and not differing(before[PREY], after[PREY])


def test_metrics_of_each_policy_are_compared_with_those_that_it_names(tmp_path: Path) -> None:
    with job_of(tmp_path, TwoPolicies()) as job:
        prey = job.learners[PREY]
        prey.mode = prey.mode._replace(monitor_vars=lambda: ['no_such_metric'])
        with pytest.raises(ValueError, match='_monitor_vars_learn names'):
            job.iteration()
        assert job.learner is prey


def test_runners_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='cluster.runner_num is 2 but the run has 2 policies, and runners act with one'):
        job_of(tmp_path, TwoPolicies(), cluster=dict(runner_num=2, engine='inline'))
