"""Normalised windows of observations (env.window): empty places count in no statistics, and are 0 for the networks."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from zoo.config.section import validate
from zoo.core.data import map_tensors
from zoo.core.spaces import Discrete, Space
from zoo.env.adapter import env_spaces
from zoo.env.config import EnvConfig
from zoo.env.wrappers import wrap_env
from zoo.model import PPG, VAC, PPGConfig, VACConfig, make_input
from zoo.model.inputs import update_input
from zoo.rl_utils.normalizer import WindowMeanStd

N = 4
VARIANCES = [1.25, 2.0, 35 / 12, 4.0]
"""Of 100 to 103, 100 to 104, 100 to 105 and 100 to 106: what the places of a window of 4 hold in an episode of 7 steps."""
MEANS = [101.5, 102.0, 102.5, 103.0]


class Count(gymnasium.Env):
    """Observations 100, 101, .. and rewards of 50."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shape: tuple[int, ...] = (1,), is_bytes: bool = False) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        if is_bytes:
            self.observation_space = gymnasium.spaces.Box(0, 255, shape, np.uint8)

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict]:
        self._t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._t += 1
        return self._obs(), 50.0, False, self._t == 7, {}

    def _obs(self) -> np.ndarray:
        return np.full(self.observation_space.shape, 100 + self._t, self.observation_space.dtype)


def episode(shape: tuple[int, ...] = (1,), is_bytes: bool = False, **keys: Any) -> tuple[Space, Any]:
    """The space of the observations with a window, and the 7 observations of an episode that a policy acts on."""
    env = wrap_env(Count(shape, is_bytes), EnvConfig(id='count', window=N, **keys), 'off', 'count')
    rows = [env.reset()[0]]
    rows += [env.step(0)[0] for _ in range(6)]
    space = env_spaces(env, 'count')[0]
    columns = {key: torch.as_tensor(np.stack([row[key] for row in rows])) for key in rows[0]}
    return space, columns


def model_of(space: Space, kind: str = 'vac', **fields: Any) -> Any:
    cls, config = {'vac': (VAC, VACConfig), 'ppg': (PPG, PPGConfig)}[kind]
    return cls(validate(config, {'hidden_sizes': [8], 'obs_norm': True, **fields}), space, Discrete(2))


def statistics(model: Any) -> WindowMeanStd:
    (found,) = (module for module in model.modules() if isinstance(module, WindowMeanStd))
    return found


@pytest.mark.parametrize('shape', [(), (1,), (3,)])
@pytest.mark.parametrize(
    ('kind', 'fields'),
    [
        ('vac', {}),
        ('ppg', {}),
        ('vac', {'actor_obs': ['obs'], 'critic_obs': ['obs']}),
        ('vac', {'recurrent': {'cell': 'gru'}}),
    ],
)
def test_places_of_a_window_have_the_statistics_of_the_observations_in_them(
    shape: tuple[int, ...], kind: str, fields: dict[str, Any]
) -> None:
    space, obs = episode(shape)
    model = model_of(space, kind, **fields)
    for _ in range(2):  # the same once more: variances of the population stay
        model.update_normalizer(obs)
    found = statistics(model)
    n_each = int(np.prod(shape))
    want = torch.tensor(VARIANCES, dtype=torch.float64).repeat_interleave(n_each)
    torch.testing.assert_close(found.var, want)
    torch.testing.assert_close(found.mean, torch.tensor(MEANS, dtype=torch.float64).repeat_interleave(n_each))
    assert found.entry_count.tolist() == [n for n in (8.0, 10.0, 12.0, 14.0) for _ in range(n_each)]


@pytest.mark.parametrize('fields', [{}, {'actor_obs': ['obs'], 'critic_obs': ['obs']}])
def test_empty_places_are_0_after_normalising_and_others_are_normalised(fields: dict[str, Any]) -> None:
    space, obs = episode()
    model = model_of(space, **fields)
    model.update_normalizer(obs)
    seen = model.encoder_input(obs)
    x = seen['obs'] if isinstance(seen, dict) else seen
    assert x.shape == (7, N) and x[0, :3].tolist() == [0.0] * 3 and x[1, :2].tolist() == [0.0] * 2
    torch.testing.assert_close(x[:, 3], (torch.arange(7.0) - 3) / 2)  # 100 to 106: mean 103, deviation 2
    torch.testing.assert_close(x[1:, 2], (torch.arange(6.0) - 2.5) / (35 / 12) ** 0.5)


def test_acting_needs_the_mask_of_a_normalised_window_and_else_only_what_the_actor_sees() -> None:
    space, _ = episode()
    entries = {'actor_obs': ['obs'], 'critic_obs': ['obs']}
    assert set(model_of(space, **entries).actor_leaves) == {'obs', 'window_mask'}
    assert set(model_of(space, obs_norm=False, **entries).actor_leaves) == {'obs'}


def test_zeros_of_empty_places_of_the_previous_reward_count_as_little() -> None:
    """Rewards of 50, and 0 with the first observation: of the m rows in which a place holds one, one is 0."""
    space, obs = episode(prev_reward=True)
    model = model_of(space)
    model.update_normalizer(obs)
    found = [module for module in model.modules() if isinstance(module, WindowMeanStd)][1]
    want = [2500 * (1 / m) * (1 - 1 / m) for m in (4, 5, 6, 7)]  # of the newest place 306
    torch.testing.assert_close(found.var, torch.tensor(want, dtype=torch.float64))


def test_rows_of_weight_0_do_not_count() -> None:
    space, obs = episode()
    model = model_of(space)
    weight = torch.ones(7)
    weight[6] = 0
    model.update_normalizer(obs, weight)
    assert statistics(model).var[-1].item() == pytest.approx(35 / 12)  # 100 to 105


def test_input_of_an_own_model_finds_the_window_itself() -> None:
    space, obs = episode()
    stage: Any = make_input(space, obs_norm=True)
    update_input(stage, obs)
    assert stage(obs)['obs'][0].tolist() == [0.0, 0.0, 0.0, pytest.approx(-1.5)]
    plain: Any = make_input(space)
    assert plain(obs)['obs'][0].tolist() == [0.0, 0.0, 0.0, 100.0]


@pytest.mark.parametrize('views', [{}, {'actor_obs': ['obs'], 'critic_obs': ['obs']}])
def test_state_of_all_places_acts_and_counts_as_before(views: Any, caplog: Any) -> None:
    """Older files have no counts of entries; their weights were trained on (0 - mean) / std at empty places."""
    space, obs = episode()
    model = model_of(space, **views)
    state = {name: x for name, x in model.state_dict().items() if not name.endswith('entry_count')}
    prefix = next(name for name in state if name.endswith('.mean')).removesuffix('mean')
    state[f'{prefix}count'] = torch.tensor(100.0, dtype=torch.float64)
    state[f'{prefix}shift'] = torch.full_like(state[f'{prefix}shift'], 2.0)
    state[f'{prefix}scale'] = torch.full_like(state[f'{prefix}scale'], 0.5)
    model.load_state_dict(state)
    assert caplog.text.count('older version') == 1
    seen = model.encoder_input(obs)
    windows = seen['obs'] if isinstance(seen, dict) else seen
    assert windows[0].tolist() == [-1.0, -1.0, -1.0, 10.0]  # (0 - 2) / 2, and (100 - 2) / 2, which is clipped
    model.update_normalizer(obs)
    assert statistics(model).count.item() == 107.0  # all 7 rows of each place
    assert statistics(model).mean[-1].item() == pytest.approx(7 * 103 / 107)
    again = model.state_dict()
    assert again.keys() == state.keys()  # the next checkpoint says so too


def test_state_with_counts_is_read_after_one_without() -> None:
    space, obs = episode()
    model = model_of(space)
    new = {name: x.clone() for name, x in model.state_dict().items()}
    model.load_state_dict({name: x for name, x in new.items() if not name.endswith('entry_count')})
    model.load_state_dict(new)
    model.update_normalizer(obs)
    assert statistics(model).entry_count is not None


def test_every_executor_but_native_normalises_a_window(native: Any) -> None:
    from zoo.backend.native import obstacle

    space, _ = episode()
    model = model_of(space, actor_obs=['obs'], critic_obs=['obs'])
    why = 'the native executor does not normalise windows of observations'
    assert obstacle(model, model.dist, torch.device('cpu')) == why
    model = model_of(space, actor_obs=['obs'], critic_obs=['obs'], obs_norm=False)
    assert not obstacle(model, model.dist, torch.device('cpu'))


def test_random_network_distillation_leaves_empty_places_out() -> None:
    from zoo.policy.options.intrinsic import RNDConfig, RNDNetworks

    space, obs = episode()
    obs['window_mask'] = obs['window_mask'].bool()
    networks = RNDNetworks(RNDConfig(batch_size=8), space)
    networks.update_statistics(obs, torch.ones(7))
    (var,) = (each.var for each in networks.obs_statistics if isinstance(each, WindowMeanStd))
    torch.testing.assert_close(var, torch.tensor(VARIANCES, dtype=torch.float64))
    seen: dict[str, Tensor] = map_tensors(lambda x: x[0], networks.encoder_inputs(obs))
    assert seen['obs'][:3].tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ('shape', 'frames'),
    [  # frames of the input [C, H, W] of the networks: how to view them as [places, numbers in each place]
        ((12, 12), lambda x: x),
        ((12, 2), lambda x: x.movedim(1, 0)),  # [4, 12, 2] is an image of 4 rows and 2 channels
        ((12, 12, 1), lambda x: x),
        ((3, 12, 12), lambda x: x.unflatten(0, (N, 3))),
        ((12, 12, 3), lambda x: x.unflatten(0, (N, 3))),
    ],
)
@pytest.mark.parametrize('is_bytes', [True, False])
def test_random_network_distillation_leaves_empty_frames_out(
    shape: tuple[int, ...], frames: Any, is_bytes: bool
) -> None:
    from zoo.policy.options.intrinsic import RNDConfig, RNDNetworks

    space, obs = episode(shape, is_bytes)
    obs['window_mask'] = obs['window_mask'].bool()
    networks = RNDNetworks(RNDConfig(encoder='mlp'), space)
    networks.update_statistics(obs, torch.ones(7))
    (found,) = (each for each in networks.obs_statistics if isinstance(each, WindowMeanStd))
    want_of_place = torch.tensor(VARIANCES, dtype=torch.float64)
    var = frames(found.var).flatten(1)
    torch.testing.assert_close(var, want_of_place.unsqueeze(1).expand_as(var))
    first = frames(networks.encoder_inputs(obs)['obs'][0]).flatten(1)
    assert not first[:3].any()
    torch.testing.assert_close(first[3], torch.full_like(first[3], -1.5))  # 100 among 100 to 106: (100 - 103) / 2
