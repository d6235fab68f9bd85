"""Self-play in Kuhn poker: a policy plays against itself and its past; a heuristic; standings of a finished run."""

from zoo import exploitability, match, serial_pipeline

config = dict(
    exp_name='kuhn_self_play',
    max_env_step=150_000,
    env=dict(id='pyspiel:kuhn_poker', collector_env_num=32),
    policy=dict(
        type='ppo',
        learn=dict(learning_rate=1e-3, batch_size=256, entropy_weight=0.05),
        collect=dict(n_step=32, discount_factor=1.0),
        eval=dict(eval_freq=50_000),
    ),
    agents=dict(
        self_play=dict(
            opponents=dict(latest=0.8, past=0.2),  # of five episodes four are against itself, one against a snapshot
            snapshot=dict(every=7_500),
            exploitability=True,  # in the log: only for small games of OpenSpiel
        ),
    ),
)


def careful(obs, mask):
    """A player without a network: it bets and calls with a king alone. obs['obs']: what it sees, [R, 11]."""
    king = obs['obs'][:, 4]  # the tensor begins with the seat, then the card
    return (king > 0).astype(int)


def standings(run):
    """The ratings of the policy, of its first snapshot, and of two players without a network, by 400 games of each pair."""
    result = match(run, f'{run}@0', 'random', careful, n_episode=400)
    return result.ratings


def loss_of_average(run):
    """What a best response wins of the average of a run's snapshots, in chips a game."""
    return exploitability(run, average=True).exploitability


if __name__ == '__main__':
    serial_pipeline(config)
