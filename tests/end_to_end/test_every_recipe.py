"""Every shipped recipe learns, resumes exactly and hands on its decoder."""

from __future__ import annotations

import copy
import itertools
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from isthmus.config.recipes import resolve, shipped_recipes
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.task import PARTS_FILE, PretrainTask
from isthmus.records import Document
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")
_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "initializer_range": 0.05,
}
_MODELS: dict[str, dict[str, Any]] = {
    "bert": _SIZES,
    "distilbert": {
        "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 40,
        "initializer_range": 0.05,
    },
    "roberta": _SIZES,
    "xlm-roberta": _SIZES,
    "electra": {**_SIZES, "embedding_size": 24},
    "modernbert": {**_SIZES, "global_attn_every_n_layers": 2, "local_attention": 8},
}  # fmt: skip
_SYLLABLES = ("ba", "do", "ke", "li", "mu", "na", "po", "ri", "su", "te")
_WORDS = ["".join(pair) for pair in itertools.product(_SYLLABLES, repeat=2)]
_SPECIAL = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")  # as RoBERTa has them: padding is not 0
_NEAR_ZERO = 0.1
# A bag of words is never better than its bound, log|T|, which its gap leaves out; the others only
# tell something of the data. All else can be learnt by heart, enhanced decoding too: what a row
# does not see is always the same in a batch that is never drawn anew, and so is its position.
_NOT_TO_ZERO = ("bag_of_words", "replaced_token/restored", "view/one_span")
_RECIPES = [known.name for known in shipped_recipes("pretrain")]
# One without a decoder, one for each decoder, and one whose decoder is copied from the backbone.
_DECODERS = ("bow", "autoregressive", "condenser", "lexmae", "retromae", "simlm")
# The parameters that a checkpoint must hold are the backbone's and the decoder's.
one_of_each_decoder = pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(recipe, marks=() if recipe in _DECODERS else pytest.mark.nightly)
        for recipe in _RECIPES
    ],
)
# Every recipe meets BERT, and every architecture a bag of words.
recipe_and_kind = pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        pytest.param(
            recipe,
            kind,
            marks=() if kind == "bert" or recipe == "bow" else pytest.mark.nightly,
        )
        for recipe, kind in itertools.product(_RECIPES, _MODELS)
    ],
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Words of two syllables whole, longer ones in pieces."""
    pieces = [*_SYLLABLES, *(f"##{syllable}" for syllable in _SYLLABLES)]
    ids = {token: number for number, token in enumerate([*_SPECIAL, ".", *pieces, *_WORDS])}
    backend = FastTokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 0))
    return Tokenizer(
        PreTrainedTokenizerFast(
            tokenizer_object=backend,
            pad_token="[PAD]",
            unk_token="[UNK]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
        )
    )


@dataclass(frozen=True)
class Bench:
    """A corpus, and a random model of every architecture: everything a recipe is tried on."""

    corpus: TokenisedCorpus
    tokenizer: Tokenizer
    folders: dict[str, Path]
    backbones: dict[str, Backbone]
    generator: Path

    def settings(self, recipe: str, kind: str, *overrides: str) -> PretrainSettings:
        """The recipe as it is shipped, for texts of a few words."""
        flags = {"documents": "c", "output": "o", "model": str(self.folders[kind])}
        small = ["max_length=24", "training.report_to=[]", "training.bf16=false"]
        if resolve("pretrain", recipe)["view"]["name"] == "neighbours":
            small.append("view.span=20")
        if recipe == "simlm":
            small.append(f"corruption.generator={self.generator}")
        values = resolve("pretrain", recipe, flags, [*small, *overrides])
        return PretrainSettings.parse(values, where=recipe)

    def task(
        self, settings: PretrainSettings, backbone: Backbone, seed: int = 0
    ) -> tuple[PretrainTask, PretrainExamples]:
        """The step of a recipe, and what it is fed."""
        parts = assemble(settings)
        task = PretrainTask(backbone, self.tokenizer, parts, seed)
        columns = parts.columns(self.corpus, self.tokenizer)
        examples = PretrainExamples(
            self.corpus, parts.view, self.tokenizer, settings.max_length, 0, columns
        )
        return task, examples


@pytest.fixture(scope="module")
def bench(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Documents of one to nine sentences, without dropout in the models that learn them."""
    folder = tmp_path_factory.mktemp("bench")
    drawn = random.Random(0)

    def sentence() -> str:
        words = (
            drawn.choice(_WORDS) + drawn.choice((*_SYLLABLES, *[""] * 20))
            for _ in range(drawn.randint(3, 8))
        )
        return f"{' '.join(words)}."

    documents = [
        Document(str(number), " ".join(sentence() for _ in range(1 + number % 9)))
        for number in range(24)
    ]
    corpus = tokenise(documents, "bench", tokenizer.serialised, cache=folder / "cache")
    folders = {kind: folder / kind for kind in _MODELS}
    for kind in _MODELS:
        save_random_model(folders[kind], kind, tokenizer, seed=0)
    save_random_model(folder / "generator", "bert", tokenizer, seed=1)
    backbones = {
        kind: Backbone.load(str(place), dropout=0.0).train() for kind, place in folders.items()
    }
    return Bench(corpus, tokenizer, folders, backbones, folder / "generator")


def save_random_model(folder: Path, kind: str, tokenizer: Tokenizer, seed: int) -> None:
    torch.manual_seed(seed)
    special = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    if kind == "modernbert":
        special |= {"cls_token_id": 0, "sep_token_id": 2}
    # Some rows more than tokens, as many a published model has.
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer) + 3, **special, **_MODELS[kind])
    Backbone(AutoModelForMaskedLM.from_config(config)).save(folder)
    tokenizer.save(folder)


@recipe_and_kind
def test_one_batch_is_learnt_by_heart(bench: Bench, recipe: str, kind: str) -> None:
    # ModernBERT's layers cannot be copied, as SimLM's decoder would have it.
    change = ["decoder.init=random"] if (recipe, kind) == ("simlm", "modernbert") else []
    settings = bench.settings(recipe, kind, *change)
    task, examples = bench.task(settings, copy.deepcopy(bench.backbones[kind]))
    # Documents of one span and of several, in one batch.
    batch = task.prepare(examples.collate([examples[0, row] for row in (1, 4, 6, 8)]))
    optimiser = torch.optim.Adam(task.parameters(), lr=2e-2, betas=(0.9, 0.95), fused=True)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimiser, 0.1, total_iters=10)
    for step in range(250):
        means = losses(task, batch)
        assert all(torch.isfinite(value) for value in means.values()), (step, means)
        far = {
            name: value.item()
            for name, value in means.items()
            if name not in _NOT_TO_ZERO and value >= _NEAR_ZERO
        }
        if not far:
            break
        optimiser.zero_grad()
        weights = task.weights(progress=0.0)
        torch.autograd.backward([weight * means[name] for name, weight in weights.items()])
        if step == 0:
            assert set(far) >= {name for name in weights if name not in _NOT_TO_ZERO}
            check_gradients(task)
        optimiser.step()
        warm_up.step()
    assert not far


def losses(task: PretrainTask, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    counts = task.counts(batch)
    return {name: value / counts[name.partition("/")[0]] for name, value in task(batch).items()}


def check_gradients(task: PretrainTask) -> None:
    """One parameter without a gradient, and data-parallel training stops."""
    trainable = {name: p for name, p in task.named_parameters() if p.requires_grad}
    assert not [name for name, parameter in trainable.items() if parameter.grad is None]
    # A bias may be of no consequence (that of attention's keys never is), a matrix may not.
    matrices = {name: p.grad for name, p in trainable.items() if p.ndim > 1 and p.grad is not None}
    assert not [name for name, gradient in matrices.items() if not gradient.any()]


@one_of_each_decoder
def test_interrupted_and_resumed_is_uninterrupted(
    bench: Bench, recipe: str, tmp_path: Path
) -> None:
    settings = bench.settings(
        recipe, "bert",
        # Four steps to the epoch, so the checkpoint lies in the first and the end in the second;
        # and two steps to a line of the log, so it lies between two lines.
        "training.per_device_train_batch_size=3", "training.gradient_accumulation_steps=2",
        "training.max_steps=6", "training.save_steps=3", "training.logging_steps=2",
    )  # fmt: skip

    def trainer(start: Path, seed: int, output: Path) -> Trainer:
        # With dropout, which draws from the generators that a checkpoint must hold.
        task, examples = bench.task(settings, Backbone.load(str(start)), seed)
        return Trainer(task, examples, settings.training, output)

    whole = trainer(bench.folders["bert"], 0, tmp_path / "whole")
    expected = logged(whole.fit())
    shutil.copytree(tmp_path / "whole" / "checkpoint-3", tmp_path / "torn" / "checkpoint-3")
    # From other weights everywhere: what is not in the checkpoint cannot come out right.
    torch.manual_seed(9)
    resumed = trainer(bench.generator, 9, tmp_path / "torn")
    assert logged(resumed.fit()) == expected
    assert [entry["step"] for entry in expected] == [2, 4, 6]
    torch.testing.assert_close(
        dict(resumed.task.state_dict()), dict(whole.task.state_dict()), rtol=0, atol=0
    )
    own = {name.partition(".")[0] for name in whole.task.state_dict()}
    assert (tmp_path / "torn" / "checkpoint-6" / PARTS_FILE).is_file() == (own != {"backbone"})


def logged(history: list[dict[str, float]]) -> list[dict[str, float]]:
    return [entry for entry in history if "loss" in entry]


@pytest.fixture(scope="module")
def earlier(
    commands: Any,
    collection: Path,
    settings: Callable[..., list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A run of a recipe with a projection and a decoder, trained until both know something."""
    output = tmp_path_factory.mktemp("earlier") / "cdmae"
    commands.succeed(
        "pretrain", "--recipe", "cdmae", collection, "--model", "scratch:tiny",
        "--output", output, *settings(
            "vocabulary=100", "max_length=32", "probes.documents=0", "training.max_steps=60",
            "training.dropout=0.0", "training.learning_rate=3e-3", "training.save_steps=60",
            "training.per_device_train_batch_size=16",
        ),
    )  # fmt: skip
    return output


@pytest.fixture
def go_on(
    commands: Any, collection: Path, settings: Callable[..., list[str]], earlier: Path
) -> Callable[..., str]:
    """Goes on from the earlier run with a recipe, for a step that changes nothing; what it said."""

    def run(recipe: str, output: Path, *changes: str) -> str:
        ended = commands.succeed(
            "pretrain", "--recipe", recipe, collection, "--model", earlier,
            "--output", output, *settings(
                "max_length=32", "probes.documents=0", "training.max_steps=1",
                "training.dropout=0.0", "training.learning_rate=1e-12", "training.seed=7",
                "training.per_device_train_batch_size=64", *changes,
            ),
        )  # fmt: skip
        message: str = ended.stderr
        return message

    return run


def reconstruction(output: Path) -> list[float]:
    snapshot = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))
    return [entry["reconstruction"] for entry in logged(snapshot["results"]["log"])]


def test_the_same_recipe_goes_on_with_the_decoder(
    go_on: Callable[..., str], earlier: Path, tmp_path: Path
) -> None:
    said = go_on("cdmae", tmp_path / "later")
    file = earlier / "final" / PARTS_FILE
    assert f"continued from {file}: the bottleneck, the decoder\n" in said
    before, after = (load_file(run / "final" / PARTS_FILE) for run in (earlier, tmp_path / "later"))
    assert any(name.startswith("bottleneck.") for name in before)
    assert any(name.startswith("decoder.") for name in before)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
    began, *_, ended = reconstruction(earlier)
    [first] = reconstruction(tmp_path / "later")
    assert first == pytest.approx(ended, rel=0.1)
    assert ended < 0.9 * began


def test_another_decoder_starts_anew_and_says_so(
    go_on: Callable[..., str], earlier: Path, tmp_path: Path
) -> None:
    said = go_on("cdmae", tmp_path / "one-layer", "decoder.layers=1")
    file = earlier / "final" / PARTS_FILE
    assert f"continued from {file}: the bottleneck; untrained: the decoder\n" in said
    fresh = load_file(tmp_path / "one-layer" / "final" / PARTS_FILE)
    norms = [value for name, value in fresh.items() if name.endswith("norm.weight")]
    assert norms
    for value in norms:
        torch.testing.assert_close(value, torch.ones_like(value), rtol=0, atol=1e-6)
    said = go_on("bow", tmp_path / "none")
    assert "decoder" not in said
    assert not (tmp_path / "none" / "final" / PARTS_FILE).exists()


def test_the_encoder_loads_everywhere(earlier: Path) -> None:
    from sentence_transformers import SentenceTransformer

    final = earlier / "final"
    texts = ["ba do ke li", "mu na"]
    batch = AutoTokenizer.from_pretrained(final)(texts, padding=True, return_tensors="pt")
    inputs = (batch["input_ids"], batch["attention_mask"])
    ours = Backbone.load(str(final)).eval()
    with torch.no_grad():
        states = ours(*inputs)
        plain = AutoModel.from_pretrained(final).eval()(*inputs).last_hidden_state
        logits = AutoModelForMaskedLM.from_pretrained(final).eval()(*inputs).logits
    inside = batch["attention_mask"].bool()
    torch.testing.assert_close(plain[inside], states[inside], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(logits[inside], ours.head(states)[inside], rtol=1e-4, atol=1e-4)
    encoder = SentenceTransformer(str(final), device="cpu")
    vectors = encoder.encode(texts, convert_to_tensor=True)
    torch.testing.assert_close(vectors, states[:, 0], rtol=1e-4, atol=1e-5)  # what was trained
