"""The config sections that every policy has; a policy derives its own from these."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from zoo.config.section import Section

DEVICE = r'^(auto|cpu|cuda(:\d+)?)$'


class LearnConfig(Section):
    """Section `policy.learn`: how a policy is updated."""

    batch_size: Annotated[int, Field(ge=1)] | None = Field(
        256,
        description='samples per gradient step (64 to 4096 is usual); smaller ones learn more from a sample; null: all '
        'samples of a rollout, or of a draw from a buffer, at once',
    )
    freeze: list[str] = Field(
        [],
        description="parameters that stay as they are, by patterns of their names, as ['actor_encoder.*']; 'input' keeps the "
        'normalisation of observations; after init_from or a resume these are trained ones',
    )


class CollectConfig(Section):
    """Section `policy.collect`: how experience is gathered; give n_sample or n_step, the other is derived."""

    n_sample: Annotated[int, Field(ge=1)] | None = Field(None, description='env steps per rollout, over all envs')
    n_step: Annotated[int, Field(ge=1)] | None = Field(
        128, description='env steps per rollout and env (32 to 2048 is usual); longer ones are less biased'
    )


MAX_EPISODE_STEPS = 100_000  # of an evaluation; the longest of Atari have 27,000


class EvalConfig(Section):
    """Section `policy.eval`: when and how long a policy is evaluated."""

    eval_freq: int = Field(20_000, ge=1, description='env steps between evaluations')
    n_episode: int = Field(10, ge=1, description='episodes per evaluation, shared out evenly over the evaluation envs')
    stop_value: float | None = Field(
        None, description='mean return of an evaluation at which the run stops; null: never'
    )
    max_episode_steps: Annotated[int, Field(ge=1)] | None = Field(
        MAX_EPISODE_STEPS,
        description='env steps after which an evaluation cuts an episode off and counts it as it is; null: never',
    )
    deterministic: bool = Field(
        True, description='evaluate the likeliest action of each state; false: actions drawn from the policy'
    )
    env: dict[str, Any] = Field(
        {},
        description='what differs from section env in evaluation envs, such as {kwargs: {level: 2}} or {id: ...}; kwargs of '
        'the same env are merged key by key',
    )
    sets: dict[str, dict[str, Any]] = Field(
        {},
        description='further evaluations, by name: {unseen: {kwargs: {level: 9}}} is logged as eval/unseen/return_mean; each '
        'says what differs from the evaluation envs, as policy.eval.env does',
    )


class PolicyConfig(Section):
    """Section `policy`."""

    type: str = Field('ppo', description='registered name of the policy')
    device: str = Field(
        'auto', pattern=DEVICE, description="'auto' (cuda where there is one), 'cpu', 'cuda' or 'cuda:N'"
    )
    n_thread: Annotated[int, Field(ge=1, le=1_024)] | None = Field(
        None,
        description='torch threads of all phases of the run; null: chosen for each phase, 1 for small networks, '
        'never more than torch has at the start (OMP_NUM_THREADS)',
    )
    model: dict[str, Any] = Field({}, description='the model: {type: registered name, ...its fields}')
    learn: LearnConfig = LearnConfig()
    collect: CollectConfig = CollectConfig()
    eval: EvalConfig = EvalConfig()
