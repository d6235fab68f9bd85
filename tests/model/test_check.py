"""Networks that break the contract of a model are named before a run begins."""

from __future__ import annotations

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


class Net(torch.nn.Module):
    """Right for 4 observations and 2 choices; each test spoils one method."""

    def compute_actor(self, obs):
        return torch.zeros(*obs.shape[:-1], 2)

    def compute_critic(self, obs):
        return obs.sum(-1)

    def compute_actor_critic(self, obs):
        return {'logit': self.compute_actor(obs), 'value': self.compute_critic(obs)}


def test_model_that_keeps_the_contract_passes() -> None:
    assert probe(Net(), OBS, Categorical(2), CPU) is None


@pytest.mark.parametrize(
    ('method', 'gives', 'words'),
    [
        ('compute_critic', lambda self, obs: obs[..., :1], ['Net.compute_critic gave', '(3, 1)', '(3,)']),
        ('compute_critic', lambda self, obs: None, ['Net.compute_critic gave a NoneType', '(3,)']),
        ('compute_actor', lambda self, obs: obs[..., :1], ['Net.compute_actor gave', '(3, 1)', '(3, 2)']),
        ('compute_actor', lambda self, obs: torch.zeros(3, 2, dtype=torch.int64), ['type int64', 'float tensor']),
        (
            'compute_actor_critic',
            lambda self, obs: obs,
            ['compute_actor_critic gave a tensor', "{'logit': ..., 'value'"],
        ),
    ],
)
def test_model_that_breaks_it_is_named_with_got_and_wanted(method, gives, words) -> None:
    broken = type('Net', (Net,), {method: gives})()
    with pytest.raises(UserError) as error:
        probe(broken, OBS, Categorical(2), CPU)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_model_without_a_method_is_named() -> None:
    with pytest.raises(UserError, match=r'model Linear has no method compute_actor\(obs\)'):
        probe(torch.nn.Linear(4, 2), OBS, Categorical(2), CPU)


def test_continuous_actions_want_mu_beside_sigma() -> None:
    with pytest.raises(
        UserError, match=r'gave a tensor of shape \(3, 2\).* must give a float tensor of shape \(3, 4\)'
    ):
        probe(Net(), OBS, Gaussian(2), CPU)


def test_parameters_in_a_dict_are_named_with_the_way_to_join_them() -> None:
    parts = {'mu': torch.zeros(3, 2), 'sigma': torch.ones(3, 2)}
    broken = type('Net', (Net,), {'compute_actor': lambda self, obs: parts})()
    with pytest.raises(
        UserError, match=r"a dict with the keys \['mu', 'sigma'\].*\(..., 4\).*return torch.cat\(\(mu, sigma\), -1\)"
    ):
        probe(broken, OBS, Gaussian(2), CPU)


def test_images_of_bytes_are_probed_with_bytes() -> None:
    seen = []

    class Watching(Net):
        def compute_critic(self, obs):
            seen.append((obs.dtype, obs.shape))
            return obs.flatten(1).float().sum(-1)

        def compute_actor(self, obs):
            return torch.zeros(len(obs), 2)

    probe(Watching(), Box(np.zeros((8, 8, 3)), np.full((8, 8, 3), 255.0), 'uint8'), Categorical(2), CPU)
    assert set(seen) == {(torch.uint8, (3, 8, 8, 3))}


def good_aux(self, obs):
    return {**self.compute_actor_critic(obs), 'aux_value': obs.sum(-1)}


def test_model_with_a_good_auxiliary_pass_passes() -> None:
    assert probe(type('Net', (Net,), {'compute_aux': good_aux})(), OBS, Categorical(2), CPU) is None


@pytest.mark.parametrize(
    ('spoilt', 'words'),
    [
        ({'aux_value': torch.zeros(3, 1)}, ["Net.compute_aux['aux_value'] gave", '(3, 1)', '(3,)']),
        ({'value': None}, ["Net.compute_aux['value'] gave a NoneType"]),
        ({'logit': torch.zeros(3, 3)}, ["Net.compute_aux['logit'] gave", '(3, 3)', '(3, 2)']),
    ],
)
def test_auxiliary_pass_that_breaks_the_contract_is_named(spoilt, words) -> None:
    broken = type('Net', (Net,), {'compute_aux': lambda self, obs: good_aux(self, obs) | spoilt})()
    with pytest.raises(UserError) as error:
        probe(broken, OBS, Categorical(2), CPU)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_auxiliary_pass_without_its_value_is_named() -> None:
    broken = type('Net', (Net,), {'compute_aux': Net.compute_actor_critic})()
    with pytest.raises(UserError, match=r"keys \['logit', 'value'\]; return .*'aux_value': ..."):
        probe(broken, OBS, Categorical(2), CPU)


def test_gaussian_model_that_gives_a_log_std_for_sigma_is_told_so() -> None:
    wrong = type('Net', (Net,), {'compute_actor': lambda self, obs: torch.tensor([0.0, -0.5]).expand(len(obs), 2)})()
    with pytest.raises(UserError, match='compute_actor gave a sigma that is not above 0; .* e.g. log_std.exp'):
        probe(wrong, OBS, Gaussian(1), CPU)


# ---- observations of several entries


def test_nested_observations_are_probed_with_a_mask_that_allows_all() -> None:
    space = Dict({'x': Dict({'image': Box(np.zeros((8, 8, 3)), np.ones((8, 8, 3)), 'uint8'), 'i': Discrete(4)}),
                  'action_mask': MultiBinary((2,))})  # fmt: skip
    seen = []

    class Watching(Net):
        def compute_actor(self, obs):
            seen.append(obs)
            return torch.zeros(*obs['x']['i'].shape, 2)

        def compute_critic(self, obs):
            return obs['x']['i'].float()

    probe(Watching(), space, Categorical(2), CPU)
    assert seen[0]['x']['image'].dtype == torch.uint8 and seen[0]['x']['image'].shape == (3, 8, 8, 3)
    assert seen[0]['action_mask'].all() and not seen[0]['x']['i'].any()


@pytest.mark.parametrize('recurrent', [None, {}], ids=['plain', 'recurrent'])
@pytest.mark.parametrize(
    'obs_space', [OBS, Dict({'obs': OBS, 'action_mask': MultiBinary((2,))})], ids=['box', 'masked']
)
def test_models_of_zoo_keep_the_contract(obs_space, recurrent) -> None:
    for model in (VAC, PPG):
        config = VACConfig if model is VAC else PPGConfig
        made = model(validate(config, {'recurrent': recurrent}), obs_space, Discrete(2))
        assert probe(made, obs_space, made.dist, CPU) is None


# ---- models with a state


class Recurrent(torch.nn.Module):
    """Right for 4 observations and 2 choices: the state counts steps."""

    def initial_state(self, n_env):
        return {'count': torch.zeros(n_env), 'twice': torch.zeros(n_env, 2)}

    def compute_actor(self, obs, state, first=None):
        return torch.zeros(*obs.shape[:-1], 2), state

    def compute_critic(self, obs, state, first=None):
        return obs.sum(-1), state

    def compute_actor_critic(self, obs, state, first=None):
        return {'logit': self.compute_actor(obs, state)[0], 'value': obs.sum(-1), 'state': state}


def test_recurrent_model_that_keeps_the_contract_passes_one_step_and_a_sequence_with_a_reset() -> None:
    seen = []

    class Watching(Recurrent):
        def compute_critic(self, obs, state, first=None):
            seen.append((tuple(obs.shape), tuple(state['twice'].shape), first))
            return super().compute_critic(obs, state, first)

    assert probe(Watching(), OBS, Categorical(2), CPU) is None
    assert [x[:2] for x in seen] == [((3, 4), (3, 2)), ((4, 3, 4), (3, 2))]
    assert seen[0][2] is None and seen[1][2].nonzero().tolist() == [[2, 0]]


@pytest.mark.parametrize(
    ('method', 'gives', 'words'),
    [
        (
            'initial_state',
            lambda self, n: {'count': torch.zeros(2)},
            ['Net.initial_state(3) gave a tensor of shape (2,)', "as 'count'", '[3, ..]'],
        ),
        ('initial_state', lambda self, n: None, ['Net.initial_state(3) gave a NoneType', '[3, ..]']),
        (
            'compute_actor',
            lambda self, obs, state, first=None: torch.zeros(*obs.shape[:-1], 2),
            ['Net.compute_actor(obs, state) gave a tensor', 'return (logit, state)'],
        ),
        (
            'compute_critic',
            lambda self, obs, state, first=None: (obs.sum(-1), state['count']),
            ['Net.compute_critic(obs, state) gave a state of (3,)', 'count (3,), twice (3, 2)'],
        ),
        (
            'compute_critic',
            lambda self, obs, state, first=None: (obs.sum(-1)[..., :2], state),
            ['Net.compute_critic gave', 'shape (2,)', '(3,)'],
        ),
        (
            'compute_critic',
            lambda self, obs, state, first=None: (obs.sum(-1) if first is None else obs.sum(-1)[-1], state),
            ['Net.compute_critic gave', 'shape (3,)', '4 x 3 observations, time first', '(4, 3)'],
        ),
        (
            'compute_actor',
            lambda self, obs, state: (torch.zeros(len(obs), 2), state),
            ['Net.compute_actor(obs, state) cannot be called as compute_actor(obs, state, first)', 'first=None'],
        ),
        (
            'compute_actor_critic',
            lambda self, obs, state, first=None: {'logit': torch.zeros(*obs.shape[:-1], 2), 'value': obs.sum(-1)},
            ['Net.compute_actor_critic gave a dict', "'state': ..."],
        ),
    ],
)
def test_recurrent_model_that_breaks_it_is_named_with_got_and_wanted(method, gives, words) -> None:
    broken = type('Net', (Recurrent,), {method: gives})()
    with pytest.raises(UserError) as error:
        probe(broken, OBS, Categorical(2), CPU)
    assert all(word in str(error.value) for word in words), str(error.value)


class Forgetful(Recurrent):
    initial_state = property(lambda self: getattr(self, 'nothing'))  # noqa: B009


def test_recurrent_model_without_initial_state_is_told_to_define_it() -> None:
    with pytest.raises(
        UserError, match=r'Forgetful.compute_actor takes obs, state but the model has no initial_state\(n_env\); define'
    ):
        probe(Forgetful(), OBS, Categorical(2), CPU)


def test_model_that_gives_a_state_but_begins_with_none_is_told_so() -> None:
    broken = type('Net', (Net,), {'compute_critic': lambda self, obs: (obs.sum(-1), None)})()
    with pytest.raises(UserError, match=r'Net.compute_critic gave a tuple of 2 but the model has no initial_state'):
        probe(broken, OBS, Categorical(2), CPU)


def test_auxiliary_pass_of_a_recurrent_model_is_checked_too() -> None:
    aux = {'compute_aux': lambda self, obs, state, first=None: self.compute_actor_critic(obs, state)}
    with pytest.raises(UserError, match=r"compute_aux gave a dict .*'aux_value': ..., 'value': ..., 'state': ..."):
        probe(type('Net', (Recurrent,), aux)(), OBS, Categorical(2), CPU)
