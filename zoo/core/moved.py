"""Old import paths of public modules: each still works for one release, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

MOVED = {
    'zoo.buffer.priority': 'zoo.buffer.replay',
    'zoo.cli': 'zoo.tools.cli',
    'zoo.config.foreign': 'zoo.tools.importers',
    'zoo.env.check': 'zoo.env.inspection.check',
    'zoo.env.families.minigrid_memory': 'zoo.env.toy.memory',
    'zoo.env.inspect': 'zoo.env.inspection.inspect',
    'zoo.env.probes': 'zoo.env.toy',
    'zoo.model.heads': 'zoo.model.layers',
    'zoo.model.memory': 'zoo.model.recurrent',
    'zoo.model.mlp': 'zoo.model.layers',
    'zoo.model.networks': 'zoo.model.actor_critic',
    'zoo.model.ppg': 'zoo.model.actor_critic',
    'zoo.policy.a2c': 'zoo.policy.variants.a2c',
    'zoo.policy.dqn': 'zoo.policy.variants.dqn',
    'zoo.policy.export': 'zoo.tools.export',
    'zoo.policy.network_policy': 'zoo.policy.acting',
    'zoo.policy.offpolicy': 'zoo.policy.variants.offpolicy',
    'zoo.policy.pg': 'zoo.policy.variants.pg',
    'zoo.policy.sections': 'zoo.policy.config',
    'zoo.results': 'zoo.tools.results',
    'zoo.rl_utils.bernoulli': 'zoo.rl_utils.distributions.bernoulli',
    'zoo.rl_utils.beta': 'zoo.rl_utils.distributions.beta',
    'zoo.rl_utils.categorical': 'zoo.rl_utils.distributions.categorical',
    'zoo.rl_utils.composite': 'zoo.rl_utils.distributions.composite',
    'zoo.rl_utils.gaussian': 'zoo.rl_utils.distributions.gaussian',
    'zoo.rl_utils.distributions.gsde': 'zoo.rl_utils.distributions.gaussian',
    'zoo.rl_utils.gsde': 'zoo.rl_utils.distributions.gaussian',
    'zoo.rl_utils.multi_categorical': 'zoo.rl_utils.distributions.composite',
    'zoo.rl_utils.squashed_gaussian': 'zoo.rl_utils.distributions.gaussian',
    'zoo.run.callbacks': 'zoo.run.observers.callbacks',
    'zoo.run.load': 'zoo.run.policy_file',
    'zoo.run.make_policy': 'zoo.run.build',
    'zoo.run.pretrain': 'zoo.tools.imitation.pretrain',
    'zoo.run.saving': 'zoo.run.checkpoint.manager',
    'zoo.run.sinks': 'zoo.run.log',
    'zoo.run.sinks.tensorboard': 'zoo.run.log.sinks',
    'zoo.run.stop_rules': 'zoo.run.observers.stop_rules',
    'zoo.sweep': 'zoo.tools.sweep',
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
