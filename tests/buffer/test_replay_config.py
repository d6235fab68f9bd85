"""Config sections of buffers: refused values, and draws that contradict a run's rollouts and minibatches."""

from __future__ import annotations

from typing import Any

import pytest

from tests.buffer.samples import push_numbered, replay
from tests.tables import refused, rows_of
from zoo.buffer import MultiConfig, ReplayConfig, draw_problems, reuse_of
from zoo.buffer.base import in_sequences, n_draw_of, n_rows_drawn
from zoo.config.section import plain, validate
from zoo.run.config import resolve_config

CARTPOLE = {'env': {'id': 'CartPole-v1'}, 'policy': {'type': 'ppg'}}
REFUSED = """
{type: rollout, size: 3}
    - unknown key buffer.size: only buffer.type 'multi' or 'replay' has it; set that type, or leave the key out.
{type: replay, size: 100, n_sample: 256}
    - buffer: size is 100 but n_sample is 256: the buffer would never hold enough for a draw; use size 256 or more, or a
      smaller n_sample.
{type: replay, max_use: 0}
    - buffer.max_use is 0 (integer) but must be an integer >= 1 or null; leave it out for null, the default.
{type: replay, max_staleness: -1}
    - buffer.max_staleness is -1 (integer) but must be an integer >= 0 or null; leave it out for null, the default.
{type: replay, n_sample: 0}
    - buffer.n_sample is 0 (integer) but must be an integer >= 1; leave it out for 1024, the default.
{type: replay, update_per_collect: 0}
    - buffer.update_per_collect is 0 (integer) but must be an integer >= 1; leave it out for 1, the default.
{type: replay, device: gpu}
    - buffer.device is 'gpu' (string) but must be one of 'auto', 'cpu'; leave it out for 'auto', the default.
{type: replay, max_uses: 2}
    - unknown key buffer.max_uses: did you mean buffer.max_use?
{type: replay, alpha: -0.1}
    - buffer.alpha is -0.1 (number) but must be a number >= 0 and <= 2; leave it out for 0.0, the default.
{type: replay, beta: 1.5}
    - buffer.beta is 1.5 (number) but must be a number >= 0 and <= 1 or {start, end, over} or {points, kind}; leave it
      out for 0.4, the default.
{type: replay, beta: {start: 0.4, end: 1.5}}
    - buffer: beta reaches 1.5 but must be 0 to 1; use 1 for a full correction.
{type: replay, beta: [[0, 0.4], [1000, 2.0], [2000, 1.0]]}
    - buffer: beta reaches 2 but must be 0 to 1; use 1 for a full correction.
{type: multi, policy: {}}
    - buffer: policy is given but value is missing: 'multi' draws for both; give value: {n_sample: ..,
      update_per_collect: ..} too.
{type: multi, value: {}}
    - buffer: value is given but policy is missing: 'multi' draws for both; give policy: {n_sample: ..,
      update_per_collect: ..} too.
{type: multi, policy: {}, value: null}
    - buffer.value is null but must be a dict with the keys n_sample, update_per_collect, max_use, max_staleness,
      size.
{type: multi, policy: {n_sample: 64}, value: {n_sample: 256}, size: 128}
    - buffer: size is 128 but value.n_sample is 256: the buffer would never hold enough for a draw; use size 256 or
      more, or a smaller value.n_sample.
{type: multi, policy: {}, value: {max_use: 0}}
    - buffer.value.max_use is 0 (integer) but must be an integer >= 1 or null; leave it out for null, the default.
{type: multi, policy: {size: 9}, value: {}}
    - buffer: policy.size is 9 but policy.n_sample is 1024: the buffer would never hold enough for a draw; use
      policy.size 1024 or more, or a smaller policy.n_sample.
{type: multi, policy: {}, value: {size: 0}}
    - buffer.value.size is 0 (integer) but must be an integer >= 1 or null; leave it out for null, the default.
"""
# unless a row differs: rollouts of 1,024 samples, minibatches of 256 and 100,000 env steps
CONTRADICTIONS = """
{}
{size: 1024}
{max_staleness: 0}
{n_sample: 2048, max_staleness: 1}
{max_use: 1}
{max_use: 3, update_per_collect: 3}
{max_use: 2, n_sample: 512, update_per_collect: 4}
{n_sample: 4096, max_env_step: 4096}
{size: 4096, max_staleness: 3}
{size: 1024, max_staleness: 0}
{max_env_step: 1023}
{n_sample: 1000, batch_size: null}
{n_sample: 1000}
    - buffer.n_sample is 1000 but policy.learn.batch_size is 256: 1000 % 256 = 232 would be dropped; use a multiple,
      e.g. 768.
{n_sample: 100}
    - buffer.n_sample is 100 but policy.learn.batch_size is 256: 100 % 256 = 100 would be dropped; use a multiple, e.g.
      256.
{size: 1000, n_sample: 512}
    - buffer.size is 1000 but a rollout has 1024 samples: 24 of them would never be kept; use 1024 or more.
{n_sample: 2048, max_staleness: 0}
    - buffer.max_staleness is 0 but a rollout has 1024 samples: 1 x 1024 = 1024 may be drawn and buffer.n_sample is
      2048, so nothing would be trained; use max_staleness 1 or more, or a smaller n_sample.
{max_use: 2, update_per_collect: 3}
    - buffer.max_use is 2 but a rollout has 1024 samples: it allows 2 x 1024 = 2048 uses and 3 draws of 1024 want 3072,
      so draws would be left out; use max_use 3 or more, or fewer or smaller draws.
{n_sample: 5120, max_env_step: 5000}
    - buffer.n_sample is 5120 but max_env_step is 5000 and a rollout has 1024 samples: the run collects 4 x 1024 = 4096,
      so nothing would be trained; use max_env_step 5120 or more, or a smaller n_sample.
{n_sample: 5376, max_env_step: 5999}
    - buffer.n_sample is 5376 but max_env_step is 5999 and a rollout has 1024 samples: the run collects 5 x 1024 = 5120,
      so nothing would be trained; use max_env_step 6144 or more, or a smaller n_sample.
{size: 4095, max_staleness: 3}
    - buffer.max_staleness is 3 but buffer.size is 4095 and a rollout has 1024 samples: 4 x 1024 = 4096 would have to be
      kept, so the limit excludes nothing; use buffer.size 4096 or more, max_staleness 2 or less, or null for no limit.
{n_sample: 2560, update_per_collect: 2, max_staleness: 2, max_use: 5}
{n_sample: 2560, update_per_collect: 2, max_staleness: 1, max_use: 4}
    - buffer.max_staleness is 1 but a rollout has 1024 samples: 2 x 1024 = 2048 may be drawn and buffer.n_sample is
      2560, so nothing would be trained; use max_staleness 2 or more, or a smaller n_sample.
    - buffer.max_use is 4 but a rollout has 1024 samples: it allows 4 x 1024 = 4096 uses and 2 draws of 2560 want 5120,
      so draws would be left out; use max_use 5 or more, or fewer or smaller draws.
{size: 1000, policy: {size: 1024}, value: {size: 2048}}
{size: 1024, policy: {n_sample: 512, size: 1000}, value: {}}
    - buffer.policy.size is 1000 but a rollout has 1024 samples: 24 of them would never be kept; use 1024 or more.
{size: 1000, policy: {size: 1024}, value: {n_sample: 512}}
    - buffer.size is 1000 but a rollout has 1024 samples: 24 of them would never be kept; use 1024 or more.
{size: 8192, policy: {size: 2048, max_staleness: 3}, value: {max_staleness: 3}}
    - buffer.policy.max_staleness is 3 but buffer.policy.size is 2048 and a rollout has 1024 samples: 4 x 1024 = 4096
      would have to be kept, so the limit excludes nothing; use buffer.policy.size 4096 or more, max_staleness 1 or
      less, or null for no limit.
{critic_batch_size: 100, policy: {}, value: {}}
    - buffer.value.n_sample is 1024 but policy.learn.critic_batch_size is 100: 1024 % 100 = 24 would be dropped; use a
      multiple, e.g. 1000.
{policy: {n_sample: 1000}, value: {max_use: 1, update_per_collect: 2}}
    - buffer.policy.n_sample is 1000 but policy.learn.batch_size is 256: 1000 % 256 = 232 would be dropped; use a
      multiple, e.g. 768.
    - buffer.value.max_use is 1 but a rollout has 1024 samples: it allows 1 x 1024 = 1024 uses and 2 draws of 1024 want
      2048, so draws would be left out; use max_use 2 or more, or fewer or smaller draws.
"""


def problems(
    n_rollout: int = 1024,
    batch_size: int | None = 256,
    max_env_step: int = 100_000,
    critic_batch_size: int | None = None,
    **fields: Any,
) -> list[str]:
    config = plain(validate(MultiConfig if 'policy' in fields else ReplayConfig, fields))
    return list(draw_problems(config, n_rollout, batch_size, max_env_step, critic_batch_size))


@pytest.mark.parametrize(('section', 'sentences'), rows_of(REFUSED))
def test_a_bad_section_is_refused_with_the_remedy(section: dict[str, Any], sentences: list[str]) -> None:
    assert refused({**CARTPOLE, 'buffer': section}) == sentences


@pytest.mark.parametrize(('fields', 'sentences'), rows_of(CONTRADICTIONS))
def test_draws_that_the_rollouts_cannot_feed_are_named(fields: dict[str, Any], sentences: list[str]) -> None:
    assert problems(**fields) == sentences


@pytest.mark.parametrize('size', [4, 7, 8, 12])
@pytest.mark.parametrize('limit', [0, 1, 2])
def test_a_limit_of_staleness_that_is_refused_is_no_limit(size: int, limit: int) -> None:
    """Oracle: the staleness of the samples in a full buffer, with rollouts of 4 samples."""
    buffer = replay(size=size, n_sample=size)  # one draw has all its samples
    push_numbered(buffer, [4] * 4)
    oldest = next(buffer.batches())['staleness'].max()
    found = problems(n_rollout=4, batch_size=1, size=size, n_sample=1, max_staleness=limit)
    assert not found or oldest <= limit
    assert bool(found) == (size < 4 * (limit + 1))


def test_overrides_reach_the_parts_and_a_resolved_config_resolves_to_itself() -> None:
    config = resolve_config(
        CARTPOLE, ['buffer={type: multi, policy: {max_staleness: 2}, value: {}}', 'buffer.value.max_use=4']
    )
    assert (config.buffer.policy.max_staleness, config.buffer.value.max_use) == (2, 4)
    assert resolve_config(config.to_dict()).buffer == config.buffer
    assert resolve_config(CARTPOLE, ['buffer.type=multi']).buffer.value.n_sample == 1024


def test_reuse_of_draws_is_their_samples_over_those_of_a_rollout() -> None:
    # 4 draws of 512 from rollouts of 1,024 are 2 uses; the value part's 6 draws of 256 are 1.5
    draw = {'n_sample': 512, 'update_per_collect': 4}
    assert reuse_of({'size': 4096, **draw}, 1024) == {'policy': 2.0, 'value': 2.0}
    parts = {'policy': draw, 'value': {'n_sample': 256, 'update_per_collect': 6}}
    assert reuse_of({'size': 4096, **parts}, 1024) == {'policy': 2.0, 'value': 1.5}
    assert reuse_of({'type': 'rollout'}, 1024) == {'policy': 1.0, 'value': 1.0}


def test_sizes_in_sequences_are_steps_over_stride_and_draws_over_length() -> None:
    config = validate(MultiConfig, dict(size=64, policy=dict(n_sample=16, size=32), value=dict(n_sample=9)))
    found = in_sequences(config, 4, 2)  # sequences of 4 steps that start every 2 steps
    assert (found.size, found.policy.size, found.value.size) == (64 // 2, 32 // 2, None)
    assert n_rows_drawn(plain(found)) == [16 // 4, 9 // 4]
    assert in_sequences(config, 1, 1) is config
    assert n_rows_drawn(plain(validate(ReplayConfig, {'n_sample': 7}))) == [7] and n_rows_drawn({}) == []
    draws = {'policy': {'update_per_collect': 3}, 'update_per_collect': 5}
    assert (n_draw_of(draws), n_draw_of({'update_per_collect': 5}), n_draw_of({})) == (3, 5, None)
