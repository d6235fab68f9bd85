"""Atari Qbert with phasic policy gradient: the settings of pong_ppg. Needs the atari extra (GPL-2)."""

from dizoo_configs.pong_ppg_config import config as pong

config = {**pong, 'exp_name': 'qbert_ppg', 'env': {**pong['env'], 'game': 'Qbert'}}


if __name__ == '__main__':
    from zoo import serial_pipeline

    serial_pipeline(config)
