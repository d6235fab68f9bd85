"""Networks that break the contract of a model are named before a run begins."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from zoo.core.errors import UserError
from zoo.core.spaces import Box
from zoo.model.probe import probe
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
