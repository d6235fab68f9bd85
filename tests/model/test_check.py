"""Networks that break the contract of a model are named before a run begins."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

from zoo.config.section import validate
from zoo.core.errors import UserError
from zoo.core.spaces import Box, Dict, Discrete, MultiBinary
from zoo.model import PPG, VAC, PPGConfig, VACConfig
from zoo.model.check import probe
from zoo.rl_utils import Categorical, Gaussian

CPU = torch.device('cpu')
OBS = Box(-np.ones(4), np.ones(4))
IMAGE = Box(np.zeros((8, 8, 3)), np.full((8, 8, 3), 255.0), 'uint8')


class Net(torch.nn.Module):
    """A correct model for 4 observations and 2 choices; each row of BROKEN spoils one method."""

    def compute_actor(self, obs):
        return torch.zeros(*obs.shape[:-1], 2)

    def compute_critic(self, obs):
        return obs.sum(-1)

    def compute_actor_critic(self, obs):
        return {'logit': self.compute_actor(obs), 'value': self.compute_critic(obs)}


class Recurrent(torch.nn.Module):
    """A correct model with a recurrent state, which it returns unchanged."""

    def initial_state(self, n_env):
        return {'count': torch.zeros(n_env), 'twice': torch.zeros(n_env, 2)}

    def compute_actor(self, obs, state, first=None):
        return torch.zeros(*obs.shape[:-1], 2), state

    def compute_critic(self, obs, state, first=None):
        return obs.sum(-1), state

    def compute_actor_critic(self, obs, state, first=None):
        return {'logit': self.compute_actor(obs, state)[0], 'value': obs.sum(-1), 'state': state}


class Forgetful(Recurrent):
    initial_state = property(lambda self: getattr(self, 'nothing'))  # noqa: B009


def good_aux(self, obs):
    return {**self.compute_actor_critic(obs), 'aux_value': obs.sum(-1)}


def aux(**spoilt):
    return lambda self, obs: good_aux(self, obs) | spoilt


def stateful(call):
    """A method for Recurrent that returns call(obs, state, first)."""
    return lambda self, obs, state, first=None: call(obs, state, first)


def without_first(self, obs, state):
    return torch.zeros(len(obs), 2), state


def zeros(*shape: int, dtype: Any = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def spoilt(base: type, method: str, gives: Any) -> Any:
    """A model in which one method gives something else: a function of its arguments, or a constant."""
    call = gives if callable(gives) else lambda self, *args, **kwargs: gives
    return type('Net', (base,), {method: call})()


PARTS = {'mu': zeros(3, 2), 'sigma': zeros(3, 2) + 1}
LOG_STD = torch.tensor([0.0, -0.5]).expand(3, 2)
TWO, ONE, TWO_REALS = Categorical(2), Gaussian(1), Gaussian(2)
AC, NO_STATE = 'compute_actor_critic', stateful(lambda x, s, f: {'logit': zeros(*x.shape[:-1], 2), 'value': x.sum(-1)})
CRITIC, AUX, OTHER_STATE = 'compute_critic', 'compute_aux', stateful(lambda x, s, f: (x.sum(-1), s['count']))
TWO_OF_THREE = stateful(lambda x, s, f: (x.sum(-1)[..., :2], s))
LAST_OF_ALL = stateful(lambda x, s, f: (x.sum(-1) if f is None else x.sum(-1)[-1], s))
# distribution, class, method, its wrong output, and parts of the error message
BROKEN: list[tuple[Any, type, str, Any, str]] = [
    (TWO, Net, 'compute_critic', lambda self, x: x[..., :1], 'Net.compute_critic gave .. (3, 1) .. (3,)'),
    (TWO, Net, 'compute_critic', None, 'Net.compute_critic gave a NoneType .. (3,)'),
    (TWO, Net, 'compute_critic', (zeros(3), None), 'Net.compute_critic gave a tuple of 2 but .. has no initial_state'),
    (TWO, Net, 'compute_actor', lambda self, x: x[..., :1], 'Net.compute_actor gave .. (3, 1) .. (3, 2)'),
    (TWO, Net, 'compute_actor', zeros(3, 2, dtype=torch.int64), 'type int64 .. float tensor'),
    (TWO, Net, AC, lambda self, x: x, "compute_actor_critic gave a tensor .. {'logit': ..., 'value'"),
    (TWO_REALS, Net, 'compute_actor', zeros(3, 2), 'shape (3, 2) .. must give a float tensor of shape (3, 4)'),
    (TWO_REALS, Net, 'compute_actor', PARTS, "['mu', 'sigma'] .. (..., 4) .. return torch.cat((mu, sigma), -1)"),
    (ONE, Net, 'compute_actor', LOG_STD, 'compute_actor gave a sigma that is not above 0; .. e.g. log_std.exp'),
    (TWO, Net, 'compute_aux', aux(aux_value=zeros(3, 1)), "Net.compute_aux['aux_value'] gave .. (3, 1) .. (3,)"),
    (TWO, Net, 'compute_aux', aux(value=None), "Net.compute_aux['value'] gave a NoneType"),
    (TWO, Net, 'compute_aux', aux(logit=zeros(3, 3)), "Net.compute_aux['logit'] gave .. (3, 3) .. (3, 2)"),
    (TWO, Net, 'compute_aux', Net.compute_actor_critic, "keys ['logit', 'value']; return .. 'aux_value': ..."),
    (
        TWO,
        Recurrent,
        'initial_state',
        {'count': zeros(2)},
        "Net.initial_state(3) gave .. (2,) .. as 'count' .. [3, ..]",
    ),
    (TWO, Recurrent, 'initial_state', None, 'Net.initial_state(3) gave a NoneType .. [3, ..]'),
    (TWO, Recurrent, 'compute_actor', zeros(3, 2), 'compute_actor(obs, state) gave a tensor .. return (logit, state)'),
    (
        TWO,
        Recurrent,
        CRITIC,
        OTHER_STATE,
        'Net.compute_critic(obs, state) gave a state of (3,) .. count (3,), twice (3, 2)',
    ),
    (TWO, Recurrent, CRITIC, TWO_OF_THREE, 'Net.compute_critic gave .. shape (2,) .. (3,)'),
    (TWO, Recurrent, 'compute_critic', LAST_OF_ALL, 'gave .. shape (3,) .. 4 x 3 observations, time first .. (4, 3)'),
    (TWO, Recurrent, 'compute_actor', without_first, 'called as compute_actor(obs, state, first) .. first=None'),
    (TWO, Recurrent, AC, NO_STATE, "Net.compute_actor_critic gave a dict .. 'state': ..."),
    (TWO, Recurrent, AUX, Recurrent.compute_actor_critic, "compute_aux gave a dict .. 'aux_value': ..., 'value'"),
]


@pytest.mark.parametrize(('dist', 'base', 'method', 'gives', 'words'), BROKEN)
def test_model_that_breaks_the_contract_is_named_with_got_and_wanted(
    dist: Any, base: type, method: str, gives: Any, words: str
) -> None:
    with pytest.raises(UserError) as error:
        probe(spoilt(base, method, gives), OBS, dist, CPU)
    assert re.search('.*'.join(map(re.escape, words.split(' .. '))), str(error.value)), str(error.value)


@pytest.mark.parametrize(
    ('model', 'words'),
    [
        (torch.nn.Linear(4, 2), r'model Linear has no method compute_actor\(obs\)'),
        (Forgetful(), r'Forgetful.compute_actor takes obs, state but the model has no initial_state\(n_env\); define'),
    ],
)
def test_model_without_a_method_is_told_to_define_it(model: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        probe(model, OBS, TWO, CPU)


def test_model_that_keeps_the_contract_passes_also_with_an_auxiliary_pass() -> None:
    for model in (Net(), spoilt(Net, 'compute_aux', good_aux)):
        assert probe(model, OBS, TWO, CPU) is None


def test_nested_observations_with_images_are_probed_with_bytes_and_a_mask_that_allows_all() -> None:
    space = Dict({'x': Dict({'image': IMAGE, 'i': Discrete(4)}), 'action_mask': MultiBinary((2,))})
    seen = []

    class Watching(Net):
        def compute_actor(self, obs):
            seen.append(obs)
            return torch.zeros(*obs['x']['i'].shape, 2)

        def compute_critic(self, obs):
            return obs['x']['i'].float()

    probe(Watching(), space, TWO, CPU)
    assert seen[0]['x']['image'].dtype == torch.uint8 and seen[0]['x']['image'].shape == (3, 8, 8, 3)
    assert seen[0]['action_mask'].all() and not seen[0]['x']['i'].any()


def test_recurrent_model_that_keeps_the_contract_passes_one_step_and_a_sequence_with_a_reset() -> None:
    seen = []

    class Watching(Recurrent):
        def compute_critic(self, obs, state, first=None):
            seen.append((tuple(obs.shape), tuple(state['twice'].shape), first))
            return super().compute_critic(obs, state, first)

    assert probe(Watching(), OBS, TWO, CPU) is None
    assert [x[:2] for x in seen] == [((3, 4), (3, 2)), ((4, 3, 4), (3, 2))]
    assert seen[0][2] is None and seen[1][2].nonzero().tolist() == [[2, 0]]


@pytest.mark.parametrize('obs_space', [OBS, Dict({'obs': OBS, 'action_mask': MultiBinary((2,))})], ids=['box', 'mask'])
def test_models_of_zoo_keep_the_contract(obs_space: Any) -> None:
    for model, config in ((VAC, VACConfig), (PPG, PPGConfig)):
        for recurrent in (None, {}):
            made: Any = model(validate(config, {'recurrent': recurrent}), obs_space, Discrete(2))
            assert probe(made, obs_space, made.dist, CPU) is None
