"""Parts of another distribution, announced by entry points alone, in every verb that meets them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-part.md"
# The objective and the loss are the guide's own examples.
PARTS = '''
"""Parts that isthmus does not know."""

import torch

from isthmus.collections.formats.beir import Beir
from isthmus.config import Settings
from isthmus.finetuning.kinds import Sparse
from isthmus.finetuning.candidates import NOTHING, Ranker
from isthmus.finetuning.candidates import MiningSettings
from isthmus.finetuning.negatives import Source
from isthmus.finetuning.teachers import Teacher, TeacherSource
from isthmus.pretraining.bottlenecks import Bottleneck
from isthmus.pretraining.corruption import Corruption
from isthmus.pretraining.decoders import Decoder
from isthmus.pretraining.views import Text, View
from isthmus.pretraining.probes import Probe, on_device
from isthmus.retrieval.fusion import Votes


class LastTokens(View):
    """The end of a text."""

    def __call__(self, document, room, key):
        start = max(0, len(document.tokens) - room)
        return (Text(document.tokens[start:], document.words[start:], start),)


class EverySecond(Corruption):
    """Hides every second token."""

    def choose(self, step):
        return (torch.arange(step["input_ids"].shape[1]) % 2 == 0) & ~step.special()


class MeanState(Bottleneck):
    """The mean of the states."""

    requires = frozenset({"hidden_states", "attention_mask"})
    trains = "mean"
    finetune_with = "dense-mean"

    def forward(self, step):
        return step.mean()


class Product(Decoder):
    """Each token's embedding times the bottleneck."""

    requires = frozenset({"bottleneck", "input_ids", "decoder_ids", "decoder_labels"})
    uses_head = True

    def decode(self, step):
        return step.backbone.embed(step["decoder_ids"]) * step["bottleneck"][:, None]


class Norm(Probe):
    """The mean length of the first states."""

    better = "higher"

    def prepare(self, task, held_out, decides):
        self.decides = decides

    def __call__(self, task, held_out):
        assert self.decides
        batches = on_device(task, held_out.texts)
        states = [task.backbone(b["input_ids"], b["attention_mask"])[:, 0] for b in batches]
        return {"": float(torch.cat(states).norm(dim=1).mean())}


def squared(ranking):
    """The squares of the scores."""
    return Votes({document: score * score for document, score in ranking}, 0.0)
'''
METADATA = "Metadata-Version: 2.1\nName: outside-parts\nVersion: 1\n"
ENTRY_POINTS = """
[isthmus.pretraining.views]
last_tokens = outside_parts:LastTokens
[isthmus.pretraining.corruption]
every_second = outside_parts:EverySecond
[isthmus.pretraining.bottlenecks]
mean_state = outside_parts:MeanState
[isthmus.pretraining.decoders]
product = outside_parts:Product
[isthmus.pretraining.objectives]
text_length = outside_length:TextLength
[isthmus.pretraining.probes]
norm = outside_parts:Norm
[isthmus.finetuning.losses]
hinge = outside_hinge:hinge
[isthmus.retrieval.fusion]
squared = outside_parts:squared
"""
RECIPE = """
verb: pretrain
summary: every part from another distribution
paper: "none, 2026: a test"
settings:
  view: last_tokens
  corruption: every_second
  bottleneck: mean_state
  decoder: product
  decoder_corruption: every_second
  objectives: {masked_lm: 1.0, reconstruction: 1.0, text_length: 0.1}
  probes: {measure: [norm, bottleneck], best_by: norm}
"""
NAMES = re.findall(r"^(\w+) = ", ENTRY_POINTS, re.MULTILINE)


@pytest.fixture(scope="module")
def installed(commands: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs commands where a distribution with these parts is installed."""
    folder = tmp_path_factory.mktemp("outside")
    information = folder / "outside_parts-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: outside-parts\nVersion: 1\n"
    )
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    (folder / "outside_parts.py").write_text(PARTS)
    length, hinge = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (folder / "outside_length.py").write_text(length)
    (folder / "outside_hinge.py").write_text(hinge)
    (folder / "outside.yaml").write_text(RECIPE)
    return commands.where_installed(folder)


@pytest.fixture(scope="module")
def pretrained(
    installed: Any, collection: Path, settings: Callable[..., list[str]]
) -> tuple[Path, str]:
    """A run with the recipe of all parts, and what it printed."""
    output = installed.folder / "run"
    small = settings("vocabulary=600", "max_length=32", "training.max_steps=3")
    ended = installed.succeed(
        "pretrain", "--recipe", installed.folder / "outside.yaml", collection,
        "--model", "scratch:tiny", "--output", output, *small,
    )  # fmt: skip
    return output, ended.stdout + ended.stderr


def test_list(installed: Any) -> None:
    listed = installed.succeed("recipes", "--parts").stdout
    for name in NAMES:
        assert re.search(rf"\b{name}\b", listed)
    assert "weight" in installed.succeed("recipes", "--parts", "text_length").stdout


def test_pretrain_trains_and_hands_over_what_the_parts_declare(
    installed: Any, pretrained: tuple[Path, str]
) -> None:
    output, printed = pretrained
    assert "-r dense-mean" in printed
    log = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))["results"]["log"]
    names = {name for line in log for name in line}
    assert {"text_length", "reconstruction", "probe/norm", "probe/bottleneck"} <= names
    pooling = json.loads((output / "final" / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_mean_tokens"]
    again = installed.folder / "again"
    installed.succeed("pretrain", "--recipe", output, "--output", again)
    first, second = ((run / "final" / "model.safetensors").read_bytes() for run in (output, again))
    assert first == second


def test_finetune_index_search_and_tune(
    installed: Any,
    pretrained: tuple[Path, str],
    collection: Path,
    settings: Callable[..., list[str]],
) -> None:
    folder = installed.folder
    chosen = settings(
        "losses={hinge: {weight: 1.0}}", "training.max_steps=2", "query_max_length=32",
        "document_max_length=32",
    )  # fmt: skip
    installed.succeed(
        "finetune", "--recipe", "dense-mean", "--model", pretrained[0], collection,
        "--output", folder / "retriever", *chosen,
    )  # fmt: skip
    both = folder / "both"
    installed.succeed("index", collection, "-m", folder / "retriever", "-o", both)
    run, fused = folder / "fused.trec", ("-s", "fusion=squared")
    installed.succeed("search", both, "--queries", collection, "-o", run, *fused)
    assert run.read_text(encoding="utf-8")
    tuned = installed.succeed("tune", both, collection, "--split", "train", *fused)
    assert "squared of 1,000 candidates" in " ".join(tuned.stdout.split())
