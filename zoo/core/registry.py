"""Names for policies, models, envs, buffers and their parts: a decorator, a dict, two good errors, plugins by entry point."""

from __future__ import annotations

import difflib
import importlib
import logging
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any, Generic, TypeVar, overload

from zoo.core.errors import UserError

T = TypeVar('T')
Item = TypeVar('Item')  # what is registered keeps its own, narrower type

logger = logging.getLogger(__name__)


class UnknownNameError(UserError):
    """A name that nothing is registered under."""


class Registry(Generic[T]):
    """A dict from names to classes or functions that fills itself when it is first read.

    Built-in entries register when `modules` are imported; those of other packages when the entry points of `group` are
    loaded. Construction is `REGISTRY.get(name)(...)`, or `build`: what a constructor raises arrives as it was raised.

    Attributes: takes_code: a config may name 'module:Class' in place of a registered name.
    """

    def __init__(self, kind: str, group: str, modules: Iterable[str] = (), takes_code: bool = False) -> None:
        self.kind, self.takes_code = kind, takes_code
        self._group = group
        self._modules = tuple(modules)
        self._items: dict[str, T] = {}
        self._places: dict[str, str] = {}
        self._loaded = False

    @overload
    def register(self, name: str, force: bool = False) -> Callable[[Item], Item]: ...

    @overload
    def register(self, name: str, force: bool = False, *, module: Item) -> Item: ...

    def register(self, name: str, force: bool = False, *, module: Any = None) -> Any:
        """Decorator that registers a class or function under `name` and returns it unchanged.

        Args: module: the class or function itself, to register it at once without a decorator; it is returned.
        Raises: UserError (a ValueError) if the name is taken, naming both places, unless `force` says to replace it.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(
                f'a {self.kind} is registered under a non-empty string, got {name!r}; '
                f"write @...register('my_{self.kind}')"
            )
        if force:
            self._load()  # else the entry to be replaced would come later and find its name taken
        caller = sys._getframe(1)
        place = f'{caller.f_globals.get("__name__", "?")}:{caller.f_lineno}'

        def decorator(item: Item) -> Item:
            self._add(name, item, place, force)
            return item

        return decorator if module is None else decorator(module)

    def build(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """`get(name)(*args, **kwargs)`. Raises: as `get`, and what the constructor raises."""
        make: Any = self.get(name)
        return make(*args, **kwargs)

    def query(self) -> list[str]:
        """`names`."""
        return self.names()

    def get(self, name: str) -> T:
        """What is registered under `name`. Raises: UnknownNameError with close matches and the known names."""
        self._load()
        if not isinstance(name, str) or name not in self._items:
            raise UnknownNameError(unknown_name(self.kind, name, self._items))
        return self._items[name]

    def names(self) -> list[str]:
        """All registered names, sorted."""
        self._load()
        return sorted(self._items)

    def where(self, name: str) -> str:
        """'module:line' of the registration."""
        self.get(name)
        return self._places[name]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._items

    def _add(self, name: str, item: Any, place: str, force: bool = False) -> None:
        if name in self._items and not force:
            raise UserError(
                f'{self.kind} {name!r} is registered at {self._places[name]} and again at {place}; '
                'choose another name, or register(name, force=True) to replace the first.'
            )
        self._items[name] = item
        self._places[name] = place

    def _load(self) -> None:
        """Import the built-in modules and the plugins, once; what fails is tried, and fails, again at the next read."""
        if self._loaded:
            return
        self._loaded, done = True, False  # set first: a module read here may ask this registry while it is imported
        try:
            for module in self._modules:
                importlib.import_module(module)
            for point in sorted(metadata.entry_points(group=self._group), key=lambda p: (p.name, p.value)):
                self._load_plugin(point)
            done = True
        finally:
            self._loaded = done

    def _load_plugin(self, point: metadata.EntryPoint) -> None:
        """Load a module that registers as it is imported, or an object to be registered under the point's name."""
        package = point.dist.name if point.dist else 'unknown package'
        place = f'{point.value} (plugin of {package})'
        done = False
        try:
            item = point.load()
            done = True
        finally:
            if not done:
                logger.error(
                    'the %s plugin %s = %s failed to import, its error follows; fix or uninstall package %s',
                    self.kind,
                    point.name,
                    point.value,
                    package,
                )
        if point.attr and self._items.get(point.name) is not item:
            self._add(point.name, item, place)


def unknown_name(kind: str, name: object, known: Iterable[str], listed: str = 'registered') -> str:
    """One sentence for a name that does not exist: what was got, the closest known ones, all known ones."""
    known, got = sorted(known), repr(name)
    close = closest(str(name), known)
    guess = f'did you mean {" or ".join(map(repr, close))}? ' if close else ''
    got = got if len(got) <= 100 else f'{got[:97]}...'
    return f'unknown {kind} {got}: {guess}{listed}: {", ".join(known) or "none"}.'


def closest(name: str, known: Iterable[str], n: int = 2) -> list[str]:
    """Up to `n` of the known names that resemble `name` about equally well, best first; case does not count."""
    scores = {k: difflib.SequenceMatcher(None, k.lower(), name.lower()).ratio() for k in known}
    best = sorted(scores, key=lambda k: (-scores[k], k))[:n]
    return [k for k in best if scores[k] >= max(0.6, scores[best[0]] - 0.1)]  # 0.6: what difflib calls close


POLICY_REGISTRY: Registry[Any] = Registry('policy', 'zoo.policies', ('zoo.policy',))
MODEL_REGISTRY: Registry[Any] = Registry('model', 'zoo.models', ('zoo.model',))
ENCODER_REGISTRY: Registry[Any] = Registry('encoder', 'zoo.encoders', ('zoo.model',))
ENV_REGISTRY: Registry[Any] = Registry('env', 'zoo.envs', ('zoo.env',))
BUFFER_REGISTRY: Registry[Any] = Registry('buffer', 'zoo.buffers', ('zoo.buffer',))
DISTRIBUTION_REGISTRY: Registry[Any] = Registry('distribution', 'zoo.distributions', ('zoo.rl_utils',))
SURROGATE_REGISTRY: Registry[Any] = Registry('surrogate', 'zoo.surrogates', ('zoo.rl_utils.surrogates',))
VALUE_LOSS_REGISTRY: Registry[Any] = Registry('value loss', 'zoo.value_losses', ('zoo.rl_utils.value_losses',))
PENALTY_REGISTRY: Registry[Any] = Registry('penalty', 'zoo.penalties', ('zoo.rl_utils.penalties',))
ESTIMATOR_REGISTRY: Registry[Any] = Registry('estimator', 'zoo.estimators', ('zoo.rl_utils.estimators',))
OPTIMIZER_REGISTRY: Registry[Any] = Registry('optimizer', 'zoo.optimizers', ('zoo.rl_utils.optimizers',))
EXPLORATION_REGISTRY: Registry[Any] = Registry('exploration', 'zoo.explorations', ('zoo.rl_utils.exploration',))
DRAW_REGISTRY: Registry[Any] = Registry('draw', 'zoo.draws', ('zoo.policy.draw',))
PROXIMAL_REGISTRY: Registry[Any] = Registry('proximal policy', 'zoo.proximal_policies', ('zoo.policy.proximal',))
CORRECTION_REGISTRY: Registry[Any] = Registry('correction', 'zoo.corrections', ('zoo.policy.correction',))
PHASE_REGISTRY: Registry[Any] = Registry('phase', 'zoo.phases', ('zoo.policy.phases',))
INTRINSIC_REGISTRY: Registry[Any] = Registry('intrinsic reward', 'zoo.intrinsic_rewards', ('zoo.policy.intrinsic',))
PLASTICITY_REGISTRY: Registry[Any] = Registry('plasticity', 'zoo.plasticity', ('zoo.policy.plasticity',))
PIPELINE_REGISTRY: Registry[Any] = Registry('pipeline', 'zoo.pipelines', ('zoo.run.job',))
SINK_REGISTRY: Registry[Any] = Registry('sink', 'zoo.sinks', ('zoo.run.sinks',), takes_code=True)
STOP_REGISTRY: Registry[Any] = Registry('stop rule', 'zoo.stop_rules', ('zoo.run.stop_rules',), takes_code=True)
SAVE_REGISTRY: Registry[Any] = Registry('form of a saved policy', 'zoo.policy_forms', ('zoo.run.policy_file',))

PARTS: dict[str, Registry[Any]] = {
    'policy.learn.surrogate': SURROGATE_REGISTRY,
    'policy.learn.proximal': PROXIMAL_REGISTRY,
    'policy.learn.correction': CORRECTION_REGISTRY,
    'policy.learn.value_loss': VALUE_LOSS_REGISTRY,
    'policy.learn.penalties': PENALTY_REGISTRY,
    'policy.learn.optimizer': OPTIMIZER_REGISTRY,
    'policy.learn.draw': DRAW_REGISTRY,
    'policy.learn.phase': PHASE_REGISTRY,
    'policy.learn.intrinsic': INTRINSIC_REGISTRY,
    'policy.learn.plasticity': PLASTICITY_REGISTRY,
    'policy.collect.estimator': ESTIMATOR_REGISTRY,
    'policy.collect.exploration': EXPLORATION_REGISTRY,
    'pipeline': PIPELINE_REGISTRY,
    'stop': STOP_REGISTRY,
    'logger.sinks': SINK_REGISTRY,
}
"""The parts of a policy or a run that a config chooses, by the key that names them."""
