"""Losses and estimators as pure functions; no policy, env or config needed."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names
from zoo.rl_utils.gae import (
    gae as gae,
    gae_data as gae_data,
    normalize_advantage as normalize_advantage,
)

if TYPE_CHECKING:
    from zoo.rl_utils.distribution import (
        ActionDist as ActionDist,
        distribution_of as distribution_of,
        make_dist as make_dist,
    )
    from zoo.rl_utils.distributions.beta import Beta as Beta
    from zoo.rl_utils.distributions.categorical import Categorical as Categorical
    from zoo.rl_utils.distributions.composite import (
        Bernoulli as Bernoulli,
        Composite as Composite,
        MultiCategorical as MultiCategorical,
    )
    from zoo.rl_utils.distributions.gaussian import (
        GSDE as GSDE,
        Gaussian as Gaussian,
        SquashedGaussian as SquashedGaussian,
    )
    from zoo.rl_utils.estimators import (
        gae_result as gae_result,
        gae_return as gae_return,
        q_error as q_error,
        q_target as q_target,
        quantile_error as quantile_error,
    )
    from zoo.rl_utils.losses import (
        ppg_data as ppg_data,
        ppg_joint_error as ppg_joint_error,
        ppg_joint_loss as ppg_joint_loss,
        ppo_data as ppo_data,
        ppo_error as ppo_error,
        ppo_error_continuous as ppo_error_continuous,
        ppo_info as ppo_info,
        ppo_loss as ppo_loss,
        ppo_policy_data as ppo_policy_data,
        ppo_policy_error as ppo_policy_error,
        ppo_policy_error_continuous as ppo_policy_error_continuous,
        ppo_policy_loss as ppo_policy_loss,
        ppo_value_data as ppo_value_data,
        ppo_value_error as ppo_value_error,
    )
    from zoo.rl_utils.normalizer import RunningMeanStd as RunningMeanStd
    from zoo.rl_utils.optimizer import (
        FlatAdam as FlatAdam,
        FlatOptimizer as FlatOptimizer,
        NonFiniteGradientError as NonFiniteGradientError,
    )

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        'zoo.rl_utils.distribution': 'ActionDist distribution_of make_dist',
        'zoo.rl_utils.distributions.beta': 'Beta',
        'zoo.rl_utils.distributions.categorical': 'Categorical',
        'zoo.rl_utils.distributions.composite': 'Bernoulli Composite MultiCategorical',
        'zoo.rl_utils.distributions.gaussian': 'GSDE Gaussian SquashedGaussian',
        'zoo.rl_utils.estimators': 'gae_result gae_return q_error q_target quantile_error',
        'zoo.rl_utils.gae': 'gae gae_data normalize_advantage',
        'zoo.rl_utils.normalizer': 'RunningMeanStd',
        'zoo.rl_utils.optimizer': 'FlatAdam FlatOptimizer NonFiniteGradientError',
        'zoo.rl_utils.losses': (
            'ppg_data ppg_joint_error ppg_joint_loss ppo_data ppo_error ppo_error_continuous ppo_info ppo_loss '
            'ppo_policy_data ppo_policy_error ppo_policy_error_continuous ppo_policy_loss ppo_value_data '
            'ppo_value_error'
        ),
    },
)
