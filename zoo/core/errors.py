"""The two kinds of errors that users see, which have exit codes 2 and 1 on the command line; helpers for messages."""

from __future__ import annotations

import difflib
import importlib.util
import math
import pickle
import re
import reprlib
import shlex
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


class UserError(ValueError):
    """A request of the user that cannot be carried out: a wrong config, name or file."""


class RunError(RuntimeError):
    """A failure of a run after its start: of its env, its gradient, its disk."""


class NonFiniteGradientError(RunError):
    """Too many gradient steps in a row were not finite."""


class CallbackError(RunError):
    """A callback raised an error, which is the cause of this one."""


def place_of(error: BaseException) -> str:
    """'file:line' of the last line that ran before an error."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f'{Path(last.filename).name}:{last.lineno}'


def show_error(error: BaseException, n_max: int | None = None) -> str:
    """The type of an exception, and its message on one line, cut after n_max characters."""
    text = ' '.join(str(error).split())[:n_max]
    if text:
        return f'{type(error).__name__}: {text}'
    return type(error).__name__


def pickled_error(error: BaseException) -> bytes | None:
    """An exception in a form for another process; None if it cannot be pickled, or not be made again from that."""
    try:
        pickled = pickle.dumps(error)
    except Exception:  # its class may raise any error
        return None
    # an __init__ with other arguments fails here
    if unpickled_error(pickled) is None:
        return None
    return pickled


def unpickled_error(pickled: bytes | None) -> BaseException | None:
    """The exception of `pickled_error`; None if there is none, or this process cannot make it: its class may be missing."""
    try:
        if pickled is None:
            error = None
        else:
            error = pickle.loads(pickled)
    except Exception:
        return None
    if isinstance(error, BaseException):
        return error
    return None


def brief(value: object) -> str:
    """A value on one short line, for a sentence about it."""
    return ' '.join(reprlib.repr(value).split())


def shown(value: object, n: int = 60) -> str:
    """The start of a value's repr, on one line."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes
        if isinstance(value, int):
            text = 'an integer too long to show'
        else:
            text = f'a {type(value).__name__} too long to show'
    if '\n' in text:  # as of tensors and arrays
        text = ' '.join(text.split())
    if len(text) <= n:
        return text
    return f'{text[: n - 3]}...'


def around(n: int, wanted: int) -> str:
    """The divisors of n nearest to a number, below and above it, as '64 or 128'; only one if there is no other."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    divisors = {*small, *(n // d for d in small)}
    below = max(d for d in divisors if d <= wanted)
    above = min((d for d in divisors if d >= wanted), default=None)
    if above in (None, below):
        return f'{below}'
    return f'{below} or {above}'


def of_entry(path: str) -> str:
    """The name of an entry, as it follows 'the observation' in messages; '' for an observation that is no Dict."""
    if path:
        return f' {path!r}'
    return ''


def env_failure(error: BaseException) -> str | None:
    """A sentence about an error in an env's own code, with env, index, step and line; None for all other exceptions."""
    where, at = getattr(error, 'env_place', (None, None))
    if where is None:
        return None
    hint = getattr(error, 'env_hint', '')
    return f'{where}: its code raised {show_error(error)} ({at}){hint and f"; {hint}"}; --debug shows the traceback'


def unknown_name(kind: str, name: object, known: Iterable[str], listed: str = 'registered') -> str:
    """The message for a name that does not exist: the name, the closest known ones, all known ones."""
    known = sorted(known)
    got = repr(name)
    guess = did_you_mean(str(name), known, end=' ')
    if not (len(got) <= 100):
        got = f'{got[:97]}...'
    return f'unknown {kind} {got}: {guess}{listed}: {", ".join(known) or "none"}.'


def listed(names: Sequence[object], most: int = 6) -> str:
    """Names in a message: the first ones, and how many more there are."""
    text = ', '.join(map(str, names[:most]))
    if len(names) > most:
        text += f' and {len(names) - most} more'
    return text


def closest(name: str, known: Iterable[str], n: int = 2) -> list[str]:
    """Up to `n` of the known names that resemble `name` about equally well, best first; case does not count."""
    scores = {k: difflib.SequenceMatcher(None, k.lower(), name.lower()).ratio() for k in known}
    best = sorted(scores, key=lambda k: (-scores[k], k))[:n]
    return [k for k in best if scores[k] >= max(0.6, scores[best[0]] - 0.1)]  # 0.6: what difflib calls close


def join_path(path: str, key: str) -> str:
    """The dotted path of a key in a section: 'a.b' and 'c' -> 'a.b.c', '' and 'c' -> 'c'."""
    if path:
        return f'{path}.{key}'
    return key


def did_you_mean(
    name: str, known: Iterable[str], otherwise: str = '', form: Callable[[str], object] = repr, end: str = ''
) -> str:
    """'did you mean ...?' with the `closest` known names, each as form(name), and then `end`; `otherwise` if none is close."""
    close = [str(form(each)) for each in closest(name, known)]
    if close:
        return f'did you mean {" or ".join(close)}?{end}'
    return otherwise


def need(module: str, extra: str, what: str) -> None:
    """Raises: UserError if a package is not installed; the message says what needs it and how to install it.

    Args: module: e.g. 'matplotlib'; extra: that of setup.py, e.g. 'plot'; what: the feature that needs it, e.g. 'zoo plot'.
    """
    try:
        is_there = importlib.util.find_spec(module) is not None
    except ImportError:  # the parent package is missing
        is_there = False
    if not is_there:
        raise UserError(missing_extra(what, extra, module))


def missing_extra(what: str, extra: str, module: str | None = None) -> str:
    """The message for a feature that needs an extra (optional dependencies) which is not installed.

    Args: what: the feature; module: the missing module of the extra, if it is known.
    """
    if module is None:
        needed = f'the {extra} extra'
    else:
        needed = module
    return f'{what} needs {needed}, which is not installed; run: {install_extra(extra)}'


DISTRIBUTION = 'policy-zoo'


def install_extra(extra: str) -> str:
    """The command that installs an extra: from the checkout that zoo runs from, else its packages by their names.

    zoo itself is not named: it is on no package index, and anybody may have its name there.
    """
    if is_checkout():
        packages = []
    else:
        packages = packages_of(extra)
    if packages:
        return f'pip install {shlex.join(packages)}'
    return f"pip install '.[{extra}]' in the checkout of zoo"


def is_checkout() -> bool:
    """Whether zoo is imported from its checkout, and not from where a wheel was installed."""
    return (Path(__file__).parents[2] / 'setup.py').is_file()


def packages_of(extra: str) -> list[str]:
    """The packages of an extra with their versions, e.g. 'matplotlib>=3.8', as the installed zoo states them.

    [] if it states none. Their conditions (version of Python, platform) are left out: pip reports one that is not met.
    """
    import importlib.metadata  # slow to import, and rarely needed

    try:
        stated = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    split = [requirement.partition(';') for requirement in stated]
    is_of_extra = re.compile(rf"""extra\s*==\s*["']{re.escape(extra)}["']""")
    return [package.strip() for package, _, condition in split if is_of_extra.search(condition)]
