"""A surrogate of your own: one function with a name, which any config then chooses."""

from zoo import SURROGATE_REGISTRY, serial_pipeline


@SURROGATE_REGISTRY.register('soft')
def soft(log_ratio, ratio, adv, clip_ratio, *, strength: float = 1.0):
    """As SPO, but the penalty is on the log of the ratio."""
    return log_ratio * adv - strength * adv.abs() * log_ratio.square() / (2 * clip_ratio)


config = dict(max_env_step=20_000, env=dict(id='CartPole-v1'), policy=dict(learn=dict(surrogate='soft')))

if __name__ == '__main__':
    serial_pipeline(config)
