"""What happens to a pretrained model when softmax is replaced: before and after, side by side."""

import sys

import sinkscope

model, tokenizer = sinkscope.load(sys.argv[1] if len(sys.argv) > 1 else None)
normalizers = ["softmax1", "topk:k=8", "entmax:alpha=1.5"]
report = sinkscope.compare(model, tokenizer, normalizers=normalizers, seq_len=128, windows=2)

columns = ["normalizer", "first_mass", "first_share", "row_mass", "sink_rate", "perplexity"]
print(report.summary[columns].round(3).to_string(index=False))

# The same swap for any use of the model, here in two layers only; afterwards the model is as it was.
inputs = tokenizer("The capital of France is", return_tensors="pt")
with sinkscope.patched(model, "softmax1", layers=[1, 2]):
    answer = model.generate(**inputs, max_new_tokens=4, do_sample=False)
print(repr(tokenizer.decode(answer[0])))
