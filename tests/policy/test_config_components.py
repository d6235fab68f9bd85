"""Components that a config chooses: their effects in a policy, user-defined components, and errors of wrong ones."""

from __future__ import annotations

import pickle
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from pydantic import Field

from tests.policy.updates import N_STEP, OBS, N, parameters, ppo, random_rollout, samples_of
from tests.policy_envs import TWO_ACTIONS, clone, job_config, make_policy
from zoo import load_policy
from zoo.config.components import make_component
from zoo.core.errors import UserError
from zoo.core.registry import COMPONENTS, DRAW_REGISTRY, ESTIMATOR_REGISTRY, EXPLORATION_REGISTRY, PENALTY_REGISTRY
from zoo.core.spaces import Box
from zoo.model.actor_critic import VAC
from zoo.pipeline import serial_pipeline
from zoo.policy.passes import shuffle
from zoo.rl_utils import Categorical
from zoo.rl_utils.ppo import ppo_policy_data, ppo_policy_error, ppo_value_data, ppo_value_error
from zoo.run.config import resolve_config


def test_what_is_stored_is_the_policy_that_acted() -> None:
    """With temperature 2 the stored logit is half the model's, so the first ratio is not 1 but p / p_behaviour."""
    policy = ppo(collect=dict(n_step=N_STEP, exploration={'type': 'temperature', 'temperature': 2.0}))
    obs = torch.randn(3, 2)
    with torch.no_grad():
        torch.testing.assert_close(policy.collect_mode.forward(obs, None)['logit'], policy.model.compute_actor(obs) / 2)


FORM = 'let it return the parameters of a gaussian distribution in the form in which it gets them, here (3, 2): mu and sigma'


@pytest.mark.parametrize(
    ('found', 'said'),
    [
        (lambda logit: (logit - 2).log(), 'gave NaN for observations of zeros; ' + FORM),  # mu 0, sigma 1
        (lambda logit: -logit, 'gave a sigma that is not above 0 for observations of zeros; ' + FORM),
        (lambda logit: logit[..., :1], 'gave a tensor of shape (3, 1) and type float32 for observations of zeros; '),
        (lambda logit: logit.long() + 1, 'gave a tensor of shape (3, 2) and type int64 for observations of zeros; '),
        (lambda logit: None, 'gave NoneType, no tensor, for observations of zeros; '),
        (lambda logit: logit + torch.inf, 'gave an infinite number for observations of zeros; '),
    ],
)
def test_an_exploration_that_gives_unsound_parameters_of_normal_actions_is_refused(
    found: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPLORATION_REGISTRY.entries, 'wrong_of_test', lambda dist, logit: found(logit))
    box = Box(np.full(1, -2), np.full(1, 2), 'float32')
    with pytest.raises(UserError) as error:
        make_policy(OBS, box, collect=dict(n_step=N_STEP, exploration='wrong_of_test'))
    assert str(error.value).startswith("policy.collect.exploration is 'wrong_of_test', which " + said)


@pytest.mark.parametrize('shift', [-torch.inf, torch.inf, torch.nan])
def test_an_exploration_under_which_discrete_actions_have_no_probability_is_refused(
    shift: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXPLORATION_REGISTRY.entries, 'wrong_of_test', lambda dist, logit: logit + shift)
    with pytest.raises(UserError, match=r"'wrong_of_test', which gave .* for observations of zeros; let it return"):
        ppo(collect=dict(n_step=N_STEP, exploration='wrong_of_test'))


def test_an_exploration_may_forbid_choices_and_one_that_only_evaluates_is_not_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never = torch.tensor([-torch.inf, 0.0])
    monkeypatch.setitem(EXPLORATION_REGISTRY.entries, 'second_of_test', lambda dist, logit: logit + never)
    policy = ppo(collect=dict(n_step=N_STEP, exploration='second_of_test'))
    assert policy.collect_mode.forward(torch.zeros(5, 2), None)['action'].tolist() == [1] * 5
    monkeypatch.setitem(EXPLORATION_REGISTRY.entries, 'wrong_of_test', lambda dist, logit: logit * torch.nan)
    make_policy(OBS, TWO_ACTIONS, collect=dict(exploration='wrong_of_test'), enable_field=('eval',))


@pytest.mark.parametrize('executor', ['eager', 'auto'])
@pytest.mark.parametrize('recurrent', [False, True])
def test_options_of_an_exploration_follow_their_schedules_from_rollout_to_rollout(
    executor: str, recurrent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 envs x 16 steps a rollout: env steps 0, 64, 128, 192 of 256; from 1 to .2 over the run these are 1, .8, .6, .4."""
    seen: list[tuple[float, int]] = []

    def mine(dist: Any, logit: torch.Tensor, *, share: float = 0.5, env_step: int = -1) -> torch.Tensor:
        seen.append((share, env_step))
        return logit * share

    monkeypatch.setitem(EXPLORATION_REGISTRY.entries, 'mine_of_test', mine)
    policy: dict[str, Any] = dict(
        collect=dict(exploration={'type': 'mine_of_test', 'share': {'start': 1.0, 'end': 0.2}}),
        learn=dict(executor=executor),
    )
    if recurrent:
        policy['model'] = dict(recurrent=dict(cell='gru'))
    config = resolve_config(job_config(tmp_path, max_env_step=256, policy=policy))
    assert config.policy.collect.exploration.share == {'start': 1.0, 'end': 0.2, 'over': 256}
    serial_pipeline(config)
    values = list(dict.fromkeys(seen))
    assert [step for _, step in values] == [0, 64, 128, 192]
    assert [share for share, _ in values] == pytest.approx([1.0, 0.8, 0.6, 0.4])


ROWS = 'observations of the first rollout'


@pytest.mark.parametrize(
    ('name', 'where'),
    [
        ('root', 'the first observations'),  # the actions would be NaN, too
        ('shrink', 'the first observations'),
        ('late', ROWS),
    ],
)
@pytest.mark.parametrize('recurrent', [None, {'cell': 'gru'}])
def test_an_exploration_that_fails_only_on_real_observations_is_named_before_it_is_learned_from(
    recurrent: dict[str, Any] | None, name: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is sound for a mean of 0, which is that of observations of zeros."""
    n_call = 0

    def root(dist: Any, logit: torch.Tensor) -> torch.Tensor:
        return logit.sqrt()  # NaN for means below 0

    def shrink(dist: Any, logit: torch.Tensor) -> torch.Tensor:
        mu, sigma = logit.chunk(2, -1)
        return torch.cat((mu, sigma * (mu == 0)), -1)  # a sigma of 0

    def late(dist: Any, logit: torch.Tensor) -> torch.Tensor:
        nonlocal n_call
        n_call += 1
        mu, sigma = logit.chunk(2, -1)
        return torch.cat((mu, sigma * (1 if n_call < 4 else -1)), -1)

    monkeypatch.setitem(EXPLORATION_REGISTRY.entries, f'{name}_of_test', locals()[name])
    policy: dict[str, Any] = dict(collect=dict(n_step=8, exploration=f'{name}_of_test'), learn=dict(executor='eager'))
    if recurrent is not None:
        policy['model'] = dict(recurrent=recurrent)
        policy['learn']['sequence'] = dict(len=8)
    with pytest.raises(UserError, match=f"'{name}_of_test', which gave .* for {where}; let it return the parameters"):
        serial_pipeline(job_config(tmp_path, 'Pendulum-v1', max_env_step=64, policy=policy))


@pytest.mark.parametrize('value', [0.0, torch.nan])
def test_what_the_model_and_the_observations_do_is_not_blamed_on_the_exploration(value: float) -> None:
    policy = ppo(collect=dict(n_step=N_STEP, exploration='temperature'))
    rollout = random_rollout(policy)
    rollout.data['obs'].fill_(value)
    rollout.data['logit'].fill_(torch.nan)
    assert policy.collect_mode.get_train_sample(rollout)['logit'].isnan().all()


def test_a_penalty_of_weight_zero_may_be_infinite() -> None:
    policy = ppo(dict(penalties=[{'type': 'kl', 'weight': 0.0}]))
    samples = samples_of(policy)
    samples['logit'][0, 0] = -torch.inf
    samples['action'][0] = 1
    policy.model.dist = policy.dist
    policy.learn_mode.forward(samples)
    assert all(p.isfinite().all() for p in policy.model.parameters())


@pytest.mark.parametrize(('found', 'got'), [(torch.zeros(()), 'a tensor of shape ()'), (None, 'NoneType')])
def test_a_penalty_that_gives_no_number_for_each_sample_is_refused(
    found: Any, got: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PENALTY_REGISTRY.entries, 'wrong_of_test', lambda dist, output, minibatch: found)
    policy = ppo(dict(penalties=[{'type': 'wrong_of_test', 'weight': 0.1}]))
    with pytest.raises(UserError, match=re.escape(f"the penalty 'wrong_of_test' returned {got} but must return one ")):
        policy.learn_mode.forward(samples_of(policy))


@pytest.mark.slow
@pytest.mark.parametrize(('kind', 'loss'), [('ppo', 'hl_gauss'), ('ppg', 'two_hot')])
def test_a_classifying_critic_learns_the_returns(kind: str, loss: str) -> None:
    """All returns are 3: the values start at 0, the mean of all bins, and come close to 3."""
    learn: dict[str, Any] = dict(
        value_loss={'type': loss, 'n_bin': 21}, learning_rate=0.05, batch_size=N, adv_norm='off'
    )
    learn |= dict(aux_freq=100, value_norm=False) if kind == 'ppg' else dict(value_weight=1.0)
    policy = make_policy(OBS, TWO_ACTIONS, type=kind, learn=learn, collect=dict(n_step=N_STEP))
    samples = samples_of(policy)
    assert samples['value'].abs().max() < 1e-5
    samples['return_'] = torch.full_like(samples['return_'], 3.0)
    for _ in range(60):
        policy.learn_mode.forward(clone(samples))
    value = policy.model.compute_critic(samples['obs']).detach()
    assert value.shape == (N,) and (value - 3).abs().max() < 0.2


@pytest.mark.slow
def test_a_classifying_critic_is_rebuilt_from_a_checkpoint(tmp_path: Any) -> None:
    cfg = job_config(tmp_path, policy=dict(learn=dict(value_loss={'type': 'hl_gauss', 'n_bin': 11})))
    run = serial_pipeline(cfg)
    obs = torch.zeros(4, *run.policy.obs_space.shape)
    loaded = load_policy(run.run_dir)
    torch.testing.assert_close(loaded.model.compute_critic(obs), run.policy.model.compute_critic(obs))


@pytest.mark.parametrize('arch', ['dual', 'detach'])
def test_value_weight_zero_leaves_the_critic_of_ppg_still(arch: str) -> None:
    learn = dict(value_weight=0.0, batch_size=N, aux_freq=1, aux_batch_size=N, aux_bc_weight=0.0, grad_clip=None)
    policy = make_policy(OBS, TWO_ACTIONS, type='ppg', model=dict(arch=arch), learn=learn)
    critic = {name for name, _ in policy.model.critic_parameters()}
    before = parameters(policy)
    policy.learn_mode.forward(samples_of(policy))
    now = parameters(policy)
    assert critic and all(torch.equal(before[name], now[name]) for name in critic)
    assert any(not torch.equal(before[name], now[name]) for name in before.keys() - critic)


@pytest.mark.slow
def test_a_resume_as_a_variant_has_the_parts_of_the_variant(tmp_path: Any) -> None:
    run = serial_pipeline(job_config(tmp_path, max_env_step=64))
    assert run.policy.cfg.learn.surrogate == 'clip'
    again = serial_pipeline(resume=run.run_dir, overrides=['policy.type=spo'], max_env_step=128)
    learn = again.policy.cfg.learn
    assert learn.surrogate == 'spo' and learn.batch_size == 32  # settings of the resumed run stay


# --- user-defined components

PLACES: dict[str, tuple[str, str]] = {
    'policy.learn.surrogate': ('learn', 'clip'),
    'policy.learn.value_loss': ('learn', 'mse'),
    'policy.learn.penalties': ('learn', 'kl'),
    'policy.learn.plasticity': ('learn', 'shrink_perturb'),
    'policy.learn.draw': ('learn', 'in_order'),
    'policy.collect.exploration': ('collect', 'temperature'),
    'policy.collect.estimator': ('collect', 'n_step'),
}


def class_of(path: str, name: str) -> type:
    """A class whose objects do what a registered function does with its default options."""
    registry = COMPONENTS[path]

    @dataclass(frozen=True, kw_only=True)
    class Own:
        """The registered function, as a class."""

        unused: Annotated[float, Field(ge=0, description='nothing')] = 0.5

        def __call__(self, *args: Any) -> Any:
            return make_component(registry, name)(*args)

    return Own


def own_config(root: Path, section: str, key: str, spec: dict[str, Any]) -> dict[str, Any]:
    policy: dict[str, Any] = {'learn': {'executor': 'eager'}, 'collect': {}}
    policy[section][key] = [{**spec, 'weight': 0.5}] if key == 'penalties' else spec
    return job_config(root, 'CartPole-v1', max_env_step=64, policy=policy)


@pytest.mark.many
@pytest.mark.parametrize('path', PLACES)
def test_class_with_options_trains_like_the_function(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, (section, name) = COMPONENTS[path], PLACES[path]
    assert name in registry
    monkeypatch.setitem(registry.entries, 'own', class_of(path, name))
    monkeypatch.setitem(registry.places, 'own', 'tests')
    key = path.rpartition('.')[2]
    specs: list[dict[str, Any]] = [{'type': name}, {'type': 'own', 'unused': 0.25}]
    if key == 'plasticity':
        specs[0]['every'] = 1  # the interval of a component without this option
    runs = [serial_pipeline(own_config(tmp_path / str(i), section, key, spec)) for i, spec in enumerate(specs)]
    known, own = (run.policy.state_dict() for run in runs)
    for parameter, x in known['model'].items():  # some registered ones have their own kernels, equal up to rounding
        torch.testing.assert_close(own['model'][parameter], x, rtol=1e-3, atol=1e-5)


def test_registered_class_can_be_pickled_with_what_it_was_given() -> None:
    part = make_component(COMPONENTS['policy.learn.value_loss'], {'type': 'hl_gauss', 'n_bin': 11})
    other = pickle.loads(pickle.dumps(part))
    assert other == part and hash(other) == hash(part) and dict(other.options)['n_bin'] == 11


# --- components that return the wrong thing


@pytest.mark.parametrize('wrong', [lambda gain: gain.mean(), lambda gain: gain[:, None], lambda gain: None])
def test_a_surrogate_or_value_loss_that_gives_no_number_for_each_sample_is_refused(wrong: Any) -> None:
    logit, action = torch.zeros(4, 2, requires_grad=True), torch.zeros(4, dtype=torch.int64)
    data = ppo_policy_data(logit, logit.detach(), action, torch.ones(4))
    with pytest.raises(ValueError, match='the surrogate returned .* one number for each sample'):
        ppo_policy_error(data, surrogate=lambda log_ratio, ratio, adv, clip_ratio: wrong(ratio * adv))
    value = torch.zeros(4, requires_grad=True)
    with pytest.raises(ValueError, match='the value loss returned .* one number for each sample'):
        ppo_value_error(
            ppo_value_data(value, value.detach(), torch.ones(4)),
            value_loss=lambda value, *unused: wrong(value.square()),
        )


def test_a_surrogate_without_a_gradient_is_refused() -> None:
    logit, action = torch.zeros(4, 2, requires_grad=True), torch.zeros(4, dtype=torch.int64)
    data = ppo_policy_data(logit, logit.detach(), action, torch.ones(4))
    with pytest.raises(UserError, match='the surrogate returned numbers without a gradient'):
        ppo_policy_error(data, surrogate=lambda log_ratio, ratio, adv, clip_ratio: adv)
    fixed = ppo_policy_data(logit.detach(), logit.detach(), action, torch.ones(4))
    ppo_policy_error(fixed, surrogate=lambda log_ratio, ratio, adv, clip_ratio: adv)  # here no gradient is needed
    with torch.no_grad():
        ppo_policy_error(data, surrogate=lambda log_ratio, ratio, adv, clip_ratio: adv)


@pytest.mark.parametrize(
    ('wrong', 'said'),
    [
        (lambda data: data.value, 'returned Tensor but must return two tensors'),
        (lambda data: (data.value, data.value, data.value), 'returned 3 things but must return two tensors'),
        (lambda data: (data.value.sum(0), data.value), r'as advantages, returned a tensor of shape \(4,\)'),
        (lambda data: (data.value, None), 'as returns, returned NoneType but must return one number for each step'),
    ],
)
def test_an_estimator_that_gives_no_pair_of_numbers_for_each_step_is_refused(
    wrong: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ESTIMATOR_REGISTRY.entries, 'wrong_of_test', lambda data, gamma, lambda_: wrong(data))
    policy = ppo(collect=dict(n_step=N_STEP, estimator='wrong_of_test'))
    with pytest.raises(UserError, match=f'the estimator.* {said}'):
        samples_of(policy)


@pytest.mark.parametrize(
    ('wrong', 'said'),
    [
        (lambda order: order, 'returned Tensor but must return two'),
        (lambda order: (order[0], None), r'returned torch.int64 \(\d+,\) as the order'),
        (lambda order: (order.float(), None), r'returned torch.float32 \(\d+, \d+\) as the order'),
        (lambda order: (order[:1].repeat(9, 1), None), r'returned torch.int64 \(9, \d+\) as the order'),
        (lambda order: (order[:, :0], None), r'returned torch.int64 \(\d+, 0\) as the order'),
        (lambda order: (order, torch.ones(2)), r'as weights, returned a tensor of shape \(2,\)'),
    ],
)
def test_a_draw_that_gives_no_order_of_the_entries_is_refused(
    wrong: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(columns: Any, n_pass: int, generator: Any) -> Any:
        return wrong(shuffle(columns, n_pass, generator)[0])

    monkeypatch.setitem(DRAW_REGISTRY.entries, 'wrong_of_test', draw)
    policy = ppo(dict(draw='wrong_of_test'))
    with pytest.raises(UserError, match=f'the draw.* {said}'):
        policy.learn_mode.forward(samples_of(policy))


class Warm:
    """An exploration as a class: the logits divided by a number."""

    def __init__(self, *, heat: float = 2.0) -> None:
        self.heat = heat

    def __call__(self, dist: Any, logit: torch.Tensor) -> torch.Tensor:
        return logit / self.heat


class TwoWay(Categorical):
    """A distribution that asks its model for the sign of the logits by which the best action is chosen."""

    name = 'two_way'
    sign = 1.0

    @classmethod
    def of_space(cls, space: Any, options: Any) -> Any:
        return cls(space.n)

    def see_model(self, model: Any) -> None:
        self.sign = getattr(model, 'sign', 1.0)

    def mode(self, logit: torch.Tensor) -> torch.Tensor:
        return super().mode(self.sign * logit)


class Signed(VAC):
    sign = -1.0


HERE = 'tests.policy.test_config_components'


@pytest.mark.parametrize(
    'spec', [Warm, f'{HERE}:Warm', {'type': Warm, 'heat': 4.0}, {'type': f'{HERE}:Warm', 'heat': 4.0}]
)
def test_exploration_may_be_a_class_or_name_one(spec: Any) -> None:
    policy = ppo(collect={'n_step': N_STEP, 'exploration': spec})
    heat = spec['heat'] if isinstance(spec, dict) else 2.0
    obs = torch.randn(5, *OBS.shape)
    with torch.no_grad():
        wanted = policy.model.compute_actor(obs) / heat
    torch.testing.assert_close(policy.collect_mode.forward(obs, None)['logit'], wanted)
    kept = policy.cfg.collect.exploration
    assert (kept['type'] if isinstance(kept, dict) else kept) == f'{HERE}:Warm'  # so that a checkpoint can hold it


@pytest.mark.parametrize('spec', [TwoWay, f'{HERE}:TwoWay'])
def test_distribution_may_be_a_class_or_name_one_and_sees_the_model_of_the_policy(spec: Any) -> None:
    plain = make_policy(OBS, TWO_ACTIONS, model={'distribution': spec})
    assert type(plain.dist) is TwoWay and plain.cfg.model.distribution == f'{HERE}:TwoWay'
    network = Signed(plain.cfg.model, OBS, TWO_ACTIONS)
    policy = make_policy(OBS, TWO_ACTIONS, network=network)
    obs = torch.randn(9, *OBS.shape)
    assert policy.eval_mode.forward(obs, None)['action'].tolist() == network.compute_actor(obs).argmin(-1).tolist()


@pytest.mark.parametrize(
    ('distribution', 'words'),
    [
        (f'{HERE}:HERE', 'but that is .*; name a class or a function'),
        (f'{HERE}:ppo', 'which is no class; name a class of a distribution'),
        ('builtins:int', 'a class without the method of_space; name a class .* which extends zoo.rl_utils.ActionDist'),
        ('categoricl', "did you mean 'categorical'"),
    ],
)
def test_distribution_that_is_no_class_is_refused(distribution: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make_policy(OBS, TWO_ACTIONS, model={'distribution': distribution})
