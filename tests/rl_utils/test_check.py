"""What the losses refuse: one fault a line, each a ValueError that says what was wrong with which input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from zoo.rl_utils import (
    Categorical,
    Gaussian,
    ppg_data,
    ppg_joint_error,
    ppo_data,
    ppo_error,
    ppo_policy_data,
    ppo_policy_error,
    ppo_value_data,
    ppo_value_error,
)


def zeros(*shape: int) -> Tensor:
    return torch.zeros(shape)


def integers(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def gaussian(mu: tuple[int, ...], sigma: tuple[int, ...] | None = None) -> dict[str, Tensor]:
    return {'mu': torch.zeros(mu), 'sigma': torch.ones(mu if sigma is None else sigma)}


def as_int(logit: Any) -> Any:
    return {k: v.long() for k, v in logit.items()} if isinstance(logit, dict) else logit.long()


CATEGORICAL = ppo_data(zeros(4, 3), zeros(4, 3), integers(4), *(zeros(4) for _ in range(4)))
GAUSSIAN = CATEGORICAL._replace(logit_new=gaussian((4, 2)), logit_old=gaussian((4, 2)), action=zeros(4, 2))


def joint(data: ppo_data) -> ppg_data:
    return ppg_data(*(getattr(data, name) for name in ppg_data._fields))


def message(function: Any, *args: Any, **options: Any) -> str:
    with pytest.raises(ValueError) as error:
        function(*args, **options)
    return str(error.value)


POLICY_SHAPES = [
    (CATEGORICAL, dict(logit_old=zeros(5, 3)), ('logit_old', '(5, 3)', 'logit_new', '(4, 3)')),
    (CATEGORICAL, dict(logit_old=zeros(4, 5)), ('logit_old', '(4, 5)', 'logit_new', '(4, 3)')),
    (CATEGORICAL, dict(logit_old=zeros(4, 1, 3)), ('logit_old', '(4, 1, 3)', 'logit_new', '(4, 3)')),
    (CATEGORICAL, dict(logit_new=zeros()), ('logit_new', '()', '[..., A]')),
    (CATEGORICAL, dict(weight=zeros(1)), ('weight', '(1,)', '(4,)')),
    (CATEGORICAL, dict(weight=zeros(4, 1)), ('weight', '(4, 1)', '(4,)')),
    (GAUSSIAN, dict(logit_old=gaussian((3, 2))), ('logit_old', "'mu': (3, 2)", 'logit_new', "'mu': (4, 2)")),
    (GAUSSIAN, dict(logit_old=gaussian((4, 1))), ('logit_old', "'mu': (4, 1)", 'logit_new', "'mu': (4, 2)")),
    (GAUSSIAN, dict(logit_new=gaussian((4, 2), (4, 1))), ('mu', '(4, 2)', 'sigma', '(4, 1)')),
    (GAUSSIAN, dict(logit_old=gaussian((4, 2), (2,))), ('logit_old', "'sigma' has shape (2,)", '(4, 2)')),
    (CATEGORICAL, dict(value_old=zeros(4, 1)), ('value_old', '(4, 1)', 'value_new', '(4,)')),
    (CATEGORICAL, dict(return_=zeros(4, 1)), ('return_', '(4, 1)', 'value_new', '(4,)')),
    (CATEGORICAL, dict(return_=zeros()), ('return_', '()', 'value_new', '(4,)')),
    (CATEGORICAL, dict(value_new=zeros(4, 1)), ('value_new', '(4, 1)', '(4,)')),
    (CATEGORICAL, dict.fromkeys(('value_new', 'value_old', 'return_'), zeros(5)), ('value_new', '(5,)', '(4,)')),
]


@pytest.mark.parametrize(
    'data, changes, words',
    [
        *POLICY_SHAPES,
        (CATEGORICAL, dict(logit_pretrained=zeros(4, 1, 3)), ('logit_pretrained', '(4, 1, 3)', 'logit_new', '(4, 3)')),
        (CATEGORICAL, dict(logit_pretrained=zeros(4, 2)), ('logit_pretrained', '(4, 2)', 'logit_new', '(4, 3)')),
        (CATEGORICAL, dict(action=integers(4, 1)), ('action', '(4, 1)', 'logit_new', '(4,)')),
        (CATEGORICAL, dict(adv=zeros(4, 1)), ('adv', '(4, 1)', 'logit_new', '(4,)')),
        (CATEGORICAL, dict(adv=zeros()), ('adv', '()', 'logit_new', '(4,)')),
        (GAUSSIAN, dict(action=zeros(4)), ('action', '(4,)', 'logit_new', '(4, 2)')),
        (GAUSSIAN, dict(action=zeros(4, 1)), ('action', '(4, 1)', 'logit_new', '(4, 2)')),
        (GAUSSIAN, dict(adv=zeros(4, 2)), ('adv', '(4, 2)', 'logit_new', '(4,)')),
    ],
)
def test_ppo_shape_errors_name_both(data, changes, words):
    said = message(ppo_error, data._replace(**changes))
    assert all(word in said for word in words), said


@pytest.mark.parametrize('data, changes, words', POLICY_SHAPES)
def test_ppg_shape_errors_name_both(data, changes, words):
    said = message(ppg_joint_error, joint(data._replace(**changes)))
    assert all(word in said for word in words), said


@pytest.mark.parametrize('data, other', [(CATEGORICAL, gaussian((4, 3))), (GAUSSIAN, zeros(4, 2))])
@pytest.mark.parametrize('name', ['logit_old', 'logit_pretrained'])
def test_a_policy_of_another_kind_is_refused_by_name(data, other, name):
    data = data._replace(**{name: other})
    with pytest.raises(ValueError, match=f'{name} is .* but logit_new'):
        ppo_error(data)
    if name == 'logit_old':
        with pytest.raises(ValueError, match=f'{name} is .* but logit_new'):
            ppg_joint_error(joint(data))


@pytest.mark.parametrize('data', [CATEGORICAL, GAUSSIAN])
@pytest.mark.parametrize(
    'name', ['logit_new', 'logit_old', 'logit_pretrained', 'adv', 'value_new', 'value_old', 'return_']
)
def test_a_dtype_that_is_not_floating_is_refused_by_name(data, name):
    if name == 'logit_pretrained':
        data = data._replace(logit_pretrained=data.logit_old)
    data = data._replace(**{name: as_int(getattr(data, name))})
    with pytest.raises(ValueError, match=f'{name}.* has dtype torch.int64 but must be floating'):
        ppo_error(data)
    if name in ppg_data._fields:
        with pytest.raises(ValueError, match=f'{name}.* has dtype torch.int64 but must be floating'):
            ppg_joint_error(joint(data))


@pytest.mark.parametrize('dtype', [torch.float32, torch.bool, torch.complex64])
def test_a_categorical_action_that_is_no_integer_is_refused(dtype):
    with pytest.raises(ValueError, match=f'action has dtype {dtype}.*index'):
        ppo_error(CATEGORICAL._replace(action=zeros(4).to(dtype)))


def test_a_gaussian_action_that_is_not_floating_is_refused():
    with pytest.raises(ValueError, match='action has dtype torch.int64 but must be floating'):
        ppo_error(GAUSSIAN._replace(action=integers(4, 2)))


@pytest.mark.parametrize(
    'action, said',
    [
        ((0, 1, 2, 3), 'action holds 0 to 3 but logit_new has 3 choices; give indices in 0..2'),
        ((0, -1, 2, 0), 'action holds -1 to 2'),
        ((10**9, 0, 0, 0), 'action holds 0 to 1000000000'),
    ],
)
def test_an_action_outside_the_choices_is_refused(action, said):
    assert said in message(ppo_error, CATEGORICAL._replace(action=torch.tensor(action)))


@pytest.mark.parametrize('dtype', [torch.uint8, torch.int8, torch.int32])
def test_an_action_outside_the_choices_is_refused_in_any_integer_dtype(dtype):
    assert 'action holds 0 to 3' in message(ppo_error, CATEGORICAL._replace(action=torch.arange(4, dtype=dtype)))


@pytest.mark.parametrize('debug, refused', [('1', True), ('0', False), (None, False)])
def test_the_range_of_an_action_elsewhere_than_on_a_cpu_is_read_only_in_debug_mode(monkeypatch, debug, refused):
    # a tensor without memory: reading it raises RuntimeError
    action = torch.empty(4, dtype=torch.int64, device='meta')
    monkeypatch.delenv('ZOO_DEBUG', raising=False)
    if debug is not None:
        monkeypatch.setenv('ZOO_DEBUG', debug)
    if refused:
        with pytest.raises(RuntimeError, match='meta'):
            Categorical(3).check_action(action, torch.Size((4,)))
    else:
        assert Categorical(3).check_action(action, torch.Size((4,))) is None


@pytest.mark.parametrize('shape', [(0, 3), (4, 0), (2, 0, 3)])
def test_empty_policies_are_refused(shape):
    lead = shape[:-1]
    data = ppo_data(zeros(*shape), zeros(*shape), integers(*lead), *(zeros(*lead) for _ in range(4)))
    for function, given in ((ppo_error, data), (ppg_joint_error, joint(data))):
        said = message(function, given)
        assert str(shape) in said and 'no elements' in said


def test_empty_values_are_refused():
    with pytest.raises(ValueError, match=r'value_new has shape \(0,\) and so no elements'):
        ppo_value_error(ppo_value_data(zeros(0), zeros(0), zeros(0)))


@pytest.mark.parametrize('clip_ratio', [0.0, -0.2, float('nan')])
def test_clip_ratio_not_above_zero_is_refused(clip_ratio):
    said = f'clip_ratio is {clip_ratio} but must be above 0'
    assert said in message(ppo_error, CATEGORICAL, clip_ratio)
    policy_data = ppo_policy_data(*(getattr(CATEGORICAL, name) for name in ppo_policy_data._fields))
    assert said in message(ppo_policy_error, policy_data, clip_ratio)
    assert said in message(ppo_value_error, ppo_value_data(zeros(4), zeros(4), zeros(4)), clip_ratio)
    assert said in message(ppg_joint_error, joint(CATEGORICAL), clip_ratio)


@pytest.mark.parametrize('dual_clip', [1.0, 0.5, -3.0, float('nan')])
def test_dual_clip_not_above_one_is_refused(dual_clip):
    assert f'dual_clip is {dual_clip} but must be above 1' in message(ppo_error, CATEGORICAL, dual_clip=dual_clip)


@pytest.mark.parametrize('logit_pretrained', [None, zeros(4, 3)])
def test_unknown_kl_type_is_refused_with_or_without_a_pretrained_policy(logit_pretrained):
    data = CATEGORICAL._replace(logit_pretrained=logit_pretrained)
    assert "kl_type is 'k4'; use 'k1', 'k2' or 'k3'" in message(ppo_error, data, kl_type='k4')


@pytest.mark.parametrize('dist', [Categorical(2), Gaussian(2)], ids=lambda dist: dist.name)
@pytest.mark.parametrize('logit_new, word', [(zeros(4, 3), '(4, 3)'), (gaussian((4, 2)), 'dict')])
def test_a_logit_that_is_not_of_the_named_distribution_is_refused(dist, logit_new, word):
    wanted = f'but {dist.name!r} takes one tensor [..., {dist.n_param}]'
    data = CATEGORICAL._replace(logit_new=logit_new, logit_old=logit_new)
    for said in (message(ppo_error, data, dist=dist), message(ppg_joint_error, joint(data), dist=dist)):
        assert wanted in said and word in said, said


@pytest.mark.parametrize('logit', [{'mean': zeros(4, 2)}, {'mu': zeros(4, 2)}, [1.0], None])
def test_a_logit_of_no_known_form_is_refused_with_what_it_holds(logit):
    said = message(ppo_error, CATEGORICAL._replace(logit_new=logit))
    assert 'logit_new is' in said and "'mu' and 'sigma'" in said
