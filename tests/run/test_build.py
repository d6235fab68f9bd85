"""What is said when the parts of a run are built."""

from __future__ import annotations

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
from zoo import load_policy, make_policy, serial_pipeline
from zoo.core.errors import UserError
from zoo.run.checkpoint import load_checkpoint, save_checkpoint


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
