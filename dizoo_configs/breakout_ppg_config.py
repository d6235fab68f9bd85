"""Atari Breakout with phasic policy gradient: the settings of pong_ppg. Needs the atari extra (GPL-2)."""

from dizoo_configs.pong_ppg_config import config as pong

config = {**pong, 'exp_name': 'breakout_ppg', 'env': {**pong['env'], 'game': 'Breakout'}}


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
