"""A sink of your own that writes metrics to a SQLite database, next to the sink 'csv', which writes progress.csv."""

import sqlite3

from zoo import Sink, serial_pipeline


class Database(Sink):
    def __init__(self, *, file: str = 'metrics.db'):  # keyword-only parameters are options in the config
        self.file = file

    def open(self, cfg, run_dir):
        self.db = sqlite3.connect(run_dir / self.file)
        self.db.execute('create table if not exists metrics (env_step, name, value)')
        self.db.execute('delete from metrics where env_step > ?', (self.env_step,))  # a resume continues from there

    def write(self, env_step, metrics):
        self.db.executemany('insert into metrics values (?, ?, ?)', [(env_step, *item) for item in metrics.items()])
        self.db.commit()

    def close(self):
        self.db.close()


config = dict(
    exp_name='own_sink',
    max_env_step=20_000,
    env=dict(id='CartPole-v1'),
    policy=dict(type='ppo', learn=dict(learning_rate=1e-3)),
    logger=dict(sinks=['csv', dict(type=Database, file='cartpole.db')]),  # in YAML: {type: 'own_sink:Database', ...}
)

if __name__ == '__main__':
    serial_pipeline(config)
