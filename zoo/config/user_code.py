"""Code that a config names: 'module:name' of a module that can be imported, or 'path/file.py:name' of a file."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import site
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from zoo.config.section import ConfigError
from zoo.config.source import import_module_or_file, running_code
from zoo.core.errors import UserError, closest

MODULE_NAME = re.compile(r'[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*')
MAX_LISTED = 8


def split_name(name: str) -> tuple[str, str]:
    """'a.b:c' -> ('a.b', 'c'); 'path/file.py:c' -> ('path/file.py', 'c'). Without a colon the second is ''."""
    home, _, attribute = name.rpartition(':')
    if not home.endswith('.py'):
        home, _, attribute = name.partition(':')
    return home, attribute


def is_in_file(name: str) -> bool:
    """Whether a name has the form 'path/file.py:name'."""
    return ':' in name and split_name(name)[0].endswith('.py')


def names_code(name: str) -> bool:
    """Whether a text has the form 'module:name' or 'path/file.py:name'."""
    return is_in_file(name) or MODULE_NAME.fullmatch(name) is not None


def absolute_name(name: str) -> str:
    """The name with the absolute path of its file, so that it is found from any folder; other names are unchanged."""
    if not is_in_file(name):
        return name
    home, attribute = split_name(name)
    return f'{os.path.abspath(os.path.expanduser(home))}:{attribute}'


def is_moved_code(old: object, new: object) -> bool:
    """Whether two names are of the same object of a file with the same name in two folders, as after a move or a copy."""
    if not (isinstance(old, str) and isinstance(new, str) and is_in_file(old) and is_in_file(new)):
        return False
    return old != new and re.split(r'[/\\]', old)[-1] == re.split(r'[/\\]', new)[-1]


def new_place(name: str) -> str:
    """The name of code in a file as it is typed where the file has moved: the file of that name here, else NEW.py."""
    home, attribute = split_name(name)
    file = re.split(r'[/\\]', home)[-1]
    return f'{file if os.path.isfile(file) else "NEW.py"}:{attribute}'


EXTENSIONS = ('.so', '.pyd')
"""Suffixes of modules of machine code, such as pyspiel."""


def installed_files(module: str, folders: Sequence[str] | None = None) -> list[Path]:
    """The files of an installed module: of its top package, and its own; nothing is imported to find them.

    [] for a module elsewhere, such as the current folder, and for one that is not in such files.
    Args: folders: those of installed packages; None: those of this Python.
    """
    top, *inner = module.split('.')
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return []
    if spec is not None and spec.origin:
        origin = Path(spec.origin)
    else:
        origin = None
    if origin is None or origin.suffix not in ('.py', *EXTENSIONS):
        return []
    homes = [os.path.realpath(folder) for folder in (_installed_folders() if folders is None else folders)]
    if not any(Path(os.path.realpath(origin)).is_relative_to(home) for home in homes):
        return []
    if not inner:
        return [origin]
    file = origin.parent.joinpath(*inner)
    own = [each for each in (file / '__init__.py', file.with_name(f'{file.name}.py')) if each.is_file()]
    if own and origin.name == '__init__.py':
        return [origin, *own[:1]]
    return []


def _installed_folders() -> list[str]:
    """The folders of this Python for installed packages."""
    user = []
    if site.ENABLE_USER_SITE:
        user = [site.getusersitepackages()]
    return [sysconfig.get_path('purelib'), sysconfig.get_path('platlib'), *site.getsitepackages(), *user]


def shown_name(name: str) -> str:
    """The name as messages show it: with a relative path if the file is in the current folder or below."""
    if not is_in_file(name):
        return name
    home, attribute = split_name(name)
    if os.path.isabs(home):
        below = os.path.relpath(home)
        if not below.startswith('..'):
            home = below
    return f'{home}:{attribute}'


def load_home(name: str, path: str) -> ModuleType:
    """Imports the module of a name, or runs its file as a module.

    Args: path: config key of the name; messages begin with it.
    Raises: ConfigError if there is none, if running the file raises an error, or if the code ends the process; errors of an
      imported module are not changed.
    """
    home, _ = split_name(name)
    if is_in_file(name):
        file = Path(home).expanduser()
        if not os.path.isfile(file):
            new = ''
            begin = ''
            if path.startswith('env '):
                new = f', {shlex.quote(f"env.id={new_place(name)}")}'
                begin = f'; zoo init {shlex.quote(home)} writes one to start from'
            raise ConfigError(
                f'{path} names the file {str(file.absolute())!r}, which is not there; check the path, or where the file '
                f'was moved, give its new one{new}{begin}.'
            )
        return import_module_or_file(str(file))
    try:
        with running_code(f'{path} names the module {home!r}, which', only_exits=True):
            return importlib.import_module(home)
    except UserError:
        raise
    except (ModuleNotFoundError, ValueError) as error:
        missing = getattr(error, 'name', None) or home
        if isinstance(error, ModuleNotFoundError) and not f'{home}.'.startswith(f'{missing}.'):
            raise  # it exists, but a module that it imports does not
        raise ConfigError(
            f'{path} names the module {missing!r}, which is not found; check the spelling, install the package that has '
            "it, or name its file, 'path/file.py:name'."
        ) from error


def load_code(name: str, path: str) -> Any:
    """Loads the object of a name. Args and Raises: as `load_home`; ConfigError if the module has no such object."""
    home = load_home(name, path)
    attribute = split_name(name)[1]
    parts = attribute.split('.')
    found = members(home, attribute)
    if len(found) < len(parts):
        raise ConfigError(f'{path} is {shown_name(name)!r} but {lacks([home, *found][-1], parts[len(found)])}')
    return found[-1]


def members(home: object, attribute: str) -> list[Any]:
    """The objects a, a.b and a.b.c of a module or another object for 'a.b.c'; the list ends before the first that is missing."""
    found: list[Any] = []
    for part in attribute.split('.'):
        if found:
            owner = found[-1]
        else:
            owner = home
        if not hasattr(owner, part):
            break
        found.append(getattr(owner, part))
    return found


def member(home: ModuleType, attribute: str) -> Any:
    """The object 'a.b.c' of a module; None if there is none."""
    found = members(home, attribute)
    if len(found) == attribute.count('.') + 1:
        return found[-1]
    return None


def with_absolute_names(value: Any) -> Any:
    """A value of a config in which all names of code in files have absolute paths, also inside lists and dicts."""
    if isinstance(value, str):
        return absolute_name(value)
    if isinstance(value, dict):
        return {key: with_absolute_names(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_absolute_names(item) for item in value]
    return value


def lacks(owner: Any, attribute: str) -> str:
    """The end of a message about a name that a module or class lacks: close names, or those that it has."""
    own = [name for name, x in vars(owner).items() if not name.startswith('_') and callable(x)]
    if isinstance(owner, ModuleType):
        own = [name for name in own if str(getattr(vars(owner)[name], '__module__', '')).startswith(owner.__name__)]
    file = Path(str(getattr(owner, '__file__', None) or '-'))
    if file.stem == owner.__name__:
        where = file.name
    else:
        where = f'{getattr(owner, "__qualname__", owner.__name__)!r}'
    close = closest(attribute, own)
    if close:
        return f'{where} has no {attribute!r}: did you mean {" or ".join(map(repr, close))}?'
    more = ''
    if len(own) > MAX_LISTED:
        more = ', ...'
    return f'{where} has no {attribute!r}; it has {", ".join(own[:MAX_LISTED]) or "no function or class"}{more}.'
