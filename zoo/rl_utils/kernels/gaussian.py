# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Device functions of the Gaussian: a row of parameters holds mu followed by sigma, n_column of each."""

from __future__ import annotations

import triton
import triton.language as tl

from zoo.rl_utils.kernels.rows import load_rows, store_rows


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
    new_ptr,
    action_ptr,
    grad_ptr,
    start,
    action_start,
    grad_start,
    is_row,
    n_column,
    slope,
    rise,
    COLUMNS: tl.constexpr,
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
    ratio, shift = sigma_old / sigma, (mu_old - mu) / sigma
    kl = tl.sum(0.5 * (ratio * ratio + shift * shift - 1) - tl.log(ratio), 1)
    grad_mu = -shift / sigma * share[:, None]
    grad_sigma = (1 - ratio * ratio - shift * shift) / sigma * share[:, None]
    _store(grad_ptr, grad_start, is_row, n_column, grad_mu, grad_sigma, COLUMNS)
    return kl


@triton.jit
def _load(ptr, start, is_row, n_column, COLUMNS: tl.constexpr):
    """mu and sigma, each [ROWS, COLUMNS] f32; sigma is 1 in padding."""
    mu = load_rows(ptr, start, is_row, n_column, COLUMNS, 0.0)
    sigma = load_rows(ptr + n_column, start, is_row, n_column, COLUMNS, 1.0)
    return mu, tl.where(is_row[:, None], sigma, 1.0)


@triton.jit
def _store(ptr, start, is_row, n_column, mu, sigma, COLUMNS: tl.constexpr):
    store_rows(ptr, start, is_row, n_column, mu, COLUMNS)
    store_rows(ptr + n_column, start, is_row, n_column, sigma, COLUMNS)


@triton.jit
def _logp_entropy(mu, sigma, action, n_column):
    """Log-density and entropy of each row; padding holds mu = action and sigma = 1 and counts for nothing."""
    z = (action - mu) / sigma
    log_sigma = tl.sum(tl.log(sigma), 1)
    half_log_2pi = 0.9189385332046727
    logp = -0.5 * tl.sum(z * z, 1) - log_sigma - half_log_2pi * n_column
    return logp, log_sigma + (half_log_2pi + 0.5) * n_column
