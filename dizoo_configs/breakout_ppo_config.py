"""Atari Breakout with PPO: the settings of pong_ppo. Needs the atari extra (GPL-2)."""

from dizoo_configs.pong_ppo_config import config as pong

config = {**pong, 'exp_name': 'breakout_ppo', 'env': {**pong['env'], 'game': 'Breakout'}}


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
