"""measure() and compare(): a model, a tokenizer and a text in, a report out."""

from sinkscope.study.study import compare, measure

__all__ = ["compare", "measure"]
