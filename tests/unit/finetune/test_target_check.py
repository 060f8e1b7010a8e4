"""A target that a finished model missed is said, with both numbers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from isthmus.finetune.pairs import Group
from isthmus.finetune.regularization import regularizers
from isthmus.finetune.target_check import check_targets


class Texts:
    """Queries of 12 terms; positives of 40 and, of each, a negative of 60."""

    def __len__(self) -> int:
        return 300

    def __getitem__(self, position: tuple[int, int]) -> Group:
        return Group([12], [40, 60], [0.5, 0.1])

    def collate(self, groups: list[Group]) -> dict[str, Tensor]:
        queries = torch.tensor([group.query for group in groups])
        passages = torch.tensor([[row] for group in groups for row in group.rows])
        return {
            "query_ids": queries, "query_mask": torch.ones_like(queries),
            "passage_ids": passages, "passage_mask": torch.ones_like(passages),
        }  # fmt: skip


class Task(nn.Module):
    """A text's token is the number of its terms; dropout would add as many again."""

    def __init__(self, chosen: dict[str, Any]) -> None:
        super().__init__()
        self.regularizers = regularizers(chosen)
        self.steering = [each.steering for each in self.regularizers if each.steering]
        backbone = SimpleNamespace(word_embeddings=torch.zeros(1))
        self.encoder = SimpleNamespace(
            backbone=backbone, represent_queries=self.weights, represent_documents=self.weights
        )

    def weights(self, ids: Tensor, mask: Tensor) -> Tensor:
        return (torch.arange(200) < ids * (1 + self.training)).float()


def checked(chosen: dict[str, Any]) -> Any:
    task: Any = Task(chosen)
    device = SimpleNamespace(device=torch.device("cpu"), bf16=False)
    found = check_targets(task, Texts(), SimpleNamespace(task=task, args=device, compiled=False))  # type: ignore[arg-type]
    assert task.training
    return found


def test_what_is_near_needs_no_words(capsys: pytest.CaptureFixture[str]) -> None:
    for queries, documents in ((10.1, 42), (14.9, 62)):
        chosen = {"flops": {"target": {"queries": queries, "documents": documents}}}
        assert checked(chosen) == {"queries": 12.0, "documents": 50.0}
    assert capsys.readouterr().err == ""


def test_what_is_missed_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    checked({"flops": {"target": {"documents": 41}}, "l1": {"target": {"queries": 16}}})
    many, few = capsys.readouterr().err.splitlines()
    assert many.startswith(
        "documents have 50.0 terms on average in the finished model; "
        "regularizers.flops.target.documents = 41 is MISSED: train longer"
    )
    assert "a higher weight (regularizers.flops.documents; it came to 0.001)" in many
    assert few.startswith("queries have 12.0 terms")
    assert "a lower weight (regularizers.l1.queries" in few


def test_nothing_is_counted_without_a_target() -> None:
    assert checked({"flops": {"documents": 0.1}}) is None
