"""Names that are imported at first use, of packages and of modules. tests/test_package.py tests the names of zoo itself."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.parametrize(
    ('module', 'name'),
    [
        ('zoo.rl_utils.gae', 'gae_return'),
        ('zoo.rl_utils.gae', 'discounted_sum'),
        ('zoo.rl_utils.ppo', 'ppo_error'),
        ('zoo.model.actor_critic', 'RecurrentVAC'),
        ('zoo.rl_utils', 'gae_return'),
        ('zoo.core.data', 'StepRow'),
        ('zoo.model.layers', 'MLPConfig'),
        ('zoo.model.layers', 'input_width'),
        ('zoo.policy.options.reward_norm', 'ValueNorm'),
        ('zoo.backend.trace', 'missing_compiler'),
    ],
)
def test_name_of_a_lazy_module_is_that_of_its_home_and_a_wrong_name_is_refused(module: str, name: str) -> None:
    lazy = importlib.import_module(module)
    found = getattr(lazy, name)
    assert found is getattr(importlib.import_module(found.__module__), name)
    assert not hasattr(lazy, 'nonexistent')  # an error of another kind would break `hasattr`
    with pytest.raises(AttributeError, match=rf"module {module} has no attribute '{name}s'; did you mean {name}\?"):
        getattr(lazy, f'{name}s')
