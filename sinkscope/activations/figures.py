"""Figures of hidden states: how large the largest entries are, how heavy the tails, how alike the tokens."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sinkscope.activations.moments import kurtosis
from sinkscope.activations.states import Pair, States


def max_activation(states: States) -> Pair:
    """max|x|, which is ‖x‖∞, of each window."""
    return _each(states, states.largest.amax(-1))


def top2_activation(states: States) -> Pair:
    """The second largest |x| of each window."""
    return _ranked(states, 1)


def top3_activation(states: States) -> Pair:
    """The third largest |x| of each window."""
    return _ranked(states, 2)


def median_activation(states: States) -> Pair:
    """The median |x| of each window."""
    return _each(states, states.median)


def activation_ratio(states: States) -> Pair:
    """max|x| ÷ median|x| of each window; undefined where the median is 0."""
    return _quotient(states.largest.amax(-1).to(states.exact), states.median.to(states.exact))


def massive_activations(states: States) -> Pair:
    """The number of entries that are massive by the rule of `is_massive`."""
    tokens = is_massive(states.largest, states.median[:, None])
    windows = tokens.nonzero()[:, 0]
    found = is_massive(states.values[tokens].abs(), states.median[windows, None]).sum(-1)
    return _each(states, torch.zeros_like(states.median).index_add_(0, windows, found.to(states.median.dtype)))


def is_massive(sizes: Float[Tensor, "*entry"], median: Float[Tensor, "*#entry"]) -> Bool[Tensor, "*entry"]:
    """|x| > 100 and |x| ≥ 1,000 times the median |x| of its window's states (Sun et al. 2024).

    "Its hidden state" is the layer's output over the whole sequence there, and so is what their code takes the median
    of.
    """
    return (sizes > 100) & (sizes >= 1000 * median)


def outlier_tokens(states: States) -> Pair:
    """The number of tokens with max|x| > 1,000 · mean|x|, the mean over the whole window."""
    return _each(states, (states.largest > 1000 * states.mean_size[:, None]).sum(-1))


def first_norm_ratio(states: States) -> Pair:
    """‖x‖₂ of the first token ÷ the mean ‖x‖₂ of the window's others."""
    first, _ = states.over(states.norms, states.first)
    total, count = states.over(states.norms, states.keep & ~states.first)
    return _quotient(first * count, total)


def kurt_layer(states: States) -> Pair:
    """m₄ / m₂² of all entries of a window together; undefined where all are equal."""
    return _defined(kurtosis(states.whole))


def kurt_excess(states: States) -> Pair:
    """m₄ / m₂² - 3 of all entries of a window together."""
    return _defined(kurtosis(states.whole) - 3)


def kurt_qualcomm(states: States) -> Pair:
    """m₄ / (s⁴ + 1e-6) of all entries of a window together, with s² the unbiased variance."""
    count, _, second, _, fourth = states.whole.unbind(-1)
    return _defined(fourth / count / ((second / (count - 1)).square() + 1e-6))


def kurt_token_first(states: States) -> Pair:
    """m₄ / m₂² over the features of the first token."""
    return _over_tokens(states, states.first)


def kurt_token_others(states: States) -> Pair:
    """m₄ / m₂² over the features of each token but the first, mean over these tokens."""
    return _over_tokens(states, states.keep & ~states.first)


def effective_rank(states: States) -> Pair:
    """The exponential of H(σ / Σσ), with σ the singular values of the window's tokens; undefined for zeros."""
    found = []
    for values, finite in zip(states.real(), states.finite.tolist(), strict=True):
        if not finite:  # which LAPACK refuses
            found.append(torch.full((), torch.nan, dtype=states.exact, device=values.device))
            continue
        spectrum = torch.linalg.svdvals(values.to(states.exact))
        found.append(torch.special.entr(spectrum / spectrum.sum()).sum().exp())
    return _defined(torch.stack(found))


def mean_cosine(states: States) -> Pair:
    """The mean cosine over all pairs of different tokens, (‖Σu‖² - Σ‖u‖²) / (n² - n) with u = x / ‖x‖₂."""
    tokens = states.keep & (states.norms > 0)
    norms = torch.where(tokens, states.norms, 1).to(states.values.dtype)
    units = torch.where(tokens[..., None], states.values / norms[..., None], 0)
    total = units.sum(1, dtype=states.exact).square().sum(-1)
    same = units.square().sum((1, 2), dtype=states.exact)
    count = tokens.sum(-1).to(states.exact)
    return _quotient(total - same, count.square() - count)


def _ranked(states: States, rank: int) -> Pair:
    top = states.top.values.abs()
    return _defined(top[:, rank].to(states.exact) if rank < top.shape[1] else torch.full_like(top[:, 0], torch.nan))


def _over_tokens(states: States, tokens: Bool[Tensor, "batch position"]) -> Pair:
    return states.over(states.kurtoses, tokens & ~states.kurtoses.isnan())


def _each(states: States, values: Tensor) -> Pair:
    """A mean over windows."""
    return values.to(states.exact), torch.ones_like(values, dtype=states.exact)


def _defined(values: Float[Tensor, "batch"]) -> Pair:
    """A mean over those windows in which there is a number."""
    defined = ~values.isnan()
    return torch.where(defined, values, 0), defined.to(values.dtype)


def _quotient(above: Float[Tensor, "batch"], below: Float[Tensor, "batch"]) -> Pair:
    """A mean of quotients over those windows in which the divisor is not 0."""
    return _defined(above / below.masked_fill(below == 0, torch.nan))
