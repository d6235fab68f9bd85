"""A run as data: its curve, its state and its config."""

from zoo import read_run, serial_pipeline

result = serial_pipeline('cartpole_ppo', overrides=['max_env_step=4_096', 'policy.eval.eval_freq=1_024'])

run = read_run(result.run_dir)
steps, returns = run.curve('eval/return_mean')  # env steps and values of the lines that have this metric
print(run.state, run.seed, run.config['policy']['type'], run.columns['wall_s'][-1])

assert run.state == 'done' and len(steps) >= 3
