"""A policy made without a run: its network, its frozen parameters, and a run that trains it."""

from zoo import make_policy, serial_pipeline

policy = make_policy('cartpole_ppo', ['policy.learn.freeze=[critic_encoder]'])
print([name for name, p in policy.model.named_parameters() if p.requires_grad])
result = serial_pipeline('cartpole_ppo', max_env_step=4_096, policy=policy)

assert result.policy is policy
