"""Section `policy` of the config: base sections, from which every policy derives its own, and those that PPO and PPG share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import AfterValidator, Field, model_validator
from pydantic.fields import FieldInfo

from zoo.backend.choose import WORTH_STEPS, CompileMode, ExecutorName
from zoo.config.components import component_of, components_of
from zoo.config.schedule import RateSchedule, Schedule, ScheduleOrZero
from zoo.config.section import LEFT_OUT, Filled, Job, OldKey, Section, is_section, value_at
from zoo.config.user_code import with_absolute_names
from zoo.core.errors import UserError, around
from zoo.core.registry import (
    CONSTRAINT_REGISTRY,
    CORRECTION_REGISTRY,
    DRAW_REGISTRY,
    ESTIMATOR_REGISTRY,
    EXPLORATION_REGISTRY,
    INTRINSIC_REGISTRY,
    OPTIMIZER_REGISTRY,
    OPTION_REGISTRY,
    PENALTY_REGISTRY,
    PLASTICITY_REGISTRY,
    POLICY_REGISTRY,
    PROXIMAL_REGISTRY,
    SURROGATE_REGISTRY,
    VALUE_LOSS_REGISTRY,
)
from zoo.policy.sequences import SequenceConfig

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
UpdatePrecision = Literal['fp32', 'bf16', 'fp16']
DEVICE = r'^(auto|cpu|cuda(:\d+)?)$'


class LearnConfig(Section):
    """Section `policy.learn`: how a policy is updated."""

    batch_size: Count | None = Field(
        256,
        description='samples per gradient step (64 to 4096 is usual); smaller ones learn more from a sample; null: all '
        'samples of a rollout, or of a draw from a buffer, at once',
    )
    freeze: list[str] = Field(
        [],
        description="parameters that stay as they are, by patterns of their names, as ['actor_encoder.*']; 'input' keeps the "
        'normalisation of observations; after init_from or a resume these are trained ones',
    )

    def problems(self, job: Job) -> Iterator[str]:
        yield from divisor_problems(job, 'batch_size')


class CollectConfig(Section):
    """Section `policy.collect`: how experience is gathered; give n_sample or n_step, the other is derived."""

    n_sample: Filled[Count] = Field(LEFT_OUT, description='env steps per rollout, over all envs')
    n_step: Filled[Count] = Field(
        128, description='env steps per rollout and env (32 to 2048 is usual); longer ones are less biased'
    )

    def problems(self, job: Job) -> Iterator[str]:
        n_sample = self.n_sample
        if isinstance(n_sample, int) and job.max_env_step < n_sample:
            yield (
                f'max_env_step is {job.max_env_step} but a rollout has {rollout_size(job)}: nothing would be trained; '
                f'use {n_sample} or more, or a smaller policy.collect.n_step.'
            )


MAX_EPISODE_STEPS = 100_000  # of evaluation episodes; the longest of Atari have 27,000


class EvalConfig(Section):
    """Section `policy.eval`: when and how long a policy is evaluated."""

    eval_freq: int = Field(20_000, ge=1, description='env steps between evaluations')
    n_episode: int = Field(10, ge=1, description='episodes per evaluation, shared out evenly over the evaluation envs')
    stop_value: float | None = Field(
        None, description='mean return of an evaluation at which the run stops; null: never'
    )
    max_episode_steps: Count | None = Field(
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


if TYPE_CHECKING:
    ModelSection = Any
else:
    ModelSection = dict[str, Any]
"""Section `policy.model`; the class of the model declares its fields."""


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
    model: ModelSection = Field({}, description='the model: {type: registered name, ...its fields}')
    learn: LearnConfig = LearnConfig()
    collect: CollectConfig = CollectConfig()
    eval: EvalConfig = EvalConfig()

    def problems(self, job: Job) -> Iterator[str]:
        problem = why_not_here(self.device)
        if problem:
            yield f"policy.device is {self.device!r} but {problem}; use 'auto' or 'cpu'."


Weight = Annotated[float, Field(ge=0)]


def divisor_problems(job: Job, key: str) -> Iterator[str]:
    """Yields a sentence if the minibatches that policy.learn.`key` asks for do not divide a rollout."""
    n = job.policy.learn[key]
    n_sample = job.policy.collect.get('n_sample')
    if job.buffer.type != 'rollout' or not isinstance(n, int) or not isinstance(n_sample, int):
        return
    agents = getattr(job, 'agents', None)
    if (
        agents is not None and agents != type(agents)()
    ):  # rollouts have rows of agents; each policy's own config is checked
        return
    if n_sample % n:
        yield (
            f'policy.learn.{key} is {n} but a rollout has {rollout_size(job)}: {dropped(n_sample, n)}; use a divisor, e.g. '
            f'{around(n_sample, n)}.'
        )


def rollout_size(job: Job) -> str:
    """The samples of a rollout, for messages."""
    collect = job.policy.collect
    return f'{collect.n_sample} samples ({collect.n_step} x {job.env.collector_env_num} envs)'


def dropped(n_sample: int, batch_size: int) -> str:
    """A clause that says how many samples minibatches of this size leave over."""
    if batch_size > n_sample:
        return 'that fills no minibatch'
    return f'{n_sample} % {batch_size} = {n_sample % batch_size} would be dropped'


def why_not_here(device: str) -> str:
    """Returns a clause that says why this machine does not have a device; '' if it has it."""
    n_cuda = 0
    if torch.cuda.is_available():
        n_cuda = torch.cuda.device_count()
    is_here = not device.startswith('cuda') or int(device.partition(':')[2] or 0) < n_cuda
    if is_here:
        return ''
    return f'torch finds {n_cuda} CUDA devices here'


def device_of(name: str) -> torch.device:
    if name == 'auto':
        return torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    if not re.fullmatch(DEVICE, name):  # a name given to `load_policy`; those in a config were validated
        raise UserError(f"policy.device is {name!r} but must be 'auto', 'cpu', 'cuda' or 'cuda:N'")
    if name != 'cpu' and not torch.cuda.is_available():
        raise UserError(f"policy.device is {name!r} but there is no CUDA here; use 'auto' or 'cpu'")
    problem = why_not_here(name)
    if problem:
        raise UserError(f"policy.device is {name!r} but {problem}; use 'auto' or 'cpu'")
    return torch.device(name)


class PenaltyConfig(Section):
    """Options that all entries of `policy.learn.penalties` have, in addition to their own."""

    weight: ScheduleOrZero = Field(1.0, description='factor of the penalty in the loss; with a target its first value')
    target: Positive | None = Field(
        None,
        description='after each update the weight is multiplied by 1.5 where the penalty is above 2 targets, and by 0.5 below '
        'half a target (RLlib: .01 for kl); null: the weight is as given',
    )
    min_weight: Weight = Field(1e-4, description='least weight that a target leads to')
    max_weight: Weight = Field(100.0, description='greatest weight that a target leads to')

    @model_validator(mode='after')
    def _can_adapt(self) -> PenaltyConfig:
        if self.target is None:
            return self
        if not isinstance(self.weight, float | int):
            raise ValueError('weight is a schedule and target is given, but only one of them can move it; drop one.')
        if not self.min_weight <= self.weight <= self.max_weight:
            raise ValueError(
                f'weight is {self.weight:g} but must lie between min_weight {self.min_weight:g} and max_weight '
                f'{self.max_weight:g}; change one of them.'
            )
        return self


def _checked_encoder(spec: Any) -> Any:
    from zoo.model.encoder import checked_spec  # few runs have one

    return checked_spec(spec, 'policy.learn.constraint.encoder')


class ConstraintConfig(Section):
    """Options that all kinds of `policy.learn.constraint` have, in addition to their own."""

    limits: dict[str, float] = Field(
        min_length=1,
        description='limits of the mean cost of an episode, by the names of costs in the infos of steps: {cost: 25} limits the '
        "sum of info['cost']",
    )
    discount_factor: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description='gamma of the advantages of costs, per env step; null: policy.collect.discount_factor'
    )
    gae_lambda: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description='lambda of the advantages of costs; null: policy.collect.gae_lambda'
    )
    encoder: Annotated[str | dict[str, Any], AfterValidator(_checked_encoder)] = Field(
        'auto', description='network of the critic of costs; as policy.model.encoder'
    )
    hidden_sizes: list[Annotated[int, Field(ge=1, le=1 << 20)]] = Field(
        [64, 64], min_length=1, description='widths of an encoder for vectors'
    )
    critic_learning_rate: Positive = Field(1e-3, description="Adam's step size of the critic of costs")
    critic_batch_size: int = Field(256, ge=1, description='rows of its gradient steps')
    critic_epochs: int = Field(4, ge=1, description='its passes over each rollout')

    @model_validator(mode='after')
    def _has_limits(self) -> ConstraintConfig:
        for name, limit in self.limits.items():
            if not 0 <= limit < math.inf:
                raise ValueError(f'limits.{name} is {limit:g} but a limit of costs must be a number of at least 0.')
        return self


Mirror = Annotated[dict[str, list[int]] | str | Callable[..., Any], AfterValidator(with_absolute_names)]


class SymmetryConfig(Section):
    """Section `policy.learn.symmetry`: a mirror in which the task looks the same."""

    obs: Mirror = Field(
        description='mirror of observations: {index, sign}, where number i of the image is sign[i] times number index[i]; or '
        "'module:function' of tensors [N, ...]"
    )
    action: Mirror = Field(
        description='mirror of actions: {index, sign} of numbers, {index} of choices, or a function of tensors'
    )
    augment: bool = Field(True, description='every sample also trains mirrored')
    mirror_loss: Weight = Field(
        0.0, description='factor of the KL divergence from the mirror image of the policy, a term of the loss; 0: off'
    )


class ActorCriticLearnConfig(LearnConfig):
    """Base of the sections `policy.learn` of PPO and PPG.

    The first fields name the components of an update: `zoo list parts` shows all, docs/parts.md says how to add one.
    """

    old_keys = {'value_clip': OldKey(FieldInfo(annotation=bool, default=False), 'value_loss', 'clip', 'mse')}

    surrogate: component_of(SURROGATE_REGISTRY, 'policy.learn.surrogate') = Field(  # type: ignore[valid-type]
        'clip',
        description='what is maximised of probability ratio and advantage, by name or as {type: name, its options}',
    )
    proximal: component_of(PROXIMAL_REGISTRY, 'policy.learn.proximal') = Field(  # type: ignore[valid-type]
        'behaviour',
        description="the policy that updates stay near: 'behaviour', the one that acted, 'recent', the one that the update "
        "began with, or 'ewma', an average over past steps; the last two weigh old samples right (decoupled clip)",
    )
    correction: component_of(CORRECTION_REGISTRY, 'policy.learn.correction') = Field(  # type: ignore[valid-type]
        'none',
        description="of samples of older policies, which cluster.max_lag above 1 needs: 'decoupled', proximal 'recent' with a "
        "bound, or 'vtrace', by name or as {type: name, its options}",
    )
    value_loss: component_of(VALUE_LOSS_REGISTRY, 'policy.learn.value_loss') = Field(  # type: ignore[valid-type]
        'mse', description='loss of the critic, by name or as {type: name, its options}'
    )
    penalties: components_of(PENALTY_REGISTRY, 'policy.learn.penalties', PenaltyConfig) = Field(  # type: ignore[valid-type]
        [], description='terms added to the loss, each a name or {type: name, weight, target, its options}'
    )
    optimizer: component_of(OPTIMIZER_REGISTRY, 'policy.learn.optimizer') = Field(  # type: ignore[valid-type]
        'adam', description='how parameters move, by name or as {type: name, its options}'
    )
    draw: component_of(DRAW_REGISTRY, 'policy.learn.draw') = Field(  # type: ignore[valid-type]
        'shuffle', description='how minibatches are drawn from a batch, by name or as {type: name, its options}'
    )
    intrinsic: component_of(INTRINSIC_REGISTRY, 'policy.learn.intrinsic') | None = Field(  # type: ignore[valid-type]
        None, description='a reward for what is new, by name or as {type: name, its options}; null: none'
    )
    constraint: component_of(CONSTRAINT_REGISTRY, 'policy.learn.constraint', ConstraintConfig) | None = Field(  # type: ignore[valid-type]
        None,
        description="limits on costs that envs report in infos, by {type: 'lagrange' or 'pid', limits: {cost: 25}, its options}; "
        'null: none',
    )
    symmetry: SymmetryConfig | None = Field(
        None, description='a mirror in which the task looks the same, and how updates use it; null: none'
    )
    plasticity: component_of(PLASTICITY_REGISTRY, 'policy.learn.plasticity') | None = Field(  # type: ignore[valid-type]
        None,
        description='what keeps the networks able to learn, by name or as {type: name, its options}; null: nothing',
    )
    options: components_of(OPTION_REGISTRY, 'policy.learn.options') = Field(  # type: ignore[valid-type]
        [], description='further update options, your own, each a name or {type: name, its options}'
    )
    learning_rate: RateSchedule = Field(2.5e-4, description="the optimiser's step size")
    critic_learning_rate: RateSchedule | None = Field(
        None,
        description="the optimiser's step size of the parameters that are the critic's alone; null: learning_rate. ppo then "
        "limits the gradients of actor and critic by grad_clip separately; ppg's auxiliary phase moves the critic by "
        'aux_learning_rate',
    )
    adam_eps: float = Field(1e-5, gt=0, description="Adam's epsilon")
    entropy_weight: ScheduleOrZero = Field(0.0, description='factor of the entropy bonus; more explores more')
    clip_ratio: Schedule = Field(
        0.2, description='how far the probability ratio may move from 1 before its gradient stops'
    )
    baseline: Literal['critic', 'none'] = Field(
        'critic',
        description="what advantages compare returns with: the critic's values, or nothing (only with estimator 'returns'; "
        'steps whose episode does not end within the rollout then train nothing)',
    )
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        None, description='bound on the loss where adv < 0 (3 to 5 is usual); null: off'
    )
    adv_norm: Literal['off', 'batch', 'minibatch'] = Field(
        'minibatch', description='normalise advantages over the rollout or each minibatch'
    )
    value_norm: bool = Field(
        False, description='the critic predicts returns normalised by their running mean and standard deviation'
    )
    reward_norm: bool = Field(
        False, description='divide rewards by the running standard deviation of their discounted sum, clip to +-10'
    )
    reward_norm_discount: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description='discount of the sum that reward_norm divides by; null: policy.collect.discount_factor'
    )
    target_kl: Positive | None = Field(
        None, description='stop the epochs once KL(old || new) exceeds 1.5 times this; null: off'
    )
    target_kl_at: Literal['epoch', 'minibatch'] = Field(
        'epoch', description='where target_kl is looked at: after each pass, or after each minibatch'
    )
    grad_clip: Positive | None = Field(0.5, description='limit of the global gradient norm; null: off')
    grad_clip_value: Positive | None = Field(
        None, description='limit of each element of the gradient, applied before grad_clip; null: off'
    )
    accumulate: int = Field(
        1, ge=1, description='minibatches whose mean gradient makes one optimiser step; train_iter counts each'
    )
    precision: UpdatePrecision = Field(
        'fp32', description='number format inside the networks during updates; fp16, with a loss scale, on GPUs alone'
    )
    ignore_done: bool = Field(
        False, description='bootstrap through terminal states too (tasks that end only for convenience)'
    )
    nonfinite_limit: int = Field(
        10, ge=1, description='gradient steps in a row that may be skipped as not finite before the run stops'
    )
    sequence: SequenceConfig = Field(
        SequenceConfig(), description='sequences for training, where the model has a recurrent state'
    )
    executor: ExecutorName = Field(
        'auto',
        description="what runs updates and acting: 'native' (C, for the MLP networks of zoo on a CPU), 'graph' "
        "(compiled), 'eager' (PyTorch as written), or 'auto', the fastest that serves",
    )
    compile: CompileMode = Field(
        'auto',
        description="whether what 'native' does not serve is compiled: 'on', 'off', or 'auto', where there is a compiler, "
        f'in runs of {WORTH_STEPS:,} gradient steps or more',
    )

    def problems(self, job: Job) -> Iterator[str]:
        yield from super().problems(job)
        n_sample = job.policy.collect.get('n_sample')
        is_single = self.batch_size == 1 or (self.batch_size is None and n_sample == 1)
        if is_single and self.adv_norm == 'minibatch':
            size_text = '1'
            if self.batch_size is None:
                size_text = 'null and a rollout has 1 sample'
            yield (
                f'policy.learn.batch_size is {size_text} but '
                "policy.learn.adv_norm is 'minibatch', which leaves one sample no advantage; use batch_size 2 or more, or "
                "adv_norm 'batch' or 'off'."
            )


class WholeRolloutConfig(ActorCriticLearnConfig):
    """Section `policy.learn` of policies whose batches are whole rollouts."""

    recompute_adv: bool = Field(
        False, description='recompute values, advantages and returns before every epoch but the first'
    )

    def problems(self, job: Job) -> Iterator[str]:
        yield from super().problems(job)
        kind = job.buffer.type
        if self.recompute_adv and kind != 'rollout':
            yield (
                f'policy.learn.recompute_adv is true but buffer.type is {kind!r}, which yields random draws: advantages are '
                "recomputed over whole rollouts; use recompute_adv=false or buffer.type 'rollout'."
            )


class OnPolicyCollectConfig(CollectConfig):
    """Section `policy.collect` of the actor-critic policies."""

    old_keys = {
        'temperature': OldKey(FieldInfo.from_annotated_attribute(Positive, 1.0), 'exploration', 'temperature', 'sample')
    }

    discount_factor: float = Field(0.99, ge=0, le=1, description='gamma, per env step')
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description='lambda of the advantage estimator: 0 trusts the critic, 1 the returns'
    )
    estimator: component_of(ESTIMATOR_REGISTRY, 'policy.collect.estimator') = Field(  # type: ignore[valid-type]
        'gae',
        description='how advantages and returns come from rewards and values, by name or as {type: name, its options}',
    )
    batch_mode: Literal['fragment', 'episode'] = Field(
        'fragment',
        description="what a rollout trains on: 'fragment', all its steps, episodes continue in the next one; 'episode', whole "
        'episodes alone: each rollout begins with a reset of all envs, and steps after the last end in an env have weight 0',
    )
    exploration: component_of(EXPLORATION_REGISTRY, 'policy.collect.exploration') = Field(  # type: ignore[valid-type]
        'sample',
        description="what actions are drawn from, by name, as {type: name, its options}, or as 'module:Class'",
    )


class ActorCriticPolicyConfig(PolicyConfig):
    """Section `policy` of a policy that trains an actor with advantages."""

    learn: ActorCriticLearnConfig = ActorCriticLearnConfig()
    collect: OnPolicyCollectConfig = OnPolicyCollectConfig()


OLD_KEYS = [f'policy.learn.{key}' for key in ActorCriticLearnConfig.old_keys]
OLD_KEYS += [f'policy.collect.{key}' for key in OnPolicyCollectConfig.old_keys]


def migrate_old_keys(policy: Any) -> None:
    """Translates the old keys in a stored section `policy` in place, if it is one and its type is registered."""
    kind: Any = value_at(policy, 'type')
    is_known = isinstance(kind, str) and kind in POLICY_REGISTRY
    config = None
    if is_known:
        config = getattr(POLICY_REGISTRY.get(kind), 'config', None)
    for name, field in getattr(config, 'model_fields', {}).items():
        if is_section(field) and name in policy:
            policy[name] = field.annotation.migrate_old_keys(policy[name])
