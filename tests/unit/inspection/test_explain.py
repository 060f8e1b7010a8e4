"""Why a document matched: parts that add up to the score that a search returns, for every kind."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tests.factories import write_corpus

import isthmus
from isthmus.cli import app
from isthmus.errors import InputError
from isthmus.inspection.explain import Explanation, explained
from isthmus.records import Document, Query
from isthmus.retrieval.reranker import RerankingSearcher
from isthmus.retrieval.searcher import Searcher, open_searcher

QUERY = "river bank river, a boat trip"
LONG = (
    "# Rivers\n\nA boat on the river bank. It was a green boat, of money and a loan, on monday.\n\n"
    "# Snow\n\nThe storm of friday. A dog saw it twice, and nobody else went to the storm of snow."
)


@pytest.fixture(scope="module")
def indexes(small: Path) -> Path:
    """Indexes of every kind in one folder, named after it; `grown` is BM25 in segments.

    `both` has three fields, of which one reads whole documents.
    """
    folder, corpus = small, str(small / "corpus.jsonl")
    isthmus.index(corpus, folder / "bm25-index")
    isthmus.index(corpus, folder / "grown")
    texts = {"d1": "river river boat", "d30": "a trip to the bank"}
    more = write_corpus(folder / "more.jsonl", texts)
    isthmus.open_index(folder / "grown").add(more)
    isthmus.index(corpus, folder / "both", str(folder / "cls"))
    for name, model in {"dense": "cls", "sparse": "sparse"}.items():
        how = ["bm25=false", "passages=false", "tokens=false"]
        isthmus.index(corpus, folder / f"{name}-index", str(folder / model), settings=how)
    return folder


def returned(searcher: object, document: str) -> float:
    """The score that a search gives a document."""
    (ranking,) = searcher.search([Query("q", QUERY)], 100)  # type: ignore[attr-defined]
    return dict(ranking)[document]


def total(found: Explanation) -> float:
    assert found.terms is not None
    return sum(one.contribution for one in found.terms)


@pytest.mark.parametrize("name", ["bm25-index", "grown", "sparse-index"])
@pytest.mark.parametrize("document", ["d1", "d16"])
def test_terms_add_up_to_the_score(indexes: Path, name: str, document: str) -> None:
    searcher = open_searcher(indexes / name)
    found = explained(searcher, QUERY, document)
    assert found.terms
    assert found.score == pytest.approx(returned(searcher, document), rel=1e-7)
    assert total(found) == pytest.approx(found.score, rel=1e-5)
    for one in found.terms:
        assert one.query_weight * one.document_weight == pytest.approx(one.contribution)
    order = [one.contribution for one in found.terms]
    assert order == sorted(order, reverse=True)


def test_bm25_says_what_its_formula_is_made_of(indexes: Path) -> None:
    for name, document, frequency, holding in (
        ("bm25-index", "d1", 3, 5), ("grown", "d1", 2, 5), ("grown", "d0", 2, 5),
    ):  # fmt: skip
        found = isthmus.open_index(indexes / name).explain(QUERY, document)
        assert found.kind == "bm25"
        terms = {one.term: one for one in found.terms or ()}
        assert set(terms) == {"river", "bank", "boat", "trip"}, "no stop word"
        river = terms["river"]
        assert (river.query_weight, river.frequency, river.documents) == (2, frequency, holding)
    assert terms["trip"].contribution == 0, "a term that the document lacks"
    assert terms["trip"].frequency == 0
    assert terms["trip"].documents == 6, "d30 has it too"


def test_sparse_weights_are_those_of_the_vectors(indexes: Path) -> None:
    """Whole numbers: floor(100 w) of both sides, as the index keeps them."""
    searcher = open_searcher(indexes / "sparse-index")
    encoder = isthmus.load_encoder(str(indexes / "sparse"))
    found = explained(searcher, QUERY, "d0")
    (document,) = searcher.documents(["d0"])
    query = dict(encoder.terms(encoder.encode_queries([QUERY])))  # type: ignore[union-attr, arg-type]
    text = dict(encoder.terms(encoder.encode_documents([document])))  # type: ignore[union-attr, arg-type]
    assert found.terms
    for one in found.terms:
        assert one.query_weight == np.floor(100 * np.float64(np.float32(query[one.term])))
        assert one.document_weight == pytest.approx(
            np.floor(100 * np.float64(np.float32(text.get(one.term, 0))))
        )


def test_words_of_the_query_add_up_to_the_score_of_tokens(indexes: Path) -> None:
    searcher = open_searcher(indexes / "both", "tokens")
    for document in ("d1", "d16"):
        found = explained(searcher, QUERY, document)
        assert found.words is not None
        assert sum(one.contribution for one in found.words) == pytest.approx(found.score, rel=1e-5)
        assert found.score == pytest.approx(returned(searcher, document), rel=1e-5)
        assert sum(one.weight for one in found.words) == pytest.approx(1)
        assert sorted(one.word for one in found.words) == sorted(re.findall(r"\w+", QUERY))
        (shown,) = searcher.documents([document], QUERY)
        for one in found.words:
            assert one.weight * one.product == pytest.approx(one.contribution)
            for word in one.answers:
                inside = shown.title if word.start is None else shown.text[word.start : word.end]
                assert word.text in re.findall(r"\w+|[.!]", inside), "complete words"


def test_dense_sentences_are_left_out_one_by_one(indexes: Path) -> None:
    searcher = open_searcher(indexes / "dense-index")
    found = explained(searcher, QUERY, "d1")
    encoder = isthmus.load_encoder(str(indexes / "cls"))
    title, first, second, third = (
        "River Bank", "The river bank of tuesday.", "A dog saw it twice.",
        "Nobody else went to the river!",
    )  # fmt: skip
    asked = encoder.encode_queries([QUERY])
    variants = [
        f"{title}\n{first} {second} {third}", f"{first} {second} {third}",
        f"{title}\n{second} {third}", f"{title}\n{first} {third}", f"{title}\n{first} {second} ",
    ]  # fmt: skip
    whole, *without = encoder.encode_documents([Document("", one) for one in variants]) @ asked[0]
    assert found.sentences is not None
    assert [one.text for one in found.sentences] == [title, first, second, third]
    for one, left in zip(found.sentences, without, strict=True):
        assert one.contribution == pytest.approx(whole - left, abs=1e-3)
    assert found.score == pytest.approx(float(whole), rel=1e-4)
    assert not found.notes


def test_what_is_not_read_is_not_scored(indexes: Path, tmp_path: Path) -> None:
    long = " ".join(f"The river bank of friday {number}." for number in range(30))
    texts = {"long": long, "huge": long + " More of it." * 20_000}
    corpus = write_corpus(tmp_path / "long.jsonl", texts)
    how = ["bm25=false", "passages=false", "tokens=false"]
    isthmus.index(str(corpus), tmp_path / "index", str(indexes / "headless"), settings=how)
    searcher = open_searcher(tmp_path / "index")
    found = explained(searcher, "river", "long")
    assert found.sentences is not None
    read = [one.contribution is not None for one in found.sentences]
    assert read == sorted(read, reverse=True)
    assert 2 < sum(read) < 12, "62 tokens"
    huge = explained(searcher, "river", "huge")
    assert huge.sentences is not None
    assert huge.sentences[:30] == found.sentences
    assert len(huge.sentences) < 3000
    assert "of 240,859 characters" in huge.notes[0]


def test_votes_add_up_to_the_fused_score(indexes: Path) -> None:
    hybrid = open_searcher(
        indexes / "both", fusion={"weights": {"bm25": 0.3, "dense": 0.5, "tokens": 0.2}}
    )
    for document in ("d1", "d24"):  # BM25 does not find the second
        found = explained(hybrid, QUERY, document)
        assert found.score == pytest.approx(returned(hybrid, document), abs=1e-12)
        assert found.fusion is not None
        assert found.fusion.name == "weighted_sum"
        parts = found.fusion.parts
        assert sum(one.contribution for one in parts) == pytest.approx(found.score)
        assert [one.explanation.field for one in parts] == ["bm25", "dense", "tokens"]
    assert parts[0].explanation.rank is None
    assert parts[0].contribution == 0
    (ranking,) = hybrid.search([Query("q", QUERY)], 100)
    assert found.rank == ranking.document_ids.index("d24") + 1


class Shortest:
    """Scores a document by how short it is."""

    def score(self, pairs: list[tuple[str, Document]]) -> np.ndarray:
        return np.array([-len(one.contents()) for _, one in pairs], dtype=np.float32)


def test_reranked_before_and_after(indexes: Path) -> None:
    first = open_searcher(indexes / "bm25-index")
    searcher = RerankingSearcher(first, Shortest(), candidates=4)
    (before,) = first.search([Query("q", QUERY)], 100)
    (after,) = searcher.search([Query("q", QUERY)], 100)
    moved = after.document_ids[0]
    found = explained(searcher, QUERY, moved)
    assert (found.rank, found.score) == (1, after.scores[0])
    assert found.before is not None
    assert found.before.rank == before.document_ids.index(moved) + 1
    assert total(found.before) == pytest.approx(dict(before)[moved], rel=1e-5)
    below = explained(searcher, QUERY, before.document_ids[6])
    assert below.rank == 7
    assert "not among the 4 candidates" in below.notes[0]


@pytest.mark.parametrize("model", ["sparse", "cls"])
def test_the_passage_that_counts(indexes: Path, tmp_path: Path, model: str) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "long.md").write_text(LONG, encoding="utf-8")
    (folder / "other.md").write_text("# Other\n\nmoney and a loan", encoding="utf-8")
    settings = {"passages": {"length": 20, "overlap": 0}}
    isthmus.index(str(folder), tmp_path / "index", str(indexes / model), settings=settings)
    field = "dense" if model == "cls" else "sparse"
    searcher = open_searcher(tmp_path / "index", field)
    found = explained(searcher, "storm of friday", "long.md")
    assert found.id == "long.md"
    assert found.passage is not None
    (best,) = searcher.documents(["long.md"], "storm of friday")
    assert found.passage == best
    assert found.to_dict()["passage"]["number"] == best.number  # type: ignore[attr-defined]
    (ranking,) = searcher.search([Query("q", "storm of friday")], 10)
    assert found.score == pytest.approx(dict(ranking)["long.md"])
    if model == "sparse":
        assert total(found) == pytest.approx(found.score, rel=1e-5)
    each = open_searcher(tmp_path / "index", field, by="passage")
    again = explained(each, "storm of friday", best.id)
    assert again.passage == best
    assert (again.score, again.sentences) == (found.score, found.sentences)
    both = explained(open_searcher(tmp_path / "index"), "storm of friday", "long.md")
    assert both.fusion is not None
    words, vectors, *tokens = (one.explanation for one in both.fusion.parts)
    assert words.passage is None, "BM25 reads documents whole"
    assert vectors.passage == best
    assert both.passage == (tokens[0] if tokens else vectors).passage


@pytest.mark.parametrize(
    ("query", "document", "what"),
    [
        ("river", "nowhere", "no document 'nowhere'"),
        ("the of", "d1", "has no words to search for"),
        ("  ", "d1", "has no words to search for"),
    ],
)
def test_refusals(indexes: Path, query: str, document: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        isthmus.open_index(indexes / "bm25-index").explain(query, document)


def test_a_query_that_one_of_two_cannot_read(indexes: Path) -> None:
    found = explained(open_searcher(indexes / "both"), "the of", "d1")
    assert found.fusion is not None
    words, vectors, _ = (one.explanation for one in found.fusion.parts)
    assert words.score is None
    assert "no words" in words.notes[0]
    assert vectors.score is not None


def test_the_command_and_what_is_shown(indexes: Path) -> None:
    words = ["explain", str(indexes / "both"), QUERY, "d1"]
    ended = CliRunner().invoke(app, [*words, "--json", "--quiet"])
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout)
    assert set(found) == {
        "query", "id", "title", "kind", "field", "model", "score", "rank", "passage", "terms",
        "words", "sentences", "fusion", "before", "notes",
    }  # fmt: skip
    assert found["kind"] == "fused"
    parts = found["fusion"]["parts"]
    assert sum(one["contribution"] for one in parts) == pytest.approx(found["score"])
    hostile = Document("<b>", "bank [red]river[/red]", "\x1b[31m<i>")
    shown = Explanation("<q>", hostile.id, hostile.title, "bm25", notes=("<script>",))
    assert "\x1b" not in str(shown)
    assert "<script>" not in shown._repr_html_()
    searcher = open_searcher(indexes / "bm25-index")
    assert isinstance(searcher, Searcher)
    text = str(explained(searcher, QUERY, "d1"))
    assert "river" in text
    assert "their sum is the score" in text
