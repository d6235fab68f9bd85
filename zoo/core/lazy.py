"""Names of a package or module that are imported at first use."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], hints: Mapping[str, str] = {}
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns `__getattr__`, `__dir__` and `__all__` for a package whose names are imported at first use.

    Args: package: its `__name__`; homes: {module: its names, with spaces between them}, where 'name=other' is a name that is
      `other` in the module, and 'name=' the module itself; hints: {an expression of zoo: the names that other libraries have
      for it}.
    """
    parts = [(word.partition('='), module) for module, names in homes.items() for word in names.split()]
    home = {name: (module, other if equals else name) for (name, equals, other), module in parts}

    def find(name: str) -> Any:
        is_package = '__path__' in vars(sys.modules[package])
        if is_package and name not in home and not name.startswith('_') and find_spec(f'{package}.{name}'):
            return importlib.import_module(f'{package}.{name}')
        if name not in home:
            from zoo.core.errors import closest

            close = [do for do, others in hints.items() if name in others.split()] or closest(name, home)
            names = sorted(home, key=lambda each: (each.isupper(), each[0].isupper(), each))  # functions first
            words = f'did you mean {" or ".join(close)}?' if close else f'it has {", ".join(names)}'
            raise AttributeError(f'module {package} has no attribute {name!r}; {words}')
        module = importlib.import_module(home[name][0])
        found = getattr(module, home[name][1]) if home[name][1] else module
        setattr(sys.modules[package], name, found)
        return found

    return find, lambda: sorted({*home, *vars(sys.modules[package])}), sorted(home)


MOVED = {
    'zoo.backend.native.network': 'zoo.backend.native.executor',
    'zoo.backend.precision': 'zoo.policy.options.passes',
    'zoo.backend.recurrent': 'zoo.policy.sequences',
    'zoo.buffer.priority': 'zoo.buffer.replay',
    'zoo.cli': 'zoo.tools.cli',
    'zoo.cluster.weights': 'zoo.cluster.messages',
    'zoo.config.foreign': 'zoo.tools.importers',
    'zoo.core.version': 'zoo.core',
    'zoo.env.attributes': 'zoo.env.settings',
    'zoo.env.check': 'zoo.env.inspection.check',
    'zoo.env.families.minigrid_memory': 'zoo.env.toy.targets',
    'zoo.env.inspect': 'zoo.env.inspection.inspect',
    'zoo.env.probes': 'zoo.env.toy',
    'zoo.env.tensor.base': 'zoo.env.tensor.program',
    'zoo.env.toy.memory': 'zoo.env.toy.targets',
    'zoo.model.heads': 'zoo.model.layers',
    'zoo.model.memory': 'zoo.model.recurrent',
    'zoo.model.mlp': 'zoo.model.layers',
    'zoo.model.multi': 'zoo.model.encoder',
    'zoo.model.networks': 'zoo.model.actor_critic',
    'zoo.model.ppg': 'zoo.model.actor_critic',
    'zoo.model.simba': 'zoo.model.encoder',
    'zoo.policy.a2c': 'zoo.policy.variants.a2c',
    'zoo.policy.dqn': 'zoo.policy.variants.dqn',
    'zoo.policy.export': 'zoo.tools.export',
    'zoo.policy.network_policy': 'zoo.policy.acting',
    'zoo.policy.offpolicy': 'zoo.policy.variants.offpolicy',
    'zoo.policy.options.draws': 'zoo.policy.options.passes',
    'zoo.policy.options.normalization': 'zoo.policy.options.reward_norm',
    'zoo.policy.passes': 'zoo.policy.gradient_steps',
    'zoo.policy.pg': 'zoo.policy.variants.pg',
    'zoo.policy.sections': 'zoo.policy.config',
    'zoo.results': 'zoo.tools.results',
    'zoo.rl_utils.bernoulli': 'zoo.rl_utils.distributions.composite',
    'zoo.rl_utils.beta': 'zoo.rl_utils.distributions.beta',
    'zoo.rl_utils.categorical': 'zoo.rl_utils.distributions.categorical',
    'zoo.rl_utils.composite': 'zoo.rl_utils.distributions.composite',
    'zoo.rl_utils.distributions.bernoulli': 'zoo.rl_utils.distributions.composite',
    'zoo.rl_utils.distributions.gsde': 'zoo.rl_utils.distributions.gaussian',
    'zoo.rl_utils.gaussian': 'zoo.rl_utils.distributions.gaussian',
    'zoo.rl_utils.gsde': 'zoo.rl_utils.distributions.gaussian',
    'zoo.rl_utils.multi_categorical': 'zoo.rl_utils.distributions.composite',
    'zoo.rl_utils.penalties': 'zoo.rl_utils.surrogates',
    'zoo.rl_utils.ppg': 'zoo.rl_utils.losses',
    'zoo.rl_utils.q_learning': 'zoo.rl_utils.estimators',
    'zoo.rl_utils.squashed_gaussian': 'zoo.rl_utils.distributions.gaussian',
    'zoo.run.callbacks': 'zoo.run.observers.callbacks',
    'zoo.run.load': 'zoo.run.policy_file',
    'zoo.run.make_policy': 'zoo.run.build',
    'zoo.run.pretrain': 'zoo.tools.imitation.pretrain',
    'zoo.run.saving': 'zoo.run.checkpoint.manager',
    'zoo.run.signals': 'zoo.core.processes',
    'zoo.run.sinks': 'zoo.run.log',
    'zoo.run.sinks.tensorboard': 'zoo.run.log.sinks',
    'zoo.run.stop_rules': 'zoo.run.observers.stop_rules',
    'zoo.sweep': 'zoo.tools.sweep',
    'zoo.tools.log_levels': 'zoo.core.streams',
    'zoo.tools.nested': 'zoo.config.section',
    'zoo.worker.demonstrations': 'zoo.tools.imitation.demonstrations',
    'zoo.worker.evaluation': 'zoo.worker.evaluator',
    'zoo.worker.learner': 'zoo.run.job',
    'zoo.worker.recording': 'zoo.tools.media.recording',
    'zoo.worker.video': 'zoo.tools.media.video',
    'zoo.worker.window': 'zoo.tools.media.video',
}
"""Old path -> new path, of a module or of a package with all its modules."""


class MovedModules(MetaPathFinder, Loader):
    """Finds a module of `MOVED` under its old path: the import returns the module at the new path."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a moved module; None for any other."""
        new = self._new(fullname) if fullname.startswith('zoo.') else None
        if new is None or find_spec(new) is None:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = self._new(spec.name)
        assert new is not None
        warnings.warn(f'{spec.name} has moved to {new}; import that', DeprecationWarning, stacklevel=2)
        module = importlib.import_module(new)
        spec.loader_state = module.__spec__  # kept, since the import system writes the old path's spec into the module
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restores the module's own spec. The module itself ran when it was imported at its new path."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state

    @staticmethod
    def _new(name: str) -> str | None:
        old, rest = name, ''
        while old not in MOVED and '.' in old:
            old, _, last = old.rpartition('.')
            rest = f'.{last}{rest}'
        return None if old not in MOVED else MOVED[old] + rest


sys.meta_path.insert(0, MovedModules())
