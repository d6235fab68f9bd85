"""Exceptions of runners: what reaches the learner is the exception itself where it can be sent, else its words."""

from __future__ import annotations

import pickle
import sys

import pytest

from zoo.cluster.messages import failure_of
from zoo.core.errors import RunError, UserError


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
