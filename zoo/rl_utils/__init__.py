"""Losses and estimators as pure functions; no policy, env or config needed."""

from zoo.rl_utils.categorical import Categorical
from zoo.rl_utils.distribution import ActionDist, distribution_of, make_dist
from zoo.rl_utils.gae import gae, gae_data, gae_result, gae_return, normalize_advantage
from zoo.rl_utils.gaussian import Gaussian
from zoo.rl_utils.normalizer import RunningMeanStd
from zoo.rl_utils.optimizer import FlatAdam, NonFiniteGradientError
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

__all__ = [
    'ActionDist',
    'make_dist',
    'Categorical',
    'FlatAdam',
    'Gaussian',
    'NonFiniteGradientError',
    'RunningMeanStd',
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
]
