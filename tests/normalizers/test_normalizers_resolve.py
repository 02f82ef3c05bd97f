"""From what a user writes to a card, and what is said when nothing is meant by it."""

import math

import pytest
import torch

from sinkscope.errors import SinkscopeError, UnknownNameError
from sinkscope.normalizers import NORMALIZERS, Normalizer, resolve


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """A module of a user's on the Python path, under a name that no other test imports."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "somebodys_normalizers.py").write_text(
        '"""A module."""\nimport torch\nfrom sinkscope.normalizers import NORMALIZERS\n\n'
        'def even(scores):\n    """One over the number of keys.\n\n    More."""\n'
        "    return scores.isfinite() / scores.isfinite().sum(-1, keepdim=True)\n\n"
        "def total(scores):\n    return scores.sum(-1)\n\n"
        "card = NORMALIZERS['softpick']\nnumber = 3\n"
    )
    (tmp_path / "a_broken_module.py").write_text("1 / 0\n")


@pytest.mark.parametrize("name", NORMALIZERS)
def test_a_name_is_its_card_and_its_spec(name):
    assert resolve(name) is not None
    assert resolve(name).spec == name
    assert resolve(name).function is NORMALIZERS[name].function


@pytest.mark.parametrize(
    "spec", ["entmax:alpha=1.5", "topk:k=8", "clipped:gamma=-0.1,zeta=1.2", "sink_logit:s=-inf", "ssmax:s=0.1"]
)
def test_a_spec_is_read_back_as_it_is_written(spec):
    card = resolve(spec)
    assert card.spec == spec
    assert resolve(card) is card


def test_a_bound_card_keeps_earlier_settings_and_every_digit():
    card = NORMALIZERS["clipped"].bind(gamma=-1 / 3).bind(zeta=1.5)
    assert card.settings == {"gamma": -1 / 3, "zeta": 1.5}
    assert resolve(card.spec).settings == card.settings


def test_settings_reach_the_function():
    scores = torch.tensor([1.0, 0.0, -1.0])
    assert torch.equal(resolve("topk:k=1")(scores), torch.tensor([1.0, 0.0, 0.0]))
    assert not torch.equal(resolve("entmax:alpha=1.2")(scores), resolve("entmax")(scores))


def test_an_unknown_name_gets_the_nearest_one():
    with pytest.raises(UnknownNameError, match="did you mean 'softpick'"):
        resolve("sofpick")
    with pytest.raises(UnknownNameError, match="did you mean 'entmax'"):
        resolve("entmx:alpha=1.5")


def test_an_unknown_parameter_gets_the_nearest_one_with_its_range():
    with pytest.raises(UnknownNameError, match=r"did you mean 'alpha'.*from 1 to 10, by default 1.5"):
        resolve("entmax:alhpa=1.5")
    with pytest.raises(UnknownNameError, match="softmax has no parameter 't': it takes none"):
        resolve("softmax:t=2")


@pytest.mark.parametrize("alpha", ["0.5", "0.99", "nan", "11", "-inf"])
def test_a_value_out_of_range_is_refused_with_the_range(alpha):
    with pytest.raises(SinkscopeError, match="alpha must be a number from 1 to 10"):
        resolve(f"entmax:alpha={alpha}")
    with pytest.raises(ValueError, match="alpha must be a number from 1 to 10"):
        NORMALIZERS["entmax"].bind(alpha=float(alpha))


@pytest.mark.parametrize("k", ["0", "2.5", "inf", "nan"])
def test_a_whole_parameter_takes_whole_numbers(k):
    with pytest.raises(SinkscopeError, match="k must be a whole number from 1"):
        resolve(f"topk:k={k}")


@pytest.mark.parametrize("spec", ["topk:8", "topk:", "topk:k", "topk:k=", "topk:k=many", "topk:k=8,", "topk:k=8;t=2"])
def test_what_is_not_key_and_number_is_refused_with_the_form(spec):
    with pytest.raises(SinkscopeError, match="not of the form key=number; topk takes k, a whole number"):
        resolve(spec)


def test_every_message_is_one_line():
    for spec in ("sofpick", "entmax:alhpa=1", "entmax:alpha=0", "topk:8", "no_such_module:f"):
        with pytest.raises(SinkscopeError) as caught:
            resolve(spec)
        assert "\n" not in str(caught.value)


def test_a_function_is_taken_as_it_is_and_nothing_is_claimed_of_it():
    card = resolve(torch.exp)
    assert card.name == "exp"
    assert not card.published
    assert card.row_sum is card.may_be_negative is card.shift_invariant is card.rowwise is None
    assert card.finite_range(torch.float16) is None
    assert not card.sums_to_one


def test_the_guarantees_hold_for_any_function():
    scores = torch.tensor([[1.0, -math.inf], [-math.inf, -math.inf]], requires_grad=True)
    weights = resolve(lambda scores: scores * 0 + 1)(scores)
    weights.sum().backward()
    assert torch.equal(weights, torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    assert scores.grad.isfinite().all()


def test_a_function_never_sees_a_row_without_a_finite_score():
    def watched(scores):
        assert scores.isfinite().any(-1).all()
        return torch.softmax(scores, -1)

    resolve(watched)(torch.full((2, 3), -math.inf))


@pytest.mark.usefixtures("outside")
def test_a_function_of_a_module_on_the_path_is_found():
    card = resolve("somebodys_normalizers:even")
    assert card.spec == "somebodys_normalizers:even"
    assert card.summary == "One over the number of keys."
    assert torch.equal(card(torch.tensor([5.0, 1.0, -math.inf])), torch.tensor([0.5, 0.5, 0.0]))
    assert isinstance(resolve("somebodys_normalizers:card"), Normalizer)


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no_such_module:even", "put its folder on PYTHONPATH"),
        ("./somebodys_normalizers.py:even", "put its folder on PYTHONPATH|cannot be imported"),
        (":even", "cannot be imported"),
        ("a_broken_module:even", "cannot be imported: ZeroDivisionError"),
        ("somebodys_normalizers:odd", "has no 'odd'"),
        ("somebodys_normalizers:", "has no ''"),
        ("somebodys_normalizers:number", "is of type int: it must be a function"),
    ],
)
def test_a_function_that_cannot_be_had_is_refused_in_a_line(spec, message):
    with pytest.raises(SinkscopeError, match=message):
        resolve(spec)


@pytest.mark.usefixtures("outside")
def test_an_answer_of_another_shape_is_refused_by_name():
    with pytest.raises(SinkscopeError, match=r"somebodys_normalizers:total must return .* \[2, 3\], got \[2\]"):
        resolve("somebodys_normalizers:total")(torch.zeros(2, 3))


def test_a_name_of_the_catalog_wins_over_a_module():
    with pytest.raises(SinkscopeError, match="not of the form key=number"):
        resolve("entmax:sparsemax")
