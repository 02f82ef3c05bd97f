"""Token ids of one's own are windows if they look like windows, and a mistake otherwise."""

import pytest
import torch

from sinkscope.text.corpus import from_ids


def test_ids_of_ones_own_are_windows_from_column_0_on_whatever_side_they_were_padded_on():
    ids = torch.tensor([[5, 6, 7, 0], [-100, -100, 8, 9]], dtype=torch.int32)
    keep = torch.tensor([[True, True, True, False], [False, False, True, True]])
    found = from_ids(ids, keep)
    assert [row[real].tolist() for row, real in zip(found.ids, found.keep, strict=True)] == [[5, 6, 7], [8, 9]]
    assert found.keep.tolist() == [[True, True, True], [True, True, False]]
    assert found.provenance["seq_len"] == 3
    assert from_ids(ids.abs()).keep.all()
    assert (found.documents, found.starts, found.provenance["windows"]) == (("ids", "ids"), (0, 0), 2)


@pytest.mark.parametrize(
    ("ids", "keep", "reason"),
    [
        (torch.zeros(4, dtype=torch.int64), None, "expected integer ids"),
        (torch.zeros(0, 4, dtype=torch.int64), None, "expected integer ids"),
        (torch.zeros(2, 4), None, "expected integer ids"),
        (torch.ones(2, 4, dtype=torch.bool), None, "expected integer ids"),
        (torch.ones(2, 4, dtype=torch.int64), torch.ones(2, 4, dtype=torch.int64), "expected a bool keep"),
        (torch.ones(2, 4, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool), "expected a bool keep"),
        (torch.tensor([[1, -100]]), None, "expected ids of at least 0, got -100"),
        (torch.ones(2, 1, dtype=torch.int64), None, "expected at least 2 tokens"),
        (torch.ones(1, 3, dtype=torch.int64), torch.tensor([[True, False, False]]), "expected at least 2 tokens"),
        (torch.ones(1, 3, dtype=torch.int64), torch.tensor([[True, False, True]]), "padding on one side"),
        (torch.ones(1, 4, dtype=torch.int64), torch.tensor([[False, True, True, False]]), "padding on one side"),
    ],
)
def test_ids_that_are_no_windows_are_a_mistake_of_the_caller(ids, keep, reason):
    with pytest.raises(ValueError, match=reason):
        from_ids(ids, keep)
