"""A pipeline of your own: several rollouts for each round of updates."""

from pydantic import Field

from zoo import PIPELINE_REGISTRY, Section, SerialJob, serial_pipeline


class SeveralConfig(Section):
    n_rollout: int = Field(2, ge=1, description='rollouts for each round of updates')


@PIPELINE_REGISTRY.register('several_rollouts')
class SeveralRollouts(SerialJob):
    """Collects n_rollout rollouts, learns from all of them, and again."""

    config = SeveralConfig

    @property
    def step_per_iteration(self):
        return self.options.n_rollout * super().step_per_iteration

    def collect_round(self):
        for _ in range(self.options.n_rollout):
            super().collect_round()


config = dict(
    exp_name='own_plan',
    max_env_step=30_000,
    env=dict(id='CartPole-v1'),
    policy=dict(type='ppo', learn=dict(learning_rate=1e-3), collect=dict(n_step=64)),
    pipeline=dict(type='several_rollouts', n_rollout=4),
)

if __name__ == '__main__':
    serial_pipeline(config)
