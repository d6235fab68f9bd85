"""What errors are shown as."""

from __future__ import annotations

import pytest

from zoo.core.errors import place_of, show_error


@pytest.mark.parametrize(
    ('error', 'n_max', 'text'),
    [
        (ValueError('two\n  lines'), None, 'ValueError: two lines'),
        (ValueError(), None, 'ValueError'),
        (ValueError(' \n'), None, 'ValueError'),
        (KeyError('long' * 9), 5, "KeyError: 'long"),
        (KeyboardInterrupt(), 5, 'KeyboardInterrupt'),
    ],
)
def test_show_error_is_type_and_message_on_one_line(error: BaseException, n_max: int | None, text: str) -> None:
    assert show_error(error, n_max) == text


def test_place_of_an_error_is_its_last_line() -> None:
    with pytest.raises(ZeroDivisionError) as error:
        1 // 0  # noqa: B018
    assert place_of(error.value).startswith('test_errors.py:')
