"""What benchmarks/learning.py runs: bundled configs without their early stop, once for each record."""

from __future__ import annotations

import json
from pathlib import Path

from learning import PARTS, TARGETS, bench_config, is_done, raw_path

from zoo.run.config import resolve_config


def test_parts_say_the_target_of_each_config():
    assert list(PARTS) == list(TARGETS)
    assert PARTS['cartpole_ppo'] == 'return 475 in 100,000 env steps' and PARTS['ant_ppo'] == 'no target'


def test_bench_config_scales_the_env_steps_and_never_stops_early():
    whole, tenth = bench_config('cartpole_ppo'), bench_config('cartpole_ppo', 0.1)
    assert (whole['max_env_step'], tenth['max_env_step']) == (100_000, 10_000)
    assert resolve_config(whole).policy.eval.stop_value is None


def test_is_done_knows_the_record_of_this_config_and_scale_only(tmp_path: Path):
    name = 'cartpole_ppo policy.learn.precision=bf16'
    path = raw_path(name, 3, tmp_path)
    assert path.name == 'cartpole_ppo__policy.learn.precision=bf16_seed3.json'
    assert not is_done(name, 3, tmp_path)
    resolved = resolve_config(bench_config(name, 0.1), seed=3).to_dict()
    path.write_text(json.dumps({'resolved': resolved}))
    assert is_done(name, 3, tmp_path, scale=0.1) and not is_done(name, 3, tmp_path)
    resolved['policy']['learn']['batch_size'] *= 2
    path.write_text(json.dumps({'resolved': resolved}))
    assert not is_done(name, 3, tmp_path, scale=0.1)
