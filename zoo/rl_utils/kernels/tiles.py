"""Device functions: tiles of rows in memory, categorical and Gaussian distributions. A row begins at element `start`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_rows(ptr, start, is_row, n_column, COLUMNS: tl.constexpr, FILL: tl.constexpr):
    """Loads [ROWS, COLUMNS] f32; cells beyond the last column are FILL, cells beyond the last row 0.

    n_column: one number, or one for each row, [ROWS, 1].
    """
    column = tl.arange(0, COLUMNS)[None, :]
    x = tl.load(ptr + start[:, None] + column, mask=is_row[:, None] & (column < n_column), other=FILL).to(tl.float32)
    return tl.where(is_row[:, None], x, 0.0)


@triton.jit
def store_rows(ptr, start, is_row, n_column, x, COLUMNS: tl.constexpr):
    """Writes [ROWS, COLUMNS] without its padding; n_column as in `load_rows`."""
    column = tl.arange(0, COLUMNS)[None, :]
    tl.store(ptr + start[:, None] + column, x.to(ptr.dtype.element_ty), mask=is_row[:, None] & (column < n_column))


@triton.jit
def load_weight(ptr, row, is_row, HAS_WEIGHT: tl.constexpr):
    """Loads the weights [ROWS] f32, or ones if there are no weights; 0 beyond the last row."""
    if HAS_WEIGHT:
        weight = tl.load(ptr + row, mask=is_row, other=0.0).to(tl.float32)
    else:
        weight = is_row.to(tl.float32)
    return weight


@triton.jit
def choice_terms(new_ptr, old_ptr, start, old_start, action, is_row, size, COLUMNS: tl.constexpr):
    """-> log p_new - log p_old of the action, and the entropy of the new distribution, each [ROWS].

    size: number of choices in each row, [ROWS].
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
    """As `choice_terms` for a tile of rows with n_group groups each; both results are sums over the groups, [ROWS]."""
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
    """-> the place in a row where each group's logits begin, and their number; a group beyond the last has one logit."""
    begin = tl.load(bound_ptr + group, mask=group < n_group, other=0)
    end = tl.load(bound_ptr + group + 1, mask=group < n_group, other=1)
    return begin, end - begin


@triton.jit
def log_softmax(x):
    """Log-softmax over the columns of [ROWS, COLUMNS]; a cell of -inf stays -inf."""
    shifted = x - tl.max(x, 1)[:, None]
    return shifted - tl.log(tl.sum(tl.exp(shifted), 1))[:, None]


@triton.jit
def _at(x, action, size, COLUMNS: tl.constexpr):
    """x[row, action[row]] of [ROWS, COLUMNS]; NaN where there is no such choice."""
    taken = tl.sum(tl.where(tl.arange(0, COLUMNS)[None, :] == action[:, None], x, 0.0), 1)
    return tl.where((action >= 0) & (action < size), taken, float('nan'))


@triton.jit
def _entropy(logp):
    return -tl.sum(tl.exp(logp) * _finite(logp), 1)


@triton.jit
def _finite(logp):
    """-inf -> -1e4, whose exp is 0: then p * logp is 0."""
    return tl.where(logp < -1e4, -1e4, logp)


@triton.jit
def gaussian_terms(
    new_ptr, old_ptr, action_ptr, start, old_start, action_start, is_row, n_column, COLUMNS: tl.constexpr
):
    """-> log p_new - log p_old of the action, and the entropy of the new distribution, each [ROWS]."""
    action = load_rows(action_ptr, action_start, is_row, n_column, COLUMNS, 0.0)
    mu, sigma = _load(new_ptr, start, is_row, n_column, COLUMNS)
    mu_old, sigma_old = _load(old_ptr, old_start, is_row, n_column, COLUMNS)
    logp, entropy = _logp_entropy(mu, sigma, action, n_column)
    logp_old, _ = _logp_entropy(mu_old, sigma_old, action, n_column)
    return logp - logp_old, entropy


@triton.jit
def gaussian_terms_grad(
    new_ptr, action_ptr, grad_ptr, start, action_start, grad_start, is_row, n_column, slope, rise, COLUMNS: tl.constexpr
):
    """Writes slope * gradient of log p_new of the action + rise * gradient of the entropy; slope, rise: [ROWS]."""
    # d logp / d mu = z / sigma, d logp / d sigma = (z^2 - 1) / sigma, d H / d sigma = 1 / sigma
    action = load_rows(action_ptr, action_start, is_row, n_column, COLUMNS, 0.0)
    mu, sigma = _load(new_ptr, start, is_row, n_column, COLUMNS)
    z = (action - mu) / sigma
    grad_mu = z * slope[:, None] / sigma
    grad_sigma = grad_mu * z + (rise - slope)[:, None] / sigma
    _store(grad_ptr, grad_start, is_row, n_column, grad_mu, grad_sigma, COLUMNS)


@triton.jit
def gaussian_kl(
    new_ptr, old_ptr, grad_ptr, start, old_start, grad_start, is_row, n_column, share, COLUMNS: tl.constexpr
):
    """-> KL(old || new) [ROWS]; writes share * its gradient in the new parameters; share: [ROWS]."""
    mu, sigma = _load(new_ptr, start, is_row, n_column, COLUMNS)
    mu_old, sigma_old = _load(old_ptr, old_start, is_row, n_column, COLUMNS)
    ratio = sigma_old / sigma
    shift = (mu_old - mu) / sigma
    kl = tl.sum(0.5 * (ratio * ratio + shift * shift - 1) - tl.log(ratio), 1)
    grad_mu = -shift / sigma * share[:, None]
    grad_sigma = (1 - ratio * ratio - shift * shift) / sigma * share[:, None]
    _store(grad_ptr, grad_start, is_row, n_column, grad_mu, grad_sigma, COLUMNS)
    return kl


@triton.jit
def _load(ptr, start, is_row, n_column, COLUMNS: tl.constexpr):
    """Loads mu and sigma, each [ROWS, COLUMNS] f32; sigma is 1 in padding."""
    mu = load_rows(ptr, start, is_row, n_column, COLUMNS, 0.0)
    sigma = load_rows(ptr + n_column, start, is_row, n_column, COLUMNS, 1.0)
    return mu, tl.where(is_row[:, None], sigma, 1.0)


@triton.jit
def _store(ptr, start, is_row, n_column, mu, sigma, COLUMNS: tl.constexpr):
    store_rows(ptr, start, is_row, n_column, mu, COLUMNS)
    store_rows(ptr + n_column, start, is_row, n_column, sigma, COLUMNS)


@triton.jit
def _logp_entropy(mu, sigma, action, n_column):
    """Log-density and entropy of each row; padding has mu = action and sigma = 1 and so contributes nothing."""
    z = (action - mu) / sigma
    log_sigma = tl.sum(tl.log(sigma), 1)
    half_log_2pi = 0.9189385332046727
    logp = -0.5 * tl.sum(z * z, 1) - log_sigma - half_log_2pi * n_column
    return logp, log_sigma + (half_log_2pi + 0.5) * n_column
