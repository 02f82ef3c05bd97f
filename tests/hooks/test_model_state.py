"""Whatever a forward changes on a model is put back, and the model is as it was handed over."""

import pytest
import torch
from builders import tiny
from soundness import state
from torch import nn

import sinkscope
from sinkscope.hooks.model_state import restored

IDS = torch.randint(3, 300, (2, 20), generator=torch.Generator().manual_seed(3))


class Restless(nn.Module):
    """A module that changes everything it has in a forward."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("counted", torch.zeros(2))
        self.register_buffer("replaced", torch.zeros(2))
        self.plain = torch.zeros(2)
        self.longest = 0
        self.cache = {}
        self.seen = []
        self.names = set()

    def forward(self, raised):
        self.counted += 1
        self.register_buffer("replaced", torch.ones(3))
        self.register_buffer("added", torch.ones(3), persistent=False)
        self.plain.fill_(2)
        self.longest = 7
        self.extra = "left behind"
        self.cache["key"] = 1
        self.seen.append(1)
        self.names.add("name")
        self.inner = nn.Linear(3, 3)
        self.register_forward_hook(lambda *_: None)
        if raised:
            raise KeyboardInterrupt


def everything(module):
    buffers = {name: each.tolist() for name, each in module.named_buffers()}
    values = {key: str(value) for key, value in vars(module).items() if key not in ("_parameters", "_modules")}
    return buffers, values, {name: id(each) for name, each in module.named_modules()}


@pytest.mark.parametrize("raised", [False, True])
def test_everything_that_a_forward_changes_is_put_back(raised):
    module = Restless()
    before = everything(module)

    def run():
        with restored(module):
            module(raised)

    if raised:
        with pytest.raises(KeyboardInterrupt):
            run()
    else:
        run()
    assert everything(module) == before


def test_a_buffer_made_in_inference_mode_is_put_back():
    module = Restless()
    with torch.inference_mode():
        module.counted = torch.zeros(2)
        with restored(module):
            module.counted += 1
        assert module.counted.tolist() == [0, 0]


def test_weights_that_exist_elsewhere_are_left_alone():
    module = nn.Linear(2, 2, device="meta")
    module.register_buffer("table", torch.empty(2, device="meta"))
    with restored(module):
        pass
    assert module.table.is_meta


def dynamic():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    return tiny("llama", max_position_embeddings=16, rope_parameters=rope)


def longrope():
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 16}
    return tiny(
        "llama",
        max_position_embeddings=16,
        rope_parameters=rope | {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4},
    )


@pytest.mark.parametrize("made", [dynamic, longrope])
def test_a_model_that_follows_the_longest_text_is_left_as_it_was(made):
    model = made()
    with torch.no_grad():
        short = model(input_ids=IDS[:, :10]).logits
    before = state(model)  # the caller's own forward may have changed something
    sinkscope.measure(model, input_ids=IDS)
    sinkscope.compare(model, input_ids=IDS, normalizers=["softmax1"], gradients=True)
    assert state(model) == before
    with torch.no_grad():
        assert torch.equal(model(input_ids=IDS[:, :10]).logits, short)


@pytest.mark.parametrize("made", [dynamic, longrope])
def test_a_window_does_not_follow_the_longest_of_its_run(made):
    keep = torch.arange(20) < torch.tensor([[20], [9]])
    together = sinkscope.measure(made(), input_ids=IDS, attention_mask=keep).tokens
    for window in (0, 1):
        alone = sinkscope.measure(made(), input_ids=IDS[window][keep[window]][None]).tokens
        mine = together[together["window"] == window]
        assert mine["received"].tolist() == pytest.approx(alone["received"].tolist(), abs=1e-6, nan_ok=True)
