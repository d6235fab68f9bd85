"""init_from and make_policy: parameters are taken from another run by name, if they fit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.run.processes import without_override
from tests.thread_ranks import on_ranks
from zoo import load_policy, make_policy, read_run, serial_pipeline
from zoo.core.errors import UserError
from zoo.run.build import start_from
from zoo.run.checkpoint.file import CheckpointError, load_checkpoint, save_checkpoint

SHORT = ['policy.eval.n_episode=1', 'logger.tensorboard=false', 'logger.console=off']
ONE, NORM = 'max_env_step=1_024', 'policy.model.obs_norm=true'


@pytest.fixture(scope='module')
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('trained') / 'run'
    serial_pipeline('cartpole_ppo', overrides=[*SHORT, 'max_env_step=4_096', NORM], run_dir=folder)
    return folder


def equal_names(one: Any, other: Any) -> set[str]:
    a, b = one.model.state_dict(), other.model.state_dict()
    return {name for name in a if name in b and torch.equal(a[name], b[name])}


@pytest.mark.slow
def test_policy_begins_with_all_parameters_and_statistics_of_the_run(trained: Path) -> None:
    policy = make_policy('cartpole_ppo', [NORM, f'init_from={trained}', 'seed=9'])
    assert equal_names(policy, load_policy(trained)) == set(policy.model.state_dict())
    assert policy.learn_mode.train_iter() == 0
    assert float(policy.model.input.count) > 3_000


@pytest.mark.slow
def test_run_begins_there_and_its_optimiser_again(trained: Path, tmp_path: Path) -> None:
    words = [*SHORT, ONE, NORM, f'init_from={trained}', 'policy.learn.learning_rate=1e-12', 'seed=9']
    result = serial_pipeline('cartpole_ppo', overrides=words, run_dir=tmp_path / 'a')
    expert = load_policy(trained)
    assert result.train_iter == 40  # only this run's: 10 passes over 4 minibatches
    for name, value in expert.model.named_parameters():
        torch.testing.assert_close(result.policy.model.get_parameter(name), value, rtol=0, atol=1e-8)


def test_patterns_choose_what_is_taken(trained: Path) -> None:
    words = [NORM, f'init_from={trained}', 'init_from_keys=[actor_*, policy_*]', 'seed=9']
    same = equal_names(make_policy('cartpole_ppo', words), load_policy(trained))
    assert {name.partition('.')[0] for name in same} == {'actor_encoder', 'policy_head'}


def test_other_spaces_take_what_fits_and_the_log_says_the_rest(trained: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level('INFO'):
        policy = make_policy('acrobot_ppo', [f'init_from={trained}'])
    same = {name for name in equal_names(policy, load_policy(trained)) if not name.startswith('input.')}
    assert 'actor_encoder.layers.1.weight' in same and 'actor_encoder.layers.0.weight' not in same
    assert 'actor_encoder.layers.0.weight: [64, 4] in the state, [64, 6] here' in caplog.text
    assert 'do not fit and begin anew' in caplog.text


def test_numbers_that_are_not_finite_are_refused_where_they_are_asked_for(trained: Path, tmp_path: Path) -> None:
    state, meta, _ = load_checkpoint(trained)
    name = next(name for name in state['policy']['model'] if name.startswith('critic_'))
    state['policy']['model'][name].view(-1)[0] = float('nan')
    save_checkpoint(tmp_path / 'diverged.safetensors', state, meta)
    words = [NORM, f'init_from={tmp_path}/diverged.safetensors']
    with pytest.raises(CheckpointError, match=f'has numbers in model/{name} that are not finite: training had failed'):
        make_policy('cartpole_ppo', words)
    make_policy('cartpole_ppo', [*words, 'init_from_keys=[actor_*]'])


@pytest.mark.slow
def test_resumed_run_does_not_begin_again_and_needs_the_other_run_no_more(trained: Path, tmp_path: Path) -> None:
    other = shutil.copytree(trained, tmp_path / 'other')
    words = [*SHORT, f'init_from={other}', NORM]
    first = serial_pipeline('cartpole_ppo', overrides=[*words, ONE], run_dir=tmp_path / 'a')
    shutil.rmtree(other)
    straight = load_policy(first.run_dir).model.state_dict()
    resumed = serial_pipeline(resume=first.run_dir, overrides=['max_env_step=1_025', 'policy.eval.n_episode=1'])
    after = resumed.policy.model.state_dict()
    assert all(torch.equal(straight[name], after[name]) for name in straight)  # nothing was left to train


def test_nothing_that_fits_and_no_such_run_are_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'init_from .*: nothing of the state fits this policy \(asked for: actr_\*\)'):
        make_policy('cartpole_ppo', [f'init_from={trained}', 'init_from_keys=[actr_*]'])
    with pytest.raises((UserError, CheckpointError), match='does not exist'):
        serial_pipeline('cartpole_ppo', overrides=[*SHORT, 'init_from=no_such_run', f'logger.root={tmp_path}'])
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_made_policy_is_that_of_the_run(tmp_path: Path) -> None:
    """With a learning rate of 1e-30 weights do not move, so the trained policy shows the initial weights of the run."""
    words = [*SHORT, ONE, 'policy.learn.learning_rate=1e-30', 'seed=3']
    made = make_policy('cartpole_ppo', words)
    assert made.act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    result = serial_pipeline('cartpole_ppo', overrides=words, run_dir=tmp_path / 'a')
    weights = {name for name in made.model.state_dict() if name.endswith('weight')}  # not a bias of 0: it does move
    assert equal_names(made, result.policy) >= weights
    given = make_policy('cartpole_ppo', words)
    trained = serial_pipeline('cartpole_ppo', overrides=words, run_dir=tmp_path / 'b', policy=given)
    assert trained.policy is given and trained.train_iter == result.train_iter


def test_given_policy_begins_as_its_maker_left_it(trained: Path, tmp_path: Path) -> None:
    """The run does not read init_from again, which would undo the caller's changes to the policy after make_policy."""
    words = [*SHORT, ONE, NORM, f'init_from={trained}', 'policy.learn.learning_rate=1e-12']
    policy = make_policy('cartpole_ppo', words)
    with torch.no_grad():
        policy.model.policy_head.weight.add_(1.0)
    before = policy.model.policy_head.weight.detach().clone()
    serial_pipeline('cartpole_ppo', overrides=words, run_dir=tmp_path / 'a', policy=policy)
    torch.testing.assert_close(policy.model.policy_head.weight.detach(), before, rtol=0, atol=1e-8)


def test_run_that_continues_cannot_begin_with_other_parameters(trained: Path, tmp_path: Path) -> None:
    words = [*SHORT, f'init_from={trained}']
    with pytest.raises(
        UserError, match=r'init_from is .* but .*, from which the run continues, was saved with no init_'
    ):
        serial_pipeline(resume=trained, overrides=words)
    with pytest.raises(UserError, match='leave init_from out, or begin a new run'):
        serial_pipeline('cartpole_ppo', overrides=[*words, NORM], resume=trained)
    with pytest.raises(UserError, match=f'the run in {trained} has init_from=null, not {trained}; name another'):
        serial_pipeline('cartpole_ppo', overrides=[*words, NORM], run_dir=trained)


@pytest.mark.slow
def test_run_keeps_what_it_began_with_when_it_continues_without_naming_it(trained: Path, tmp_path: Path) -> None:
    words = [*SHORT, NORM]
    began, place = [f'init_from={trained}', 'init_from_keys=[actor_*]'], {'run_dir': tmp_path / 'a'}
    serial_pipeline('cartpole_ppo', overrides=[*words, *began, ONE], **place)
    for more, length in (([], 2_048), (began, 3_072), ([f'init_from={os.path.relpath(trained)}'], 4_096)):
        result = serial_pipeline('cartpole_ppo', overrides=[*words, *more, f'max_env_step={length}'], **place)
        config = read_run(tmp_path / 'a').config
        assert (config['init_from'], config['init_from_keys']) == (str(trained), ['actor_*'])
        assert result.env_step > length - 1_100
    with pytest.raises(UserError, match=f'was saved with init_from {trained}, and its parameters count'):
        serial_pipeline('cartpole_ppo', overrides=[*words, 'init_from=elsewhere'], resume=tmp_path / 'a')


def test_statistics_without_a_place_are_warned_of(trained: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The policy has no normaliser for these statistics, so its layers see observations of another scale."""
    make_policy('cartpole_ppo', [f'init_from={trained}'])
    assert 'input.mean, input.var, input.count, input.shift and 1 more of' in caplog.text
    caplog.clear()
    make_policy('cartpole_ppo', [f'init_from={trained}', 'init_from_keys=[actor_*]'])
    assert not caplog.records  # statistics that were not asked for give no warning


def test_other_ranks_get_the_parameters_from_the_first_which_alone_reads_the_file(trained: Path) -> None:
    def begin(ranks: Any) -> Any:
        policy = make_policy('cartpole_ppo', [NORM, f'seed={5 + ranks.rank}'])
        start_from(policy, trained if ranks.rank == 0 else 'no_such_file', ranks=ranks)
        return policy

    for policy in on_ranks(begin):
        assert equal_names(policy, load_policy(trained)) == set(policy.model.state_dict())


@pytest.mark.soak
def test_runner_of_another_process_acts_with_what_the_run_begins_with(trained: Path, tmp_path: Path) -> None:
    """The run equals that of one process bit for bit, so its first rollout, too, was collected with these parameters."""
    words = [*SHORT, 'max_env_step=2_048', NORM, f'init_from={trained}', 'seed=9']
    alone, apart = (
        serial_pipeline('cartpole_ppo', overrides=[*words, f'cluster.runner_num={n}'], run_dir=tmp_path / str(n)).policy
        for n in (0, 1)
    )
    assert equal_names(alone, apart) == set(alone.model.state_dict())


def test_run_that_may_not_be_looked_into_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / 'closed').mkdir(mode=0o600)
    with without_override(), pytest.raises(UserError, match='which does not exist; name a run folder'):
        make_policy('cartpole_ppo', [f'init_from={tmp_path}/closed/run'])
