"""The comparison of a file with its policy: the random observations, and when outputs count as different or as a tie."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, MultiBinary

from tests.tools.export.policies import IMAGE, make_policy
from zoo.core.errors import RunError
from zoo.core.spaces import ACTION_MASK, leaf_spaces, nested_leaves
from zoo.env.toy.targets import OBS_SPACES
from zoo.model.images import has_bf16
from zoo.policy.inference import read_obs
from zoo.tools.export.acting import ActingModule, for_export
from zoo.tools.export.check import compare, draw_obs, drawn_words, effect_of_bf16


@pytest.mark.parametrize('name', list(OBS_SPACES))
def test_drawn_observations_are_of_the_space_and_spread_over_it(name: str) -> None:
    policy, space = make_policy('ppo', name), OBS_SPACES[name]()
    drawn = draw_obs(policy, 200, np.random.default_rng(0))
    read_obs(policy, nested_leaves(policy.obs_space, drawn))  # raises if one is not of the space
    for path, leaf in leaf_spaces(policy.obs_space):
        assert drawn[path].shape == (200, *leaf.shape) and len(np.unique(drawn[path])) > 1
    if not isinstance(space, Dict | gymnasium.spaces.Tuple):
        assert all(space.contains(np.asarray(each) if isinstance(space, Box) else each) for each in drawn[''])


def test_whole_numbers_between_bounds_come_all_and_within() -> None:
    drawn = draw_obs(make_policy('ppo', Box(-2, 3, (2,), np.int16)), 500, np.random.default_rng(0))['']
    assert drawn.dtype == np.int16 and sorted(np.unique(drawn)) == [-2, -1, 0, 1, 2, 3]


def test_numbers_without_bounds_are_normal_as_the_statistics() -> None:
    low, high = np.array([-np.inf, -1.0, -3e38]), np.array([np.inf, 1.0, 3e38])
    policy = make_policy('ppo', Box(low.astype(np.float32), high.astype(np.float32)), obs_norm=True)
    norm = policy.model.input
    norm.mean.copy_(torch.tensor([5.0, 0.0, -7.0]))
    norm.var.copy_(torch.tensor([4.0, 1.0, 0.01]))
    drawn = draw_obs(policy, 10_000, np.random.default_rng(0))['']
    # the mean of 10,000 numbers has a standard deviation of a hundredth of theirs
    assert np.abs(drawn.mean(0) - [5, 0, -7]).max() < 0.1 and np.allclose(drawn.std(0)[[0, 2]], [2, 0.1], rtol=0.05)
    assert np.abs(drawn[:, 1]).max() <= 1
    assert drawn_words(policy) == 'uniform between bounds and normal, as the statistics of obs_norm elsewhere'


def test_drawn_words_name_each_kind() -> None:
    assert drawn_words(make_policy('ppo', 'image_uint8')) == 'uniform over the space'
    assert drawn_words(make_policy('ppo', 'box_2d')) == 'standard normal'


def test_masks_allow_an_option_of_each_choice() -> None:
    space = Dict({ACTION_MASK: MultiBinary(9), 'place': Box(-1.0, 1.0, (1,))})
    mask = draw_obs(make_policy('ppo', space, 'tuple'), 500, np.random.default_rng(0))[ACTION_MASK]
    for start, stop in ((0, 2), (2, 4), (4, 7)):  # Discrete(2), MultiDiscrete([2, 3]), 2 bits
        assert mask[:, start:stop].any(1).all() and not mask[:, start:stop].all()


needs_bf16 = pytest.mark.skipif(not has_bf16('cpu', 'auto'), reason='bfloat16 is emulated')


def parts(*args: Any, **model: Any) -> tuple[Any, ActingModule]:
    twin = for_export(make_policy('ppo', *args, **model))
    return twin, ActingModule(twin)


def runs(acting: ActingModule, change: Any = lambda outputs: outputs) -> Any:
    """The policy itself in place of a file, with changed outputs."""

    def run(arrays: list[np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            return change([x.numpy().copy() for x in acting(*map(torch.from_numpy, arrays))])

    return run


def test_the_policy_itself_does_not_differ() -> None:
    twin, acting = parts('box', 'dict')
    assert compare(twin, acting, runs(acting))[:4] == (1000, 0.0, 0, 0)


def test_difference_is_absolute_below_1_and_a_share_above() -> None:
    twin, acting = parts('box', 'box_unbounded')
    with torch.no_grad():
        twin.model.policy_head.mu.bias.copy_(torch.tensor([0.0, 1000.0]))
        twin.model.policy_head.mu.weight.mul_(0.01)
    for i, added in ((0, 4e-6), (1, 4e-3)):
        shift = added * np.eye(2, dtype=np.float32)[i]
        found = compare(twin, acting, runs(acting, lambda outputs, shift=shift: [outputs[0] + shift]))
        assert found.error == pytest.approx(4e-6, rel=0.05)


@pytest.mark.parametrize(
    'change',
    [
        lambda outputs: [outputs[0] + np.float32(1e-4)],
        lambda outputs: [outputs[0] * np.float32('nan')],
        lambda outputs: [outputs[0].astype(np.float64)],
        lambda outputs: [np.roll(outputs[0], 1, axis=0)],
    ],
)
def test_numbers_that_differ_are_refused(change: Any) -> None:
    twin, acting = parts('box', 'box')
    with pytest.raises(RunError, match='policy.act'):
        compare(twin, acting, runs(acting, change))


def test_one_other_choice_in_a_thousand_is_refused() -> None:
    twin, acting = parts('box', 'discrete')

    def change(outputs: list[np.ndarray]) -> list[np.ndarray]:
        outputs[0][500:501] = (outputs[0][500:501] + 1) % 4
        return outputs

    with pytest.raises(RunError, match='1 of the choices differ'):
        compare(twin, acting, runs(acting, change))


def test_choice_between_equals_is_a_tie() -> None:
    """If two choices are equally good, a file whose rounding differs may take the other one."""
    twin, acting = parts('box', 'discrete')
    head = twin.model.policy_head
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor([1.0, 1.0, 0.0, 0.0]))

    def change(outputs: list[np.ndarray]) -> list[np.ndarray]:
        outputs[0][500:501] = 1
        return outputs

    found = compare(twin, acting, runs(acting, change))
    assert (found.n_differ, found.n_tie) == (1, 1) and '1 of them ties within rounding' in found.text()
    with pytest.raises(RunError):  # if all choices differ, it is another policy
        compare(twin, acting, runs(acting, lambda outputs: [np.ones_like(outputs[0])]))


def test_memory_that_is_not_reset_is_found() -> None:
    """A file that ignores the state it is given."""
    twin, acting = parts('box', 'box', recurrent={'cell': 'gru', 'hidden_size': 8})
    assert compare(twin, acting, runs(acting)).error < 1e-6
    forgetful = lambda arrays: runs(acting)([arrays[0], *(np.zeros_like(x) for x in arrays[1:])])  # noqa: E731
    with pytest.raises(RunError):
        compare(twin, acting, forgetful)


@needs_bf16
@pytest.mark.parametrize('action_space', [gymnasium.spaces.Discrete(500), 'box'])
def test_what_bfloat16_changes_is_counted_by_the_policy_that_computes_in_it(
    action_space: str | gymnasium.Space,
) -> None:
    policy = make_policy('ppo', IMAGE, action_space, precision='bf16')
    obs = draw_obs(policy, 1000, np.random.default_rng(0))['']
    with torch.no_grad():
        if action_space != 'box':  # makes all choices about equally good, so that rounding decides
            policy.model.policy_head.bias.sub_(policy.model.compute_actor(torch.from_numpy(obs)).mean(0))
    twin = for_export(policy)
    found, wanted = (np.asarray(each.act(obs)) for each in (policy, twin))
    text = effect_of_bf16(policy, twin)
    assert text is not None
    assert (found != wanted).any()
    if action_space != 'box':
        assert text == f'{(found != wanted).sum()} of 1,000 choices differ'
    else:
        assert float(text.removeprefix('numbers by up to ')) == pytest.approx(np.abs(found - wanted).max(), rel=0.3)


@needs_bf16
def test_bfloat16_is_named_where_the_policy_computes_in_it_alone() -> None:
    policy = make_policy('ppo', IMAGE, precision='fp32')
    assert effect_of_bf16(policy, for_export(policy)) is None
    twin, acting = parts(IMAGE, precision='bf16')
    found = compare(twin, acting, runs(acting))
    assert 'float' not in found.text()
    text = found._replace(in_bf16='7 of 1,000 choices differ').text()
    said = 'in float32; in bfloat16, as policy.act computes images on this processor: 7 of 1,000 choices differ'
    assert text.endswith(said)
