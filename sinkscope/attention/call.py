"""One call of an attention layer, as plain tensors, and the scores it stands for."""

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from sinkscope.attention.sight import Sight


@dataclass(frozen=True, eq=False)
class Call:
    """What a layer handed to its attention function: everything that decides its weights.

    The scores are scale·q·k, soft-capped where there is a cap, plus the bias; a hidden key's score is -inf.
    A learned sink is one more key with value zero, whose score is the learned logit.
    """

    query: Float[Tensor, "batch head query width"]
    key: Float[Tensor, "batch group key width"]
    value: Float[Tensor, "batch group key value_width"]
    scale: float
    mask: Bool[Tensor, "#batch #head query key"] | Float[Tensor, "#batch #head query key"] | None = None
    causal: bool = False
    softcap: float | None = None
    bias: Float[Tensor, "#batch #head query key"] | None = None
    sink: Float[Tensor, "#batch head #query"] | None = None
    first: Int[Tensor, "#batch"] = field(default_factory=lambda: torch.zeros(1, dtype=torch.int64))
    """Where the first real token stands among the keys; negative where a cache has dropped it."""
    dropout: float = 0.0
    gram: Float[Tensor, "head value_width value_width"] | None = None
    """W_O·W_Oᵀ of each head's slice of the output projection in fp32, where a run needs it: ‖W_O·v‖² = vᵀ·gram·v."""

    def __post_init__(self) -> None:
        if self.query.shape[1] % self.key.shape[1]:
            raise ValueError(
                f"expected query heads to be a multiple of key heads, got {self.query.shape[1]} and {self.key.shape[1]}"
            )

    @property
    def repeats(self) -> int:
        """How many query heads share one key head."""
        return self.query.shape[1] // self.key.shape[1]

    @property
    def length(self) -> int:
        """The number of queries."""
        return self.query.shape[2]

    @property
    def exact_dtype(self) -> torch.dtype:
        """The dtype of its scores: fp32, or fp64 in a layer of double precision."""
        return torch.promote_types(self.query.dtype, torch.float32)

    def rows(self, start: int, stop: int) -> "Call":
        """The same call for the queries start…stop-1 only, without keys that causality hides from all of them."""
        keys = slice(0, stop if self.causal else None)
        return self._of(slice(start, stop), keys)

    def at(self, positions: Int[Tensor, "batch few"]) -> "Call":
        """The same call for the queries at these positions of each batch row only, causality written as a mask."""
        mask, sink = self.mask, self.sink
        if self.causal:
            mask = torch.arange(self.key.shape[2], device=positions.device) <= positions[:, None, :, None]
        elif mask is not None:
            mask = _at(mask, positions)
        if sink is not None and sink.shape[-1] > 1:
            sink = _at(sink[..., None], positions)[..., 0]
        bias = None if self.bias is None else _at(self.bias, positions)
        query = _at(self.query, positions)
        return dataclasses.replace(self, query=query, mask=mask, causal=False, bias=bias, sink=sink)

    def between(self, start: int, stop: int) -> "Call":
        """The same call for the keys start…stop-1 only, where it has no others to see."""
        keys = slice(start, stop)
        return dataclasses.replace(
            self,
            key=self.key[:, :, keys],
            value=self.value[:, :, keys],
            mask=_part(self.mask, slice(None), keys),
            bias=_part(self.bias, slice(None), keys),
            first=self.first - start,
        )

    def exact(self) -> "Call":
        """The same call with queries, keys and values in fp32, or fp64 if they are."""
        return dataclasses.replace(self, query=_exact(self.query), key=_exact(self.key), value=_exact(self.value))

    def visible(self) -> Bool[Tensor, "#batch #head query key"]:
        """True where a query may see a key: the mask's boolean reading, whatever form the mask came in."""
        if self.mask is None:
            everything = slice(None)
            return self._visible_block(everything, everything)
        return visible_in(self.mask)

    @cached_property
    def sight(self) -> Sight:
        """Who sees whom, read once."""
        return Sight(self.visible())

    def scores(self) -> Float[Tensor, "batch head query key"]:
        """Scores in fp32 from the product on, -inf at hidden keys; the learned sink is not among them."""
        batch, heads, queries, width = self.query.shape
        groups = self.key.shape[1]
        # Query heads that share a key head are stacked as more queries, so that keys are never repeated.
        stacked = self.query.reshape(batch, groups, self.repeats * queries, width)
        scores = torch.matmul(_exact(stacked) * self.scale, _exact(self.key).transpose(2, 3))
        scores = scores.view(batch, heads, queries, -1)
        if self.softcap is not None:
            scores = torch.tanh(scores / self.softcap) * self.softcap
        if self.bias is not None:
            scores = scores + self.bias.to(scores.dtype)
        if self.mask is not None and self.mask.dtype != torch.bool:
            scores = scores + self.mask.to(scores.dtype)
        # No operation before this one keeps its result for the gradient, so it may be written over.
        return self.sight.fill_(scores, -torch.inf)

    def output(self, weights: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch head query value_width"]:
        """The weighted sum of the values, in the weights' dtype."""
        batch, heads, queries, keys = weights.shape
        stacked = weights.reshape(batch, self.key.shape[1], self.repeats * queries, keys)
        return torch.matmul(stacked, self.value.to(weights.dtype)).view(batch, heads, queries, -1)

    def _of(self, rows: slice, keys: slice) -> "Call":
        mask = self._visible_block(rows, keys) if self.causal else _part(self.mask, rows, keys)
        sink = self.sink if self.sink is None or self.sink.shape[-1] == 1 else self.sink[..., rows]
        return dataclasses.replace(
            self,
            query=self.query[:, :, rows],
            key=self.key[:, :, keys],
            value=self.value[:, :, keys],
            mask=mask,
            causal=False,
            bias=_part(self.bias, rows, keys),
            sink=sink,
        )

    def _visible_block(self, rows: slice, keys: slice) -> Bool[Tensor, "1 1 query key"]:
        queries = torch.arange(self.query.shape[2], device=self.query.device)[rows][:, None]
        columns = torch.arange(self.key.shape[2], device=self.query.device)[keys]
        seen = columns <= queries if self.causal else torch.ones_like(columns <= queries)
        return seen[None, None]


def visible_in(mask: Bool[Tensor, "*axes"] | Float[Tensor, "*axes"]) -> Bool[Tensor, "*axes"]:
    """True where a mask shows a key, in whatever form transformers wrote it."""
    if mask.dtype == torch.bool:
        return mask
    # Masks are summed upstream, so a hidden key may carry finfo.min plus a bias, or -inf.
    return mask > torch.finfo(mask.dtype).min / 2


def _exact(tensor: Tensor) -> Tensor:
    """Half precision becomes fp32; fp32 and fp64 stay."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _part(tensor: Tensor | None, rows: slice, keys: slice) -> Tensor | None:
    return None if tensor is None else tensor[:, :, rows, keys]


def _at(
    tensor: Shaped[Tensor, "#batch heads query axis"], positions: Int[Tensor, "batch few"]
) -> Shaped[Tensor, "batch heads few axis"]:
    """The queries at these positions of each batch row."""
    batch, few = positions.shape
    whole = tensor.expand(batch, -1, -1, -1)
    return whole.gather(2, positions[:, None, :, None].expand(batch, tensor.shape[1], few, tensor.shape[3]))
