"""The old module of gradient steps."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_old_module_of_steps_warns_and_has_its_names() -> None:
    sys.modules.pop('zoo.policy.gradient_steps', None)
    with pytest.warns(DeprecationWarning, match=r'import steps and losses from zoo\.policy\.ppo'):
        old = importlib.import_module('zoo.policy.gradient_steps')
    numbers = old.PolicyNumbers(0.1, policy_loss=sum)
    assert (numbers.clip_ratio, numbers.policy_loss, numbers.columns) == (0.1, sum, None)
    assert old.ppo_step is importlib.import_module('zoo.policy.ppo').ppo_step
