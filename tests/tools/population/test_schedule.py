"""Settings of the best member as configs: they resolve, train, and have the values of its lineage at each env step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.policy_envs import rows
from tests.tools.population.small import LR, SPACES, small
from zoo.config.schedule import schedule_value
from zoo.config.section import value_at
from zoo.config.yaml_io import config_of_yaml
from zoo.pipeline import serial_pipeline
from zoo.run.config import frozen_config, resolve_config
from zoo.tools.population.evolution import evolve
from zoo.tools.population.plan import make_population_plan
from zoo.tools.population.schedule import schedule_texts
from zoo.tools.results.lineage import Birth


def birth(life: str, env_step: int, **values: str) -> Birth:
    keys = {'rate': LR, 'epochs': 'policy.learn.epoch_per_collect'}
    texts = {keys[name]: text for name, text in values.items()}
    return Birth(place=0, life=life, parent=None, env_step=env_step, seed=0, kind='explore', values=texts)


def test_schedule_has_a_step_where_a_value_changed(tmp_path: Path) -> None:
    plan = make_population_plan(small(tmp_path), SPACES, pop=4)
    births = [
        birth('m00_g00', 0, rate='0.001', epochs='2'),
        birth('m01_g01', 64, rate='0.001', epochs='2'),
        birth('m02_g02', 130, rate='0.0012', epochs='3'),
        birth('m03_g02', 130, rate='0.003', epochs='3'),  # a second fork at one env step: the last value counts
    ]
    texts, single = schedule_texts(plan, births)
    assert texts[LR] == '{points: [[0, 0.001], [130, 0.003]], kind: step}'
    assert texts['policy.learn.epoch_per_collect'] == '3' and single == ['policy.learn.epoch_per_collect']


@pytest.mark.long
def test_schedule_of_the_best_trains_with_the_rates_of_its_lineage(tmp_path: Path) -> None:
    population = evolve(small(tmp_path), SPACES, pop=4, every=64, generations=5, select='truncation:0.5')
    best = population.best
    assert best is not None
    births = population.lineage.ancestors(best.life)
    cfg = frozen_config(resolve_config(str(population.folder / 'schedule.yaml')))
    rate = value_at(cfg, LR)
    for step in range(0, 400, 10):
        in_force = [each.values[LR] for each in births if each.env_step <= step][-1]
        assert schedule_value(rate, step) == float(in_force)
    run = serial_pipeline(
        str(population.folder / 'schedule.yaml'), overrides=['logger.root=' + str(tmp_path / 'again')]
    )
    lines = [row for row in rows(run.run_dir) if 'learn/learning_rate' in row]
    for row in lines:
        begin = row['env_step'] - 64  # of its rollout, or a few steps later: those that only reset an env do not count
        assert row['learn/learning_rate'] in [pytest.approx(schedule_value(rate, begin + k)) for k in (0, 64)]
    best_file = config_of_yaml(population.folder / 'best.yaml')
    assert value_at(best_file, LR) == float(best.values[LR])
    assert serial_pipeline(str(population.folder / 'best.yaml')).env_step > 500
