"""Old import paths: of modules, with a warning, and of single names. They stay valid for one release."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from zoo.core.lazy import lazy_names

MOVED = {
    'zoo.backend.native.network': 'zoo.backend.native.executor',
    'zoo.backend.precision': 'zoo.policy.options.passes',
    'zoo.backend.recurrent': 'zoo.policy.sequences',
    'zoo.buffer.priority': 'zoo.buffer.replay',
    'zoo.cli': 'zoo.tools.cli',
    'zoo.cluster.ray_learners': 'zoo.cluster.ray_ranks',
    'zoo.cluster.weights': 'zoo.cluster.messages',
    'zoo.config.foreign': 'zoo.tools.importers',
    'zoo.core.version': 'zoo.core',
    'zoo.env.attributes': 'zoo.env.settings',
    'zoo.env.check': 'zoo.env.inspection.check',
    'zoo.env.families.minigrid_memory': 'zoo.env.toy.targets',
    'zoo.env.inspect': 'zoo.env.inspection.inspect',
    'zoo.env.probes': 'zoo.env.toy',
    'zoo.env.rows': 'zoo.env.rules',
    'zoo.env.stepping': 'zoo.env.vector',
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
    'zoo.policy.acting': 'zoo.policy.network_policy',
    'zoo.policy.dqn': 'zoo.policy.variants.dqn',
    'zoo.policy.export': 'zoo.tools.export',
    'zoo.policy.offpolicy': 'zoo.policy.variants.offpolicy',
    'zoo.policy.options.aux_memory': 'zoo.policy.options.resumed_memory',
    'zoo.policy.options.draws': 'zoo.policy.options.passes',
    'zoo.policy.options.normalization': 'zoo.policy.options.reward_norm',
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
    'zoo.rl_utils.kernels.device': 'zoo.rl_utils.kernels.tiles',
    'zoo.rl_utils.multi_categorical': 'zoo.rl_utils.distributions.composite',
    'zoo.rl_utils.penalties': 'zoo.rl_utils.surrogates',
    'zoo.rl_utils.ppg': 'zoo.rl_utils.losses',
    'zoo.rl_utils.q_learning': 'zoo.rl_utils.estimators',
    'zoo.rl_utils.squashed_gaussian': 'zoo.rl_utils.distributions.gaussian',
    'zoo.run.callbacks': 'zoo.run.observers.callbacks',
    'zoo.run.config_check': 'zoo.run.config',
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
    'zoo.tools.sweep.processes': 'zoo.tools.sweep.team',
    'zoo.worker.demonstrations': 'zoo.tools.imitation.demonstrations',
    'zoo.worker.evaluation': 'zoo.worker.evaluator',
    'zoo.worker.learner': 'zoo.run.job',
    'zoo.worker.recording': 'zoo.tools.media.recording',
    'zoo.worker.video': 'zoo.tools.media.video',
    'zoo.worker.window': 'zoo.tools.media.video',
}
"""Old path -> new path, of a module or of a package with all its modules."""


NAMES = {
    'zoo.backend.executor': {'zoo.backend.step': 'Numbers=StepNumbers'},
    'zoo.backend.trace': {'zoo.backend.choose': 'missing_compiler'},
    'zoo.core.data': {
        'zoo.env.interface': 'BlockField StepBlock StepRow',
        'zoo.policy.sequences': 'begins_of replace_rows',
    },
    'zoo.core.lazy': {'zoo.core.moved': 'MOVED MovedModules'},
    'zoo.core.registry': {'zoo.core.errors': 'closest did_you_mean'},
    'zoo.env.errors': {
        'zoo.env.calls': 'CALLS CONSTRUCTION_CALLS CallRecord env_call locate',
        'zoo.env.closing': 'MIN_CLOSE_S close_in_time',
        'zoo.env.infos': 'BROKEN RAW RAW_END RAW_REWARD',
        'zoo.env.restarts': 'CONSTRUCTION N_LOGGED RESET Restarts',
        'zoo.env.seeded': 'Seeds restart_seed seeds_of',
        'zoo.env.validation': (
            'FLAGS RAW_ERRORS RESET_DO STEP_DO action_of as_flag bad_obs check_n_action check_obs check_result check_spaces '
            'checked_call entries_of fits flag_array lost_mask_error n_action not_finite_error raise_if_broken '
            'raise_if_contract shapes_error'
        ),
    },
    'zoo.env.rules': {
        'zoo.env.readers': (
            'BinaryReader ByteReader DictReader FinalReader=ArrayReader IndexReader MaskReader obs_reader'
        )
    },
    'zoo.env.vector': {'zoo.env.rules': 'NextStep', 'zoo.env.vector': 'RowVectorEnv=VectorEnv'},
    'zoo.model.actor_critic': {
        'zoo.model.config': 'PPGConfig=PPGModelConfig',
        'zoo.model.recurrent': 'RecurrentPPG RecurrentVAC with_memory',
    },
    'zoo.model.layers': {
        'zoo.model.encoder': 'Flat FlatConfig MLP MLPConfig make_policy_head',
        'zoo.model.inputs': 'OneHot check_mask input_width',
        'zoo.rl_utils.value_losses': 'WideValueHead',
    },
    'zoo.policy.ppg': {'zoo.policy.old_steps': 'ValueNumbers AuxNumbers=ValueNumbers'},
    'zoo.policy.options.loss': {'zoo.policy.objective': 'KEEP_NO_OLD_VALUE Objective'},
    'zoo.policy.options.passes': {'zoo.policy.config': 'UpdatePrecision'},
    'zoo.policy.options.reward_norm': {'zoo.policy.options.value_norm': 'ValueNorm'},
    'zoo.rl_utils.distributions.categorical': {'zoo.rl_utils.distributions.composite': 'MultiCategorical'},
    'zoo.rl_utils.gae': {
        'zoo.rl_utils.estimators': 'gae_result gae_return',
        'zoo.rl_utils.normalizer': 'discounted_sum',
    },
    'zoo.rl_utils.ppo': {
        'zoo.rl_utils.losses': (
            'KLType ppo_data ppo_error ppo_error_continuous ppo_info ppo_loss ppo_policy_data ppo_policy_error '
            'ppo_policy_error_continuous ppo_policy_loss ppo_value_data ppo_value_error'
        )
    },
    'zoo.rl_utils.update_rules': {
        'zoo.rl_utils.optimizer': (
            'FIRST_SCALE MIN_SCALE Mechanics N_GOOD_STEPS Own RuleOptimizer=FlatOptimizer first_values limited moved '
            'scaled_backward'
        )
    },
}
"""Module -> the names that it had, by the modules that have them now, in the form of `lazy_names`."""

PASSES_END_BY = 'the slots stop_after and renew of an update (zoo.policy.slots)'
GONE = {
    'zoo.core.registry': {'tool': 'zoo.core.registry.TOOL_REGISTRY.get(name)'},
    'zoo.policy.options.passes': {'InterruptedPasses': PASSES_END_BY},
    'zoo.policy.passes': {'InterruptedPasses': PASSES_END_BY},
    'zoo.policy.sequences': {'learn_in_sequences': 'update.entries.fill(option, zoo.policy.sequences.sequences(cfg))'},
}
"""Module -> the names that it had and that no other has now, with what takes their place."""


class MovedModules(MetaPathFinder, Loader):
    """Finds a module of `MOVED` under its old path: the import returns the module at the new path.

    It also finds the modules of `NAMES` and `GONE`, and lets them have their old names.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that has moved, or of one with old names; None for any other."""
        if fullname in NAMES or fullname in GONE:
            specs = (finder.find_spec(fullname, path) for finder in sys.meta_path if finder is not self)
            spec = next((spec for spec in specs if spec is not None), None)
            if spec is not None and spec.loader is not None:
                spec.loader = _LoaderWithNames(spec.loader)
            return spec
        new = None
        if fullname.startswith('zoo.'):
            new = self._new(fullname)
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
        old = name
        rest = ''
        while old not in MOVED and '.' in old:
            old, _, last = old.rpartition('.')
            rest = f'.{last}{rest}'
        if old not in MOVED:
            return None
        return MOVED[old] + rest


class _LoaderWithNames(Loader):
    """Loads a module of `NAMES` or `GONE` by another loader; its old names are imported at first use."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader  # modules in a zip file share theirs, so it stays unmodified

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        _add_old_names(module)
        self._loader.exec_module(module)

    def __getattr__(self, name: str) -> Any:  # source, data and resources of the module
        if name == '_loader':
            raise AttributeError(name)
        return getattr(self._loader, name)


def _add_old_names(module: ModuleType) -> None:
    """Lets a module of `NAMES` have its old names; those of `GONE` get an error that says what takes their place."""
    package = module.__name__
    find, names, _ = lazy_names(package, NAMES.get(package, {}))
    gone = GONE.get(package, {})

    def find_or_refuse(name: str) -> Any:
        if name in gone:
            raise AttributeError(f'{package}.{name} is gone; use {gone[name]} instead')
        return find(name)

    vars(module)['__getattr__'] = find_or_refuse
    vars(module)['__dir__'] = names


def keep_old_paths() -> None:
    """Lets old paths be imported; `zoo` calls this once, before it imports any module that has them but zoo.core.lazy."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModules())
        _add_old_names(sys.modules['zoo.core.lazy'])
