"""Nothing of ours is on a model: copies and files that are made in an open block are those of the model without it."""

import copy
import io
import pickle
import threading
from contextlib import ExitStack

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from builders import ARCHITECTURES, tiny
from inside_models import SEEN_INSIDE, built, distance, look, run
from soundness import on_model

import sinkscope
from sinkscope.hooks.inside import probed_inside
from sinkscope.hooks.module_calls import intercepted
from sinkscope.hooks.probe import probed

pytestmark = pytest.mark.slow

INSIDE = ("bloom", "falcon", "gpt_neo", "mpt", "openai-gpt")
BOTH = (*INSIDE, "llama", "gpt_oss")


def made(name):
    return tiny(name) if name in ARCHITECTURES else built(name, **SEEN_INSIDE[name])


def pickled(model, _):
    return pickle.loads(pickle.dumps(model))  # noqa: S301 - it is our own


def saved_whole(model, _):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def saved(model, folder):
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder, attn_implementation=model.config._attn_implementation)


def rebuilt(model, _):
    other = type(model)(copy.deepcopy(model.config)).eval()
    other.load_state_dict(model.state_dict())
    return other


WAYS = {"deepcopy": lambda model, _: copy.deepcopy(model), "pickle": pickled, "torch.save": saved_whole}
WAYS |= {"save_pretrained": saved, "state_dict": rebuilt}


def blocks(model):
    """Everything that can be open on a model, by name."""
    inside = model.config.model_type in INSIDE
    yield "patched", sinkscope.patched(model, "sparsemax")
    yield "observed", (probed_inside if inside else probed)(model, look)


def classes(model):
    return {kind: dict(vars(kind)) for module in model.modules() for kind in type(module).__mro__}


@pytest.mark.parametrize("name", BOTH)
def test_copies_made_in_an_open_block_are_the_unswapped_model_with_weights_of_their_own(name, ids, tmp_path):
    model, changed = made(name), made(name)
    halve_attention(changed)
    native, wanted = run(model, ids).logits, run(changed, ids).logits
    assert distance(wanted, native) > 1e-4
    for block, opened in blocks(model):
        with opened:
            during = run(model, ids).logits
            copies = {way: made_of(model, tmp_path) for way, made_of in WAYS.items()}
            for way, other in copies.items():
                assert torch.equal(run(other, ids).logits, native), (block, way)
            halve_attention(copies["deepcopy"])
            assert torch.equal(run(copies["deepcopy"], ids).logits, wanted), block
            assert torch.equal(run(model, ids).logits, during), block
        for way, other in copies.items():
            if way != "deepcopy":
                assert torch.equal(run(other, ids).logits, native), (block, way)
                halve_attention(other)
            assert torch.equal(run(other, ids).logits, wanted), (block, way)
    assert torch.equal(run(model, ids).logits, native)


@torch.no_grad()
def halve_attention(model):
    for name, weight in model.named_parameters():
        if "attn" in name or "attention" in name:
            weight.mul_(0.5)


@pytest.mark.parametrize("name", ["bloom", "falcon", "llama"])
def test_a_copy_can_be_swapped_by_itself_while_the_original_is(name, ids):
    model = made(name)
    with sinkscope.patched(model, "sparsemax"):
        wanted = run(model, ids).logits
        other = copy.deepcopy(model)
        with sinkscope.patched(other, "softmax1"):
            assert distance(run(other, ids).logits, wanted) > 1e-3
            assert torch.equal(run(model, ids).logits, wanted)
        with sinkscope.patched(other, "sparsemax"):
            assert torch.equal(run(other, ids).logits, wanted)


@pytest.mark.parametrize("raised", [None, RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("name", BOTH)
def test_modules_are_as_before_while_a_block_is_open_and_classes_once_it_is_closed(name, raised, ids):
    model = made(name)
    before, kinds = on_model(model), classes(model)

    def handler(site, _call, own):
        assert on_model(model) == before
        if raised and site.layer == 2:
            raise raised("in the handler")
        return own()

    probe = (probed_inside if name in INSIDE else probed)(model, handler)
    if raised:
        with pytest.raises(raised, match="in the handler"), probe:
            run(model, ids)
    else:
        with probe:
            run(model, ids)
    assert on_model(model) == before
    assert classes(model) == kinds


def test_blocks_that_close_in_another_order_than_they_opened_leave_the_classes_as_they_were(ids):
    one, two = made("bloom"), made("bloom")
    kinds, native = classes(one), run(one, ids).logits
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(sinkscope.patched(one, "sparsemax"))
        second.enter_context(sinkscope.patched(two, "softmax1"))
        swapped, other = run(one, ids).logits, run(two, ids).logits
        first.close()
        assert torch.equal(run(one, ids).logits, native)
        assert torch.equal(run(two, ids).logits, other)
        assert distance(swapped, other) > 1e-3
    assert torch.equal(run(two, ids).logits, native)
    assert classes(one) == kinds


@pytest.mark.parametrize("name", ["bloom", "llama"])
def test_threads_that_open_and_close_blocks_do_not_meet(name, ids):
    models, native = [made(name) for _ in range(3)], run(made(name), ids).logits
    kinds, found = classes(models[0]), []

    def work(model, normalizer):
        for _ in range(2):
            with sinkscope.patched(model, normalizer):
                swapped = run(model, ids).logits
            found.append((normalizer, swapped, run(model, ids).logits, run(models[2], ids).logits))

    both = ("sparsemax", "softmax1")
    threads = [threading.Thread(target=work, args=each) for each in zip(models[:2], both, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = {each: swapped(models[2], each, ids) for each in both}
    assert len(found) == 4
    for normalizer, during, after, untouched in found:
        assert torch.equal(during, wanted[normalizer])
        assert torch.equal(after, native)
        assert torch.equal(untouched, native)
    assert classes(models[0]) == kinds


def swapped(model, normalizer, ids, **arguments):
    with sinkscope.patched(model, normalizer):
        return run(model, ids, **arguments).logits


@pytest.mark.parametrize("name", ["bloom", "llama"])
def test_threads_that_run_one_swapped_model_keep_their_padding_apart(name, ids):
    model, keeps = made(name), [torch.arange(24) >= torch.tensor([[start]] * 3) for start in (0, 9)]
    modifier = sinkscope.normalizers.Modifier(initial=1, sink_bias=-5.0)
    meet = threading.Barrier(2)

    def wait(*_):
        meet.wait(timeout=20)

    with sinkscope.patched(model, modifier=modifier):
        wanted = [run(model, ids, keep).logits for keep in keeps]
        # Each thread stops before its first attention until the other is there too.
        layer = next(each for name, each in model.named_modules() if name.endswith((".0", ".h.0")))
        handle = layer.register_forward_pre_hook(wait)
        found = {}

        def forward(at):
            found[at] = run(model, ids, keeps[at]).logits

        threads = [
            threading.Thread(target=lambda at=at: found.update({at: run(model, ids, keeps[at]).logits}))
            for at in (0, 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        handle.remove()
    for at, keep in enumerate(keeps):
        assert distance(found[at][keep], wanted[at][keep]) < 1e-6


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("name", ["bloom", "openai-gpt", "llama"])
def test_forwards_that_accelerate_puts_on_modules_are_swapped_and_stay(name, when, ids):
    wanted, model = swapped(made(name), "sparsemax", ids), made(name)

    def hooked():
        for module in model.modules():
            add_hook_to_module(module, ModelHook())

    native = run(model, ids).logits
    if when == "before":
        hooked()
    with sinkscope.patched(model, "sparsemax"):
        if when == "during":
            hooked()
        assert torch.equal(run(model, ids).logits, wanted)
    assert all("_old_forward" in vars(module) for module in model.modules())
    assert torch.equal(run(model, ids).logits, native)
    for module in model.modules():
        remove_hook_from_module(module)
    assert torch.equal(run(model, ids).logits, native)


@pytest.mark.parametrize("name", ["bloom", "gpt_neo", "llama"])
def test_a_layer_that_runs_again_for_its_gradient_is_swapped_again(name, ids):
    found = []
    for again in (False, True):
        model = made(name)
        if again:
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
            for module in model.train().modules():
                module.training = not isinstance(module, torch.nn.Dropout)
        with sinkscope.patched(model, "sparsemax"):
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        found.append(torch.cat([each.grad.flatten() for each in model.parameters()]))
    assert distance(*found) < 1e-5


@pytest.mark.parametrize("name", ["bloom", "llama"])
def test_copies_made_while_a_model_is_measured_are_the_model(name, ids):
    model, copies, ids = made(name), [], ids[:1, :12]
    native, before, kinds = run(model, ids).logits, on_model(model), classes(model)

    def progress(*_):
        assert on_model(model) == before
        copies.append(pickled(model, None))

    sinkscope.measure(model, input_ids=ids, gradients=True, also=["full_head_output"], progress=progress)
    assert len(copies) >= 4
    assert all(torch.equal(run(each, ids).logits, native) for each in copies)
    assert classes(model) == kinds


def test_a_class_with_a_call_of_its_own_and_one_that_inherits_it_meet_a_call_once():
    class Parent(torch.nn.Linear):
        def __call__(self, x):
            return 2 * super().__call__(x)

    class Child(Parent):
        pass

    seen, x = [], torch.ones(1, 2)
    parent, child, other = Parent(2, 2), Child(2, 2), Child(2, 2)
    wanted = parent(x), child(x), other(x)
    own = vars(Parent)["__call__"]

    def around(module, call, args, kwargs):
        seen.append(module)
        return call(*args, **kwargs)

    with intercepted([parent, child], around):
        found = parent(x), child(x), other(x)
        with pytest.raises(ZeroDivisionError), intercepted([child, child], lambda *_: 1 / 0):
            child(x)
        child(x)
    child(x)
    assert [torch.equal(*each) for each in zip(found, wanted, strict=True)] == [True] * 3
    assert seen == [parent, child, child]
    assert vars(Parent)["__call__"] is own
    assert "__call__" not in vars(Child)


def sharing(what):
    """Two models with other weights that have modules in common, as some have on purpose."""
    kind = "openai-gpt" if what == "activation" else "bloom" if what.endswith("inside") else "llama"
    one, two = made(kind), made(kind)
    halve_attention(two)
    if what == "activation":
        assert one.transformer.h[0].mlp.act is two.transformer.h[0].mlp.act
    elif what == "embedding":
        two.model.embed_tokens = one.model.embed_tokens
    elif what == "attention":
        two.model.layers[1].self_attn = one.model.layers[1].self_attn
    elif what == "perceptron, inside":
        two.transformer.h[1].mlp = one.transformer.h[1].mlp
    else:
        two.transformer.h[1] = one.transformer.h[1]
    return one, two


@pytest.mark.parametrize("what", ["activation", "embedding", "perceptron, inside"])
def test_models_that_share_what_does_not_attend_are_swapped_at_once_and_each_in_its_own_way(what, ids):
    one, two = sharing(what)
    wanted = swapped(one, "sparsemax", ids), swapped(two, "softmax1", ids)
    native = run(one, ids).logits
    with sinkscope.patched(one, "sparsemax"):
        with sinkscope.patched(two, "softmax1"):
            assert torch.equal(run(one, ids).logits, wanted[0])
            assert torch.equal(run(two, ids).logits, wanted[1])
        assert torch.equal(run(one, ids).logits, wanted[0])
    assert torch.equal(run(one, ids).logits, native)


@pytest.mark.parametrize("what", ["attention", "layer, inside"])
def test_models_that_share_attention_are_not_probed_at_once(what, ids):
    one, two = sharing(what)
    with sinkscope.patched(one, "sparsemax"):
        run(one, ids)
        with (
            pytest.raises(ValueError, match=r"(layers|h)\.1\.self_att.* is being probed already as part of another"),
            sinkscope.patched(two, "softmax1"),
        ):
            pytest.fail("it was let in")
    with sinkscope.patched(two, "softmax1"):
        run(two, ids)


def test_attention_that_turns_out_to_be_shared_is_not_given_to_either_model(ids):
    one, two = sharing("attention")
    with (
        pytest.raises(ValueError, match=r"model.layers.1.self_attn is being probed already as part of another"),
        probed(one, look),
        probed(two, look),
    ):
        run(two, ids)


def test_two_heads_on_one_base_are_one_model():
    one, two = made("llama"), made("llama")
    two.model = one.model
    with pytest.raises(ValueError, match="being probed already"), probed(one, look), probed(two, look):
        pytest.fail("it was let in")
