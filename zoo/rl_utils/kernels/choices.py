# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Device functions of the categorical distributions: a row of parameters holds the logits of one choice or of several.

The logits of one choice are a group. Several groups of several rows are computed together, each as a row of its own:
that of slot s is group s % GROUPS of row s // GROUPS. A logit of -inf is a choice that cannot be taken: its
probability and its gradient are exactly 0, and what is summed over choices is finite.
"""

from __future__ import annotations

import triton
import triton.language as tl

from zoo.rl_utils.kernels.rows import load_rows, store_rows


@triton.jit
def choice_terms(new_ptr, old_ptr, start, old_start, action, is_row, size, COLUMNS: tl.constexpr):
    """-> log p_new - log p_old of the action, and the entropy of the new distribution, each [ROWS].

    size: choices of each row, [ROWS].
    """
    logp = log_softmax(load_rows(new_ptr, start, is_row, size[:, None], COLUMNS, -float('inf')))
    logp_old = log_softmax(load_rows(old_ptr, old_start, is_row, size[:, None], COLUMNS, -float('inf')))
    return _at(logp, action, size, COLUMNS) - _at(logp_old, action, size, COLUMNS), _entropy(logp)


@triton.jit
def choices_terms(
    new_ptr,
    old_ptr,
    action_ptr,
    bound_ptr,
    tile,
    n_row,
    n_group,
    stride,
    old_stride,
    action_stride,
    ROWS: tl.constexpr,
    GROUPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """As `choice_terms`, of a tile of rows with n_group groups each: sums over the groups, [ROWS]."""
    slot = tl.arange(0, ROWS * GROUPS)
    row = tl.cast(tile, tl.int64) * ROWS + slot // GROUPS
    log_ratio = tl.zeros((ROWS * GROUPS,), tl.float32)
    entropy = tl.zeros((ROWS * GROUPS,), tl.float32)
    for first in range(0, n_group, GROUPS):
        group = first + slot % GROUPS
        is_group = (row < n_row) & (group < n_group)
        offset, size = group_bounds(bound_ptr, group, n_group)
        action = tl.load(action_ptr + row * action_stride + group, mask=is_group, other=0)
        group_log_ratio, group_entropy = choice_terms(
            new_ptr, old_ptr, row * stride + offset, row * old_stride + offset, action, is_group, size, COLUMNS
        )
        log_ratio += tl.where(is_group, group_log_ratio, 0.0)
        entropy += tl.where(is_group, group_entropy, 0.0)
    return tl.sum(tl.reshape(log_ratio, (ROWS, GROUPS)), 1), tl.sum(tl.reshape(entropy, (ROWS, GROUPS)), 1)


@triton.jit
def choice_terms_grad(new_ptr, grad_ptr, start, grad_start, action, is_row, size, slope, rise, COLUMNS: tl.constexpr):
    """Writes slope * gradient of log p_new of the action + rise * gradient of the entropy; slope, rise: [ROWS]."""
    # d logp(a) / d logit_j = 1[a = j] - p_j, d H / d logit_j = -p_j (log p_j + H)
    logp = log_softmax(load_rows(new_ptr, start, is_row, size[:, None], COLUMNS, -float('inf')))
    level = slope[:, None] + rise[:, None] * (_finite(logp) + _entropy(logp)[:, None])
    is_taken = tl.arange(0, COLUMNS)[None, :] == action[:, None]
    grad = tl.where(is_taken, slope[:, None], 0.0) - tl.exp(logp) * level
    store_rows(grad_ptr, grad_start, is_row, size[:, None], grad, COLUMNS)


@triton.jit
def choice_kl(new_ptr, old_ptr, grad_ptr, start, old_start, grad_start, is_row, size, share, COLUMNS: tl.constexpr):
    """-> KL(old || new) [ROWS]; writes share * its gradient in the new logits; share: [ROWS]."""
    logp = log_softmax(load_rows(new_ptr, start, is_row, size[:, None], COLUMNS, -float('inf')))
    logp_old = log_softmax(load_rows(old_ptr, old_start, is_row, size[:, None], COLUMNS, -float('inf')))
    p_old = tl.exp(logp_old)
    is_gone = logp_old == -float('inf')  # 0 * log 0 is 0
    kl = tl.sum(p_old * (tl.where(is_gone, 0.0, logp_old) - tl.where(is_gone, 0.0, logp)), 1)
    store_rows(grad_ptr, grad_start, is_row, size[:, None], (tl.exp(logp) - p_old) * share[:, None], COLUMNS)
    return kl


@triton.jit
def group_bounds(bound_ptr, group, n_group):
    """-> where in a row each group's logits begin, and how many they are; a group beyond the last has one."""
    begin = tl.load(bound_ptr + group, mask=group < n_group, other=0)
    end = tl.load(bound_ptr + group + 1, mask=group < n_group, other=1)
    return begin, end - begin


@triton.jit
def log_softmax(x):
    """Over the columns of [ROWS, COLUMNS]; a column of -inf stays -inf."""
    shifted = x - tl.max(x, 1)[:, None]
    return shifted - tl.log(tl.sum(tl.exp(shifted), 1))[:, None]


@triton.jit
def _at(x, action, size, COLUMNS: tl.constexpr):
    """x[row, action[row]] of [ROWS, COLUMNS]; NaN where there is no such choice."""
    found = tl.sum(tl.where(tl.arange(0, COLUMNS)[None, :] == action[:, None], x, 0.0), 1)
    return tl.where((action >= 0) & (action < size), found, float('nan'))


@triton.jit
def _entropy(logp):
    return -tl.sum(tl.exp(logp) * _finite(logp), 1)


@triton.jit
def _finite(logp):
    """-inf -> -1e4, whose exp is 0: then p * logp is 0."""
    return tl.where(logp < -1e4, -1e4, logp)
