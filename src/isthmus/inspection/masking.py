"""What a recipe's masking really hides, and which words of a corpus the statistics hold important.

The question of CDMAE's section 3.2: of the tokens that uniform masking hides, how many are stop
words and punctuation, from which nothing about the text can be learnt?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Group
from rich.table import Table

from isthmus.collections import Problems, open_corpus
from isthmus.collections.files import lines
from isthmus.config import Overrides
from isthmus.config.models import model_folder
from isthmus.config.output import reserved, write_json
from isthmus.indexes.bm25.stop_words import stop_words as listed_stop_words
from isthmus.pretraining.corruption._budget import MaskingSettings
from isthmus.pretraining.corruption.importance import Importance, ImportanceSettings, importance
from isthmus.pretraining.corruption.uniform import Uniform
from isthmus.pretraining.examples import PretrainExamples, check_texts
from isthmus.pretraining.labels import IGNORED, Vocabulary
from isthmus.pretraining.parts import Column
from isthmus.pretraining.recipe import Parts, assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.progress import notice, track
from isthmus.text.corpus import TokenisedCorpus, tokenise
from isthmus.text.tokenizer import Tokenizer
from isthmus.training.task import Batch

_BATCH = 64
Row = npt.NDArray[np.int64]
_FEWEST = 5  # occurrences in the sample before a word's mean importance says anything


@dataclass
class Hidden:
    """What one strategy hid: tokens in all, tokens of stop words and punctuation, and the words.

    A token counts as often as it was hidden: from each position's row, in enhanced decoding.
    """

    tokens: int = 0
    stop_tokens: int = 0
    words: Counter[str] = field(default_factory=Counter)

    @property
    def stop_share(self) -> float:
        """The share of stop words and punctuation."""
        return self.stop_tokens / max(self.tokens, 1)


@dataclass(frozen=True)
class MaskingReport:
    """What maskings hid in a sample of the corpus."""

    documents: int
    text: Hidden  # everything, as if all of it were hidden
    strategies: dict[str, Hidden]  # "uniform" beside those of the recipe
    importance: dict[str, tuple[float, int]]  # mean AMI and occurrences of each word
    words: int = 20  # rows of each table

    def table(self) -> Group:
        """Shares, what is hidden most, and the most and the least important words."""
        shares = Table("tokens", "stop words and punctuation", title="share of what is hidden")
        for name, hidden in {"the text itself": self.text, **self.strategies}.items():
            shares.add_row(name, f"{hidden.stop_share:.1%}")
        most = Table(
            *(f"by {name}" for name in self.strategies), title="hidden most often (share of tokens)"
        )
        columns = [_frequent(hidden, self.words) for hidden in self.strategies.values()]
        for row in zip(*columns, strict=False):
            most.add_row(*row)
        ranked = sorted(self.importance.items(), key=lambda item: (-item[1][0], item[0]))
        extremes = Table("most important", "AMI", "least important", "AMI", title="words")
        for (first, (high, _)), (last, (low, _)) in zip(
            ranked[: self.words], ranked[::-1][: self.words], strict=True
        ):
            extremes.add_row(first, f"{high:.2f}", last, f"{low:.2f}")
        return Group(shares, most, extremes)

    def save(self, file: Path) -> None:
        """Writes everything as JSON."""
        strategies = {
            name: {
                "tokens": hidden.tokens,
                "stop_share": hidden.stop_share,
                "words": dict(hidden.words.most_common()),
            }
            for name, hidden in {"text": self.text, **self.strategies}.items()
        }
        write_json(
            file,
            {
                "documents": self.documents,
                "strategies": strategies,
                "importance": {
                    word: {"mean": mean, "occurrences": count}
                    for word, (mean, count) in self.importance.items()
                },
            },
        )


def masking(
    corpus: str,
    model: str,
    recipe: str = "cdmae",
    *,
    documents: int = 2000,
    words: int = 20,
    stop_words: str | Path | Sequence[str] | None = None,
    output: str | Path | None = None,
    settings: PretrainSettings | Overrides = None,
) -> MaskingReport:
    """What the maskings of a recipe hide in a sample of a corpus, beside uniform masking.

    Only the tokenizer of `model` is loaded, and no model of a corruption. N-grams are those of the
    recipe's importance masking (its statistics, or this corpus counted in its memory); of a recipe
    without one, the whole corpus's. `stop_words` are words, or a file with one a line; None:
    English ones. The tables show so many `words`. With `output`, that .json file holds everything.
    """
    file = None if output is None else Path(output)
    with reserved(file):
        flags = {"corpus": corpus, "model": model, "output": "-"}
        chosen = PretrainSettings.given(settings, flags, recipe)
        report = _masking(corpus, model, chosen, documents, _read(stop_words))
        if file is not None:
            report.save(file)
    return replace(report, words=words)


def _read(stop_words: str | Path | Sequence[str] | None) -> Sequence[str]:
    if stop_words is None:
        stop_words = sorted(listed_stop_words("english", many=True))
    if not isinstance(stop_words, str | Path):
        return stop_words
    listed = lines(Path(stop_words), Problems("refuse"))
    return [word for _, line in listed for word in line.lower().split()]


def _masking(
    corpus: str, model: str, settings: PretrainSettings, documents: int, stop_words: Sequence[str]
) -> MaskingReport:
    parts = assemble(settings, to_train=False)
    tokenizer = Tokenizer.load(model_folder(model))
    tokenised, used = weighed(corpus, settings, parts, tokenizer)
    columns: dict[str, Column] = {}
    for part in (used, *parts):
        columns |= part.columns(tokenised, tokenizer)
    rows = np.unique(np.linspace(0, len(tokenised) - 1, documents).astype(np.int64))
    seed = settings.training.seed
    examples = PretrainExamples(
        tokenised, parts.view, tokenizer, settings.max_length, seed, columns, rows
    )
    hiding = Hiding(settings, parts, Vocabulary(tokenizer, len(tokenizer)))
    return _observe(examples, hiding, tokenizer, stop_words)


def weighed(
    corpus: str, settings: PretrainSettings, parts: Parts, tokenizer: Tokenizer
) -> tuple[TokenisedCorpus, Importance]:
    """A tokenised corpus, and the masking whose n-gram statistics weigh its words, all counted.

    The recipe's own importance masking, or one with the statistics of this corpus.
    """
    own = [part for part in parts if isinstance(part, Importance)]
    for one in own:
        one.statistics(tokenizer)  # refused before the corpus is read
    texts = open_corpus(corpus, settings.account())
    tokenised = tokenise(
        texts.documents(),
        f"{texts.fingerprint()} {settings.kept}",
        tokenizer.serialised,
        settings.titles,
    )
    check_texts(tokenised, corpus)
    used = own[-1] if own else Importance(ImportanceSettings())  # of two, as in pre-training
    notice(f"n-gram statistics: {used.counts(tokenised, tokenizer).folder}")
    return tokenised, used


def _observe(
    examples: PretrainExamples,
    hiding: Hiding,
    tokenizer: Tokenizer,
    stop_words: Sequence[str],
) -> MaskingReport:
    observed = Words(tokenizer, frozenset(stop_words))
    text = Hidden()
    strategies: dict[str, Hidden] = {}
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    starts = range(0, len(examples.rows), _BATCH)
    for start in track(starts, "mask", total=len(starts), unit="batches"):
        block = range(start, min(start + _BATCH, len(examples.rows)))
        batch = examples.collate([examples[0, row] for row in block])
        chosen = {
            "all": ~hiding.vocabulary.is_special(batch["input_ids"]),
            **hiding.of(batch),
        }
        scores = importance(batch["pmi"], chosen["all"]).numpy()
        masks = {name: mask.numpy() for name, mask in chosen.items()}
        ids, words = batch["input_ids"].numpy(), batch["words"].numpy()
        for row in range(len(ids)):
            for word, is_stop, places in observed.of(ids[row], words[row]):
                if not masks["all"][row, places].any():  # a special token in the text itself
                    continue
                for name, mask in masks.items():
                    hidden = text if name == "all" else strategies.setdefault(name, Hidden())
                    count = int(mask[row, places].sum())
                    if count:
                        hidden.tokens += count
                        hidden.stop_tokens += count * is_stop
                        hidden.words[word] += count
                sums[word] += float(scores[row, places].mean())  # type: ignore[assignment]
                counts[word] += 1
    means = {
        word: (sums[word] / count, count) for word, count in counts.items() if count >= _FEWEST
    }
    return MaskingReport(len(examples.rows), text, strategies, means)


@dataclass(frozen=True)
class Hiding:
    """The strategies of a recipe, by name."""

    settings: PretrainSettings
    parts: Parts
    vocabulary: Vocabulary

    def of(self, batch: Batch) -> dict[str, torch.Tensor]:
        """How often each strategy hides each token; uniform masking at the same rate beside it."""
        found: dict[str, torch.Tensor] = {}
        sides = (
            ("encoder", self.settings.corruption, self.parts.corruption),
            ("decoder", self.settings.decoder_corruption, self.parts.decoder_corruption),
        )
        known = dict(batch)
        for side, chosen, corruption in sides:
            if chosen is None or corruption is None:
                continue
            mask = corruption.choose(known, self.vocabulary)
            if side == "encoder":
                known["labels"] = torch.where(mask, batch["input_ids"], IGNORED)
            rate = corruption.settings.rate
            uniform = Uniform(MaskingSettings(rate=rate)).choose(batch, self.vocabulary)
            found[f"uniform at {rate:g}"] = uniform
            if type(corruption) is not Uniform:
                found[f"the {side}'s {chosen['name'].replace('_', ' ')} at {rate:g}"] = mask
        decoder = self.parts.decoder
        if decoder is not None and (hidden := decoder.hides(batch, self.vocabulary)):
            assert self.settings.decoder is not None
            name = self.settings.decoder["name"].replace("_", " ")
            found[f"the decoder's {name} decoding at {hidden[0]:g}"] = hidden[1]
        return found


class Words:
    """The words of a row, decoded and in lower case."""

    def __init__(self, tokenizer: Tokenizer, stop_words: frozenset[str]) -> None:
        self.backend = tokenizer.backend
        self.stop_words = stop_words
        self._known: dict[tuple[int, ...], tuple[str, bool]] = {}

    def of(self, ids: Row, words: Row) -> Iterable[tuple[str, bool, slice]]:
        """Each word, whether it is a stop word or punctuation, and where its tokens stand."""
        edges = np.flatnonzero(np.diff(words, prepend=-2, append=-2))
        for start, end in pairwise(edges):
            if words[start] >= 0:
                yield (*self._read(tuple(ids[start:end].tolist())), slice(int(start), int(end)))

    def _read(self, ids: tuple[int, ...]) -> tuple[str, bool]:
        if ids not in self._known:
            word = self.backend.decode(list(ids)).strip().lower()
            plain = not any(character.isalnum() for character in word)
            self._known[ids] = word, plain or word in self.stop_words
        return self._known[ids]


def _frequent(hidden: Hidden, words: int) -> list[str]:
    return [
        f"{word} {count / max(hidden.tokens, 1):.2%}"
        for word, count in hidden.words.most_common(words)
    ]
