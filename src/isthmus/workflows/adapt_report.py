"""The report of an adaptation: the original and the adapted encoder compared, in sentences."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash
from pydantic import BaseModel, ConfigDict

from isthmus.collections import Corpus
from isthmus.collections.in_memory import called
from isthmus.config.output import writing
from isthmus.errors import InputError
from isthmus.evaluation import Report
from isthmus.evaluation.statistics import paired_effect
from isthmus.evaluation.tables import escape_html, escape_markdown, page
from isthmus.finetuning.merge import summary
from isthmus.progress import Bar
from isthmus.retrieval.index import BM25
from isthmus.text.sentences import word_count
from isthmus.workflows.systems import TOKENS

ORIGINAL, ADAPTED, LABELLED = "original", "adapted", "labelled"
FUSED, ALL = "{} + BM25", "{} + BM25 + tokens"
REPORT = "report.json"
Outcome = Literal["better", "no significant change", "WORSE", "NOT MEASURED"]


def question(last: str, systems: Collection[str]) -> list[tuple[str, str]]:
    """The two pairs that are tested: the last encoder against the original, alone and fused.

    Fused is what a search of their indexes answers: with token vectors, where there are any.
    """
    fused = ALL if ALL.format(last) in systems else FUSED
    return [(last, ORIGINAL), (fused.format(last), fused.format(ORIGINAL))]


class AdaptReport(BaseModel):
    """What was trained on what, how much of it was kept, and what it changed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    documents: str
    """The documents, by name."""
    survey: str
    """How many documents there are, and what they are like."""
    model: str
    seed: int
    merges: dict[str, dict[str, Any] | None]
    report: Report | None

    @property
    def last(self) -> str:
        """The encoder that came last."""
        return list(self.merges)[-1]

    @property
    def recommended(self) -> bool | None:
        """Whether to use the adapted encoder; None where that was not measured.

        Only where it is significantly better on the first collection, and worse on none.
        """
        if self.report is None:
            return None
        first, *others = (_outcome(one, self.last) for one in self.report.collections.values())
        return first == "better" and "WORSE" not in others

    def sentences(self) -> list[str]:
        """What was trained, what it changed, and what to do."""
        name = called(self.documents)
        found = [f"{self.model} adapted to {name}: {self.survey}. Seed {self.seed}."]
        for name, merge in self.merges.items():
            kept = "the trained weights are used in full." if merge is None else summary(merge)
            found.append(f"{name}: {kept}")
        if self.report is None:
            found.append(
                f"Effect on search: {_NOT_MEASURED}. Fifty queries with their relevant documents "
                "are enough to see large effects: give them as --eval-on COLLECTION."
            )
            return found
        for name, report in self.report.collections.items():
            outcome = _outcome(report, self.last)
            found.append(f"{name} ({report.queries:,} judged queries): {outcome}.")
            found += [_sentence(report, *pair) for pair in question(self.last, report.systems)]
        return [*found, self._advice(self.report)]

    def _advice(self, report: Report) -> str:
        first, *others = report.collections.items()
        if worse := [name for name, one in others if _outcome(one, self.last) == "WORSE"]:
            return (
                f"Keep the original encoder if you also search {', '.join(worse)}: the adapted one "
                "is significantly worse there."
            )
        outcome = _outcome(first[1], self.last)
        if outcome == "better":
            return "Use the adapted encoder."
        if outcome == "WORSE":
            return "Keep the original encoder: the adapted one is significantly worse."
        return (
            "Keep the original encoder: these queries do not show that the adapted one is better. "
            "More judged queries can show smaller differences. More training (-r adapt, or a "
            "higher finetune.training.max_steps) or labelled queries (--train-on COLLECTION) may "
            "make a larger one."
        )

    def next_command(self, output: Path, query: str = "a query") -> str:
        """The command to go on with: never one with an encoder that did not get better."""
        if self.recommended is False:
            words = ["isthmus", "index", self.documents, "-m", self.model]
            return shlex.join([*words, "-o", f"{output}-original"])
        return shlex.join(["isthmus", "search", str(output), query])

    def write(self, output: Path) -> None:
        """Writes report.md, report.html and report.json."""
        title, sentences = "Before and after", self.sentences()
        tables = [] if self.report is None else self.report.tables()
        parts = [f"# {title}", *map(escape_markdown, sentences)]
        parts += [table.markdown() for table in tables]
        shown = [f"<h1>{title}</h1>", *(f"<p>{escape_html(one)}</p>" for one in sentences)]
        shown += [
            f'<figure class="table scores">{table.html(inline=False)}</figure>' for table in tables
        ]
        found = {**self.model_dump(mode="json"), "sentences": sentences}
        found["recommended"] = self.recommended
        with writing(output):
            (output / "report.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
            (output / "report.html").write_text(page(title, shown), encoding="utf-8")
            text = json.dumps(found, indent=2, ensure_ascii=False)
            (output / REPORT).write_text(f"{text}\n", encoding="utf-8")


_NOT_MEASURED: Outcome = "NOT MEASURED"


def read_report(output: Path) -> AdaptReport:
    """The report that an adaptation wrote."""
    try:
        found: Mapping[str, Any] = json.loads((output / REPORT).read_text(encoding="utf-8"))
        fields = {name: found[name] for name in AdaptReport.model_fields}
        return AdaptReport.model_validate_json(json.dumps(fields))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{output / REPORT} is not the report of an adaptation: {error}",
            "give the output folder of `isthmus adapt`, or run that command again to finish it",
        ) from None


def _outcome(report: Report, last: str) -> Outcome:
    found = [_change(report, *pair) for pair in question(last, report.systems)]
    significant = [difference for difference, _, clear in found if clear]
    if any(difference < 0 for difference in significant):
        return "WORSE"
    return "better" if significant else "no significant change"


def _change(report: Report, now: str, then: str) -> tuple[float, float, bool]:
    """The difference in the first measure, its corrected p-value, and if it is significant."""
    for pair in report.tests[report.measures[0]].pairs:
        if (pair.first, pair.second) == (now, then):
            return pair.difference, pair.corrected_p_value, pair.significant
    raise AssertionError((now, then))


def _sentence(report: Report, now: str, then: str) -> str:
    difference, p_value, significant = _change(report, now, then)
    measure = report.measures[0]
    means, scores = report.means[measure], report.per_query[measure]
    effect = paired_effect([scores[now][query] - scores[then][query] for query in scores[now]])
    low, high = effect.interval()
    word = "not significant"
    if significant:
        word = "significantly better" if difference > 0 else "significantly WORSE"
    return (
        f"{now}: {measure} {means[then]:.3f} before, {means[now]:.3f} after ({difference:+.3f}, "
        f"95% interval {low:+.3f} to {high:+.3f}, corrected p = {p_value:.2g}): {word}."
    )


def systems_of(original: str, encoders: Mapping[str, str], tokens: bool) -> dict[str, list[str]]:
    """The rows of the report: BM25, the original and the trained encoders, alone and fused."""
    alone = {ORIGINAL: original, **encoders}
    rows = {"BM25": [BM25], **{name: [one] for name, one in alone.items()}}
    rows |= {FUSED.format(name): [one, BM25] for name, one in alone.items()}
    if tokens:
        rows |= {ALL.format(name): [one, BM25, TOKENS] for name, one in alone.items()}
    return rows


_FEWEST = 50  # documents
_SHORTEST = 5  # words of an average document: fewer have no part that asks for the rest
_ALIKE = 0.1  # share of copies from which they are mentioned


def survey(corpus: Corpus, where: str) -> str:
    """What documents are like, as a sentence; raises where nothing can be learnt from them."""
    lengths, texts = [], set()
    with Bar("look at the documents", corpus.count(), "documents") as bar:
        for document in corpus.documents():
            text = document.contents()
            lengths.append(word_count(text))
            texts.add(xxhash.xxh3_64_intdigest(text.encode()))
            bar.advance(1)
    count, mean = len(lengths), float(np.mean(lengths))
    alike = 1 - len(texts) / count
    for wrong, what in (
        (count < _FEWEST, f"{count} documents are too few to learn from"),
        (mean < _SHORTEST, f"documents of {mean:.1f} words are too short"),
        (alike > 1 / 2, f"{alike:.0%} of the documents are copies of others"),
    ):
        if wrong:
            raise InputError(
                f"{where}: {what}",
                f"give more documents ({_FEWEST} different ones of {_SHORTEST} words or more), or "
                "use the encoder as it is: isthmus index --model …",
            )
    copies = f"; {alike:.0%} are copies of others" if alike > _ALIKE else ""
    return f"{count:,} documents, {int(np.median(lengths))} words in the middle one{copies}"
