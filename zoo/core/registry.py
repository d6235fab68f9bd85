"""Registries: names for policies, models, envs, buffers and their components; a decorator, a dict, plugins by entry point."""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from threading import get_ident
from typing import Any, Generic, TypeVar, overload

from zoo.core.errors import UserError, show_error, unknown_name
from zoo.core.processes import STOP_REQUESTS


@dataclass(frozen=True)
class Component:
    """A registered function with its options: callable, and hashable, so that a compiled step may depend on it."""

    kind: str
    name: str
    function: Callable[..., Any]
    options: tuple[tuple[str, Any], ...] = ()

    def __call__(self, *args: Any) -> Any:
        return self.function(*args, **dict(self.options))


T = TypeVar('T')
Item = TypeVar('Item')  # a registered item keeps its own, narrower type
logger = logging.getLogger(__name__)


class UnknownNameError(UserError):
    """No item is registered under this name."""


class Registry(Generic[T]):
    """A dict from names to classes or functions, which is filled when it is first read.

    Built-in entries register when their `modules` are imported: all modules at the first read, or, if `modules` maps each
    module to its names, a module when one of its names is asked for. Entries of other packages register at the first read,
    when the entry points of `group` are loaded.
    `REGISTRY.get(name)(...)` or `build` makes an object; errors of the constructor are not changed.

    Args: modules: to be imported, or {module: the names that it registers, with spaces between them}.
    Attributes: takes_code: a config may name 'module:Class' in place of a registered name; keeps_code: `get` then finds
      it by this name, for policies and runners. entries, places: the items registered so far and their 'module:line', by name.
    """

    def __init__(
        self,
        kind: str,
        group: str,
        modules: Iterable[str] | Mapping[str, str] = (),
        takes_code: bool = False,
        keeps_code: bool = False,
    ) -> None:
        self.kind = kind
        self.takes_code = takes_code
        self.keeps_code = keeps_code
        self._group = group
        homes: Mapping[str, str] = {}
        if isinstance(modules, Mapping):
            homes = modules
        self._homes = {name: module for module, names in homes.items() for name in names.split()}  # not registered yet
        self._modules: tuple[str, ...] = ()
        if not homes:
            self._modules = tuple(modules)
        self.entries: dict[str, T] = {}
        self.places: dict[str, str] = {}
        self._kept: dict[str, T] = {}  # code that a config named
        # the second: threads that load it
        self._loaded = False
        self._loading = set[int]()

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
            self._load()  # else the entry to be replaced would register later, and find its name taken
        caller = sys._getframe(1)
        place = f'{caller.f_globals.get("__name__", "?")}:{caller.f_lineno}'

        def decorator(item: Item) -> Item:
            self._add(name, item, place, force)
            return item

        if module is None:
            return decorator
        return decorator(module)

    def keep(self, name: str, item: T) -> None:
        """Keeps code that a config names 'module:Class', for `get` by that name; it is none of the registered `names`."""
        self._kept[name] = item

    def build(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """`get(name)(*args, **kwargs)`. Raises: as `get`, and what the constructor raises."""
        make: Any = self.get(name)
        return make(*args, **kwargs)

    def get(self, name: str) -> T:
        """The item registered under `name`. Raises: UnknownNameError with close matches and the known names."""
        self._load()
        if isinstance(name, str) and name in self._kept:
            return self._kept[name]
        if not isinstance(name, str) or name not in self:
            raise UnknownNameError(unknown_name(self.kind, name, self.names()))
        self._import_home(name)
        return self.entries[name]

    def names(self) -> list[str]:
        """All registered names, sorted."""
        self._load()
        return sorted({*self.entries, *self._homes})

    query = names

    def where(self, name: str) -> str:
        """'module:line' of the registration."""
        self.get(name)
        return self.places.get(name, name)  # code that a config named is its own place

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self.entries or name in self._homes

    def _import_home(self, name: str) -> None:
        """Imports the module that registers a built-in name. An import that fails is tried again at the next read."""
        home = self._homes.get(name)
        if home is not None:
            importlib.import_module(home)  # returns at once if this thread is already importing the module
            self._homes.pop(name, None)

    def _add(self, name: str, item: Any, place: str, force: bool = False) -> None:
        self._import_home(name)
        if name in self.entries and not force:
            raise UserError(
                f'{self.kind} {name!r} is registered at {self.places[name]} and again at {place}; '
                'choose another name, or register(name, force=True) to replace the first.'
            )
        self.entries[name] = item
        self.places[name] = place

    def _load(self) -> None:
        """Imports the built-in modules and the plugins, once. An import that fails is tried again at the next read."""
        if self._loaded or get_ident() in self._loading:  # a module that is imported here may read this registry
            return
        self._loading.add(get_ident())
        try:
            for module in self._modules:
                importlib.import_module(module)
            points = _entry_points(tuple(sys.path)).select(group=self._group)
            for point in sorted(points, key=lambda p: (p.name, p.value)):
                self._load_plugin(point)
            self._loaded = True  # only now: until then other threads load too, and so wait for the imports
        finally:
            self._loading.discard(get_ident())

    def _load_plugin(self, point: metadata.EntryPoint) -> None:
        """Loads a module that registers its items on import, or an object to be registered under the point's name."""
        if point.dist:
            package = point.dist.name
        else:
            package = 'unknown package'
        place = f'{point.value} (plugin of {package})'
        try:
            item = point.load()
        except BaseException as error:
            words = 'the %s plugin %s = %s failed to import, its error follows; fix or uninstall package %s'
            logger.error(words, self.kind, point.name, point.value, package)
            if isinstance(error, (Exception, *STOP_REQUESTS)):
                raise
            raise UserError(f'plugin {point.name} of package {package} raised {show_error(error)}') from error
        if point.attr and self.entries.get(point.name) is not item:
            self._add(point.name, item, place)


@functools.lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> Any:
    """The entry points of all installed packages, which all registries share: a search of site-packages takes about 7 ms.

    Args: path: `sys.path`, where packages are searched for.
    """
    return metadata.entry_points()


POLICY_REGISTRY: Registry[Any] = Registry(
    'policy',
    'zoo.policies',
    {
        'zoo.policy.ppg': 'ppg',
        'zoo.policy.ppo': 'ppo',
        'zoo.policy.variants.a2c': 'a2c impala',
        'zoo.policy.variants.dqn': 'dqn',
        'zoo.policy.variants.offpolicy': 'ppg_offpolicy ppo_ewma_offpolicy ppo_offpolicy',
        'zoo.policy.variants.pg': 'pg',
        'zoo.policy.variants.trpo': 'npg trpo',
        'zoo.policy.variants.published': 'dna ppg_ewma ppg_reloaded ppo_ewma spo',
    },
)
MODEL_REGISTRY: Registry[Any] = Registry('model', 'zoo.models', {'zoo.model.actor_critic': 'ppg vac'})
ENCODER_REGISTRY: Registry[Any] = Registry(
    'encoder',
    'zoo.encoders',
    {
        'zoo.model.attention': 'attention',
        'zoo.model.cnn': 'cnn impala nature',
        'zoo.model.encoder': 'flat mlp multi simba',
        'zoo.model.entities': 'entities',
    },
)
CELL_REGISTRY: Registry[Any] = Registry(
    'cell', 'zoo.cells', {'zoo.model.attention': 'trxl', 'zoo.model.recurrent': 'gru lstm mingru'}
)
ENV_REGISTRY: Registry[Any] = Registry(
    'env',
    'zoo.envs',
    {
        'zoo.env.families.atari': 'atari',
        'zoo.env.families.envpool': 'envpool',
        'zoo.env.families.minatar': 'minatar',
        'zoo.env.families.procgen': 'procgen',
        'zoo.env.tensor.vector': 'torch',
        'zoo.env.toy.bricks': 'tiny_bricks',
        'zoo.env.toy.mazes': 'mazes',
        'zoo.env.toy.two_step': 'two_step_game',
        'zoo.env.toy.targets': 'any_space cartpole_no_velocity minigrid_memory_s7 one_step random_masks remember_cue',
    },
)
BUFFER_REGISTRY: Registry[Any] = Registry(
    'buffer', 'zoo.buffers', {'zoo.buffer.replay': 'multi replay', 'zoo.buffer.rollout': 'rollout'}
)
DISTRIBUTION_REGISTRY: Registry[Any] = Registry(
    'distribution',
    'zoo.distributions',
    {
        'zoo.rl_utils.distributions.beta': 'beta',
        'zoo.rl_utils.distributions.categorical': 'categorical',
        'zoo.rl_utils.distributions.composite': 'bernoulli composite multi_categorical',
        'zoo.rl_utils.distributions.gaussian': 'gaussian gsde squashed_gaussian',
    },
    takes_code=True,
    keeps_code=True,
)
SURROGATE_REGISTRY: Registry[Any] = Registry(
    'surrogate',
    'zoo.surrogates',
    {'zoo.rl_utils.ppo': 'clip', 'zoo.rl_utils.surrogates': 'a2c asymmetric_clip awr cispo dpo none rollback spo'},
)
VALUE_LOSS_REGISTRY: Registry[Any] = Registry(
    'value loss',
    'zoo.value_losses',
    {'zoo.rl_utils.ppo': 'mse', 'zoo.rl_utils.value_losses': 'clip error_clip hl_gauss huber two_hot'},
)
PENALTY_REGISTRY: Registry[Any] = Registry('penalty', 'zoo.penalties', ('zoo.rl_utils.surrogates',))
ESTIMATOR_REGISTRY: Registry[Any] = Registry(
    'estimator',
    'zoo.estimators',
    {'zoo.rl_utils.estimators': 'n_step returns vtrace', 'zoo.rl_utils.gae': 'gae'},
)
OPTIMIZER_REGISTRY: Registry[Any] = Registry('optimizer', 'zoo.optimizers', ('zoo.rl_utils.optimizers',))
EXPLORATION_REGISTRY: Registry[Any] = Registry(
    'exploration', 'zoo.explorations', ('zoo.rl_utils.exploration',), takes_code=True, keeps_code=True
)
DRAW_REGISTRY: Registry[Any] = Registry(
    'draw', 'zoo.draws', {'zoo.policy.options.passes': 'in_order prioritized', 'zoo.policy.passes': 'shuffle'}
)
PROXIMAL_REGISTRY: Registry[Any] = Registry(
    'proximal policy', 'zoo.proximal_policies', ('zoo.policy.options.off_policy_correction',)
)
CORRECTION_REGISTRY: Registry[Any] = Registry(
    'correction', 'zoo.corrections', ('zoo.policy.options.off_policy_correction',)
)
PHASE_REGISTRY: Registry[Any] = Registry(
    'phase', 'zoo.phases', {'zoo.policy.ppg': 'ppg', 'zoo.policy.variants.published': 'distill'}
)
INTRINSIC_REGISTRY: Registry[Any] = Registry(
    'intrinsic reward', 'zoo.intrinsic_rewards', ('zoo.policy.options.intrinsic',)
)
CONSTRAINT_REGISTRY: Registry[Any] = Registry('constraint', 'zoo.constraints', ('zoo.policy.options.constraint',))
PLASTICITY_REGISTRY: Registry[Any] = Registry('plasticity', 'zoo.plasticity', ('zoo.policy.options.plasticity',))
OPTION_REGISTRY: Registry[Any] = Registry('update option', 'zoo.update_options')
PIPELINE_REGISTRY: Registry[Any] = Registry(
    'pipeline', 'zoo.pipelines', {'zoo.run.job': 'serial', 'zoo.run.serving.served_job': 'serve'}
)
SINK_REGISTRY: Registry[Any] = Registry(
    'sink',
    'zoo.sinks',
    {
        'zoo.run.log.sinks': 'csv jsonl table tensorboard',
        'zoo.run.log.trackers': 'mlflow wandb',
    },
    takes_code=True,
)
STOP_REGISTRY: Registry[Any] = Registry(
    'stop rule', 'zoo.stop_rules', ('zoo.run.observers.stop_rules',), takes_code=True
)
SAVE_REGISTRY: Registry[Any] = Registry('form of a saved policy', 'zoo.policy_forms', ('zoo.run.policy_file',))
CONFIG_READER_REGISTRY: Registry[Any] = Registry(
    'config reader', 'zoo.config_readers', {'zoo.tools.importers.readers': 'convertible_files di_engine'}
)
TOOL_REGISTRY: Registry[Any] = Registry(
    'tool',
    'zoo.library_tools',
    {
        'zoo.agents.inspection': 'inspect_agents',
        'zoo.run.agents_player': 'agents_player',
        'zoo.tools.export.write': 'export_policy',
        'zoo.tools.media.recording': 'videos',
        'zoo.tools.media.video': 'video_preview',
        'zoo.tools.results.plot': 'html_of_run plot_run',
    },
)
"""What the library, as in `Policy.export`, calls of layers above it, most of it of zoo/tools."""
COMPONENTS: dict[str, Registry[Any]] = {
    'policy.learn.surrogate': SURROGATE_REGISTRY,
    'policy.learn.proximal': PROXIMAL_REGISTRY,
    'policy.learn.correction': CORRECTION_REGISTRY,
    'policy.learn.value_loss': VALUE_LOSS_REGISTRY,
    'policy.learn.penalties': PENALTY_REGISTRY,
    'policy.learn.optimizer': OPTIMIZER_REGISTRY,
    'policy.learn.draw': DRAW_REGISTRY,
    'policy.learn.phase': PHASE_REGISTRY,
    'policy.learn.intrinsic': INTRINSIC_REGISTRY,
    'policy.learn.constraint': CONSTRAINT_REGISTRY,
    'policy.learn.plasticity': PLASTICITY_REGISTRY,
    'policy.learn.options': OPTION_REGISTRY,
    'policy.collect.estimator': ESTIMATOR_REGISTRY,
    'policy.collect.exploration': EXPLORATION_REGISTRY,
    'pipeline': PIPELINE_REGISTRY,
    'stop': STOP_REGISTRY,
    'logger.sinks': SINK_REGISTRY,
}
"""The registries of the components that a config chooses, by the config key that names them."""
