"""Slots of an update: filled once, in any order of options; what several may do is a list."""

from __future__ import annotations

from typing import Any

import pytest

from tests.policy.updates import ppo
from zoo.config.section import Section
from zoo.core.errors import UserError
from zoo.core.registry import OPTION_REGISTRY
from zoo.policy.options import UpdateOption


@OPTION_REGISTRY.register('halved_of_test', force=True)
class Halved(UpdateOption):
    """Rewards count half."""

    config = Section

    def __init__(self, cfg: Any) -> None:
        pass

    def fill(self, update: Any, policy: Any) -> None:
        update.reward_scale.fill(self, lambda data, weight: data['reward'] / 2)


@pytest.mark.parametrize('names', [['halved_of_test', 'halved_of_test'], ['halved_of_test']])
def test_a_slot_that_two_options_fill_is_refused_with_both_names(names: list[str]) -> None:
    given = dict(reward_norm=len(names) == 1)  # a built-in option and a user's own, or two of a user
    first = 'policy.learn.reward_norm' if given['reward_norm'] else 'option Halved'
    with pytest.raises(UserError, match=f'{first} and option Halved both choose how rewards count; drop one'):
        ppo(learn=dict(options=names, **given))
