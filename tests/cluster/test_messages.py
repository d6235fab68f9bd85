"""Messages to and from runners: names of blocks, blocks of tensors, sizes, exceptions."""

from __future__ import annotations

import pickle
import sys

import numpy as np
import pytest
import torch

from zoo.cluster.messages import Reply, failure_of, flat, nested
from zoo.core.errors import RunError, UserError


def test_a_tree_is_the_same_after_it_was_flat() -> None:
    tree = {'action': torch.tensor([1, 2]), 'state': {'h': torch.zeros(2, 3), 'deep': {'c': torch.ones(2)}}}
    blocks = flat({'output': tree})
    assert list(blocks) == ['output.action', 'output.state.h', 'output.state.deep.c']
    found = nested(blocks)['output']
    assert found.keys() == tree.keys() and found['state']['deep']['c'] is blocks['output.state.deep.c']
    assert flat({'state': torch.ones(2)}).keys() == {'state'}
    assert nested({'state': 1, 'obs.a': 2}) == {'state': 1, 'obs': {'a': 2}}


def test_blocks_of_tensors_on_the_cpu_are_views() -> None:
    x = torch.zeros(3)
    flat({'obs': x})['obs'][1] = 5.0
    assert x.tolist() == [0.0, 5.0, 0.0]


def test_the_size_of_a_reply_is_that_of_its_blocks() -> None:
    blocks = {'obs': np.zeros((3, 2, 4), np.float32), 'steps.reward': np.zeros((2, 2), np.float32)}
    assert Reply('run', 0, 0, 0, blocks, [], [], {}).n_byte == 96 + 16  # 24 and 4 numbers of 4 bytes


# --- exceptions: the exception itself if it can be sent, else its message


class TwoArguments(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f'{a} and {b}')


class TwoArgumentsUserError(UserError):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f'{a} and {b}')


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_an_exception_arrives_with_the_place_of_its_env_and_its_traceback() -> None:
    error = raised(KeyError('spam'))
    error.env_place = "env 'x', index 2, step 7", 'my_env.py:3'  # type: ignore[attr-defined]
    sent = pickle.loads(pickle.dumps(failure_of(error)._replace(host='node7')))
    with pytest.raises(KeyError) as caught:
        sent.raise_()
    where = "env 'x', index 2, step 7, in a runner on node7"
    assert caught.value.env_place == (where, 'my_env.py:3')  # type: ignore[attr-defined]
    notes = ''.join(getattr(caught.value, '__notes__', []))
    assert sys.version_info < (3, 11) or ('node7' in notes and 'in raised' in notes)


@pytest.mark.parametrize(('error', 'kind'), [(TwoArguments(1, 2), RunError), (TwoArgumentsUserError(1, 2), UserError)])
def test_an_exception_that_cannot_be_sent_arrives_as_words(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f'a runner on node7 raised {type(error).__name__}: 1 and 2') as caught:
        failure_of(raised(error))._replace(host='node7').raise_()
    assert type(caught.value) is kind
