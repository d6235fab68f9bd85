"""Random streams of the parts of a run."""

from __future__ import annotations

import numpy as np
import torch

from zoo.core.seeding import child_of, child_seeds, reseed, restore_generator, stream, torch_generator


def test_stream_depends_on_seed_and_on_each_word_of_its_name() -> None:
    names = [(0, 'learn', 0, 1), (0, 'learn', 1, 0), (0, 'collect', 0, 1), (1, 'learn', 0, 1)]
    states = {tuple(stream(*name).generate_state(4)) for name in names}
    assert len(states) == len(names)
    assert tuple(stream(*names[0]).generate_state(4)) in states


def test_children_are_those_of_numpy_and_are_the_same_at_each_call() -> None:
    parent = np.random.SeedSequence(5)
    spawned = np.random.SeedSequence(5).spawn(3)
    assert [child_of(parent, i).generate_state(1)[0] for i in range(3)] == [x.generate_state(1)[0] for x in spawned]
    assert child_seeds(5, 1, 2) == child_seeds(parent, 0, 3)[1:]
    assert all(0 <= seed < 2**31 for seed in child_seeds(5, 0, 100))


def test_reseed_begins_the_stream_again() -> None:
    generator = torch_generator(3, 'model')
    first = torch.rand(4, generator=generator)
    assert torch.equal(torch.rand(4, generator=reseed(generator, 3, 'model')), first)


def test_restored_generator_continues_and_a_state_of_another_device_gives_one_fixed_stream() -> None:
    generator = torch_generator(3, 'model')
    state = generator.get_state()
    first = torch.rand(4, generator=generator)
    restore_generator(generator, state)
    assert torch.equal(torch.rand(4, generator=generator), first)
    draws = []
    for _ in range(2):
        restore_generator(generator, torch.zeros(16, dtype=torch.uint8))  # a state of CUDA has 16 bytes
        draws.append(torch.rand(4, generator=generator))
    assert torch.equal(*draws)
