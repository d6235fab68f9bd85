"""Growth of networks: functions that stay, moments, counts of parameters, limits; wider and deeper networks learn on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

from tests.tools.population.members import ENVS, TrainedMember, config, saved_child, trained
from zoo import load_policy, serial_pipeline
from zoo.policy.base import Policy
from zoo.run.checkpoint import State
from zoo.tools.population.growth import Growth, draw_growth, grown, kl_of_fork, why_not_grown_in, why_not_growth
from zoo.tools.population.layout import StateLayout, policy_of

VAC = {'dual': False, 'detach': 'detach', 'shared': 'both'}
N_OBS = 1_000
WIDER = [Growth('wider', 0, (64, 64), (80, 64)), Growth('wider', 1, (64, 64), (64, 96))]
DEEPER = Growth('deeper', 2, (64, 64), (64, 64, 64))


@pytest.fixture(scope='module', autouse=True)
def folder() -> Iterator[Path]:
    """The folder of all runs of this file."""
    with TemporaryDirectory() as path:
        yield Path(path)


def policy_section(kind: str, arch: str, **model: Any) -> dict[str, Any]:
    if kind == 'ppo':
        return {'type': 'ppo', 'model': {'shared_encoder': VAC[arch], **model}}
    return {'type': 'ppg', 'learn': {'aux_freq': 4}, 'model': {'arch': arch, **model}}


@cache
def member_of(folder: Path, kind: str, arch: str, actions: str, activation: str = 'tanh') -> TrainedMember:
    section = policy_section(kind, arch, activation=activation)
    return trained(config(folder / f'{kind}_{arch}_{actions}_{activation}', section, ENVS[actions]))


def child_of(member: TrainedMember, growth: Growth, folder: Path) -> tuple[Policy, State]:
    """The policy and the state of a child, which went through a checkpoint file."""
    cfg = member.resolve(growth.overrides)
    state = grown(
        member.checkpoint.state, growth=growth, checkpoint=member.checkpoint, parent=member.config, child=cfg, seed=3
    )
    return saved_child(member, state, cfg, folder / 'child.safetensors'), state


def outputs(policy: Policy, obs: torch.Tensor) -> dict[str, torch.Tensor]:
    with torch.no_grad():
        found: dict[str, torch.Tensor] = policy.model.compute_actor_critic(obs)
        if hasattr(policy.model, 'compute_aux'):
            found = {**found, **policy.model.compute_aux(obs)}
    return found


def observations(policy: Policy) -> torch.Tensor:
    """Observations of the size that these envs give."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(N_OBS, *policy.obs_space.shape, generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize('actions', ['categorical', 'gaussian'])
@pytest.mark.parametrize('arch', ['dual', 'detach', 'shared'])
@pytest.mark.parametrize('kind', ['ppo', 'ppg'])
def test_wider_and_deeper_relu_networks_compute_the_same(kind: str, arch: str, actions: str, folder: Path) -> None:
    member = member_of(folder, kind, arch, actions, 'relu')
    parent = load_policy(member.checkpoint, fields='all')
    obs = observations(parent)
    before = outputs(parent, obs)
    for growth in (*WIDER, DEEPER):
        child, _ = child_of(member, growth, folder)
        for name, x in outputs(child, obs).items():
            # the sums of a wider layer have other orders: 1e-6 of numbers below 10
            torch.testing.assert_close(x, before[name], rtol=1e-6, atol=1e-6, msg=f'{growth.words}: {name}')
        assert kl_of_fork(parent, child, obs) == pytest.approx(0, abs=1e-6)
        assert growth.is_exact(member.config)


@pytest.mark.parametrize('actions', ['categorical', 'gaussian'])
def test_deeper_tanh_network_computes_nearly_the_same(actions: str, folder: Path) -> None:
    member = member_of(folder, 'ppo', 'dual', actions)
    parent = load_policy(member.checkpoint, fields='all')
    obs = observations(parent)
    child, _ = child_of(member, DEEPER, folder)
    before = outputs(parent, obs)
    after = outputs(child, obs)
    for name in ('logit', 'value'):
        # |tanh(c h) / c - h| <= c^2 |h|^3 / 3 for c = .1 and |h| <= 1: a third of a percent
        assert (after[name] - before[name]).abs().max() < 0.004 * before[name].abs().max()
    assert kl_of_fork(parent, child, obs) < 1e-3
    assert not DEEPER.is_exact(member.config)


@pytest.mark.parametrize('kind', ['ppo', 'ppg'])
def test_moments_of_old_entries_stay_and_those_of_new_ones_are_0(kind: str, folder: Path) -> None:
    member = member_of(folder, kind, 'dual', 'categorical', 'relu')
    old = StateLayout.of(policy_of(member.checkpoint, member.config))
    optimizers = member.checkpoint.state['policy']['learn']['optimizer']
    for growth in (WIDER[0], WIDER[1], DEEPER):
        child, state = child_of(member, growth, folder)
        new = StateLayout.of(child)
        for role, buffers in state['policy']['learn']['optimizer'].items():
            assert buffers['step_count'] == optimizers[role]['step_count']
            for moment in ('exp_avg', 'exp_avg_sq'):
                before = old.cut(role, optimizers[role][moment])
                for name, x in new.cut(role, buffers[moment]).items():
                    corner = tuple(slice(n) for n in before[name].shape) if name in before else (slice(0),)
                    if name in before:
                        assert torch.equal(x[corner], before[name])
                    x[corner] = 0
                    assert not x.any()
    assert any(buffers['exp_avg'].any() for buffers in optimizers.values())  # they were not all 0


@pytest.mark.parametrize(
    ('growth', 'n'),
    [
        # CartPole has 4 observations and 2 actions. [64, 64]: 2 (5 * 64 + 65 * 64) + 65 * 3 = 9,155
        (Growth('wider', 0, (64, 64), (80, 64)), 2 * (5 * 80 + 81 * 64) + 65 * 3),  # 11,363
        (Growth('wider', 1, (64, 64), (64, 96)), 2 * (5 * 64 + 65 * 96) + 97 * 3),  # 13,411
        (Growth('narrower', 0, (64, 64), (32, 64)), 2 * (5 * 32 + 33 * 64) + 65 * 3),  # 4,739
        (Growth('deeper', 2, (64, 64), (64, 64, 64)), 2 * (5 * 64 + 65 * 64 + 65 * 64) + 65 * 3),  # 17,475
        (Growth('less deep', 1, (64, 64), (64,)), 2 * 5 * 64 + 65 * 3),  # 835
    ],
)
def test_parameters_are_as_many_as_counted_by_hand(growth: Growth, n: int, folder: Path) -> None:
    child, state = child_of(member_of(folder, 'ppo', 'dual', 'categorical'), growth, folder)
    assert sum(p.numel() for p in child.model.parameters()) == n
    assert state['policy']['learn']['optimizer']['all']['exp_avg'].numel() == n


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    'growth',
    [
        *WIDER,
        DEEPER,
        Growth('narrower', 1, (64, 64), (64, 32)),
        Growth('less deep', 1, (64, 64), (64,)),
        Growth('wider', 0, (64, 64), (500, 64)),
    ],
    ids=lambda growth: growth.words,
)
@pytest.mark.parametrize('kind', ['ppo', 'ppg'])
def test_child_takes_100_gradient_steps_without_a_skipped_one(
    kind: str, growth: Growth, folder: Path, tmp_path: Path
) -> None:
    member = member_of(folder, kind, 'dual', 'categorical')
    child, state = child_of(member, growth, folder)
    before = {name: p.detach().clone() for name, p in child.model.named_parameters()}
    source = config(tmp_path, policy_section(kind, 'dual', hidden_sizes=list(growth.after)))
    source['max_env_step'] = 256 * 26  # 4 steps or more from each of 25 rollouts
    result = serial_pipeline(source, policy=child)
    learned = load_policy(result.run_dir, fields='all')
    steps = learned.state_dict()['learn']['optimizer']
    first = state['policy']['learn']['optimizer']
    assert all(steps[role]['n_skipped'] == 0 for role in steps)
    assert sum(float(steps[role]['step_count'] - first[role]['step_count']) for role in steps) >= 100
    assert child.executor_name == policy_of(member.checkpoint, member.config).executor_name  # in C where that is built
    assert all(not torch.equal(p, before[name]) for name, p in learned.model.named_parameters())


def test_narrower_layer_keeps_the_units_that_matter_most(folder: Path) -> None:
    member = member_of(folder, 'ppo', 'dual', 'categorical')
    state = member.checkpoint.state
    model = {name: x.clone() for name, x in state['policy']['model'].items()}
    lost = [3, 5, *range(20, 50)]  # 32 units, which the next layer nearly ignores
    model['actor_encoder.layers.1.weight'][:, lost] *= 1e-3
    growth = Growth('narrower', 0, (64, 64), (32, 64))
    cfg = member.resolve(growth.overrides)
    changed = {**state, 'policy': {**state['policy'], 'model': model}}
    child = grown(changed, growth=growth, checkpoint=member.checkpoint, parent=member.config, child=cfg, seed=0)
    kept = [unit for unit in range(64) if unit not in lost]
    narrow = child['policy']['model']
    assert torch.equal(narrow['actor_encoder.layers.0.weight'], model['actor_encoder.layers.0.weight'][kept])
    assert torch.equal(narrow['actor_encoder.layers.0.bias'], model['actor_encoder.layers.0.bias'][kept])
    assert torch.equal(narrow['actor_encoder.layers.1.weight'], model['actor_encoder.layers.1.weight'][:, kept])
    assert narrow['critic_encoder.layers.0.weight'].shape == (32, 4)


def test_less_deep_network_keeps_heads_only_if_they_fit(folder: Path) -> None:
    member = member_of(folder, 'ppo', 'dual', 'categorical')
    growth = Growth('less deep', 1, (64, 64), (64,))
    _, state = child_of(member, growth, folder)
    before = member.checkpoint.state['policy']['model']
    assert torch.equal(state['policy']['model']['policy_head.weight'], before['policy_head.weight'])
    wide = TrainedMember(member.source, member.resolve(['policy.model.hidden_sizes=[64, 96]']), {}, member.checkpoint)
    _, widened = child_of(member, WIDER[1], folder)
    less = Growth('less deep', 1, (64, 96), (64,))
    cfg = member.resolve(less.overrides)
    child = grown(widened, growth=less, checkpoint=member.checkpoint, parent=wide.config, child=cfg, seed=0)
    head = child['policy']['model']['policy_head.weight']
    assert head.shape == (2, 64)
    assert torch.allclose(head.norm(dim=1), torch.full((2,), 0.01))  # a new head: orthogonal rows of norm .01
    assert not child['policy']['learn']['optimizer']['all']['exp_avg'][-195:-67].any()  # of its 128 weights


@pytest.mark.slow
def test_average_of_ppo_ewma_grows_with_the_parameters(folder: Path, tmp_path: Path) -> None:
    section = {'type': 'ppo_ewma', 'model': {'activation': 'relu'}}
    member = trained(config(tmp_path, section))
    for growth in (WIDER[0], DEEPER):
        child, state = child_of(member, growth, tmp_path)
        new = StateLayout.of(child)
        old = StateLayout.of(policy_of(member.checkpoint, member.config))
        average = member.checkpoint.state['policy']['learn']['optimizer']['all']['average']
        before = load_policy(member.checkpoint, fields='all')
        obs = observations(before)
        load(before, old.cut('all', average))
        load(child, new.cut('all', state['policy']['learn']['optimizer']['all']['average']))
        torch.testing.assert_close(outputs(child, obs)['logit'], outputs(before, obs)['logit'], rtol=1e-6, atol=1e-6)


def load(policy: Policy, values: dict[str, torch.Tensor]) -> None:
    policy.model.load_state_dict(values)


def test_growth_of_a_state_twice_gives_the_same_and_leaves_its_input(folder: Path) -> None:
    member = member_of(folder, 'ppo', 'dual', 'categorical')
    before = {name: x.clone() for name, x in member.checkpoint.state['policy']['model'].items()}
    _, first = child_of(member, WIDER[0], folder)
    _, second = child_of(member, WIDER[0], folder)
    for name, x in first['policy']['model'].items():
        assert torch.equal(x, second['policy']['model'][name])
    for name, x in member.checkpoint.state['policy']['model'].items():
        assert torch.equal(x, before[name])


def test_layer_norm_is_grown_and_marked_as_not_exact(tmp_path: Path) -> None:
    member = trained(config(tmp_path, policy_section('ppo', 'dual', layer_norm=True, activation='relu')))
    for growth in (*WIDER, DEEPER):
        child, _ = child_of(member, growth, tmp_path)
        assert child.model.actor_encoder.norms[growth.layer].weight.shape == (growth.after[growth.layer],)
        assert not growth.is_exact(member.config)


def test_heads_with_hidden_layers_read_the_features_in_their_first_layer(tmp_path: Path) -> None:
    section = policy_section('ppg', 'dual', activation='relu', actor_head=[16], critic_head=[24, 8])
    member = trained(config(tmp_path, section))
    parent = load_policy(member.checkpoint, fields='all')
    obs = observations(parent)
    before = outputs(parent, obs)
    for growth in (WIDER[1], DEEPER):
        child, _ = child_of(member, growth, tmp_path)
        for name, x in outputs(child, obs).items():
            torch.testing.assert_close(x, before[name], rtol=1e-6, atol=1e-6)


def test_drawn_growths_have_their_shares_and_keep_the_limits(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    member = member_of(tmp_path, 'ppo', 'dual', 'categorical')
    growths = [draw_growth(member.config, generator) for _ in range(10_000)]
    counts = Counter(growth.kind for growth in growths)
    # a layer with probability .2, of which half are deeper; else half wider, half narrower
    for kind, share in (('deeper', 0.1), ('less deep', 0.1), ('wider', 0.4), ('narrower', 0.4)):
        assert counts[kind] / 10_000 == pytest.approx(share, abs=0.01)
    sizes = Counter(growth.after[growth.layer] for growth in growths if growth.kind == 'wider')
    assert set(sizes) == {80, 96, 128}
    narrow = Counter(growth.after[growth.layer] for growth in growths if growth.kind == 'narrower')
    assert set(narrow) == {32, 48}  # 64 - 64 would be below 32


@pytest.mark.parametrize(
    ('sizes', 'activation', 'kinds'),
    [
        ([32], 'tanh', {'wider', 'deeper'}),  # no narrower and no less deep: units are added instead
        ([32, 32, 32], 'tanh', {'wider', 'less deep'}),
        ([8, 8, 8, 8], 'relu', {'wider', 'less deep'}),
        ([64, 64], 'gelu', {'wider', 'narrower', 'less deep'}),  # no layer that passes on its input
        ([500, 500, 500], 'tanh', {'narrower', 'less deep'}),
        ([490, 500], 'tanh', {'wider', 'narrower', 'deeper', 'less deep'}),
    ],
)
def test_growths_at_a_limit_are_others(sizes: list[int], activation: str, kinds: set[str], tmp_path: Path) -> None:
    member = member_of(tmp_path, 'ppo', 'dual', 'categorical')
    cfg = member.resolve([f'policy.model.hidden_sizes={sizes}', f'policy.model.activation={activation}'])
    generator = np.random.default_rng(1)
    growths = [draw_growth(cfg, generator) for _ in range(500)]
    assert {growth.kind for growth in growths} == kinds
    for growth in growths:
        assert growth.before == tuple(sizes)
        assert growth.after != growth.before
        assert all(width <= 500 for width in growth.after)
        assert growth.kind != 'wider' or growth.after[growth.layer] > sizes[growth.layer]


@pytest.mark.parametrize(
    ('texts', 'said'),
    [
        (['policy.model.recurrent={cell: lstm}'], 'memory'),
        (['policy.model.encoder=flat'], "'flat', and only mlp"),
        (['policy.model.encoder={type: mlp, hidden_sizes: [32]}'], 'hidden_sizes of its own'),
        (['policy.model.distribution=gsde'], 'gsde'),
        (['policy.model.layer_norm=true'], ''),
    ],
)
def test_networks_that_cannot_grow_are_named(texts: list[str], said: str, tmp_path: Path) -> None:
    member = member_of(tmp_path, 'ppo', 'dual', 'categorical')
    reason = why_not_growth(member.resolve(texts))
    assert said in reason
    assert bool(reason) == bool(said)


def test_policy_of_images_cannot_grow() -> None:
    from zoo import make_policy

    source = dict(env=dict(id='tiny_bricks'), policy=dict(type='ppo'))
    policy = make_policy(source)
    assert 'only mlp changes its architecture' in why_not_grown_in(policy)
