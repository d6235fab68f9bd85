"""Behaviour cloning, then PPO: a new policy imitates demonstrations of a trained one, and a run then trains it."""

from zoo import pretrain, record_demonstrations, save_demonstrations, serial_pipeline

expert = serial_pipeline('cartpole_ppo', max_env_step=4_096)
demos, shown = record_demonstrations(expert.policy, 'CartPole-v1', n_episode=10)
save_demonstrations('demos.npz', demos)
imitated = pretrain('cartpole_ppo', 'demos.npz', epoch=10)
print(f'{demos.n_step} steps, mean return {shown.return_mean:.1f}; held-out agreement {imitated.agreement:.2f}')
result = serial_pipeline('cartpole_ppo', overrides=['max_env_step=4_096', f'init_from={imitated.run_dir}'])

assert result.policy.model is not imitated.policy.model
