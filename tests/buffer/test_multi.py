"""The buffer of two parts: one ring, draws of their own for policy and value."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.buffer.samples import is_whole, multi, push_numbered, replay, same
from zoo.buffer import Buffer, MultiBuffer, MultiConfig
from zoo.config.section import ConfigError
from zoo.core.errors import UserError
from zoo.core.registry import BUFFER_REGISTRY
from zoo.run.checkpoint.file import load_checkpoint, save_checkpoint
from zoo.run.config import resolve_config

CARTPOLE = {'env': {'id': 'CartPole-v1'}, 'policy': {'type': 'ppg'}}
PAIR: dict[str, Any] = dict(
    policy=dict(n_sample=4, update_per_collect=2, max_staleness=0),
    value=dict(n_sample=6, update_per_collect=5, max_use=3),
)


def test_multi_buffer_is_registered_with_its_config():
    assert BUFFER_REGISTRY.get('multi') is MultiBuffer and MultiBuffer.config is MultiConfig
    buffer: Buffer = multi()
    assert list(buffer.batches()) == []


def test_multi_buffer_pairs_its_draws_and_goes_on_with_the_part_that_has_more():
    buffer = multi(size=32, **PAIR)
    push_numbered(buffer, [16, 16])
    batches = list(buffer.batches())
    assert [list(batch) for batch in batches] == 2 * [['policy', 'value']] + 3 * [['value']]
    assert {(part, len(batch['id'])) for pair in batches for part, batch in pair.items()} == {
        ('policy', 4),
        ('value', 6),
    }
    assert all(is_whole(batch) for pair in batches for batch in pair.values())


def test_multi_buffer_holds_each_part_to_its_own_limits():
    buffer = multi(size=32, **PAIR)
    seen: dict[str, Counter[int]] = {'policy': Counter(), 'value': Counter()}
    for k in range(6):
        push_numbered(buffer, [8], 8 * k)
        for pair in buffer.batches():
            for part, batch in pair.items():
                seen[part].update(batch['id'].tolist())
                if part == 'policy':
                    assert (batch['staleness'] == 0).all() and (batch['id'] >= 8 * k).all()
    # policy: 6 rounds x 2 draws x 4; value: 8 new samples x 3 uses a round bound it by 24 of the 30 that are asked for
    assert seen['policy'].total() == 48 and max(seen['value'].values()) == 3
    assert 6 * 18 <= seen['value'].total() <= 6 * 24
    assert seen['policy'].keys() != seen['value'].keys()


def test_multi_buffer_part_draws_as_if_it_were_alone():
    # what the policy draws changes neither which samples the value function may see nor which it is given
    value = dict(n_sample=4, update_per_collect=3, max_use=2)
    ids = []
    for policy in (dict(n_sample=1), dict(n_sample=16, update_per_collect=9, max_use=1)):
        buffer = multi(5, size=24, policy=policy, value=value)
        ids.append([])
        for k in range(4):
            push_numbered(buffer, [10], 10 * k)
            ids[-1] += [pair['value']['id'].tolist() for pair in buffer.batches() if 'value' in pair]
    assert ids[0] == ids[1] and len(ids[0]) >= 8


def test_multi_buffer_parts_have_random_streams_of_their_own():
    draw = dict(n_sample=16)
    buffer = multi(size=64, policy=draw, value=draw)
    push_numbered(buffer, [64])
    pair = next(buffer.batches())
    assert pair['policy']['id'].tolist() != pair['value']['id'].tolist()


def test_multi_buffer_stores_the_samples_once():
    def n_byte(state: dict[str, Any]) -> int:
        return sum(n_byte(leaf) if isinstance(leaf, dict) else leaf.nbytes for leaf in state.values())

    one, two = replay(size=2048), multi(size=2048)
    for buffer in (one, two):
        push_numbered(buffer, [2000])
    assert n_byte(two.state_dict()['ring']['data']) == n_byte(one.state_dict()['ring']['data'])
    assert len({draws._ring for draws in two._draws.values()}) == 1


def test_multi_buffer_warms_up_each_part_on_its_own():
    buffer = multi(size=32, policy=dict(n_sample=4), value=dict(n_sample=12))
    parts = []
    for k in range(3):
        push_numbered(buffer, [5], 5 * k)
        parts.append([list(pair) for pair in buffer.batches()])
    assert parts == [[['policy']], [['policy']], [['policy', 'value']]]  # with 5, 10, 15 samples


def test_multi_buffer_restored_from_a_file_draws_the_same_ever_after(tmp_path: Path) -> None:
    one, two = multi(1, size=20, **PAIR), multi(2, size=20, **PAIR)
    push_numbered(one, [16, 16])
    list(one.batches())
    save_checkpoint(tmp_path / 'a.safetensors', {'buffer': one.state_dict()}, {})
    two.load_state_dict(load_checkpoint(tmp_path / 'a.safetensors').state['buffer'])
    n_batch = 0
    for k in range(5):
        for a, b in zip(one.batches(), two.batches(), strict=True):
            assert list(a) == list(b)
            n_batch += len(a)
            for part in a:
                assert same(a[part], b[part])
        for buffer in (one, two):
            push_numbered(buffer, [7], first=100 * k)
    assert n_batch >= 15


def test_multi_buffer_refuses_the_state_of_another_kind_of_buffer():
    with pytest.raises(UserError, match=r"draws for \['all'\] but this one draws for \['policy', 'value'\]; resume"):
        multi().load_state_dict(replay().state_dict())


@pytest.mark.parametrize(
    ('buffer', 'problem'),
    [
        (
            {'policy': {}},
            "buffer: policy is given but value is missing: 'multi' draws for both; give value: {n_sample: .., "
            'update_per_collect: ..} too.',
        ),
        (
            {'value': {}},
            "buffer: value is given but policy is missing: 'multi' draws for both; give policy: "
            '{n_sample: .., update_per_collect: ..} too.',
        ),
        (
            {'policy': {}, 'value': None},
            'buffer.value is null but must be a section with the keys n_sample, '
            'update_per_collect, max_use, max_staleness, size.',
        ),
        (
            {'policy': {'n_sample': 64}, 'value': {'n_sample': 256}, 'size': 128},
            'buffer: size is 128 but value.n_sample is 256: the buffer would never hold enough for a draw; use size 256 or '
            'more, or a smaller value.n_sample.',
        ),
        (
            {'policy': {}, 'value': {'max_use': 0}},
            'buffer.value.max_use is 0 (integer) but must be an integer >= 1 or null; leave it out for null, the default.',
        ),
        (
            {'policy': {'size': 9}, 'value': {}},
            'buffer: policy.size is 9 but policy.n_sample is 1024: the buffer would never hold enough for a draw; use '
            'policy.size 1024 or more, or a smaller policy.n_sample.',
        ),
        (
            {'policy': {}, 'value': {'size': 0}},
            'buffer.value.size is 0 (integer) but must be an integer >= 1 or null; leave it out for null, the default.',
        ),
    ],
)
def test_a_bad_section_is_refused_with_the_remedy(buffer: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_config({**CARTPOLE, 'buffer': {'type': 'multi', **buffer}})
    assert error.value.problems == [problem]


def test_overrides_reach_the_parts_and_a_resolved_config_resolves_to_itself():
    config = resolve_config(
        CARTPOLE, ['buffer={type: multi, policy: {max_staleness: 2}, value: {}}', 'buffer.value.max_use=4']
    )
    assert (config.buffer.policy.max_staleness, config.buffer.value.max_use) == (2, 4)
    assert resolve_config(config.to_dict()).buffer == config.buffer
    assert resolve_config(CARTPOLE, ['buffer.type=multi']).buffer.value.n_sample == 1024


SIZES: dict[str, Any] = dict(
    policy=dict(n_sample=4, update_per_collect=20, size=8), value=dict(n_sample=4, update_per_collect=20)
)


def drawn(buffer: MultiBuffer) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {'policy': set(), 'value': set()}
    for pair in buffer.batches():
        assert all(is_whole(batch) for batch in pair.values())
        for part, batch in pair.items():
            found[part] |= set(batch['id'].tolist())
    return found


@pytest.mark.parametrize('n_push', [4, 5, 6, 9])  # 4 of 4 fill the ring of 16, the others write over its start
def test_multi_buffer_draws_each_part_from_the_newest_samples_of_its_own_size(n_push: int) -> None:
    buffer = multi(size=16, **SIZES)
    push_numbered(buffer, [4] * n_push)
    newest = range(4 * n_push)
    # 20 draws of 4: a given one of 16 samples is missed by all with probability (3/4)^20 = 0.3%; the seed is fixed
    assert drawn(buffer) == {'policy': set(newest[-8:]), 'value': set(newest[-16:])}


def test_multi_buffer_part_may_draw_from_more_than_the_common_size() -> None:
    parts = {'policy': dict(n_sample=4, update_per_collect=20), 'value': {**SIZES['policy'], 'size': 12}}
    buffer = multi(size=8, **parts)
    push_numbered(buffer, [4] * 5)
    assert drawn(buffer) == {'policy': set(range(12, 20)), 'value': set(range(8, 20))}


def test_multi_buffer_part_of_the_common_size_draws_as_without_sizes() -> None:
    own = multi(size=16, policy=dict(n_sample=4, size=16), value=dict(n_sample=4))
    common = multi(size=16, policy=dict(n_sample=4), value=dict(n_sample=4))
    for buffer in (own, common):
        push_numbered(buffer, [6] * 4)
    assert same(next(own.batches())['policy'], next(common.batches())['policy'])


@pytest.mark.parametrize('size', [16, 24, 12])
def test_multi_buffer_keeps_sizes_apart_through_a_resume_also_with_another_common_size(size: int) -> None:
    first, second = multi(size=16, **SIZES), multi(size=size, **SIZES)
    push_numbered(first, [4] * 7)
    second.load_state_dict(first.state_dict())
    push_numbered(second, [4], first=28)
    assert drawn(second) == {'policy': set(range(24, 32)), 'value': set(range(32 - min(size, 20), 32))}
