"""The fast path: softmax with another scale, constant or sink, for about the price of one more fused attention.

It serves calls whose mask is causality, a window and padding, and whose weights are
softmax(scale·z)·sigmoid(LSE(scale·z) − sink), and ends in the dense path's record.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from sinkscope.attention.band import Part
from sinkscope.attention.call import Call
from sinkscope.attention.dense import FULL_WIDTH, beside_sink
from sinkscope.attention.flash import kernel
from sinkscope.attention.flash.blocks import Rows, block_entries, reduced
from sinkscope.attention.flash.form import SoftmaxForm, softmax_form
from sinkscope.attention.norms import norms
from sinkscope.attention.question import Question
from sinkscope.attention.reductions import OF_VECTORS, Reductions
from sinkscope.attention.swap import PLAIN, Swap

FEW = 16
"""So many keys are looked up one by one: together they cost less than one product with all keys."""

NO_MAPS = OF_VECTORS | {"lse", "degenerate"}
"""What can be had without a look at every weight, beside the mass of classes."""


def serves(call: Call, swap: Swap = PLAIN) -> str | None:
    """None if this path can take the call under that swap; else, in words, why it cannot."""
    found = softmax_form(call, swap)
    return found if isinstance(found, str) else None


def attend(
    call: Call, swap: Swap = PLAIN
) -> tuple[Float[Tensor, "batch query head value_width"], Float[Tensor, "batch head query"]]:
    """The layer's output under a swap, as transformers expects it, and the log-sum-exp of the scaled scores.

    Without padding or a window, plain softmax gives sdpa's own output on the CPU, bit for bit. Queries that see no
    key get zeros, and -inf. In half precision the log-sum-exp is off by up to 1e-4. Raises ValueError where `serves`
    names a reason.
    """
    taken = _taken(call, swap)
    found = _attended(taken)
    return _output(taken, found["output"], found["lse"]), found["lse"]


def reduce(
    call: Call,
    question: Question,
    output: Float[Tensor, "batch query head value_width"] | None = None,
    swap: Swap = PLAIN,
    entries: int | None = None,
) -> Reductions:
    """Everything the question needs to know of one call under a swap; `output` is the layer's own, for its norm.

    Blocks hold at most `entries` scores, by default what suits the device. Raises ValueError where `serves` names a
    reason.
    """
    taken = _taken(call, swap)
    return _record(taken, question, _reduced(taken, question, entries), output)


def attend_and_reduce(
    call: Call, swap: Swap, question: Question, entries: int | None = None
) -> tuple[Float[Tensor, "batch query head value_width"], Reductions]:
    """Output and reductions under a swap, from the same weights.

    Where the question is about masses only, the output is that of `attend`: the mass of a few keys comes from its
    log-sum-exp at next to no price, that of many from more columns beside the values. Raises ValueError where `serves`
    names a reason.
    """
    taken = _taken(call, swap)
    few = _marks_few(question)
    if question.needs <= NO_MAPS and (few or call.query.dtype == torch.float32):
        found = _attended(taken, None if few else question.classes.float())
        output = _output(taken, found.pop("output"), found["lse"])
        if few:
            found["mass"] = _looked_up(taken, question, found["lse"])
        else:
            found["mass"] *= taken.gate(found["lse"])[..., None]
    else:
        found = _reduced(taken, question, entries, value=True)
        # Its weights had their gate already.
        output = _output(replace(taken, silent=None), found.pop("output"), found["lse"])
    return output, _record(taken, question, found, output)


def one_kernel(call: Call, question: Question) -> bool:
    """Whether under softmax one run of a fused kernel gives output and record, without a look at every weight.

    Its output may then be that of sdpa to the last bit, which does not look at its other columns.
    """
    plain = call.mask is None and call.causal and call.query.dtype == torch.float32
    return plain and question.needs <= NO_MAPS and kernel.has_kernel(call.query.device)


def _taken(call: Call, swap: Swap) -> SoftmaxForm:
    found = softmax_form(call, swap)
    if isinstance(found, str):
        raise ValueError(  # noqa: TRY004 - it is the call that does not fit, not its type
            f"expected a call that the fast path serves, got one that it does not: {found}"
        )
    return found


def _marks_few(question: Question) -> bool:
    return int(question.classes.any(dim=-1).sum(-1).max()) <= FEW


def _attended(taken: SoftmaxForm, columns: Float[Tensor, "batch key column"] | None = None) -> dict[str, Tensor]:
    """The output of softmax alone, [batch head query value_width], its log-sum-exp, and Σw over columns, in fp32."""
    return _together(taken, [(part, _attended_part(taken, part, columns)) for part in taken.band.parts()])


def _attended_part(
    taken: SoftmaxForm, part: Part, columns: Float[Tensor, "batch key column"] | None
) -> dict[str, Tensor]:
    call = taken.call
    key, value = (_cut(each, part, part.keys) for each in (call.key, call.value))
    marked = None if columns is None else _cut(columns[:, None], part, part.keys)
    if taken.band.window < part.length or not kernel.has_kernel(key.device):
        query = _cut(taken.query, part, part.queries)
        classes = None if marked is None else marked[:, 0]
        rows = Rows(query, key.float(), taken.band.window, value=value.float(), columns=classes)
        return reduced(rows, block_entries(query.device))
    if marked is not None:
        wide = pad(marked, (0, -marked.shape[-1] % FULL_WIDTH)).to(value.dtype)
        value = torch.cat([value, wide.expand(-1, value.shape[1], -1, -1)], dim=-1)
    if isinstance(taken.scale, float):
        query = _cut(call.query, part, part.queries)
        output, lse = kernel.causal(query, key, value, call.scale * taken.scale)
    else:
        # A scale of its own for each row must not be rounded to half precision.
        query = _cut(taken.query, part, part.queries)
        output, lse = kernel.causal(query, key.float(), value.float(), 1.0)
    width = call.value.shape[-1]
    found = {"output": output[..., :width].float(), "lse": lse}
    return found if marked is None else found | {"mass": output[..., width : width + marked.shape[-1]]}


def _reduced(taken: SoftmaxForm, question: Question, entries: int | None, *, value: bool = False) -> dict[str, Tensor]:
    """Whatever takes a look at every weight, by the names of Reductions' fields."""
    call, query = taken.call, taken.query
    columns = question.classes.float()
    silent = None if taken.silent is None else taken.silent.expand(query.shape[:3])
    parts = []
    for part in taken.band.parts():
        rows = Rows(
            query=_cut(query, part, part.queries),
            key=_cut(call.key, part, part.keys).float(),
            window=taken.band.window,
            needs=question.needs,
            columns=_cut(columns[:, None], part, part.keys)[:, 0],
            keep=_cut(question.keep[:, None], part, part.queries)[:, 0],
            silent=None if silent is None else _cut(silent, part, part.queries),
            value=_cut(call.value, part, part.keys).float() if value else None,
        )
        parts.append((part, reduced(rows, entries or block_entries(query.device))))
    return _together(taken, parts)


def _cut(tensor: Tensor, part: Part, positions: slice) -> Tensor:
    """The part's rows of the batch, and these positions of the third axis."""
    rows = tensor if len(part.rows) == tensor.shape[0] else tensor[list(part.rows)]
    return rows[:, :, positions]


def _together(taken: SoftmaxForm, parts: list[tuple[Part, dict[str, Tensor]]]) -> dict[str, Tensor]:
    """The parts of a batch as one, with zeros where a query sees nothing or a key is padding; -inf for an LSE."""
    batch, length = taken.call.query.shape[0], taken.call.length
    part, found = parts[0]
    if len(part.rows) == batch and part.queries == part.keys == slice(0, length):
        return found
    whole = {}
    for name, tensor in found.items():
        shape = (batch, tensor.shape[1], length, *tensor.shape[3:])
        whole[name] = tensor.new_full(shape, -torch.inf if name == "lse" else 0)
        for part, each in parts:
            positions = part.keys if name == "received" else part.queries
            whole[name][list(part.rows), :, positions] = each[name]
    return whole


def _looked_up(
    taken: SoftmaxForm, question: Question, lse: Float[Tensor, "batch head query"]
) -> Float[Tensor, "batch head query column"]:
    """Σw over each class, from the scores of the few keys that are in any."""
    columns = question.classes
    marked = columns.any(dim=-1)
    places = marked.long().topk(int(marked.sum(-1).max())).indices
    batch, few = places.shape
    key, query = taken.call.key.float(), taken.query
    at = places[:, None, :, None].expand(batch, key.shape[1], few, key.shape[3])
    stacked = query.reshape(batch, key.shape[1], -1, key.shape[3])
    scores = (stacked @ key.gather(2, at).transpose(2, 3)).view(*query.shape[:3], few)
    low, high = (each[..., None] for each in taken.band.reach(places.device))
    visible = (places[:, None] >= low) & (places[:, None] < high)
    weights = (scores - lse[..., None]).exp().where(visible[:, None], 0) * taken.gate(lse)[..., None]
    return weights @ columns.float().gather(1, places[..., None].expand(batch, few, columns.shape[-1]))[:, None]


def _output(
    taken: SoftmaxForm, output: Float[Tensor, "batch head query value_width"], lse: Float[Tensor, "batch head query"]
) -> Float[Tensor, "batch query head value_width"]:
    gated = output if taken.silent is None else output * taken.gate(lse)[..., None]
    return gated.transpose(1, 2).to(taken.call.value.dtype).contiguous()


def _unscaled_lse(taken: SoftmaxForm) -> Float[Tensor, "batch head query"]:
    call = taken.call
    exact = replace(call, query=call.query.float(), key=call.key.float(), value=call.value.float())
    return _attended(replace(taken, call=exact, scale=1.0))["lse"]


def _record(taken: SoftmaxForm, question: Question, found: dict[str, Tensor], output: Tensor | None) -> Reductions:
    lse, needs = found.pop("lse"), question.needs
    row, sink = taken.gate(lse), taken.sink_mass(lse)
    found |= {"absolute_mass": found["mass"], "row_mass": row, "absolute_row": row}
    if sink is not None:
        found["sink_mass"] = sink
    if "lse" in needs:
        plain = lse if isinstance(taken.scale, float) and taken.scale == 1 else _unscaled_lse(taken)
        found["lse"] = beside_sink(plain, taken.call.sink)
    if "received" in needs:
        found["receivers"] = taken.band.receivers(question.keep).to(found["received"].dtype)
    found |= norms(taken.call, needs, output)
    fields: dict[str, Any] = found | {"keys": taken.keys, "seen": taken.band.seen(question.classes)}
    return Reductions(question=question, **fields)
