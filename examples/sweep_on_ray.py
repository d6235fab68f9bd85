"""A sweep whose trials are Ray tasks: any machine of the cluster runs the next one. It needs the extras ray and sweep."""

import sys
from pathlib import Path

import optuna
import ray
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from zoo import serial_pipeline

EVAL_FREQ = 2_000


def open_study(journal):
    return optuna.create_study(
        study_name='cartpole',
        storage=JournalStorage(JournalFileBackend(journal)),  # on a disk that all machines share
        direction='maximize',
        load_if_exists=True,
    )


@ray.remote(num_cpus=1)
def run_trial(journal, overrides):
    study = open_study(journal)
    trial = study.ask()
    rate = trial.suggest_float('learning_rate', 1e-4, 1e-2, log=True)
    clip = trial.suggest_float('clip_ratio', 0.1, 0.4)

    def on_evaluation(env_step, evaluation):
        trial.report(evaluation.return_mean, env_step // EVAL_FREQ)
        return 'stop' if trial.should_prune() else None

    values = [f'policy.learn.learning_rate={rate}', f'policy.learn.clip_ratio={clip}']
    fixed = [f'policy.eval.eval_freq={EVAL_FREQ}', 'logger.console=off', f'exp_name=trial_{trial.number}']
    result = serial_pipeline('cartpole_ppo', overrides=[*values, *fixed, *overrides], on_evaluation=on_evaluation)
    study.tell(trial, result.best_return)


if __name__ == '__main__':
    folder = Path('runs').absolute()
    folder.mkdir(exist_ok=True)
    journal, overrides = str(folder / 'sweep_on_ray.log'), [f'logger.root={folder}', *sys.argv[1:]]
    ray.init()  # or ray.init('auto') on a cluster
    ray.get([run_trial.remote(journal, overrides) for _ in range(4)])
    best = open_study(journal).best_trial
    print(
        f'trial {best.number} of {len(open_study(journal).trials)} has the best return {best.value:.1f}: {best.params}'
    )
