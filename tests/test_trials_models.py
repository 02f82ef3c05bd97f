"""What users of neighbouring tools ran into with models, masks, number formats, devices and processes, end to end."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import accelerate
import numpy as np
import pandas as pd
import pytest
import torch
from builders import ARCHITECTURES, tiny
from eager_maps import eager, figures, windows_of
from fixtures_cli import QUICK, written
from gguf_files import write_gguf
from soundness import on_model
from tiny_models import tiny_model
from transformers import PreTrainedTokenizerFast, StaticCache, dynamic_module_utils
from transformers.models.llama.modeling_llama import LlamaAttention

import sinkscope
from sinkscope.errors import ModelNotFoundError, UnsupportedModelError
from sinkscope.exporters import export
from sinkscope.hooks.forward import logits
from sinkscope.hooks.probe import probed
from sinkscope.normalizers import NORMALIZERS

GPT2_NAMES = {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64}
OTHERS = {
    "codegen": GPT2_NAMES | {"rotary_dim": 4, "n_ctx": 64},
    "gpt_bigcode": GPT2_NAMES | {"multi_query": True},
    "mamba": {"state_size": 4},
    "rwkv": {"attention_hidden_size": 32, "context_length": 64},
}
CONFIGURATION = """
from transformers import LlamaConfig
class OwnConfig(LlamaConfig):
    model_type = "own"
"""
MODELING = """
import torch
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention, apply_rotary_pos_emb, repeat_kv
from .configuration_own import OwnConfig

class OwnAttention(LlamaAttention):
    def forward(self, hidden_states, position_embeddings, **_):
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        projections = self.q_proj, self.k_proj, self.v_proj
        query, key, value = (each(hidden_states).view(shape).transpose(1, 2) for each in projections)
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        key, value = (repeat_kv(each, self.num_key_value_groups) for each in (key, value))
        scores = query @ key.transpose(2, 3) * self.scaling
        weights = (scores + torch.full_like(scores[0, 0], -1e9).triu(1)).softmax(-1)
        CHANGE
        return self.o_proj((weights @ value).transpose(1, 2).flatten(2)), RETURNED

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        for index, layer in enumerate(self.model.layers):
            layer.self_attn = OwnAttention(config, index)
"""


@pytest.fixture(scope="module")
def model():
    return tiny("llama")


@pytest.fixture(scope="module")
def wanted(model):
    """The report on two windows, by which those of the same model in other states are judged."""
    return sinkscope.measure(model, input_ids=two_windows())


def two_windows():
    return torch.randint(3, 300, (2, 24), generator=torch.Generator().manual_seed(1))


def everything(ids):
    return torch.ones_like(ids, dtype=torch.bool)


def built(architecture, monkeypatch, **settings):
    monkeypatch.setitem(ARCHITECTURES, architecture, ARCHITECTURES.get(architecture) or OTHERS.get(architecture, {}))
    return tiny(architecture, **settings)


def one_line(ended, *words):
    """One line on stderr that says these words, a status of 1, and nothing on stdout."""
    lines = [line for line in ended.err.splitlines() if line.startswith("sinkscope: ")]
    assert (ended.status, ended.out, len(lines)) == (1, "", 1)
    assert "Traceback" not in ended.err
    assert [word for word in words if word not in lines[0]] == []


def assert_same(report, wanted, tolerance):
    for name, table in wanted.tables().items():
        pd.testing.assert_frame_equal(report.tables()[name], table, rtol=tolerance, atol=tolerance)


def of_eager_maps(model, ids):
    return figures([eager(model, each).maps for each in windows_of(ids, everything(ids))])


def calls_of(model, ids):
    """Every attention call of a forward, in order."""
    found = []

    def note(_site, seen, own):
        found.append(seen)
        return own()

    with probed(model, note):
        logits(model, ids)
    return found


def scores_of(seen):
    """Its scores in fp64, -inf in the future, by hand: [batch head query key]."""
    key = seen.key.double().repeat_interleave(seen.repeats, dim=1)
    scores = seen.query.double() @ key.transpose(2, 3) * seen.scale
    if seen.softcap is not None:
        scores = torch.tanh(scores / seen.softcap) * seen.softcap
    return scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -torch.inf)


def test_trial_01_a_model_on_sdpa_has_the_figures_of_eager_and_stays_on_sdpa(model, wanted):
    assert model.config._attn_implementation == "sdpa"
    expected = of_eager_maps(model, two_windows()).first_mass
    assert expected.size == len(wanted.heads) == 16
    np.testing.assert_allclose(wanted.heads["first_mass"], expected.flatten(), atol=1e-5)


def test_trial_01_the_command_line_measures_sdpa_without_a_warning(run, tiny_llama, tmp_path):
    words = ["--text", written(tmp_path), *QUICK, "-o", tmp_path / "run.json"]
    ended = run("measure", tiny_llama, *words)
    assert (ended.status, "output_attentions" in ended.err) == (0, False)
    heads = sinkscope.Report.load(tmp_path / "run.json").heads
    assert heads.groupby("layer").size().tolist() == [4, 4, 4, 4]
    assert np.isfinite(heads["first_mass"]).all()
    assert (heads["first_mass"] > 0).all()


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A place of its own for code that comes with models, of which no module outlives the test."""

    def forgotten():
        for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
            del sys.modules[name]

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    forgotten()
    yield
    forgotten()


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("change", "returned", "reason"),
    [
        ("pass", "weights", None),
        ("pass", "None", "4 of its layers call softmax.* and 0 return their weights"),
        ("weights = weights - 0.01 * (self.layer_idx == 1)", "weights", r"model.layers.1.self_attn returns other"),
        (
            "weights = weights if self.layer_idx != 1 else missing\n        missing = 1",
            "weights",
            r"its own code fails in model.layers.1.self_attn .UnboundLocalError",
        ),
    ],
    ids=["sound", "returns None", "negative in layer 1", "raises in layer 1"],
)
def test_trial_02_remote_code_runs_only_when_trusted_and_its_weights_only_where_sound(
    change, returned, reason, tmp_path
):
    folder = tmp_path / "own"
    tiny("llama").save_pretrained(folder)
    mark = f"\nopen({str(tmp_path / 'ran')!r}, 'w').close()\n"
    (folder / "configuration_own.py").write_text(CONFIGURATION)
    (folder / "modeling_own.py").write_text(MODELING.replace("CHANGE", change).replace("RETURNED", returned) + mark)
    names = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "own", "auto_map": names}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelNotFoundError, match=r"runs code of its own.*--trust-remote-code"):
        sinkscope.load(folder)
    assert not (tmp_path / "ran").exists()
    model = sinkscope.load(folder, trust_remote_code=True).model
    if reason is None:
        heads = sinkscope.measure(model, input_ids=two_windows()).heads
        same = sinkscope.measure(tiny("llama"), input_ids=two_windows()).heads
        np.testing.assert_allclose(heads["first_mass"], same["first_mass"], atol=1e-5)
        return
    with pytest.raises(UnsupportedModelError, match=f"OwnModel .own. cannot be measured: {reason}"):
        sinkscope.measure(model, input_ids=two_windows())


@pytest.mark.parametrize("side", ["left", "right"])
def test_trial_03_padding_on_either_side_changes_no_figure_of_a_text(side, model):
    ids, place = two_windows()[:, :12], torch.arange(12)
    keep = place >= torch.tensor([[0], [4]]) if side == "left" else place < torch.tensor([[12], [8]])
    together = sinkscope.measure(model, input_ids=ids, attention_mask=keep)
    alone = [sinkscope.measure(model, input_ids=row[real][None]) for row, real in zip(ids, keep, strict=True)]
    tokens = together.tokens
    for window, each in enumerate(alone):
        mine = tokens[tokens["window"] == window]
        assert mine["class"].tolist() == ["first"] + ["other"] * (len(each.tokens) - 1)
        np.testing.assert_allclose(mine["received"], each.tokens["received"], atol=1e-5)
    assert set(together.heads["queries"]) == {11 + 7}
    for name in ("first_mass", "entropy", "row_mass"):
        mean = (11 * alone[0].heads[name] + 7 * alone[1].heads[name]) / 18
        np.testing.assert_allclose(together.heads[name], mean, atol=1e-5)


@pytest.mark.parametrize("pad", [None, "</s>"])
def test_trial_03_the_tokenizers_padding_token_does_not_matter(pad, tokenizer):
    model, texts = tiny("llama"), ["Twelve bytes", "Or eight"]
    core = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    other = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token=pad)  # noqa: S106
    assert_same(sinkscope.measure(model, other, texts), sinkscope.measure(model, tokenizer, texts), 0)


@pytest.mark.parametrize("alpha", [1, 1.0000001, 1.5, 2, 3, 10])
def test_trial_04_entmax_adds_up_to_one_and_does_not_see_hidden_keys(alpha):
    card = NORMALIZERS["entmax"].bind(alpha=alpha)
    peaked = 1000 * torch.randn(10, 100, generator=torch.Generator().manual_seed(0))
    assert (card(peaked).sum(-1) - 1).abs().max() < 1e-5
    scores = torch.tensor([1.0, 0.5, -0.3])
    found = card(torch.cat([scores, torch.full((5,), -torch.inf)]))
    assert found[3:].tolist() == [0] * 5
    known = {1: scores.softmax(-1).tolist(), 1.5: [0.65859, 0.31532, 0.02609], 2: [0.75, 0.25, 0]}
    if alpha in known:
        assert found[:3].tolist() == pytest.approx(known[alpha], abs=1e-5)


@pytest.mark.parametrize("alpha", ["0.5", "0.99", "nan", "many"])
def test_trial_04_an_alpha_out_of_range_is_refused_before_a_model_is_looked_for(run, alpha):
    one_line(run("patch", "no/such-model", "-n", f"entmax:alpha={alpha}"), "alpha", "number from 1 to 10")


def test_trial_04_scores_of_a_bfloat16_model_are_single_and_zeros_have_no_entropy_of_their_own(model):
    seen = []

    def watched(scores):
        seen.append(scores.dtype)
        return scores.softmax(-1)

    half = tiny("llama").to(torch.bfloat16)
    sinkscope.compare(half, input_ids=two_windows(), normalizers=[watched])
    assert set(seen) == {torch.float32}
    heads = sinkscope.compare(model, input_ids=two_windows(), normalizers=["sparsemax"]).heads
    sparse = heads[heads["normalizer"] == "sparsemax"]
    assert (sparse["exact_zeros"] > 0).any()
    assert np.isfinite(sparse["entropy"]).all()


def test_trial_05_dropout_is_not_measured_and_training_goes_on():
    model = tiny("gpt2", attn_pdrop=0.1).train()
    model.transformer.h[1].eval()
    before = on_model(model)
    once, again = (sinkscope.measure(model, input_ids=two_windows()) for _ in range(2))
    assert on_model(model) == before
    assert model.training
    assert_same(again, once, 0)
    assert_same(once, sinkscope.measure(tiny("gpt2", attn_pdrop=0.1), input_ids=two_windows()), 0)
    assert (once.heads["row_mass"] - 1).abs().max() < 1e-5
    half = sinkscope.measure(tiny("gpt2").to(torch.bfloat16), input_ids=two_windows()).heads
    for name in ("first_mass", "entropy", "row_mass"):
        np.testing.assert_allclose(half[name], once.heads[name], atol=1e-2)
    parts = half[[name for name in half if name.endswith(("_mass", "_share"))]]
    assert parts.max().max() <= 1 + 1e-6


def test_an_expert_that_rounding_would_choose_otherwise_is_no_reason_to_refuse_a_model():
    model = tiny("gpt_oss", sliding_window=64).to(torch.bfloat16)
    report = sinkscope.measure(model, input_ids=two_windows())
    assert report.metadata["attention"]["identity_delta"] > 0.1
    assert report.metadata["attention"]["largest_output_difference"] < 0.05


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt_oss"])
def test_statistics_of_half_precision_models_are_of_single_precision(architecture, dtype):
    # Both experts of each layer: rounding would choose another one.
    wide = {"sliding_window": 64, "num_experts_per_tok": 2} if architecture == "gpt_oss" else {"sliding_window": 64}
    model = tiny(architecture, **wide).to(dtype)
    heads = sinkscope.measure(model, input_ids=two_windows()).heads
    expected = []
    for each in calls_of(model, two_windows()):
        scores = scores_of(each)
        if each.sink is not None:
            sink = each.sink.detach().double()[..., None]
            scores = torch.cat([scores, sink.expand(*scores.shape[:3], 1)], dim=-1)
        expected.append(scores.softmax(-1)[:, :, 1:, 0].mean((0, 2)))
    # The bound that is promised is 2e-3; half-precision weights would miss this one.
    np.testing.assert_allclose(heads["first_mass"], torch.cat(expected), atol=2e-5)


def test_trial_06_softmax1_has_a_level_a_range_and_masks_of_either_kind():
    softmax1 = NORMALIZERS["softmax1"]
    scores = torch.tensor([1.0, 0.5, -0.3])
    assert softmax1(scores).tolist() == pytest.approx([0.4450, 0.2699, 0.1213], abs=1e-4)
    torch.testing.assert_close(softmax1(scores + 100), scores.softmax(-1))
    small = softmax1(torch.tensor([-12.0, -13.0, -14.0], dtype=torch.float16))
    assert small.tolist() == pytest.approx([6.1e-6, 2.3e-6, 8.3e-7], rel=0.05)
    assert softmax1(torch.tensor([1e4, 0.0, -1e4])).tolist() == [1, 0, 0]
    low = torch.full((4,), -2.45e5)
    assert softmax1(low).tolist() == [0] * 4
    assert NORMALIZERS["softmax"](low).tolist() == [0.25] * 4
    keep = torch.arange(24) >= torch.tensor([[0], [7]])
    reports = []
    # sdpa gets boolean masks, eager additive ones.
    for implementation in ("sdpa", "eager"):
        model = tiny("llama")
        model.set_attn_implementation(implementation)
        swapped = {"input_ids": two_windows(), "attention_mask": keep, "normalizers": ["softmax1"]}
        reports.append(sinkscope.compare(model, **swapped))
    assert_same(*reports, 1e-4)


def test_trial_07_the_soft_cap_stands_before_mask_and_normalizer_and_eager_is_put_back():
    model, ids = tiny("gemma2"), two_windows()
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data.mul_(20)
        layer.self_attn.k_proj.weight.data.mul_(20)
    before = logits(model, ids)
    report = sinkscope.compare(model, input_ids=ids, normalizers=["softmax", "softmax1"])
    assert report.metadata["attention"]["identity_delta"] < 1e-5
    plain, identity, other = report.summary["first_mass"]
    assert identity == pytest.approx(plain, abs=1e-6)
    assert other < plain - 1e-3
    expected = of_eager_maps(model, ids).first_mass.flatten()
    first = report.heads[report.heads["normalizer"] == "softmax"]["first_mass"]
    np.testing.assert_allclose(first, expected, atol=1e-5)
    assert model.config._attn_implementation == "eager"
    assert torch.equal(logits(model, ids), before)


def test_trial_07_gguf_files_keep_their_cap_or_are_refused_in_one_line(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SINKSCOPE_CACHE", str(tmp_path / "cache"))
    words = ["--text", written(tmp_path), *QUICK]
    capped = write_gguf(tmp_path / "capped.gguf", "gemma2", attn_logit_softcapping=2.0)
    ended = run("measure", capped, *words)
    assert (ended.status, "attn_logit_softcapping is 2" in ended.err) == (0, True)
    unknown = write_gguf(tmp_path / "unknown.gguf", "baichuan")
    half, text = tmp_path / "half.gguf", tmp_path / "text.gguf"
    half.write_bytes(capped.read_bytes()[: capped.stat().st_size // 2])
    text.write_text("hello, world")
    reasons = {unknown: "baichuan is not supported", half: "damaged or cut short", text: "not a GGUF file"}
    for path, reason in reasons.items():
        one_line(run("measure", path, *words), reason)


def even(scores):
    """One over the number of keys that can be seen."""
    return scores.isfinite() / scores.isfinite().sum(-1, keepdim=True)


@pytest.mark.parametrize(("window", "support", "seeing"), [(4, (2 + 3 + 9 * 4) / 11, 3), (99, 7, 11), (None, 7, 11)])
def test_trial_08_a_window_shows_just_its_keys_before_and_after_a_swap(window, support, seeing):
    model, ids = tiny("mistral", sliding_window=window or 4), two_windows()[:1, :12]
    model.config.sliding_window = window
    heads = sinkscope.compare(model, input_ids=ids, normalizers=[even]).heads
    assert set(heads["queries"]) == {11}
    assert set(heads["first_queries"]) == {seeing}
    after = heads[heads["normalizer"] == "even"]
    assert after["effective_support"].to_numpy() == pytest.approx(support)
    expected = of_eager_maps(model, ids).first_mass.flatten()
    np.testing.assert_allclose(heads[heads["normalizer"] == "softmax"]["first_mass"], expected, atol=1e-5)


def test_trial_08_each_layer_says_its_type_and_the_rows_that_can_see_the_sink(run, tokenizer, tmp_path):
    model = tiny("gemma3_text", sliding_window=4)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    words = ["--text", written(tmp_path), *QUICK, "-o", tmp_path / "run.json"]
    ended = run("measure", tmp_path / "model", *words)
    assert ended.status == 0
    assert "sliding" in ended.out
    heads = sinkscope.Report.load(tmp_path / "run.json").heads.drop_duplicates("layer")
    assert heads["layer_type"].tolist() == ["sliding_attention", "full_attention"] * 2
    assert heads["first_queries"].tolist() == [2 * 3, 2 * 39] * 2


@pytest.mark.parametrize("architecture", ["rwkv", "mamba"])
def test_trial_09_what_is_no_attention_is_refused_in_one_line(run, architecture, tokenizer, tmp_path, monkeypatch):
    built(architecture, monkeypatch).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    ended = run("measure", tmp_path / "model", "--text", written(tmp_path), *QUICK)
    one_line(ended, f"({architecture}) cannot be measured: none of its")


@pytest.mark.parametrize("architecture", ["deepseek_v3", "phi3", "gpt_neox", "codegen"])
def test_trial_10_latent_and_fused_projections_are_of_four_heads_with_the_layers_own_scale(architecture, monkeypatch):
    model, ids = built(architecture, monkeypatch), two_windows()
    for module in model.modules():
        if hasattr(module, "scaling"):
            module.scaling *= 1.7
    report = sinkscope.compare(model, input_ids=ids, normalizers=["softmax"])
    assert report.metadata["attention"]["identity_delta"] < 1e-5
    before = report.heads[report.heads["normalizer"] == "softmax"]
    assert before.groupby("layer").size().tolist() == [4, 4, 4, 4]
    np.testing.assert_allclose(before["first_mass"], of_eager_maps(model, ids).first_mass.flatten(), atol=1e-5)


@pytest.mark.slow
def test_trial_11_the_embedded_model_has_a_row_for_each_query_head():
    heads = sinkscope.measure(*sinkscope.load(), seq_len=32, windows=1).heads
    assert heads.groupby("layer").size().tolist() == [9] * 30


@pytest.mark.parametrize(
    ("architecture", "settings"), [("gemma3_text", {"num_key_value_heads": 1}), ("gpt_bigcode", {})]
)
def test_trial_11_shared_keys_do_not_count_as_heads(architecture, settings, monkeypatch):
    model = built(architecture, monkeypatch, **settings)
    heads = sinkscope.measure(model, input_ids=two_windows()).heads
    assert heads.groupby("layer").size().tolist() == [4, 4, 4, 4]


def test_trial_11_ragged_heads_are_long_rows_without_padding():
    model = tiny("llama", num_hidden_layers=3, hidden_size=48)
    for layer, heads in enumerate((2, 4, 6)):
        config = type(model.config)(**model.config.to_dict() | {"num_attention_heads": heads})
        config._attn_implementation = "sdpa"
        model.model.layers[layer].self_attn = LlamaAttention(config, layer).eval()
    report = sinkscope.measure(model, input_ids=two_windows())
    assert report.heads.groupby("layer").size().tolist() == [2, 4, 6]
    assert report.summary["first_mass"][0] == pytest.approx(report.heads["first_mass"].mean())


def test_trial_11_a_nested_configuration_is_measured():
    model = tiny_model("gemma3")
    assert not hasattr(model.config, "num_attention_heads")
    heads = sinkscope.measure(model, input_ids=two_windows() % 120 + 3).heads
    assert heads.groupby("layer").size().tolist() == [4, 4, 4, 4]


def partly_on_disk(model, folder):
    away = {"model.layers.1", "model.norm", "lm_head"}
    parts = ["model.embed_tokens", "model.rotary_emb", *(f"model.layers.{layer}" for layer in range(4))]
    places = {name: "disk" if name in away else "cpu" for name in [*parts, "model.norm", "lm_head"]}
    return accelerate.dispatch_model(model, places, main_device="cpu", offload_dir=folder, force_hooks=True)


def on_disk(model, folder):
    accelerate.disk_offload(model, folder, execution_device=torch.device("cpu"))
    return model


@pytest.mark.parametrize("offload", [partly_on_disk, on_disk])
def test_trial_21_offloaded_models_have_the_figures_of_those_in_memory_and_keep_their_hooks(offload, wanted, tmp_path):
    away = offload(tiny("llama"), tmp_path)
    hooked = [name for name, module in away.named_modules() if hasattr(module, "_hf_hook")]
    assert away.model.layers[1].self_attn.q_proj.weight.device.type == "meta"
    assert_same(sinkscope.measure(away, input_ids=two_windows()), wanted, 1e-5)
    swapped = sinkscope.compare(away, input_ids=two_windows(), normalizers=["softmax1"]).summary
    assert swapped["first_mass"][0] == pytest.approx(wanted.summary["first_mass"][0], abs=1e-5)
    assert swapped["first_mass"][1] < swapped["first_mass"][0]
    assert [name for name, module in away.named_modules() if hasattr(module, "_hf_hook")] == hooked
    assert away.model.layers[1].self_attn.q_proj.weight.device.type == "meta"


def test_trial_21_a_quantized_model_is_never_moved_or_cast(wanted, monkeypatch):
    model = tiny("llama")
    model.is_quantized = True

    def refuse(*_args, **_options):
        pytest.fail("a quantized model was moved or cast")

    for name in ("to", "half", "float", "double", "bfloat16", "cpu", "cuda"):
        monkeypatch.setattr(model, name, refuse)
    assert_same(sinkscope.measure(model, input_ids=two_windows()), wanted, 0)


def test_trial_21_a_device_beside_a_device_map_is_refused(run, tiny_llama, tmp_path):
    words = ["--text", written(tmp_path), *QUICK, "--device", "cpu", "--device-map", "auto"]
    one_line(run("measure", tiny_llama, *words), "--device cpu and --device-map exclude each other")


COMPILED = """
import sys
import torch
import sinkscope
sys.path.insert(0, sys.argv[1])
from builders import tiny
from sinkscope.hooks.handshake import handshake
from compiled import compiled_in_place, compiled_layer, compiled_whole
ids = torch.arange(3, 15)[None]
model = tiny("llama", num_hidden_layers=1)
before = sinkscope.measure(model, input_ids=ids)
compiled = compiled_whole(model)
with torch.no_grad():
    compiled(input_ids=ids)
after = sinkscope.measure(model, input_ids=ids)
print(handshake(model, ids).sites[0].name, float((after.heads["first_mass"] - before.heads["first_mass"]).abs().max()))
for each in (compiled, *(form(tiny("llama", num_hidden_layers=1)) for form in (compiled_layer, compiled_in_place))):
    try:
        sinkscope.measure(each, input_ids=ids)
    except sinkscope.UnsupportedModelError as error:
        print(error)
"""


@pytest.mark.slow
def test_trial_22_compiled_models_are_refused_with_the_remedy_which_helps():
    # In a process of its own, where no type check stands before the refusal.
    command = [sys.executable, "-c", COMPILED, str(Path(__file__).parent)]
    remedied, *refused = subprocess.run(command, capture_output=True, check=True, text=True).stdout.splitlines()
    name, difference = remedied.split()
    assert name == "model.layers.0.self_attn"
    assert float(difference) < 1e-6
    assert len(refused) == 3
    assert all("is compiled" in line for line in refused)
    assert all(line.endswith("pass the model as it was before torch.compile") for line in refused)


@pytest.mark.parametrize("use_cache", [True, False])
def test_trial_23_caches_that_were_left_behind_do_not_matter(use_cache, wanted):
    model, ids = tiny("llama"), two_windows()
    model.config.use_cache = use_cache
    model.generation_config.cache_implementation = "static"
    model._cache = StaticCache(config=model.config, max_cache_len=30)
    model.past_key_values = StaticCache(config=model.config, max_cache_len=30)
    with torch.no_grad():
        model(input_ids=ids[:1, :5], cache=model.past_key_values, use_cache=True)
        model.generate(ids[:1, :5], max_new_tokens=2, do_sample=False, pad_token_id=0)
    for _ in range(2):
        report = sinkscope.measure(model, input_ids=ids)
        assert_same(report, wanted, 0)
        assert report.tokens["receivers"].max() == 23
    assert model.config.use_cache is use_cache


def test_trial_23_bfloat16_is_near_and_said_to_be_bfloat16(wanted):
    half = sinkscope.measure(tiny("llama").to(torch.bfloat16), input_ids=two_windows())
    np.testing.assert_allclose(half.heads["first_mass"], wanted.heads["first_mass"], atol=1e-2)
    assert half.metadata["model"]["dtype"] == "bfloat16"


def test_rows_that_attend_to_nothing_are_counted_and_enter_no_share_and_no_entropy():
    model, ids = tiny("llama"), two_windows()
    heads = sinkscope.compare(model, input_ids=ids, normalizers=["softpick"], layers=[0]).heads
    swapped = heads[(heads["normalizer"] == "softpick") & (heads["layer"] == 0)]
    parts = scores_of(calls_of(model, ids)[0]).exp() - 1
    weights = parts.relu().tril()[:, :, 1:]
    weights = weights.transpose(0, 1).flatten(1, 2)
    empty = weights.sum(-1) == 0
    assert 0 < int(empty.any(-1).sum()) < 4
    shares = weights / weights.sum(-1, keepdim=True)
    entropy = -torch.xlogy(shares, shares).sum(-1)
    np.testing.assert_allclose(swapped["zero_rows"], empty.double().mean(-1), atol=1e-6)
    np.testing.assert_allclose(swapped["first_share"], shares[..., 0].nanmean(-1), atol=1e-5)
    np.testing.assert_allclose(swapped["entropy"], entropy.nanmean(-1), atol=1e-5)


def test_trial_24_a_process_of_several_is_refused_at_once_without_a_group(run, tiny_llama, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    one_line(run("measure", tiny_llama), "WORLD_SIZE", "without a launcher")


@pytest.mark.slow
def test_trial_24_a_launcher_gets_a_refusal_and_no_file(tiny_llama, tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    words = ["-m", "sinkscope", "measure", tiny_llama, *QUICK, "-o", tmp_path / "run.json"]
    ended = subprocess.run([*launcher, *map(str, words)], capture_output=True, check=False, timeout=120)
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert b"start sinkscope without a launcher" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_trial_24_runs_that_end_at_once_leave_one_whole_file(model, wanted, tmp_path):
    output = tmp_path / "run.json"
    other = sinkscope.measure(model, input_ids=two_windows()[:1])
    export(wanted, output)

    def write(report):
        for _ in range(10):
            export(report, output)

    with ThreadPoolExecutor() as pool:
        writing = [pool.submit(write, report) for report in (wanted, other)]
        counts = [len(sinkscope.Report.load(output).tokens) for _ in range(10)]
    assert [each.result() for each in writing] == [None, None]
    assert set(counts) <= {24, 48}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
