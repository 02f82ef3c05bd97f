"""What a Python caller hands over: each argument is what was meant, or one sentence says what was expected.

To check a new option, give it an entry in `options.CHECKS`.
"""

from sinkscope.arguments.inputs import attention_mask, checked_model, checked_tokenizer, texts, token_ids
from sinkscope.arguments.options import checked_cut, checked_options
from sinkscope.arguments.swaps import checked_heads, checked_layers, checked_modifier, checked_normalizer, normalizers
from sinkscope.arguments.values import flag

__all__ = [
    "attention_mask",
    "checked_cut",
    "checked_heads",
    "checked_layers",
    "checked_model",
    "checked_modifier",
    "checked_normalizer",
    "checked_options",
    "checked_tokenizer",
    "flag",
    "normalizers",
    "texts",
    "token_ids",
]
