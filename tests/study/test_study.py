"""measure() from end to end: what it takes, what it refuses, and that nothing but the text decides the figures."""

from dataclasses import replace

import accelerate
import numpy as np
import pandas as pd
import pytest
import torch
from builders import ARCHITECTURES, tiny
from transformers.models.llama.modeling_llama import LlamaAttention

import sinkscope
from sinkscope.errors import SinkscopeError, TextError, UnsupportedModelError
from sinkscope.metrics import METRICS

TEXT = "She said, “no”.\n\nThen: 1, 2 and 3!\n" * 9
GPT2_NAMES = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64}
OTHERS = {
    "codegen": GPT2_NAMES | {"rotary_dim": 4, "n_ctx": 64},
    "gpt_bigcode": GPT2_NAMES | {"multi_query": True},
}


@pytest.fixture(scope="module")
def model():
    return tiny("llama", max_position_embeddings=512)


@pytest.fixture(scope="module")
def alone(model):
    """The report on the rows of `ids`, by which others are judged."""
    return sinkscope.measure(model, input_ids=fixed_ids())


def fixed_ids():
    return torch.randint(3, 300, (3, 24), generator=torch.Generator().manual_seed(1))


def assert_same(report, wanted, tolerance=0.0):
    for name, table in wanted.tables().items():
        pd.testing.assert_frame_equal(
            report.tables()[name], table, rtol=tolerance, atol=tolerance, check_exact=not tolerance
        )


def test_ids_need_no_tokenizer_and_then_only_positions_are_told_apart(alone):
    classes = [name.removesuffix("_mass") for name in alone.heads if name.endswith("_mass")]
    assert classes == ["first", "other", "initial", "bos", "row", "sink_logit"]
    assert set(alone.tokens["class"]) == {"first", "other"}
    assert alone.tokens["token"].isna().all()
    assert alone.heads["bos_mass"].isna().all()
    assert set(alone.metadata["undefined"]) >= {"bos_*", "sink_logit_mass"}
    assert set(alone.metadata["not_measured"]) >= {"punctuation_*", "special_*", "newline_*"}
    assert len(alone.heads) == 16
    assert len(alone.layers) == 4
    assert len(alone.tokens) == 3 * 24
    assert alone.summary["tokens_scored"].tolist() == [3 * 23]


def test_text_is_read_with_its_tokenizer(model, tokenizer):
    report = sinkscope.measure(model, tokenizer, TEXT, seq_len=32, windows=3, bos="always")
    assert "".join(report.tokens["token"][:12]) == r"<s>She said, \xe2"
    assert set(report.tokens["class"]) == {"first", "punctuation", "newline", "other"}
    assert report.heads["bos_mass"].equals(report.heads["first_mass"])
    assert report.heads["special_mass"].isna().all()
    assert "special_*" in report.metadata["undefined"]
    parts = ["first", "punctuation", "newline", "other"]
    masses = sum(report.heads[f"{name}_share"] * report.heads[f"{name}_queries"] for name in parts)
    np.testing.assert_allclose(masses, report.heads["queries"], rtol=1e-6)


def test_ids_with_a_tokenizer_have_all_classes(model, tokenizer):
    report = sinkscope.measure(model, tokenizer, input_ids=torch.tensor([tokenizer(TEXT).input_ids[:24]]))
    assert set(report.tokens["class"]) == {"first", "punctuation", "newline", "other"}
    assert report.heads.filter(like="_se").isna().all(axis=None)


@pytest.mark.parametrize(("windows", "count"), [(2, 2), (None, 4), ("all", 8), (8, 8)])
def test_windows_are_as_many_as_asked_for_or_all(model, tokenizer, windows, count):
    report = sinkscope.measure(model, tokenizer, TEXT, seq_len=40, windows=windows)
    assert report.tokens["window"].nunique() == count
    assert report.metadata["text"]["windows"] == count


def test_fewer_windows_than_asked_for_are_an_error(model, tokenizer):
    with pytest.raises(TextError, match="gives 8 windows of 40 tokens, fewer than the 9 asked for"):
        sinkscope.measure(model, tokenizer, TEXT, seq_len=40, windows=9)


def test_several_texts_are_several_documents(model, tokenizer):
    report = sinkscope.measure(model, tokenizer, [TEXT, "A short one."], seq_len=40, windows=3)
    assert report.tokens.groupby("document")["window"].nunique().to_dict() == {"text 1": 2, "text 2": 1}
    assert (report.tokens["document"] == "text 2").sum() == len("A short one.")


def test_misuse_is_told_in_one_line(model, tokenizer):
    with pytest.raises(ValueError, match="expected a text, input_ids or synthetic tokens, got text and input_ids"):
        sinkscope.measure(model, tokenizer, "text", input_ids=fixed_ids())
    with pytest.raises(ValueError, match="expected a tokenizer for the text, got None: give input_ids instead"):
        sinkscope.measure(model, text="text")
    with pytest.raises(ValueError, match="expected bos to be auto, always or never, got 'yes'"):
        sinkscope.measure(model, tokenizer, TEXT, bos="yes")
    with pytest.raises(ValueError, match="expected initial >= 1, got 0"):
        sinkscope.measure(model, input_ids=fixed_ids(), initial=0)
    with pytest.raises(ValueError, match="expected padding on one side"):
        sinkscope.measure(model, input_ids=torch.ones(1, 5).long(), attention_mask=torch.tensor([[1, 1, 0, 1, 1]]))
    with pytest.raises(ValueError, match="expected extra metrics with names of their own"):
        sinkscope.measure(model, input_ids=fixed_ids(), metrics=[replace(METRICS["mass"], unit="kg")])


@pytest.mark.parametrize(("text", "seq_len"), [("", 32), (".", 32), (TEXT, 1), (TEXT, 0)])
def test_text_that_holds_no_window_is_refused(model, tokenizer, text, seq_len):
    with pytest.raises(TextError, match=r"\A[^\n]+\Z"):
        sinkscope.measure(model, tokenizer, text, seq_len=seq_len)


def test_one_token_is_refused_and_two_are_measured(model):
    with pytest.raises(ValueError, match="at least 2 tokens"):
        sinkscope.measure(model, input_ids=torch.tensor([[5]]))
    report = sinkscope.measure(model, input_ids=torch.tensor([[5, 6]]))
    assert report.heads["queries"].eq(1).all()
    assert report.heads["first_mass"].between(0, 1).all()
    assert report.summary["tokens_scored"].tolist() == [1]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_the_size_of_batches_changes_no_table(model, alone, batch_size):
    assert_same(sinkscope.measure(model, input_ids=fixed_ids(), batch_size=batch_size), alone)


def test_the_same_run_twice_gives_the_same_tables(model, alone):
    assert_same(sinkscope.measure(model, input_ids=fixed_ids()), alone)


@pytest.fixture
def memory(model):
    """Let layer 2 run out of memory over more windows at a time than these; tells the sizes that were tried."""
    tried, hooks = [], []

    def limit(windows, message="CUDA out of memory."):
        def full(_, args):
            batch, length, _ = args[0].shape
            if length > 17:
                tried.append(batch)
                if batch > windows:
                    raise torch.OutOfMemoryError(message)

        hooks.append(model.model.layers[2].register_forward_pre_hook(full))
        return tried

    yield limit
    for hook in hooks:
        hook.remove()


def test_batches_that_do_not_fit_are_halved(model, alone, memory):
    tried = memory(1)
    assert_same(sinkscope.measure(model, input_ids=fixed_ids()), alone)
    assert tried == [*sorted(set(tried), reverse=True), 1, 1]
    assert tried[0] == 3


@pytest.mark.parametrize("message", ["CUDA out of memory.", "allocation on device failed"])
def test_a_window_that_does_not_fit_is_told_in_one_line(model, ids, memory, message):
    memory(0, message)
    with pytest.raises(SinkscopeError, match=r"\Aout of memory with 1 x 24 tokens: use a shorter .*\Z"):
        sinkscope.measure(model, input_ids=ids)


def test_a_batch_size_of_ones_own_that_does_not_fit_is_told_in_one_line(model, ids, memory):
    memory(1)
    with pytest.raises(SinkscopeError, match="out of memory with 2 x 24 tokens"):
        sinkscope.measure(model, input_ids=ids, batch_size=2)


def test_a_model_on_sdpa_is_measured_without_a_word(model, ids, capfd):
    assert model.config._attn_implementation == "sdpa"
    sinkscope.measure(model, input_ids=ids)
    assert model.config._attn_implementation == "sdpa"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("architecture", ["deepseek_v3", "phi3", "gpt_neox", *OTHERS])
def test_fused_latent_and_shared_keys_are_measured_for_every_query_head(architecture, ids, monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, architecture, ARCHITECTURES.get(architecture) or OTHERS.get(architecture, {}))
    report = sinkscope.measure(tiny(architecture), input_ids=ids)
    assert report.heads.groupby("layer").size().tolist() == [4, 4, 4, 4]
    assert report.metadata["attention"]["identity_delta"] < 1e-5
    assert (report.heads["row_mass"] - 1).abs().max() < 1e-5


def test_layers_with_different_numbers_of_heads_are_rows_of_one_table(ids):
    model = tiny("llama")
    for layer, heads in enumerate((2, 4, 8)):
        config = type(model.config)(**model.config.to_dict() | {"num_attention_heads": heads})
        config._attn_implementation = "sdpa"
        model.model.layers[layer].self_attn = LlamaAttention(config, layer).eval()
    report = sinkscope.measure(model, input_ids=ids)
    assert report.heads.groupby("layer").size().tolist() == [2, 4, 8, 4]
    assert report.layers["heads"].tolist() == [2, 4, 8, 4]
    assert report.summary["heads"].tolist() == [18]
    assert float(report.summary["first_mass"][0]) == pytest.approx(report.heads["first_mass"].mean())


def test_caches_of_earlier_calls_and_settings_of_generation_change_nothing(alone):
    model = tiny("llama", max_position_embeddings=512)
    model.config.use_cache = True
    model.generation_config.cache_implementation = "static"
    with torch.no_grad():
        model(input_ids=fixed_ids()[:1, :5], use_cache=True)
        model.generate(fixed_ids()[:1, :5], max_new_tokens=2, do_sample=False, pad_token_id=0)
    assert_same(sinkscope.measure(model, input_ids=fixed_ids()), alone)
    assert model.config.use_cache is True
    assert model.generation_config.cache_implementation == "static"


def on_disk(model, folder):
    accelerate.disk_offload(model, folder, execution_device=torch.device("cpu"))


def in_main_memory(model, _):
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))


@pytest.mark.parametrize("side", [None, "left"])
@pytest.mark.parametrize("offload", [on_disk, in_main_memory])
def test_offloaded_models_give_the_same_figures_and_keep_their_hooks(offload, side, model, tmp_path):
    keep = torch.arange(24) >= torch.tensor([[0], [7 if side else 0], [0]])
    wanted = sinkscope.measure(model, input_ids=fixed_ids(), attention_mask=keep)
    away = tiny("llama", max_position_embeddings=512)
    offload(away, tmp_path)
    hooked = [name for name, module in away.named_modules() if hasattr(module, "_hf_hook")]
    assert away.lm_head.weight.device.type == "meta"
    assert_same(sinkscope.measure(away, input_ids=fixed_ids(), attention_mask=keep), wanted, tolerance=1e-5)
    assert [name for name, module in away.named_modules() if hasattr(module, "_hf_hook")] == hooked
    assert away.lm_head.weight.device.type == "meta"


def test_a_model_that_may_not_be_moved_or_cast_is_not(alone, monkeypatch):
    model = tiny("llama", max_position_embeddings=512)

    def refuse(*_args, **_options):
        pytest.fail("a quantized model was moved or cast")

    for name in ("to", "half", "float", "double", "bfloat16", "cpu", "cuda"):
        monkeypatch.setattr(model, name, refuse)
    assert_same(sinkscope.measure(model, input_ids=fixed_ids()), alone)


def test_a_layer_that_is_skipped_for_some_texts_is_refused(model, ids):
    layer = model.model.layers[3]
    own = layer.forward
    layer.forward = lambda states, *args, **options: states if states.shape[1] > 17 else own(states, *args, **options)
    try:
        with pytest.raises(UnsupportedModelError, match="made 3 attention calls over this text and 4 over its first"):
            sinkscope.measure(model, input_ids=ids)
    finally:
        del layer.forward


def test_progress_grows_to_the_number_of_tokens(model, ids):
    told = []
    sinkscope.measure(model, input_ids=ids, batch_size=2, progress=lambda *step: told.append(step))
    measuring = [(done, total) for stage, done, total in told if stage == "measuring"]
    assert measuring == sorted(measuring)
    assert measuring[0] == (0, ids.numel())
    assert measuring[-1] == (ids.numel(), ids.numel())


def test_the_threshold_of_the_sink_rate_is_the_users(model, ids):
    rates = [
        sinkscope.measure(model, input_ids=ids, epsilon=epsilon).heads["sink_rate"].mean()
        for epsilon in (0.0, 0.3, 1.0)
    ]
    assert rates[0] == 1
    assert rates[2] == 0
    assert rates[0] >= rates[1] >= rates[2]
