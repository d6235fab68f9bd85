"""Update options, which a plain policy leaves off: the choice of those that a config names, and their order."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

from zoo.config.components import make_component, name_of
from zoo.config.schedule import adaptive_rate
from zoo.core.registry import CORRECTION_REGISTRY, OPTION_REGISTRY
from zoo.policy.options.base import Estimated as Estimated, Owner as Owner, UpdateOption as UpdateOption

PLAIN = {'accumulate': 1, 'grad_clip_value': None, 'precision': 'fp32'}
"""Settings of a plain optimiser, by their key in `policy.learn`."""
_BUILT_IN: tuple[tuple[str, str, Callable[[Owner], bool]], ...] = (
    ('whole_episodes', 'IgnoreDone', lambda policy: policy.cfg.learn.ignore_done),
    ('whole_episodes', 'NoBaseline', lambda policy: policy.cfg.learn.baseline == 'none'),
    ('whole_episodes', 'WholeEpisodes', lambda policy: policy.cfg.collect.batch_mode == 'episode'),
    ('off_policy_correction', 'VTrace', lambda policy: part_of_correction(policy, 'estimator') is not None),
    ('reward_norm', 'RewardNorm', lambda policy: policy.cfg.learn.reward_norm),
    ('value_norm', 'ValueNorm', lambda policy: policy.cfg.learn.value_norm),
    ('intrinsic', 'IntrinsicReward', lambda policy: policy.cfg.learn.intrinsic is not None and policy.explores),
    ('constraint', 'Constraint', lambda policy: policy.cfg.learn.constraint is not None and policy.explores),
    ('off_policy_correction', 'RecentPolicy', lambda policy: _proximal(policy) == 'recent'),
    ('off_policy_correction', 'AveragedPolicy', lambda policy: _proximal(policy) == 'ewma'),
    ('passes', 'ChosenDraw', lambda policy: name_of(policy.cfg.learn.draw) != 'shuffle'),
    ('passes', 'EarlyStop', lambda policy: policy.cfg.learn.target_kl is not None),
    ('passes', 'RecomputedAdvantages', lambda policy: policy.cfg.learn.get('recompute_adv', False)),
    ('passes', 'OptimizerMechanics', lambda policy: any(policy.cfg.learn[key] != x for key, x in PLAIN.items())),
    ('loss', 'OldOutput', lambda policy: policy.objective.keeps_output),
    ('loss', 'Penalties', lambda policy: bool(policy.objective.penalties)),
    ('magnet', 'Magnet', lambda policy: any(each.name == 'magnet' for each in policy.objective.penalties)),
    ('loss', 'ReturnRange', lambda policy: policy.objective.n_value > 1),
    ('symmetry', 'Symmetry', lambda policy: policy.learns and policy.cfg.learn.symmetry is not None),
    ('adaptive', 'AdaptiveNumbers', lambda policy: policy.learns and _follows_kl(policy)),
    ('resumed_memory', 'ChosenMemory', lambda policy: _chooses_memory(policy)),
    ('plasticity', 'Plasticity', lambda policy: policy.learns and policy.cfg.learn.plasticity is not None),
)
"""Built-in options, in the order in which they act: (module, class, whether a policy has it).

V-trace comes before value_norm, whose statistics include the returns of V-trace. AdaptiveNumbers, which measures the KL of an
update, comes before plasticity, which changes the policy.
"""


def options_of(policy: Owner) -> tuple[UpdateOption, ...]:
    """The options that a policy's config names: the built-in ones, then those of `policy.learn.options`."""
    found = [
        getattr(import_module(f'zoo.policy.options.{module}'), name)()
        for module, name, is_chosen in _BUILT_IN
        if is_chosen(policy)
    ]
    return (*found, *(make_component(OPTION_REGISTRY, spec) for spec in policy.cfg.learn.options))


def part_of_correction(policy: Owner, part: Literal['proximal', 'estimator']) -> Any:
    """The proximal policy or estimator that policy.learn.correction uses in place of the config's; None: it uses none."""
    spec = policy.cfg.learn.correction
    if name_of(spec) == 'none':
        return None
    return getattr(make_component(CORRECTION_REGISTRY, spec)(), part, None)


def _proximal(policy: Owner) -> str:
    """Name of the proximal policy: that of the correction if it has one, else policy.learn.proximal."""
    return name_of(part_of_correction(policy, 'proximal') or policy.cfg.learn.proximal)


def _chooses_memory(policy: Owner) -> bool:
    """Whether the memory of PPG has another place than the device, or keeps the newest batches."""
    learn = policy.cfg.learn
    return learn.get('aux_memory', 'device') != 'device' or learn.get('aux_window') is not None


def _follows_kl(policy: Owner) -> bool:
    """Whether a rate or the weight of a penalty follows the KL of updates."""
    rates = [policy.cfg.learn[name] for name in policy.rates.names]
    return any(map(adaptive_rate, rates)) or any(each.target is not None for each in policy.objective.common)
