"""A policy as a module of tensors: names of inputs and outputs, the exported copy, its precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from tests.tools.export.policies import IMAGE, make_policy
from zoo.core.errors import UserError
from zoo.model.cnn import CNN
from zoo.tools.export.acting import ActingModule, for_export


@pytest.mark.slow
def test_names_of_inputs_and_outputs_are_paths_and_never_the_same() -> None:
    space = Dict(
        {'action': Box(-1.0, 1.0, (2,)), 'camera': Dict({'left': Discrete(3)}), 'state.actor': Box(-1.0, 1.0, (1,))}
    )
    acting = ActingModule(make_policy('ppo', space, recurrent={'cell': 'gru', 'hidden_size': 4}))
    assert [port.name for port in acting.inputs] == ['action', 'camera.left', 'state.actor', 'state.actor_']
    assert [port.name for port in acting.outputs] == ['action_', 'next_state.actor_']
    assert acting.state_names == {'state.actor_': 'next_state.actor_'}


def test_actions_have_the_number_types_of_their_spaces() -> None:
    space = Dict(
        {
            'a': Discrete(3, dtype=np.int8),
            'b': MultiDiscrete([3, 4], dtype=np.int32),
            'c': Tuple((Discrete(2, start=5, dtype=np.uint8), MultiBinary(2))),
        }
    )
    acting = ActingModule(make_policy('ppo', 'box', space))
    assert [port.dtype for port in acting.outputs] == ['int8', 'int32', 'uint8', 'int8']
    wanted = ['action.a', 'action.b', 'action.c.0', 'action.c.1']
    assert [port.name for port in acting.outputs] == wanted
    assert set(acting(*acting.example(3))[2].tolist()) <= {5, 6}


def test_copy_shares_no_memory_and_computes_images_in_float32() -> None:
    policy = make_policy('ppo', IMAGE, precision='auto')
    twin = for_export(policy)
    mine, theirs = ({x.data_ptr() for x in each.model.parameters()} for each in (policy, twin))
    assert not mine & theirs
    encoders: Any = [[m for m in each.model.modules() if isinstance(m, CNN)] for each in (policy, twin)]
    assert {m.precision for m in encoders[0]} == {'auto'} and {m.precision for m in encoders[1]} == {'fp32'}


@pytest.mark.slow
def test_rows_do_not_depend_on_their_number() -> None:
    acting = ActingModule(for_export(make_policy('ppo', 'dict', 'dict')), with_value=True)
    one, many = (acting(*acting.example(n)) for n in (1, 5))
    assert all(torch.allclose(x.expand_as(y), y, atol=1e-6) for x, y in zip(one, many, strict=True))


def test_policy_without_eval_mode_and_outputs_of_other_rows_are_refused() -> None:
    with pytest.raises(AttributeError, match='no eval mode'):
        for_export(make_policy('ppo', fields=['collect']))
    policy = make_policy('ppo')
    policy._forward_eval = lambda obs, state: {'action': torch.zeros(1, dtype=torch.int64)}
    with pytest.raises(UserError, match='one row each'):
        ActingModule(policy)


def test_state_that_begins_with_other_numbers_is_kept() -> None:
    policy = make_policy('ppo', recurrent={'cell': 'gru', 'hidden_size': 4})
    policy.model.initial_state = lambda n: {'actor': torch.full((n, 4), 0.5), 'critic': torch.zeros(n, 4)}
    acting = ActingModule(policy)
    assert np.array_equal(acting.initial['state.actor'].numpy(), np.full((1, 4), 0.5))
