"""Losses and estimators as pure functions; no policy, env or config needed."""

from zoo.rl_utils.bernoulli import Bernoulli
from zoo.rl_utils.beta import Beta
from zoo.rl_utils.categorical import Categorical
from zoo.rl_utils.composite import Composite
from zoo.rl_utils.distribution import ActionDist, distribution_of, make_dist
from zoo.rl_utils.gae import gae, gae_data, gae_result, gae_return, normalize_advantage
from zoo.rl_utils.gaussian import Gaussian
from zoo.rl_utils.gsde import GSDE
from zoo.rl_utils.multi_categorical import MultiCategorical
from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.rl_utils.optimizer import FlatAdam, FlatOptimizer, NonFiniteGradientError
from zoo.rl_utils.ppg import ppg_data, ppg_joint_error, ppg_joint_loss
from zoo.rl_utils.ppo import (
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
from zoo.rl_utils.q_learning import q_error, q_target
from zoo.rl_utils.squashed_gaussian import SquashedGaussian

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
