"""Which way a call is reduced: the fast path where it serves, else the plain one; asked for by name, that one only."""

from enum import StrEnum

from jaxtyping import Float
from torch import Tensor

from sinkscope.attention import dense, flash
from sinkscope.attention.call import Call
from sinkscope.attention.question import Question
from sinkscope.attention.reductions import Reductions
from sinkscope.attention.swap import Swap
from sinkscope.errors import UnsupportedModelError


class Path(StrEnum):
    """What can be asked for: `auto` is flash where it serves, else dense."""

    auto = "auto"
    flash = "flash"
    dense = "dense"


def taken(call: Call, swap: Swap, asked: Path, question: Question) -> Path:
    """The path by which the call is reduced; UnsupportedModelError where flash was asked for and does not serve.

    A question about some queries only is the dense path's: it is a fraction of a pass however it is answered.
    """
    if asked is Path.dense:
        return asked
    reason = flash.serves(call, swap) if question.positions is None else "queries are sampled"
    if reason is None:
        return Path.flash
    if asked is Path.flash:
        raise UnsupportedModelError(f"the flash path cannot serve this run: {reason}; use --attention auto")
    return Path.dense


def reduce(
    call: Call, question: Question, output: Float[Tensor, "batch query head value_width"], path: Path
) -> Reductions:
    """Everything the question needs to know of one call under its own softmax, by a path that serves it."""
    if path is Path.flash:
        return flash.reduce(call, question, output)
    return dense.reduce(call, question, output)


def attend(call: Call, swap: Swap, asked: Path = Path.auto) -> Float[Tensor, "batch query head value_width"]:
    """The output under a swap, by the fast path where that serves and is not ruled out."""
    if asked is not Path.dense and flash.serves(call, swap) is None:
        return flash.attend(call, swap)[0]
    return dense.attend(call, swap)


def attend_and_reduce(
    call: Call, swap: Swap, question: Question, asked: Path
) -> tuple[Float[Tensor, "batch query head value_width"], Reductions]:
    """Output and reductions under a swap, by the fast path where that serves and is not ruled out."""
    if question.positions is not None:
        output = attend(call, swap, asked)
        return output, dense.reduce(call, question, output, swap)
    if asked is not Path.dense and flash.serves(call, swap) is None:
        return flash.attend_and_reduce(call, swap, question)
    return dense.attend_and_reduce(call, swap, question)
