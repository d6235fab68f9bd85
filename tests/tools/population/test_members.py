"""Run folders of members: the config of a generation, and the checkpoints that stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.population.small import LR, SPACES, small
from zoo.config.section import value_at
from zoo.tools.population.evolution import evolve
from zoo.tools.population.members import ForkedMember, stage_texts, undo_stage
from zoo.tools.population.plan import make_population_plan
from zoo.tools.results.lineage import Lineage


def test_stage_ends_at_the_rollout_nearest_to_its_generation(tmp_path: Path) -> None:
    plan = make_population_plan(small(tmp_path), SPACES, pop=4, every=128)
    texts = stage_texts(plan, {LR: '0.01'}, 5, 2)
    # 3 generations of 128 env steps are 384; half a rollout of 64 before that the next rollout would pass it further
    assert 'stop=[{"type": "env_step", "n": 352}]' in texts
    assert f'{LR}=0.01' in texts and 'seed=5' in texts and 'policy.eval.stop_value=null' in texts


def test_member_has_its_values_and_resolves_others(tmp_path: Path) -> None:
    texts = SPACES
    folder = evolve(small(tmp_path), texts, pop=4, every=64, generations=1).folder
    lineage = Lineage.read(folder)
    plan = make_population_plan(small(tmp_path), texts, pop=4, every=64, generations=1)
    member = ForkedMember(plan, lineage, 'm02_g00')
    assert value_at(member.config, LR) == float(lineage.lives['m02_g00'].values[LR])
    assert value_at(member.resolve([f'{LR}=0.25']), LR) == 0.25
    assert member.checkpoint.meta['env_step'] == member.env_step > 0
    assert member.value_text(LR) == str(value_at(member.config, LR))


@pytest.mark.long
def test_checkpoints_of_lives_that_ended_go_unless_all_are_kept(tmp_path: Path) -> None:
    for keep, n_kept in (('alive', 4), ('all', 6)):
        root = tmp_path / keep
        population = evolve(small(root), SPACES, pop=4, every=64, generations=4, keep=keep)  # type: ignore[arg-type]
        kept = {path.parents[1].name for path in population.folder.glob('members/*/checkpoints/step_*')}
        ended = population.lineage.lives.keys() - set(population.lineage.at_places)
        assert len(population.lineage.lives) == 7 and len(ended) == 3  # one at each of 3 selections
        assert kept == {'alive': set(population.lineage.at_places), 'all': set(population.lineage.lives)}[keep]
        assert len(kept) == {'alive': 4, 'all': 7}[keep] and n_kept <= len(kept)
        assert all((population.folder / 'members' / life / 'metrics.jsonl').is_file() for life in ended)


def test_later_checkpoints_of_an_interrupted_generation_go(tmp_path: Path) -> None:
    (tmp_path / 'checkpoints').mkdir()
    for step in (64, 128, 192):
        (tmp_path / 'checkpoints' / f'step_{step:09d}.safetensors').touch()
    undo_stage(tmp_path, 128)
    assert sorted(path.name for path in (tmp_path / 'checkpoints').iterdir()) == [
        'step_000000064.safetensors',
        'step_000000128.safetensors',
    ]
