"""The embedded model, which has real sinks: figures against eager maps, and memory at length."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import sinkscope
from sinkscope.hooks.probe import probed

LENGTH = 256
PEAK = """
import resource, sinkscope
model, tokenizer = sinkscope.load()
report = sinkscope.measure(model, tokenizer, seq_len=4096, windows=1)
assert len(report.heads) == 270
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loaded():
    return sinkscope.load()


@pytest.fixture(scope="module")
def report(loaded):
    return sinkscope.measure(*loaded, seq_len=LENGTH, windows=1)


@pytest.fixture(scope="module")
def maps(loaded, report):
    """Eager attention weights of the reported window, [layer head query key], in fp64."""
    model, _ = loaded
    ids = torch.tensor([report.tokens["token_id"].tolist()])
    model.set_attn_implementation("eager")
    with torch.no_grad():
        found = model(input_ids=ids, output_attentions=True, use_cache=False).attentions
    model.set_attn_implementation("sdpa")
    return torch.cat(found).double()


def test_first_token_mass_and_entropy_are_those_of_eager_maps(report, maps):
    rows = maps[:, :, 1:]
    assert len(report.heads) == 270
    np.testing.assert_allclose(report.heads["first_mass"], rows[..., 0].mean(-1).flatten(), atol=1e-4)
    entropy = -torch.xlogy(rows, rows).sum(-1).mean(-1)
    np.testing.assert_allclose(report.heads["entropy"], entropy.flatten(), atol=1e-4)


def test_received_mass_is_that_of_eager_maps(report, maps):
    later = LENGTH - 1 - torch.arange(LENGTH - 1)
    received = maps.tril(-1).sum(2)[..., :-1].mean((0, 1)) / later
    np.testing.assert_allclose(report.tokens["received"][:-1], received, rtol=1e-4)


def test_observation_leaves_every_bit_of_the_logits(loaded, report):
    model, _ = loaded
    ids = torch.tensor([report.tokens["token_id"].tolist()])
    with torch.no_grad():
        native = model(input_ids=ids, use_cache=False).logits
        with probed(model, lambda _site, _call, own: own()):
            observed = model(input_ids=ids, use_cache=False).logits
    assert torch.equal(native, observed)


@pytest.mark.parametrize("bos", ["never", "always"])
def test_the_sink_is_positional_and_lives_in_the_later_layers(loaded, bos):
    found = sinkscope.measure(*loaded, seq_len=LENGTH, windows=1, bos=bos)
    assert float(found.summary["first_mass"][0]) > 0.25
    sinks = found.heads.groupby("layer")["sink_rate"].sum()
    assert sinks.loc[12:].sum() > 0.8 * sinks.sum()


@pytest.fixture(scope="module")
def compared(loaded):
    return sinkscope.compare(*loaded, normalizers=["softmax", "softmax1"], seq_len=LENGTH, windows=1)


def test_the_identity_swap_changes_no_figure(report, compared):
    native, before, identity = report.summary.iloc[0], compared.summary.iloc[0], compared.summary.iloc[1]
    for row in (before, identity):
        assert row["perplexity"] == pytest.approx(native["perplexity"], rel=1e-5)
    assert abs(compared.metadata["comparison"]["identity_kl"]) < 1e-6
    assert abs(identity["kl_to_baseline"]) < 1e-6
    heads = compared.heads[compared.heads["normalizer"] == "softmax"]
    np.testing.assert_allclose(heads["first_mass"], report.heads["first_mass"], atol=1e-5)


def test_softmax1_keeps_the_sigmoid_of_the_log_sum_exp(loaded, report, compared):
    model, _ = loaded
    ids = torch.tensor([report.tokens["token_id"].tolist()])
    kept = {}

    def patch(site, call, _):
        # From the scores inside the patched forward, with the extra zero key of its definition.
        scores = torch.cat([call.scores(), torch.zeros(*call.query.shape[:3], 1)], dim=-1)
        weights = scores.double().softmax(-1)[..., :-1]
        kept[site.layer] = call.scores()[0, :, 1:].double().logsumexp(-1).sigmoid().mean(-1)
        return call.output(weights.float()).transpose(1, 2)

    with torch.no_grad(), probed(model, patch):
        model(input_ids=ids, use_cache=False)
    heads = compared.heads[compared.heads["normalizer"] == "softmax1"]
    expected = torch.stack([kept[layer] for layer in range(30)]).flatten()
    np.testing.assert_allclose(heads["row_mass"], expected, atol=1e-4)


def test_memory_stays_bounded_at_four_thousand_tokens(loaded):
    ran = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert int(ran.stdout) * 1024 < 6e9
