"""Named measurement conventions: how a text is cut, and which figure is read off the weights; one list.

To add a protocol, write its figure as a function of reductions in figures.py and list its card here, with a sentence
for every choice that its paper leaves open.
"""

from collections.abc import Sequence
from functools import partial

from sinkscope.catalog import Catalog
from sinkscope.metrics import Metric
from sinkscope.protocols.base import Protocol, Settled, settled
from sinkscope.protocols.figures import exceeding, first_column, last_query, lower_triangle_zeros

__all__ = ["ALL", "OWN", "PROTOCOLS", "Asked", "Protocol", "Settled", "chosen", "settled"]

OWN = "sinkscope"
"""The protocol that is followed where none is named."""

ALL = "all"
"""Stands for every protocol in the list."""

Asked = str | Protocol | Sequence[str | Protocol] | None
"""Protocols as they are asked for: by name or by card, one or several."""


def _rate(name: str, *, shares: bool, epsilon: float) -> Metric:
    of = "share" if shares else "raw mean weight"
    return Metric(
        name=name,
        function=partial(exceeding, shares=shares, epsilon=epsilon),
        summary=f"share of samples whose {of} on the first token, over all rows, exceeds {epsilon:g}",
        unit="fraction",
        low=0.0,
        high=1.0,
        optional=True,
    )


_FIRST_ROW = "Every row counts, row 1 included, whose weight on token 1 is 1; a row that cannot see token 1 counts 0."
_SAMPLES = (
    "A sample is a window of the text; the first windows of all documents come first, so that a file of enough texts "
    "gives the beginnings of texts, as in the paper."
)
_BOS = "What the tokenizer puts in front by default is there, and counts in the length."
_NO_TEXT = "Random and repeated tokens stand without BOS: a repeated token's rate of 0 in the paper tells as much."

PROTOCOLS: Catalog[Protocol] = Catalog(
    "protocol",
    [
        Protocol(
            name=OWN,
            summary="share of (layer, head) whose mean share on the first token exceeds ε, query 0 left out",
            source="sinkscope",
            seq_len=512,
            windows=4,
            epsilon=0.3,
            figures=("sink_rate", "sink_rate_raw", "first_share", "first_mass"),
            thresholds={"sink_rate": 0.3, "sink_rate_raw": 0.3},
            conventions=(
                "Query 0 of each window is left out, and so are rows that cannot see the first token.",
                "A row of zeros has no share; it is left out and counted in zero_rows.",
            ),
            published=False,
        ),
        Protocol(
            name="gu2025",
            summary="sink rate: share of (layer, head) with mean attention on token 1 above 0.3, by sample",
            source="Gu et al., ICLR 2025, arXiv 2410.10781; sail-sg/Attention-Sink",
            seq_len=64,
            windows=100,
            epsilon=0.3,
            figures=("gu2025_sink_rate", "gu2025_mass"),
            thresholds={"gu2025_sink_rate": 0.3},
            metrics=(
                _rate("gu2025_sink_rate", shares=True, epsilon=0.3),
                Metric(
                    name="gu2025_mass",
                    function=partial(first_column, shares=True),
                    summary="mean over all rows of the share on the first token: the α behind gu2025_sink_rate",
                    unit="fraction",
                    low=0.0,
                    high=1.0,
                    optional=True,
                ),
            ),
            conventions=(
                _FIRST_ROW,
                "The threshold is applied to each sample, strictly, and the result is averaged over samples.",
                "Where rows do not sum to 1, |w| / Σ|w| takes the weights' place; a learned sink is part of the sum.",
                "A row of zeros counts 0.",
                _BOS,
                _NO_TEXT,
                _SAMPLES,
                "The paper's own natural texts were not published; it measured in fp32.",
            ),
        ),
        Protocol(
            name="softpick2025",
            summary="share of (layer, head, sample) with a mean raw weight on token 1 above 0.3, and above 0.2",
            source="Zuhri et al., arXiv 2504.20966 v4; zaydzuhri/flame",
            seq_len=512,
            windows=1000,
            epsilon=0.3,
            figures=("softpick2025_sink_rate", "softpick2025_sink_rate_02", "softpick2025_sparsity"),
            thresholds={"softpick2025_sink_rate": 0.3, "softpick2025_sink_rate_02": 0.2},
            metrics=(
                _rate("softpick2025_sink_rate", shares=False, epsilon=0.3),
                _rate("softpick2025_sink_rate_02", shares=False, epsilon=0.2),
                Metric(
                    name="softpick2025_sparsity",
                    function=lower_triangle_zeros,
                    summary="share of the lower triangle that is exactly 0, row 1 included",
                    unit="fraction",
                    low=0.0,
                    high=1.0,
                    needs=frozenset({"zeros"}),
                    optional=True,
                ),
            ),
            conventions=(
                _FIRST_ROW,
                "Weights are taken raw, whatever rows sum to; the inequality is strict.",
                "Length: the paper states none; 512 is the default of the code that its authors published.",
                "The code cuts longer texts to 512 tokens and keeps shorter ones; here those are left out and counted.",
                _BOS,
                _SAMPLES,
                "The paper's samples are the first 1,000 of SlimPajama's validation set, and the code runs in fp16.",
                "Its kurtosis counts embeddings, normalized last states and padding; kurt_global what layers give.",
            ),
        ),
        Protocol(
            name="barbero2025",
            summary="the sink rate of gu2025 at a threshold of 0.8",
            source="Barbero et al., COLM 2025, arXiv 2504.02732, Table 1",
            seq_len=64,
            windows=170,
            epsilon=0.8,
            figures=("barbero2025_sink_rate",),
            thresholds={"barbero2025_sink_rate": 0.8},
            metrics=(_rate("barbero2025_sink_rate", shares=True, epsilon=0.8),),
            conventions=(
                _FIRST_ROW,
                "The threshold is applied to each sample, strictly, and the result is averaged over samples.",
                "Length: the paper states none for its 170 prompts; 64 is that of gu2025, whose statistic it is.",
                "With longer samples the rate falls.",
                _BOS,
                _SAMPLES,
            ),
        ),
        Protocol(
            name="streamingllm2024",
            summary="mean attention of the 4,096th token on the first one, a mass by layer",
            source="Xiao et al., ICLR 2024, arXiv 2309.17453, Figure 12",
            seq_len=4096,
            windows=256,
            epsilon=None,
            figures=("streamingllm2024_mass",),
            thresholds={},
            metrics=(
                Metric(
                    name="streamingllm2024_mass",
                    function=last_query,
                    summary="mean over samples of the last query's weight on the first token",
                    unit="weight",
                    optional=True,
                ),
            ),
            conventions=(
                "The last query of each sample only; weights are taken raw, and a head that cannot see token 1 has 0.",
                "The paper shows it by layer, as the table of layers does; the model's figure is the mean over heads.",
                "Threshold: there is none; the paper says of which layers the mean is over 1/2.",
                _BOS,
                "Perplexity with K initial tokens kept: sinkscope patch --window W --keep-sinks --initial K.",
            ),
        ),
    ],
)


def chosen(protocol: Asked) -> list[Protocol]:
    """The cards that are meant: none is the program's own, `all` is every one in the list, and each is taken once.

    Raises UnknownNameError for a name that is no protocol's.
    """
    asked = [protocol] if isinstance(protocol, str | Protocol) else list(protocol or [OWN])
    found = [card for each in asked for card in (PROTOCOLS.values() if each == ALL else [_card(each)])]
    return list({card.name: card for card in found}.values())


def _card(asked: str | Protocol) -> Protocol:
    return PROTOCOLS[asked] if isinstance(asked, str) else asked
