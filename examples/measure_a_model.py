"""Which layers rest on the first token: a model, its tokenizer and a text in, a table out."""

import sys

import sinkscope

# A Hub id, a directory or a .gguf file; without one, $SINKSCOPE_MODEL or the embedded model.
model, tokenizer = sinkscope.load(sys.argv[1] if len(sys.argv) > 1 else None)
report = sinkscope.measure(model, tokenizer, seq_len=128, windows=2)

columns = ["layer", "first_share", "first_share_se", "sink_rate", "entropy", "punctuation_lift"]
print(report.layers[columns].round(3).to_string(index=False))
print(f"all heads: {report.summary['first_share'].item():.3f} of their attention is on the first token")
