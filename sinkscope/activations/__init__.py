"""Hidden states to a number per layer: the list of everything that is measured of what a layer hands on.

To add a figure, write a function from `States` to (sum, count) in figures.py and list its card here.
"""

from sinkscope.activations import figures
from sinkscope.activations.base import Activation
from sinkscope.activations.states import States
from sinkscope.catalog import Catalog

__all__ = ["ACTIVATIONS", "Activation", "States"]

_SUN = "Sun et al. 2024, arXiv 2402.17762"
_QUALCOMM = "Bondarenko et al. 2023, arXiv 2306.12929"
_KAUL = "Kaul et al. 2024, arXiv 2410.17174"

ACTIVATIONS: Catalog[Activation] = Catalog(
    "activation",
    [
        Activation(
            name="max_activation",
            function=figures.max_activation,
            summary="mean over windows of max|x|",
            unit="activation",
            source=_SUN,
            low=0.0,
        ),
        Activation(
            name="top2_activation",
            function=figures.top2_activation,
            summary="mean over windows of the second largest |x|",
            unit="activation",
            source=_SUN,
            low=0.0,
        ),
        Activation(
            name="top3_activation",
            function=figures.top3_activation,
            summary="mean over windows of the third largest |x|",
            unit="activation",
            source=_SUN,
            low=0.0,
        ),
        Activation(
            name="median_activation",
            function=figures.median_activation,
            summary="mean over windows of median|x|, the lower of the two middle ones where there are two",
            unit="activation",
            source=_SUN,
            low=0.0,
        ),
        Activation(
            name="activation_ratio",
            function=figures.activation_ratio,
            summary="mean over windows of max|x| ÷ median|x|",
            unit="ratio",
            source=_SUN,
            low=1.0,
        ),
        Activation(
            name="massive_activations",
            function=figures.massive_activations,
            summary="mean number per window of |x| > 100 that are ≥ 1,000 · median|x| of all the window's entries",
            unit="entries",
            source=_SUN,
            low=0.0,
        ),
        Activation(
            name="outlier_tokens",
            function=figures.outlier_tokens,
            summary="mean number per window of tokens with max|x| > 1,000 · mean|x| of the window",
            unit="tokens",
            source="An et al. 2025, arXiv 2502.06415",
            low=0.0,
        ),
        Activation(
            name="first_norm_ratio",
            function=figures.first_norm_ratio,
            summary="‖x‖₂ of the first token ÷ mean ‖x‖₂ of the others, mean over windows",
            unit="ratio",
            source="Gu et al. 2025, arXiv 2410.10781",
            low=0.0,
        ),
        Activation(
            name="kurt_layer",
            function=figures.kurt_layer,
            summary="m₄ / m₂² of a window's entries, tokens and features together, mean over windows; 3 if normal",
            unit="kurtosis",
            source="population moments, not excess",
            low=1.0,
        ),
        Activation(
            name="kurt_excess",
            function=figures.kurt_excess,
            summary="m₄ / m₂² - 3 of a window's entries, tokens and features together, mean over windows; 0 if normal",
            unit="kurtosis",
            source="softmax1/Flash-Attention-Softmax-N",
            low=-2.0,
        ),
        Activation(
            name="kurt_qualcomm",
            function=figures.kurt_qualcomm,
            summary="m₄ / (s⁴ + 1e-6) of a window's entries with s² the unbiased variance, mean over windows",
            unit="kurtosis",
            source=_QUALCOMM,
            low=0.0,
            of_attention=True,
        ),
        Activation(
            name="kurt_token_first",
            function=figures.kurt_token_first,
            summary="m₄ / m₂² over the features of the first token, mean over windows",
            unit="kurtosis",
            source=_KAUL,
            low=1.0,
        ),
        Activation(
            name="kurt_token_others",
            function=figures.kurt_token_others,
            summary="m₄ / m₂² over the features of a token, mean over all tokens but the first",
            unit="kurtosis",
            source=_KAUL,
            low=1.0,
        ),
        Activation(
            name="inf_norm",
            function=figures.max_activation,
            summary="mean over windows of ‖x‖∞; of a layer it is its max_activation",
            unit="activation",
            source=_QUALCOMM,
            low=0.0,
            of_attention=True,
        ),
        Activation(
            name="effective_rank",
            function=figures.effective_rank,
            summary="exp H(σ / Σσ) with σ the singular values of a window's tokens by features, mean over windows",
            unit="dimensions",
            source="Roy & Vetterli 2007",
            low=1.0,
            optional=True,
        ),
        Activation(
            name="mean_cosine",
            function=figures.mean_cosine,
            summary="mean cosine over all pairs of different tokens, mean over windows",
            unit="cosine",
            source="‖Σu‖² with u = x / ‖x‖₂, less its diagonal",
            low=-1.0,
            high=1.0,
            optional=True,
        ),
    ],
)
