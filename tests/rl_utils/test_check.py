"""Inputs that the losses refuse: one fault per line; the ValueError names the input and its fault."""

from __future__ import annotations

import re
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


CATEGORICAL = ppo_data(zeros(4, 3), zeros(4, 3), integers(4), *(zeros(4) for _ in range(4)))
GAUSSIAN = CATEGORICAL._replace(logit_new=gaussian((4, 2)), logit_old=gaussian((4, 2)), action=zeros(4, 2))


VALUES = ('value_new', 'value_old', 'return_')
LOSSES = {
    ppo_error: ppo_data,
    ppg_joint_error: ppg_data,
    ppo_policy_error: ppo_policy_data,
    ppo_value_error: ppo_value_data,
}


def fault(data: ppo_data, *words: str, of: Any = (ppo_error,), options: Any = None, **changes: Any) -> Any:
    """A row of the table; of: the losses that refuse it; changes: fields of the data; options: arguments of the losses."""
    return pytest.param(data._replace(**changes), of, options or {}, words, id=' '.join(words))


def as_int(data: ppo_data, name: str) -> Any:
    logit = getattr(data, name)
    return {k: v.long() for k, v in logit.items()} if isinstance(logit, dict) else logit.long()


def empty(*shape: int) -> ppo_data:
    lead = shape[:-1]
    return ppo_data(zeros(*shape), zeros(*shape), integers(*lead), *(zeros(*lead) for _ in range(4)))


def takes(dist: Any) -> str:
    return f'but {dist.name!r} takes one tensor [..., {dist.n_param}]'


def losses_of(field: str) -> Any:
    return BOTH if field in ppg_data._fields else (ppo_error,)


BOTH = (ppo_error, ppg_joint_error)
WITH_PRETRAINED = CATEGORICAL._replace(logit_pretrained=zeros(4, 3))
FORM = ('logit_new is', "'mu' and 'sigma'")
FAULTS = [
    # ---- shapes: the message names both
    fault(CATEGORICAL, 'logit_old', '(5, 3)', 'logit_new', '(4, 3)', of=BOTH, logit_old=zeros(5, 3)),
    fault(CATEGORICAL, 'logit_old', '(4, 5)', 'logit_new', '(4, 3)', of=BOTH, logit_old=zeros(4, 5)),
    fault(CATEGORICAL, 'logit_old', '(4, 1, 3)', 'logit_new', '(4, 3)', of=BOTH, logit_old=zeros(4, 1, 3)),
    fault(CATEGORICAL, 'logit_new', '()', '[..., A]', of=BOTH, logit_new=zeros()),
    fault(CATEGORICAL, 'weight', '(1,)', '(4,)', of=BOTH, weight=zeros(1)),
    fault(CATEGORICAL, 'weight', '(4, 1)', '(4,)', of=BOTH, weight=zeros(4, 1)),
    fault(GAUSSIAN, 'logit_old', "'mu': (3, 2)", 'logit_new', "'mu': (4, 2)", of=BOTH, logit_old=gaussian((3, 2))),
    fault(GAUSSIAN, 'logit_old', "'mu': (4, 1)", 'logit_new', "'mu': (4, 2)", of=BOTH, logit_old=gaussian((4, 1))),
    fault(GAUSSIAN, 'sigma', '(4, 1)', 'mu', '(4, 2)', of=BOTH, logit_new=gaussian((4, 2), (4, 1))),
    fault(GAUSSIAN, 'logit_old', "'sigma' has shape (2,)", '(4, 2)', of=BOTH, logit_old=gaussian((4, 2), (2,))),
    fault(CATEGORICAL, 'value_old', '(4, 1)', 'value_new', '(4,)', of=BOTH, value_old=zeros(4, 1)),
    fault(CATEGORICAL, 'return_', '(4, 1)', 'value_new', '(4,)', of=BOTH, return_=zeros(4, 1)),
    fault(CATEGORICAL, 'return_', '()', 'value_new', '(4,)', of=BOTH, return_=zeros()),
    fault(CATEGORICAL, 'value_new', '(4, 1)', '(4,)', value_new=zeros(4, 1)),
    fault(CATEGORICAL, '(4,)', 'value_new', '(4, 1)', of=(ppg_joint_error,), value_new=zeros(4, 1)),
    fault(CATEGORICAL, 'value_new', '(5,)', '(4,)', of=BOTH, **dict.fromkeys(VALUES, zeros(5))),
    fault(CATEGORICAL, 'logit_pretrained', '(4, 1, 3)', 'logit_new', '(4, 3)', logit_pretrained=zeros(4, 1, 3)),
    fault(CATEGORICAL, 'logit_pretrained', '(4, 2)', 'logit_new', '(4, 3)', logit_pretrained=zeros(4, 2)),
    fault(CATEGORICAL, 'action', '(4, 1)', 'logit_new', '(4,)', action=integers(4, 1)),
    fault(CATEGORICAL, 'adv', '(4, 1)', 'logit_new', '(4,)', adv=zeros(4, 1)),
    fault(CATEGORICAL, 'adv', '()', 'logit_new', '(4,)', adv=zeros()),
    fault(GAUSSIAN, 'action', '(4,)', 'logit_new', '(4, 2)', action=zeros(4)),
    fault(GAUSSIAN, 'action', '(4, 1)', 'logit_new', '(4, 2)', action=zeros(4, 1)),
    fault(GAUSSIAN, 'adv', '(4, 2)', 'logit_new', '(4,)', adv=zeros(4, 2)),
    # ---- two kinds of policies, an unknown form, or another distribution than `dist`
    fault(CATEGORICAL, 'logit_old is gaussian but logit_new categorical', of=BOTH, logit_old=gaussian((4, 3))),
    fault(GAUSSIAN, 'logit_old is categorical but logit_new gaussian', of=BOTH, logit_old=zeros(4, 2)),
    fault(CATEGORICAL, 'logit_pretrained is gaussian but logit_new', logit_pretrained=gaussian((4, 3))),
    fault(GAUSSIAN, 'logit_pretrained is categorical but logit_new', logit_pretrained=zeros(4, 2)),
    *(
        fault(CATEGORICAL, *FORM, logit_new=logit)
        for logit in ({'mean': zeros(4, 2)}, {'mu': zeros(4, 2)}, [1.0], None)
    ),
    *(
        fault(CATEGORICAL, word, takes(dist), of=BOTH, options=dict(dist=dist), logit_new=logit, logit_old=logit)
        for dist in (Categorical(2), Gaussian(2))
        for logit, word in ((zeros(4, 3), '(4, 3)'), (gaussian((4, 2)), 'dict'))
    ),
    # ---- dtypes
    *(
        fault(
            data, name, 'has dtype torch.int64 but must be floating', of=losses_of(name), **{name: as_int(data, name)}
        )
        for data in (WITH_PRETRAINED, GAUSSIAN._replace(logit_pretrained=GAUSSIAN.logit_old))
        for name in ('logit_new', 'logit_old', 'logit_pretrained', 'adv', *VALUES)
    ),
    *(
        fault(CATEGORICAL, f'action has dtype {dtype}', 'index', action=zeros(4).to(dtype))
        for dtype in (torch.float32, torch.bool, torch.complex64)
    ),
    fault(GAUSSIAN, 'action has dtype torch.int64 but must be floating', action=integers(4, 2)),
    # ---- actions outside the choices
    *(
        fault(CATEGORICAL, f'action holds {said}', action=torch.tensor(action))
        for action, said in (
            ((0, 1, 2, 3), '0 to 3 but logit_new has 3 choices; give indices in 0..2'),
            ((0, -1, 2, 0), '-1 to 2'),
            ((10**9, 0, 0, 0), '0 to 1000000000'),
        )
    ),
    *(
        fault(CATEGORICAL, 'action holds 0 to 3', action=torch.arange(4, dtype=dtype))
        for dtype in (torch.uint8, torch.int8, torch.int32)
    ),
    # ---- empty tensors
    *(fault(empty(*shape), str(shape), 'no elements', of=BOTH) for shape in ((0, 3), (4, 0), (2, 0, 3))),
    fault(empty(0, 3), 'value_new has shape (0,) and so no elements', of=(ppo_value_error,)),
    # ---- options out of range
    *(
        fault(CATEGORICAL, f'clip_ratio is {number} but must be above 0', of=LOSSES, options=dict(clip_ratio=number))
        for number in (0.0, -0.2, float('nan'))
    ),
    *(
        fault(CATEGORICAL, f'dual_clip is {number} but must be above 1', options=dict(dual_clip=number))
        for number in (1.0, 0.5, -3.0, float('nan'))
    ),
    *(
        fault(data, "kl_type is 'k4'; use 'k1', 'k2' or 'k3'", options=dict(kl_type='k4'))
        for data in (CATEGORICAL, WITH_PRETRAINED)
    ),
]


@pytest.mark.parametrize('data, of, options, words', FAULTS)
def test_losses_refuse_and_name_what_is_wrong(data, of, options, words):
    for loss in of:
        with pytest.raises(ValueError, match='(?s)' + '.*'.join(map(re.escape, words))):
            loss(LOSSES[loss](*(getattr(data, name) for name in LOSSES[loss]._fields)), **options)


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
