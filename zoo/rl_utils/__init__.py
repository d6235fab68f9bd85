"""Losses and estimators as pure functions; no policy, env or config needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names
from zoo.rl_utils.gae import gae, gae_data, gae_result, gae_return, normalize_advantage  # eager: gae is a module too

if TYPE_CHECKING:
    from zoo.rl_utils.distribution import ActionDist, distribution_of, make_dist
    from zoo.rl_utils.distributions.bernoulli import Bernoulli
    from zoo.rl_utils.distributions.beta import Beta
    from zoo.rl_utils.distributions.categorical import Categorical, MultiCategorical
    from zoo.rl_utils.distributions.composite import Composite
    from zoo.rl_utils.distributions.gaussian import GSDE, Gaussian, SquashedGaussian
    from zoo.rl_utils.losses import (
        ppo_data,
        ppo_error,
        ppo_error_continuous,
        ppo_info,
        ppo_loss,
        ppo_policy_data,
        ppo_policy_error,
        ppo_policy_error_continuous,
        ppo_policy_loss,
        ppo_value_data,
        ppo_value_error,
    )
    from zoo.rl_utils.normalizer import RunningMeanStd
    from zoo.rl_utils.optimizer import FlatAdam, FlatOptimizer, NonFiniteGradientError
    from zoo.rl_utils.ppg import ppg_data, ppg_joint_error, ppg_joint_loss
    from zoo.rl_utils.q_learning import q_error, q_target

__all__ = [
    'ActionDist',
    'make_dist',
    'Bernoulli',
    'Beta',
    'Categorical',
    'Composite',
    'FlatAdam',
    'FlatOptimizer',
    'GSDE',
    'Gaussian',
    'MultiCategorical',
    'NonFiniteGradientError',
    'RunningMeanStd',
    'SquashedGaussian',
    'distribution_of',
    'gae',
    'gae_data',
    'gae_result',
    'gae_return',
    'normalize_advantage',
    'ppg_data',
    'ppg_joint_error',
    'ppg_joint_loss',
    'ppo_data',
    'ppo_error',
    'ppo_error_continuous',
    'ppo_info',
    'ppo_loss',
    'ppo_policy_data',
    'ppo_policy_error',
    'ppo_policy_error_continuous',
    'ppo_policy_loss',
    'ppo_value_data',
    'ppo_value_error',
    'q_error',
    'q_target',
]

_HOME = {
    'zoo.rl_utils.distribution': 'ActionDist distribution_of make_dist',
    'zoo.rl_utils.distributions.bernoulli': 'Bernoulli',
    'zoo.rl_utils.distributions.beta': 'Beta',
    'zoo.rl_utils.distributions.categorical': 'Categorical MultiCategorical',
    'zoo.rl_utils.distributions.composite': 'Composite',
    'zoo.rl_utils.distributions.gaussian': 'GSDE Gaussian SquashedGaussian',
    'zoo.rl_utils.normalizer': 'RunningMeanStd',
    'zoo.rl_utils.optimizer': 'FlatAdam FlatOptimizer NonFiniteGradientError',
    'zoo.rl_utils.ppg': 'ppg_data ppg_joint_error ppg_joint_loss',
    'zoo.rl_utils.losses': (
        'ppo_data ppo_error ppo_error_continuous ppo_info ppo_loss ppo_policy_data '
        'ppo_policy_error ppo_policy_error_continuous ppo_policy_loss ppo_value_data '
        'ppo_value_error '
    ),
    'zoo.rl_utils.q_learning': 'q_error q_target',
}
__getattr__, __dir__ = lazy_names(__name__, {name: module for module, names in _HOME.items() for name in names.split()})
