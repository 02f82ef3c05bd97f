"""What may leave cells of a run's tables null: the list that reasons are looked up in, in this order."""

from collections.abc import Iterator, Sequence

import pandas as pd

from sinkscope.attention import OF_VECTORS
from sinkscope.metrics import METRICS
from sinkscope.metrics.positions import RANKED_FROM
from sinkscope.report.provenance import Setting
from sinkscope.report.tables import numbered
from sinkscope.report.undefined import Cells, Reason, base
from sinkscope.runs.record import Record
from sinkscope.tokens import TOKEN_CLASSES, classify

NO_ROW = "no row that counts sees a key of it"
SAME = "all the values that it is taken from are equal, or 0"


def known(records: Sequence[Record], setting: Setting) -> Iterator[Reason]:
    """Every reason that may hold in a run, the first record being the baseline where there are several."""
    yield from _of_the_run(records, setting)
    if len(records) > 1:
        yield from _of_a_comparison(records)
    for record in records:
        if bool(record.loss.by_window()[0].isnan().any()):
            own = _equals("normalizer", record.normalizer)
            yield Reason(f"* under {record.normalizer}", "the model's output is no longer a number", own)
    yield Reason("sweep.*", "the model's output is no longer a number", _null("nll"))
    yield from _of_windows(setting)
    yield from _of_hidden_states(records)
    yield from _of_modules(records[0], setting)
    yield from _of_rows(records, setting)


def not_measured(record: Record, setting: Setting) -> dict[str, str]:
    """What has no column or no rows, because it was not asked for or could not be."""
    marked = classify(setting.tokens)
    measured = {metric.name for metric in record.metrics}
    found = {
        name: "the metric was not asked for"
        for name, card in METRICS.items()
        if not card.optional and name not in measured
    }
    for name in TOKEN_CLASSES:
        if name not in marked:
            found[f"{name}_*"] = "there is no tokenizer, and so no text to decide on"
        elif name not in setting.batches.marked:
            found[f"{name}_*"] = "the class was not asked for"
    if record.hidden is None:
        found["activations, massive"] = "the figures of hidden states were not asked for"
    if not setting.batches.received:
        found["received"] = "the mass that each token receives was not asked for"
    return found


def _of_the_run(records: Sequence[Record], setting: Setting) -> Iterator[Reason]:
    """What is so in every row."""
    if not setting.batches.received:
        yield Reason("tokens.received, tokens.top_*", "the mass that each token receives was not asked for")
    if setting.tokenizer is None:
        yield Reason("tokens.token, massive.token", "there is no tokenizer")
    if not setting.knows_bos:
        why = "there is no tokenizer, and the model's configuration names no BOS token"
        yield Reason("bos, bos_*", why)
    for name, marks in classify(setting.tokens).items():
        if not bool(marks.any()):
            yield Reason(f"{name}_*", f"no token of the windows is in the class {name}")
    if not any(layer.learned_sink for layer in records[0].layers.values()):
        yield Reason("sink_logit_mass", "no layer of this model has a learned sink")
    else:
        yield Reason("heads.sink_logit_mass, layers.sink_logit_mass", "the layer has no learned sink")
    figures = ", ".join(metric.name for metric in records[0].metrics if metric.needs & OF_VECTORS)
    if figures and not setting.shown.shows_values:
        yield Reason(figures, "the layers of this model show their scores only, not their values")
    if setting.batches.sample is not None:
        yield Reason("lthon, lthon_ln", "of a window whose last token is not among the sampled queries there is none")
    yield Reason("window_length", "the layer's queries see all tokens before them")
    yield Reason("protocols.epsilon", "the figure has no threshold")
    yield Reason("paper_windows", "the protocol is not a paper's")


def _of_a_comparison(records: Sequence[Record]) -> Iterator[Reason]:
    names = "*_delta, *_delta_*, *_before, kl_to_baseline, top1_agreement"
    yield Reason(names, "the baseline is not compared with itself", _equals("normalizer", records[0].normalizer))
    yield Reason("degenerate_rows", "only some normalizers have rows that their formula does not define")
    yield Reason("perplexity_delta", "perplexity overflows", _overflows)


def _of_windows(setting: Setting) -> Iterator[Reason]:
    """Errors that are null although their figure is not."""
    if setting.batches.sample is not None:
        yield Reason("*_sampling_se", "a sampling error takes more sampled queries than these", _has_figure)
    yield Reason("perplexity_*", "perplexity overflows", _overflows)
    yield Reason("*_se, *_low, *_high", "an error needs at least two windows that count the figure", _has_figure)


def _of_rows(records: Sequence[Record], setting: Setting) -> Iterator[Reason]:
    """Figures that have no row to stand on."""
    classes = list(setting.batches.marked)
    masses = [f"{name}_mass" for name in classes]
    yield Reason(f"{', '.join(masses)}, sink_rate_raw", NO_ROW, _null_mass)
    shares = [f"{name}_{metric}" for metric in ("share", "lift", "frequency") for name in classes]
    sharing = f"{', '.join(shares)}, sink_rate"
    yield Reason(sharing, NO_ROW, _null_mass)
    yield Reason(sharing, "every weight of the rows that see a key of it is 0", _has_mass)
    yield Reason("positions.first_mass", "no query at this distance sees the first token")
    yield Reason("*", "no row that counts sees a key", _null("row_mass"))
    yield Reason("entropy_normalised", "no row sees two keys", _other_than_null("entropy"))
    yield Reason("entropy, entropy_normalised, effective_support, aeqd", "every weight of its rows is 0")
    yield Reason("tokens.received", "no later query sees the token")
    yield Reason("tokens.top_*", f"fewer than {RANKED_FROM} later queries of any head see the token")
    if any(record.gradients is not None for record in records):
        why = "a window has fewer than three tokens, or gradients of 0"
        yield Reason("gradient_first_ratio, gradient_peak_ratio", why)
    yield Reason("value", "the protocol's figure is null in the summary")
    ratios = [metric.name for metric in records[0].metrics if metric.name in METRICS and metric.unit == "ratio"]
    yield Reason(", ".join(ratios), "what it is divided by is 0")
    own = (*setting.options.metrics, *setting.options.protocol.metrics)
    yield Reason(", ".join(metric.name for metric in own), "the metric counts nothing there")


def _of_hidden_states(records: Sequence[Record]) -> Iterator[Reason]:
    if records[0].hidden is None:
        return
    for name, why in records[0].hidden.undefined.items():
        yield Reason(f"activations.* of {name}", why, _equals("module", name))
    yield Reason("attention_*", "the attention of the layer ran never, or more than once", _no_attention)
    if records[0].hidden.undefined:
        names = "kurt_global, activation_min, activation_max, largest_*, inf_norm_*"
        yield Reason(names, "the hidden states of some layers are not known")
    yield Reason("massive.ratio", "the window's median is 0")
    yield Reason("activations.*, largest_*, kurt_global, inf_norm_*, activation_min, activation_max", SAME)


def _of_modules(record: Record, setting: Setting) -> Iterator[Reason]:
    """Projected norms, for the modules whose projection is not known."""
    for name, why in setting.batches.projections.undefined.items():
        calls = {(layer.layer, call) for call, layer in numbered(record) if layer.name == name}
        yield Reason(f"value_drain, full_head_output, full_head_output_ln of {name}", why, _of_calls(calls))


def _of_calls(calls: set[tuple[int, int]]) -> Cells:
    """The rows of these calls; a table of the whole model has null only where no call has the figure."""

    def where(table: pd.DataFrame, _: str) -> "pd.Series[bool]":
        if not {"layer", "call"} <= set(table):
            return ~_none(table)
        pairs = zip(table["layer"], table["call"], strict=True)
        return pd.Series([pair in calls for pair in pairs], index=table.index, dtype=bool)

    return where


def _equals(column: str, value: str) -> Cells:
    return lambda table, _: table[column] == value if column in table else _none(table)


def _null(name: str) -> Cells:
    return lambda table, _: table[name].isna() if name in table else _none(table)


def _other_than_null(name: str) -> Cells:
    return lambda table, _: table[name].notna() if name in table else _none(table)


def _mass_of(column: str) -> str:
    """The mass over the same keys as a figure's: all figures of a class stand on rows that have it."""
    name = base(column)
    return "first_mass" if name.startswith("sink_rate") else f"{name.rpartition('_')[0]}_mass"


def _null_mass(table: pd.DataFrame, column: str) -> "pd.Series[bool]":
    return _null(_mass_of(column))(table, column)


def _has_mass(table: pd.DataFrame, column: str) -> "pd.Series[bool]":
    return _other_than_null(_mass_of(column))(table, column)


def _has_figure(table: pd.DataFrame, column: str) -> "pd.Series[bool]":
    """Rows that have the figure or the change which the column is the error of."""
    of = column.removesuffix("_sampling_se").removesuffix("_se").removesuffix("_low").removesuffix("_high")
    return _other_than_null(of)(table, column)


def _overflows(table: pd.DataFrame, column: str) -> "pd.Series[bool]":  # noqa: ARG001 - all have these arguments
    """Rows with an infinite perplexity."""
    return table["perplexity"].abs() == float("inf") if "perplexity" in table else _none(table)


def _no_attention(table: pd.DataFrame, column: str) -> "pd.Series[bool]":  # noqa: ARG001 - all have these arguments
    """Rows without any figure of an attention's output."""
    columns = [name for name in table if str(name).startswith("attention_")]
    return table[columns].isna().all(axis=1)


def _none(table: pd.DataFrame) -> "pd.Series[bool]":
    return pd.Series(data=False, index=table.index)
