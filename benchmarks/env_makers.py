"""Envs that packages give as functions or classes, made as their pages say, for `zoo train --env env_makers.py:NAME`.

benchmarks/envs.py trains on them. Each function imports its package itself, since only one of them is installed at a time.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym


def trading() -> gym.Env[Any, Any]:
    """gym-trading-env on 500 hours of a made-up price: a sine with a drift."""
    import gym_trading_env  # noqa: F401  # registers TradingEnv
    import numpy as np
    import pandas as pd

    hours = np.arange(500)
    close = 100 + 10 * np.sin(hours / 20) + hours / 50
    prices = pd.DataFrame({'open': close, 'high': close + 1, 'low': close - 1, 'close': close, 'volume': 1.0})
    prices.index = pd.date_range('2026-01-01', periods=len(hours), freq='h')
    prices['feature_change'] = prices['close'].pct_change().fillna(0.0)
    return gym.make('TradingEnv', df=prices, positions=[-1, 0, 1], verbose=0)


def mario() -> Any:
    """gym-super-mario-bros with its simple movements; an env of the old gym."""
    import gym_super_mario_bros
    from gym_super_mario_bros.actions import SIMPLE_MOVEMENT
    from nes_py.wrappers import JoypadSpace

    return JoypadSpace(gym_super_mario_bros.make('SuperMarioBros-v0'), SIMPLE_MOVEMENT)


def retro() -> Any:
    """stable-retro with the game that the package brings."""
    import stable_retro

    return stable_retro.make('Airstriker-Genesis-v0', render_mode='rgb_array')


def jumanji_snake() -> Any:
    """jumanji's snake through the wrapper of the package."""
    import jumanji
    from jumanji.wrappers import JumanjiToGymWrapper

    return JumanjiToGymWrapper(jumanji.make('Snake-v1'))


def gymnax_cartpole() -> Any:
    """gymnax' CartPole through the wrapper of the package."""
    import gymnax
    from gymnax.wrappers import GymnaxToGymWrapper

    return GymnaxToGymWrapper(*gymnax.make('CartPole-v1'))


def carl_cartpole() -> Any:
    """CARL's CartPole, whose observations are Dicts of the state and the context."""
    from carl.envs import CARLCartPole

    return CARLCartPole()


def bluesky_descent() -> Any:
    """bluesky-gym's descent, whose ids exist once register_envs was called."""
    import bluesky_gym

    bluesky_gym.register_envs()
    return gym.make('DescentEnv-v0')
