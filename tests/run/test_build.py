"""Building a run: what is said of its parts, the policy that a run begins with, parameters taken from another run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete

from tests.envs import LimitEnv, LimitVectorEnv
from tests.policy_envs import job_config
from tests.run.processes import without_override
from tests.thread_ranks import on_ranks
from zoo import load_policy, make_policy, read_run, serial_pipeline
from zoo.core.errors import UserError
from zoo.run.build import start_from
from zoo.run.checkpoint.file import CheckpointError, load_checkpoint, save_checkpoint

SHORT = ['policy.eval.n_episode=1', 'logger.tensorboard=false', 'logger.console=off']
ONE, NORM = 'max_env_step=1_024', 'policy.model.obs_norm=true'


class ActionsEnv(LimitEnv):
    """LimitEnv with given actions."""

    def __init__(self, actions: gymnasium.Space) -> None:
        super().__init__()
        self.action_space = actions


def far_env() -> gymnasium.Env:
    return ActionsEnv(Box(300, 500, (1,), np.float32))


def hybrid_env() -> gymnasium.Env:
    return ActionsEnv(Dict(move=Discrete(2), push=Box(0, 720, (2,), np.float32)))


def far_vector(num_envs: int) -> gymnasium.vector.VectorEnv:
    vector = LimitVectorEnv(num_envs, action='box')
    vector.single_action_space = Box(300, 500, (1,), np.float32)
    vector.action_space = gymnasium.vector.utils.batch_space(vector.single_action_space, num_envs)
    return vector


@pytest.mark.slow(first=True)
@pytest.mark.parametrize(
    ('make', 'env', 'model', 'said'),
    [
        (far_env, dict(check=True), {}, 'the actions are from 300 to 500, '),
        (hybrid_env, dict(check=True), {}, "the actions 'push' are from 0 to 720, "),
        (far_vector, dict(check=True), {}, 'the actions are from 300 to 500, '),
        (far_env, dict(check=True, action_mode='rescale'), {}, ''),
        (far_env, dict(check=True), dict(distribution='beta'), ''),  # its actions are within the bounds
        (far_env, dict(check=False), {}, ''),
    ],
)
def test_run_warns_once_of_bounds_that_the_first_actions_miss(
    make: Any, env: dict[str, Any], model: dict[str, Any], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    serial_pipeline(job_config(tmp_path, make, max_env_step=64, env=env, policy=dict(model=model)))
    warnings = [text for text in caplog.messages if 'a policy begins with numbers near -1 to 1' in text]
    assert len(warnings) == bool(said) and all(said in text for text in warnings)


class Bytes(gymnasium.Env):
    """Observations of bytes of any shape, episodes of 8 steps."""

    action_space = spaces.Discrete(2)

    def __init__(self, shape: Any = (9, 9), high: int = 255) -> None:
        self.observation_space = spaces.Box(0, high, tuple(shape), np.uint8)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(self.observation_space.shape, np.uint8), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.ones(self.observation_space.shape, np.uint8), 1.0, self.t == 8, False, {}


def config(tmp_path: Path, **kwargs: Any) -> dict[str, Any]:
    return dict(
        exp_name='x',
        max_env_step=64,
        env=dict(id=Bytes, kwargs=kwargs, collector_env_num=2),
        policy=dict(type='ppo', model=dict(encoder='mlp'), collect=dict(n_step=16), learn=dict(batch_size=32)),
        logger=dict(root=str(tmp_path), console='off', sinks=[]),
    )


@pytest.mark.parametrize(
    ('shape', 'encoder', 'is_said'),
    [
        ((16, 16, 3), 'auto', True),
        ((16, 16, 3), 'mlp', False),  # the user's own choice
        ((7, 7, 3), 'auto', False),  # 'auto' is 'mlp' here
        ((40, 64, 3), 'auto', False),
    ],
)
@pytest.mark.slow(ci=True)
def test_run_names_a_faster_encoder_for_small_images(
    shape: Any, encoder: str, is_said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level('INFO')
    cfg = config(tmp_path, shape=list(shape), high=255)
    cfg['policy']['model']['encoder'] = encoder
    serial_pipeline(cfg, max_env_step=32)
    said = [text for text in caplog.messages if 'get the encoder impala' in text]
    assert len(said) == is_said
    if said:
        assert 'the images of 16x16' in said[0]
        named = said[0].split("'policy.model.encoder=")[1].rstrip("'")
        cfg['policy']['model']['encoder'] = yaml.safe_load(named)
        caplog.clear()
        serial_pipeline(cfg, max_env_step=32)
        assert 'get the encoder' not in caplog.text  # what it names fits, and is not spoken of again


@pytest.mark.parametrize(
    ('shape', 'high', 'obs_norm', 'said'),
    [
        ((9, 9), 255, False, 'are bytes up to 255 of shape (9, 9), and enter the network unscaled'),
        ((9, 9), 255, False, 'give pictures a channel, shape (9, 9, 1)'),
        ((12,), 255, False, 'are bytes up to 255 of shape (12,)'),
        ((9, 9), 255, True, None),
        ((9, 9), 7, False, None),
        ((9, 9, 1), 255, False, None),
    ],
)
def test_run_says_that_bytes_which_are_no_image_enter_unscaled(
    shape: Any, high: int, obs_norm: bool, said: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = config(tmp_path, shape=list(shape), high=high)
    cfg['policy']['model']['obs_norm'] = obs_norm
    serial_pipeline(cfg)
    assert ('enter the network unscaled' in caplog.text) == (said is not None)
    assert said is None or said in caplog.text


def test_checkpoint_of_an_older_version_keeps_the_scale_of_its_images(tmp_path: Path) -> None:
    """Oracle: a policy whose images end at 255, which is what the older version computed for every space of bytes."""
    policy = make_policy(config(tmp_path, shape=[9, 9, 3], high=3))
    policy.save(tmp_path / 'new.safetensors')
    checkpoint = load_checkpoint(tmp_path / 'new.safetensors')
    del checkpoint.state['policy']['model']['input.byte_scale']
    save_checkpoint(tmp_path / 'old.safetensors', checkpoint.state, checkpoint.meta)
    old, new = (load_policy(tmp_path / f'{name}.safetensors') for name in ('old', 'new'))
    wide = make_policy(config(tmp_path, shape=[9, 9, 3], high=255))
    state = {name: x for name, x in policy.model.state_dict().items() if name != 'input.byte_scale'}
    wide.model.load_state_dict(state)
    obs = np.random.default_rng(0).integers(0, 4, (20, 9, 9, 3)).astype(np.uint8)
    torch.testing.assert_close(old.value(obs), wide.value(obs))
    torch.testing.assert_close(new.value(obs), policy.value(obs))
    torch.testing.assert_close(new.value(obs // 3 * 3), wide.value(obs // 3 * 255))
    assert not torch.allclose(old.value(obs), new.value(obs))


def clipped(tmp_path: Path, executor: str, obs_clip: float) -> Any:
    """The run of a policy whose observations, 0 to 1 in a ramp, are normalised and clipped."""
    cfg: Any = dict(
        exp_name=f'{executor}_{obs_clip}',
        max_env_step=128,
        env=dict(id=LimitEnv, kwargs=dict(limit=16), collector_env_num=2),
        policy=dict(
            type='ppo',
            model=dict(obs_norm=True, obs_clip=obs_clip),
            collect=dict(n_step=16),
            learn=dict(batch_size=16, executor=executor),
        ),
        logger=dict(root=str(tmp_path), console='off', sinks=[]),
    )
    return serial_pipeline(cfg)


@pytest.mark.long
@pytest.mark.usefixtures('native', 'graphs')
def test_bound_of_normalised_observations_is_the_same_in_every_executor_and_kept(tmp_path: Path) -> None:
    runs = {name: clipped(tmp_path, name, 0.3) for name in ('eager', 'native', 'graph')}
    plain = clipped(tmp_path, 'eager', 10.0)
    obs = np.linspace(0, 16, 40, dtype=np.float32)[:, None]
    values = {name: run.policy.value(obs) for name, run in runs.items()}
    for name in ('native', 'graph'):  # equal up to rounding
        torch.testing.assert_close(values[name], values['eager'], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(plain.policy.value(obs), values['eager'], atol=1e-3)
    again = load_policy(runs['native'].run_dir, trust=True)
    assert again.cfg.model.obs_clip == 0.3
    torch.testing.assert_close(again.value(obs), values['native'])
    far = np.array([[100.0], [1e4]], np.float32)  # beyond the bound all observations are equal
    assert len(again.value(far).unique()) == 1


def test_bound_without_normalisation_is_refused(tmp_path: Path) -> None:
    cfg = config(tmp_path, shape=[3], high=5)
    cfg['policy']['model']['obs_clip'] = 5.0
    with pytest.raises(UserError, match='policy.model.obs_clip is 5 but observations are not normalised'):
        serial_pipeline(cfg)


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
