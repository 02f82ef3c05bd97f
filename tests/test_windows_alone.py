"""Every figure of a window is that of the window alone, through the model's plain forward."""

import math

import pandas as pd
import pytest
import torch
from builders import tiny
from soundness import IDS, PADDINGS, TOLERANCE, agreements, plain
from tiny_models import tiny_model

import sinkscope
from sinkscope.hooks.handshake import handshake

pytestmark = pytest.mark.slow

LEFT, RIGHT = PADDINGS["left"], PADDINGS["right"]

POSITIONED = ("roberta", "camembert", "xlm-roberta-xl", "data2vec-text", "roberta-prelayernorm", "xmod")
"""They count positions from the padding id on, as soon as nobody tells them any."""

SENSITIVE = ("blt", "recurrent_gemma", "bloom", "mpt", "opt", "biogpt")
"""Padding, or how long a neighbour is, changes what they compute."""


@pytest.mark.parametrize("keep", [LEFT, RIGHT], ids=["left", "right"])
@pytest.mark.parametrize("model_type", [*POSITIONED, *SENSITIVE])
def test_a_window_is_itself_on_whatever_side_its_batch_is_padded(model_type, keep):
    (found,) = agreements(tiny_model(model_type, layers=2), keep, ["auto"])
    assert found.difference < TOLERANCE
    assert found.loss < TOLERANCE


def test_padding_on_either_side_is_the_same_windows():
    left, right = IDS.clone(), IDS.clone()
    left[1, 7:] = IDS[1, :17]
    model = tiny("llama")
    reports = [
        sinkscope.measure(model, input_ids=ids, attention_mask=keep) for ids, keep in ((left, LEFT), (right, RIGHT))
    ]
    for one, other in zip(*(report.tables().values() for report in reports), strict=True):
        pd.testing.assert_frame_equal(one, other)
    tokens = reports[0].tokens
    assert tokens[tokens["window"] == 1]["position"].tolist() == list(range(17))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_no_batch_mixes_lengths_and_no_model_is_given_a_mask(size):
    model, seen = tiny("llama"), []
    ids = torch.randint(3, 300, (5, 30), generator=torch.Generator().manual_seed(5))
    lengths = torch.tensor([30, 12, 30, 20, 12])
    hook = model.register_forward_pre_hook(lambda _, __, given: seen.append(given), with_kwargs=True)
    keep = torch.arange(30) < lengths[:, None]
    report = sinkscope.measure(model, input_ids=ids, attention_mask=keep, batch_size=size)
    hook.remove()
    assert all(set(given) == {"input_ids", "use_cache"} for given in seen)
    nll = []
    for row, real in zip(ids, keep, strict=True):
        logits = plain(model, row[real][None])[0, :-1].double().log_softmax(-1)
        nll.append(-logits.gather(1, row[real][1:, None]))
    assert math.isclose(report.summary["nll"][0], float(torch.cat(nll).mean()), rel_tol=1e-6)


def test_windows_run_one_at_a_time_where_their_neighbours_change_them():
    model = tiny("llama")
    # Each window gets something of the others in its batch, as a quantizer that scales by the batch would give it.
    model.model.layers[1].register_forward_hook(lambda _, __, output: output + 0.5 * output.mean(0, keepdim=True))
    assert handshake(model, IDS).alone
    report = sinkscope.measure(model, input_ids=IDS, batch_size=2)
    assert report.metadata["attention"]["windows_alone"] is True
    alone = [sinkscope.measure(model, input_ids=row[None]) for row in IDS]
    assert report.heads["entropy"].tolist() == pytest.approx(
        sum(each.heads["entropy"] for each in alone).div(2).tolist(), abs=1e-6
    )


def test_ids_at_padding_need_no_embedding():
    ids = IDS.clone()
    ids[~RIGHT] = 10**6
    assert sinkscope.measure(tiny("llama"), input_ids=ids, attention_mask=RIGHT).summary["tokens_scored"][0] == 39
