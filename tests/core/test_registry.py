"""Registration of objects and lookup by name."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import zoo
from zoo.core.errors import UserError
from zoo.core.registry import ENV_REGISTRY, POLICY_REGISTRY, Registry, UnknownNameError
from zoo.env import TENSOR_ENV_REGISTRY


@pytest.fixture
def registry() -> Registry:
    registry: Registry = Registry('policy', 'zoo_test.none')
    for name in ('ppo', 'ppg', 'ppo_offpolicy'):
        registry.register(name)(dict)
    return registry


def install_plugin(tmp_path, monkeypatch, entry_point: str, source: str) -> None:
    """Writes a package with one entry point into a folder on the path, as pip would install it."""
    (tmp_path / 'zoo_plugin.py').write_text(source)
    info = tmp_path / 'zoo_plugin-1.0.dist-info'
    info.mkdir()
    (info / 'METADATA').write_text('Metadata-Version: 2.1\nName: zoo-plugin\nVersion: 1.0\n')
    (info / 'entry_points.txt').write_text(f'[zoo_test.plugins]\n{entry_point}\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'zoo_plugin', raising=False)
    assert metadata.entry_points(group='zoo_test.plugins')


class Searches(metadata.DistributionFinder):
    """Finds no package; counts how often somebody looks for all of them."""

    def __init__(self) -> None:
        self.n = 0

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        """Finds no module."""

    def find_distributions(
        self, context: metadata.DistributionFinder.Context | None = None
    ) -> list[metadata.Distribution]:
        self.n += 1
        return []


def test_all_registries_share_one_search_for_plugins_until_the_path_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = Searches()
    monkeypatch.setattr(sys, 'meta_path', [*sys.meta_path, searches])
    monkeypatch.syspath_prepend(tmp_path)
    for group in ('zoo_test.some', 'zoo_test.other'):
        assert Registry('kind', group).names() == []
    assert searches.n == 1
    monkeypatch.syspath_prepend(tmp_path / 'more')
    assert Registry('kind', 'zoo_test.some').names() == [] and searches.n == 2


def test_register_class_returns_it_unchanged(registry):
    class Mine:
        pass

    before = dict(vars(Mine))
    assert registry.register('mine')(Mine) is Mine
    assert registry.get('mine') is Mine and dict(vars(Mine)) == before


def test_names_are_sorted_and_contained(registry):
    assert registry.query() == registry.names() == ['ppg', 'ppo', 'ppo_offpolicy']
    assert 'ppo' in registry and 'pgg' not in registry


def test_build_constructs_what_is_registered_with_the_arguments(registry):
    assert registry.build('ppo', [('a', 1)], b=2) == {'a': 1, 'b': 2}


def test_register_with_module_registers_at_once_and_returns_it(registry):
    class Mine:
        pass

    assert registry.register('mine', module=Mine) is Mine
    assert registry.get('mine') is Mine and registry.where('mine').startswith(f'{__name__}:')
    with pytest.raises(UserError, match="^policy 'mine' is registered at "):
        registry.register('mine', module=Mine)


@pytest.mark.parametrize(
    ('name', 'hint'), [('pgg', " did you mean 'ppg'?"), ('PPO', " did you mean 'ppo'?"), ('dreamer', '')]
)
def test_unknown_name_says_the_closest_if_one_is_close_and_all(registry, name, hint):
    for find in (registry.get, registry.build):
        with pytest.raises(UnknownNameError) as error:
            find(name)
        assert str(error.value) == f"unknown policy '{name}':{hint} registered: ppg, ppo, ppo_offpolicy."


def test_register_taken_name_names_both_places(registry):
    first = registry.where('ppo')
    with pytest.raises(ValueError, match="policy 'ppo' is registered at") as error:
        registry.register('ppo')(list)
    assert first in str(error.value) and str(error.value).count(f'{__name__}:') == 2
    assert registry.get('ppo') is dict


def test_register_force_replaces(registry):
    registry.register('ppo', force=True)(list)
    assert registry.get('ppo') is list


@pytest.fixture
def homes(tmp_path, monkeypatch) -> Registry:
    """A registry with built-in entries 'a' and 'b', each registered by its own module."""
    for name in 'ab':
        (tmp_path / f'zoo_home_{name}.py').write_text(
            f'from zoo.core.registry import HOME_REGISTRY\n@HOME_REGISTRY.register("{name}")\ndef built_in(): pass\n'
        )
        monkeypatch.delitem(sys.modules, f'zoo_home_{name}', raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    registry: Registry = Registry('thing', 'zoo_test.none', {'zoo_home_a': 'a', 'zoo_home_b': 'b'})
    monkeypatch.setattr('zoo.core.registry.HOME_REGISTRY', registry, raising=False)
    return registry


def test_get_imports_only_the_module_that_registers_the_name(homes):
    assert homes.names() == ['a', 'b'] and 'b' in homes
    with pytest.raises(UnknownNameError, match=r'^unknown thing .c.: registered: a, b\.$'):
        homes.get('c')
    assert not {'zoo_home_a', 'zoo_home_b'} & set(sys.modules)
    assert homes.get('b').__module__ == 'zoo_home_b' and homes.where('b') == 'zoo_home_b:2'
    assert 'zoo_home_a' not in sys.modules and homes.names() == ['a', 'b']


def test_register_name_of_a_module_that_is_not_imported_yet_names_both_places(homes):
    with pytest.raises(UserError, match=r"^thing 'a' is registered at zoo_home_a:2 and again at "):
        homes.register('a')(dict)
    assert homes.register('b', force=True)(dict) is homes.get('b')


def test_every_home_of_a_built_in_name_registers_it():
    assert [ENV_REGISTRY.where(name).rpartition(':')[0] for name in ('atari', 'torch', 'any_space')] == [
        'zoo.env.families.atari',
        'zoo.env.tensor.vector',
        'zoo.env.toy.targets',
    ]
    assert POLICY_REGISTRY.where('ppo').startswith('zoo.policy.ppo:')
    for registry in (ENV_REGISTRY, TENSOR_ENV_REGISTRY):
        assert all(callable(registry.get(name)) or registry.get(name).make for name in registry.names())


@pytest.mark.long
@pytest.mark.slow
def test_every_name_that_zoo_registers_is_known_before_its_module_is_imported():
    """A component that zoo/core/registry.py does not list works only if another module happens to import it."""
    code = (
        'import json, zoo.core.registry as r;'
        'print(json.dumps({k: x.names() for k, x in vars(r).items() if isinstance(x, r.Registry)}))'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    known, found = json.loads(done.stdout), []
    for path in Path(zoo.__file__).parent.rglob('*.py'):
        found += re.findall(r"^@?(\w+_REGISTRY)\.register\('(\w+)'", path.read_text(encoding='utf-8'), re.MULTILINE)
    assert len(found) > 80 and [pair for pair in found if pair[0] in known and pair[1] not in known[pair[0]]] == []


def test_where_is_module_and_line_of_the_decorator(registry):
    line = sys._getframe().f_lineno + 2  # a blank line follows

    @registry.register('here')
    def function() -> None:
        pass

    assert registry.where('here') == f'{__name__}:{line}'


@pytest.mark.parametrize('name', ['', None, 3, dict])
def test_register_without_a_name_raises(registry, name):
    with pytest.raises(TypeError, match=r"non-empty string.*register\('my_policy'\)"):
        registry.register(name)


def test_get_constructor_error_passes_through(registry):
    error = KeyError('mine')

    @registry.register('broken')
    def construct() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        registry.get('broken')()
    assert caught.value is error


def test_plugin_module_registers_by_its_decorators(tmp_path, monkeypatch):
    registry: Registry = Registry('thing', 'zoo_test.plugins')
    monkeypatch.setattr('zoo.core.registry.TEST_REGISTRY', registry, raising=False)
    install_plugin(
        tmp_path,
        monkeypatch,
        'any = zoo_plugin',
        'from zoo.core.registry import TEST_REGISTRY\n@TEST_REGISTRY.register("theirs")\nclass Theirs: pass\n',
    )
    assert registry.names() == ['theirs']
    assert registry.where('theirs') == 'zoo_plugin:2'


def test_plugin_object_registers_under_the_name_of_its_entry_point(tmp_path, monkeypatch):
    registry: Registry = Registry('thing', 'zoo_test.plugins')
    install_plugin(tmp_path, monkeypatch, 'theirs = zoo_plugin:Theirs', 'class Theirs: pass\n')
    assert registry.get('theirs').__name__ == 'Theirs'
    assert registry.where('theirs') == 'zoo_plugin:Theirs (plugin of zoo-plugin)'


def test_plugin_that_fails_is_named_and_its_error_passes_through_each_time(tmp_path, monkeypatch, caplog):
    registry: Registry = Registry('thing', 'zoo_test.plugins')
    install_plugin(tmp_path, monkeypatch, 'theirs = zoo_plugin', 'raise OSError("their library is missing")\n')
    for _ in range(2):
        with caplog.at_level(logging.ERROR), pytest.raises(OSError, match='^their library is missing$'):
            registry.names()
    assert caplog.messages[0] == (
        'the thing plugin theirs = zoo_plugin failed to import, its error follows; fix or uninstall package zoo-plugin'
    )


def test_thread_that_reads_while_another_one_loads_waits_for_it(tmp_path, monkeypatch):
    (tmp_path / 'zoo_slow_of_test.py').write_text(
        'import time\nfrom tests.core.test_registry import SLOW\ntime.sleep(0.2)\nSLOW.register("slow", module=dict)\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    first_reads = Barrier(3)

    def read() -> bool:
        first_reads.wait()
        return 'slow' in SLOW and SLOW.get('slow') is dict

    with ThreadPoolExecutor(3) as threads:
        assert [each.result() for each in [threads.submit(read) for _ in range(3)]] == [True] * 3


SLOW: Registry = Registry('policy', 'zoo_test.none', ('zoo_slow_of_test',))


def test_code_that_a_config_names_is_found_by_its_name_and_is_no_registered_one() -> None:
    registry: Registry[Any] = Registry('thing', 'zoo.no_such_group', takes_code=True, keeps_code=True)
    registry.register('listed', module=int)
    registry.keep('module:Class', float)
    assert registry.get('module:Class') is float
    assert registry.names() == ['listed'] and 'module:Class' not in registry
    assert registry.where('module:Class') == 'module:Class'
