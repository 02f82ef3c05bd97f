"""measure() and compare(): a model, a tokenizer and a text in, a report out."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from functools import partial
from inspect import signature
from typing import Any

from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from sinkscope import arguments
from sinkscope.hooks.forward import embedding
from sinkscope.hooks.patch import Head
from sinkscope.normalizers import Modifier
from sinkscope.progress import Progress, silent
from sinkscope.protocols import Asked, Settled
from sinkscope.report import Report
from sinkscope.runs.capacity import longest_window
from sinkscope.runs.options import Options
from sinkscope.study.following import follow
from sinkscope.study.runs import Swaps, Weighing, compare_windows, measure_windows
from sinkscope.text import corpus
from sinkscope.text.documents import Document, Rows
from sinkscope.text.reading import read
from sinkscope.text.synthetic import synthetic as synthetic_windows


@dataclass(frozen=True, eq=False)
class _Source:
    """What is measured on: a text, token ids, or synthetic tokens."""

    tokenizer: Any
    text: str | Sequence[str | Document | Rows] | None
    ids: Tensor | None
    mask: Tensor | None
    synthetic: str | None
    seed: int
    model: PreTrainedModel
    chat: bool
    progress: Progress

    def __post_init__(self) -> None:
        given = {"text": self.text, "input_ids": self.ids, "synthetic": self.synthetic}
        names = [name for name, each in given.items() if each is not None]
        if len(names) > 1:
            raise ValueError(f"expected a text, input_ids or synthetic tokens, got {' and '.join(names)}")
        if self.mask is not None and self.ids is None:
            raise ValueError("expected input_ids together with attention_mask, got none")
        if self.tokenizer is None and self.ids is None:
            raise ValueError("expected a tokenizer for the text, got None: give input_ids instead")
        if self.chat and self.text is None:
            raise ValueError("expected a text for the chat template, got none")

    def cut(self, plan: Settled) -> corpus.Windows:
        """The windows that a protocol asks for."""
        if self.ids is not None:
            return corpus.from_ids(self.ids, self.mask)
        self.progress("cutting the text into windows", 0, None)
        if self.synthetic is not None:
            return synthetic_windows(
                self.tokenizer,
                self.synthetic,
                seq_len=plan.seq_len,
                count=plan.count,
                bos=plan.bos,
                seed=self.seed,
                embedded=len(embedding(self.model)),
            )
        documents = read() if self.text is None else _documents(self.text, plan)
        return corpus.windows(
            self.tokenizer,
            documents,
            seq_len=plan.seq_len,
            count=plan.count,
            explicit=plan.explicit,
            bos=plan.bos,
            chat=self.chat,
        )

    def given(
        self, seq_len: int | None, windows: int | str | None, bos: str | None, options: dict[str, Any]
    ) -> dict[str, Any]:
        """The options that a protocol may contradict; token ids have a length and a number of their own."""
        if self.ids is not None:
            asked = {"seq_len": seq_len, "windows": windows, "bos": bos}
            if beside := [name for name, value in asked.items() if value is not None]:
                raise ValueError(
                    f"expected input_ids as they are to be measured, got {' and '.join(beside)} beside them"
                )
            windows, seq_len = self.ids.shape if self.ids.ndim == 2 else (1, 2)  # other shapes are refused when cut
        return {
            "seq_len": seq_len,
            "windows": windows,
            "bos": bos,
            "chat": self.chat,
            "epsilon": options.pop("epsilon", None),
            "queries": options.get("queries"),
            "synthetic": self.synthetic is not None,
            "longest": longest_window(self.model) if self.ids is None and seq_len is None else None,
        }


@dataclass(frozen=True, eq=False)
class _Inputs:
    """What a caller has given to be measured on, as it was given."""

    text: Any
    ids: Any
    mask: Any
    synthetic: Any
    protocol: Any
    seq_len: Any
    windows: Any
    bos: Any
    chat: Any

    def source(self, model: Any, tokenizer: Any, options: dict[str, Any]) -> tuple[_Source, dict[str, Any]]:
        """Where windows come from, and the options that a protocol may contradict; raises for what makes no sense."""
        arguments.checked_model(model)
        arguments.checked_tokenizer(tokenizer)
        seq_len, windows = arguments.checked_cut(
            seq_len=self.seq_len,
            windows=self.windows,
            bos=self.bos,
            synthetic=self.synthetic,
            chat=self.chat,
            protocol=self.protocol,
        )
        source = _Source(
            tokenizer=tokenizer,
            text=_texts(self.text),
            ids=arguments.token_ids(self.ids),
            mask=arguments.attention_mask(self.mask),
            synthetic=self.synthetic,
            seed=options.get("seed", 0),
            model=model,
            chat=self.chat,
            progress=options.get("progress", silent),
        )
        return source, source.given(seq_len, windows, self.bos, options)


_SWAPS = ("normalizers", "modifier", "layers", "heads", "sweep")
"""What compare takes and measure does not."""


def _known(function: Callable[..., Report]) -> set[str]:
    """The names of a function's arguments and of all options."""
    return ({*signature(function).parameters} | {each.name for each in fields(Options)}) - {"options"}


def measure(
    model: PreTrainedModel,
    tokenizer: Any = None,
    text: str | Document | Rows | Sequence[str | Document | Rows] | None = None,
    *,
    input_ids: Int[Tensor, "batch position"] | None = None,
    attention_mask: Tensor | None = None,
    synthetic: str | None = None,
    protocol: Asked = None,
    seq_len: int | None = None,
    windows: int | str | None = None,
    bos: str | None = None,
    chat: bool = False,
    **options: Any,
) -> Report:
    """Measure where each head's attention goes.

    Text is cut into `windows` windows of `seq_len` tokens: by default 4 of 512, or as many as there are. "all" asks for
    all there are; fewer than a number that is given are an error. Several texts are several documents, and
    `sinkscope.read` gives those of files, tables and datasets. With `chat`, each is a user turn in the tokenizer's chat
    template. No text at all means the built-in sample, and `synthetic` windows of `random`
    tokens, or of one token that is to `repeat`. With `input_ids`, each row is one window, padded on either side where
    `attention_mask` is 0, and no tokenizer is needed; classes that depend on text are then undefined.

    A `protocol`, by its name in `sinkscope.PROTOCOLS` or by its card, decides all of this as its paper does. Of
    several, or of "all", masses and the protocols' own figures are measured, each on windows of its own, and stand
    below each other. `options` are the fields of `sinkscope.runs.options.Options`. The model is left exactly as it was.

    Raises UnsupportedModelError for a model whose attention cannot be seen, TextError for a text that is too short,
    ProtocolError for an option that contradicts the protocol.
    """
    options = arguments.checked_options(options, _known(measure), dict.fromkeys(_SWAPS, "compare"))
    inputs = _Inputs(text, input_ids, attention_mask, synthetic, protocol, seq_len, windows, bos, chat)
    source, given = inputs.source(model, tokenizer, options)
    return follow(protocol, given, source.cut, partial(measure_windows, model, tokenizer), options)


def compare(
    model: PreTrainedModel,
    tokenizer: Any = None,
    text: str | Document | Rows | Sequence[str | Document | Rows] | None = None,
    *,
    normalizers: Sequence[Weighing] = (),
    modifier: Modifier | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[Head] | None = None,
    sweep: bool = False,
    input_ids: Int[Tensor, "batch position"] | None = None,
    attention_mask: Tensor | None = None,
    synthetic: str | None = None,
    protocol: Asked = None,
    seq_len: int | None = None,
    windows: int | str | None = None,
    bos: str | None = None,
    chat: bool = False,
    **options: Any,
) -> Report:
    """Measure the model under plain softmax and under each normalizer: sinks, loss, and the change, paired by window.

    The swap is described in `Swaps`; everything else is as in `measure`. Before and after take the same windows and
    the same code path, and the difference that our own softmax makes to the model's logits is in the metadata.

    Raises what `measure` raises, UnknownNameError for an unknown normalizer, layer or head, and ValueError where there
    is nothing to compare.
    """
    options = arguments.checked_options(options, _known(compare))
    arguments.checked_modifier(modifier)
    swaps = Swaps(
        normalizers=arguments.normalizers(normalizers),
        modifier=modifier,
        layers=arguments.checked_layers(layers),
        heads=arguments.checked_heads(heads),
        sweep=arguments.flag("sweep", sweep),
    )
    inputs = _Inputs(text, input_ids, attention_mask, synthetic, protocol, seq_len, windows, bos, chat)
    source, given = inputs.source(model, tokenizer, options)
    return follow(protocol, given, source.cut, partial(compare_windows, model, tokenizer, swaps=swaps), options)


def _texts(text: Any) -> str | list[str | Document | Rows] | None:
    """Texts as they were given, once it is clear that they are texts or documents that were read."""
    if isinstance(text, Document | Rows):
        return [text]
    if isinstance(text, list | tuple) and any(isinstance(each, Document | Rows) for each in text):
        arguments.texts([each for each in text if not isinstance(each, Document | Rows)] or "")
        return list(text)
    found = arguments.texts(text)
    return [*found] if isinstance(found, list) else found


def _documents(text: str | Sequence[str | Document | Rows], plan: Settled) -> list[Document | Rows]:
    """The texts, each of its own length if it is shorter than a window; a paper's samples all have one length."""
    texts = [text] if isinstance(text, str) else list(text)
    how = {"prompt": True} if not plan.protocol.published else {"many": len(texts) > 1}
    return [
        Document(name=f"text {index}", text=each, **how) if isinstance(each, str) else each
        for index, each in enumerate(texts, start=1)
    ]
