"""A policy with an LSTM balances a pole without seeing any speed, then acts step by step in a loop of your own."""

from zoo import load_policy, serial_pipeline
from zoo.env import make_env

config = dict(
    exp_name='cartpole_memory',
    max_env_step=150_000,
    env=dict(id='cartpole_no_velocity', collector_env_num=8),
    policy=dict(
        type='ppo',
        model=dict(recurrent=dict(cell='lstm', hidden_size=64)),
        learn=dict(learning_rate=1e-3, epoch_per_collect=10, sequence=dict(len=16)),
        collect=dict(n_step=128),
    ),
)


def play(run_dir: str) -> float:
    """The return of one episode."""
    session, env = load_policy(run_dir).session(), make_env(config['env'])
    obs, _ = env.reset(seed=0)
    total, ended = 0.0, False
    while not ended:
        obs, reward, terminated, truncated, _ = env.step(session.act(obs))  # the session keeps the LSTM's state
        total, ended = total + reward, terminated or truncated
    return total


if __name__ == '__main__':
    result = serial_pipeline(config)
    print(f'an episode with return {play(result.run_dir):g}')
