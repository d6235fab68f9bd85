"""A game that drives the loop: it asks `zoo serve --train` for actions, which learns from what they led to."""

import os
import subprocess
import sys

import gymnasium

from zoo.client import PolicyClient, ServeError

ADDRESS = 'http://127.0.0.1:8586'
os.environ['ZOO_SERVE_TOKEN'] = 'a-secret-of-both-sides'


def play(client, game):
    """Plays one episode, whose steps the server learns from."""
    episode = client.start_episode()
    observation, _ = game.reset()
    is_over = is_cut = False
    while not (is_over or is_cut):
        action = client.get_action(episode, observation)
        observation, reward, is_over, is_cut, _ = game.step(action)
        client.log_returns(episode, reward)
    client.end_episode(episode, observation, truncated=not is_over)


if __name__ == '__main__':
    # usually started by hand, on another machine
    words = 'serve cartpole_ppo --train --quiet --port 8586 max_env_step=2_048 policy.eval.n_episode=1'.split()
    server = subprocess.Popen([sys.executable, '-m', 'zoo', *words])
    n_episode = 0
    try:
        with PolicyClient(ADDRESS, patience=20) as client:
            while server.poll() is None:
                play(client, gymnasium.make('CartPole-v1'))
                n_episode += 1
    except ServeError:  # the server has ended
        pass
    assert server.wait() == 0
    print(f'{n_episode} episodes')
