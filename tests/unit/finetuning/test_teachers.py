"""Teachers: the scores of a cross-encoder or of a file, asked for once, found by row."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import bert, training_corpus, write_collection
from transformers import BertForSequenceClassification, BertModel

from isthmus.encoders.cross import CrossEncoder
from isthmus.encoders.dense import DenseSettings
from isthmus.encoders.loader import load_reranker
from isthmus.errors import InputError, MismatchError
from isthmus.finetuning.candidates import Candidates, TrainingCorpus
from isthmus.finetuning.negatives import Bm25, Retriever
from isthmus.finetuning.pairs import LabelledQueries, PairExamples
from isthmus.finetuning.teachers import Teacher, standard_scores, taught_scores, teacher_source
from isthmus.records import Query
from isthmus.text.tokenizer import new_tokenizer

WORDS = [f"{animal}{number}" for animal in ("fox", "dog") for number in range(9)]
STUDENT = new_tokenizer([" ".join(WORDS)], 60)
TEXTS = [" ".join(WORDS[start : start + 3 + start % 4]) for start in range(12)]
LABELLED = LabelledQueries(
    [Query("q1", "fox3 dog2"), Query("q2", "dog8"), Query("q3", "fox1 fox2 fox3")],
    [[3], [7, 11], [0]],
)
ROWS = np.array([[4, 5, 4], [0, -1, 9], [-1, 2, 1]], dtype=np.int32)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_CACHE", str(tmp_path / "cache"))
    # Rounded as on other chips, a score would depend on what it is computed beside.
    monkeypatch.setattr("isthmus.encoders.encoder.native_bf16", lambda: False)


@pytest.fixture
def corpus(tmp_path: Path) -> TrainingCorpus:
    folder = write_collection(
        tmp_path / "collection",
        {f"d{n}": text for n, text in enumerate(TEXTS)},
        {query.id: query.text for query in LABELLED.queries},
        {"train": [("q1", "d3")]},
        titles={f"d{n}": f"dog{n % 9}" for n in range(len(TEXTS))},
    )
    return training_corpus(folder, STUDENT)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random cross-encoders with a vocabulary other than the student's; one has two labels."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = new_tokenizer([" ".join(WORDS)], 40)
    for number, (name, labels) in enumerate([("one", 1), ("other", 1), ("two-labels", 2)]):
        torch.manual_seed(number)
        config = bert(
            len(tokenizer),
            num_hidden_layers=1,
            intermediate_size=16,
            initializer_range=0.5,
            num_labels=labels,
        )
        BertForSequenceClassification(config).save_pretrained(root / name)
        tokenizer.save(root / name)
    return root


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random encoder with a vocabulary of its own."""
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = new_tokenizer([" ".join(WORDS)], 40)
    torch.manual_seed(7)
    config = bert(
        len(tokenizer),
        num_hidden_layers=1,
        intermediate_size=16,
        max_position_embeddings=144,
        initializer_range=0.5,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def teacher(corpus: TrainingCorpus, **settings: Any) -> Teacher:
    source = teacher_source(settings)
    assert source is not None
    return source.open(corpus)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pairs each call of a model scored."""
    calls: list[int] = []
    score = CrossEncoder.score_tokens

    def counted(self: CrossEncoder, queries: Any, documents: Any) -> Any:
        calls.append(len(queries))
        return score(self, queries, documents)

    monkeypatch.setattr(CrossEncoder, "score_tokens", counted)
    return calls


@pytest.mark.parametrize("titles", [True, False])
def test_a_cross_encoder_reads_the_texts_that_rows_stand_for(
    titles: bool, corpus: TrainingCorpus, models: Path
) -> None:
    corpus = training_corpus(Path(corpus.spec), STUDENT, titles)
    found = teacher(corpus, name="cross_encoder", model=str(models / "one")).scores(LABELLED, ROWS)
    assert found.dtype == np.float32
    model = load_reranker(str(models / "one"))
    documents = list(corpus.collection.documents())
    if not titles:
        documents = [type(document)(document.id, document.text) for document in documents]
    for (number, column), row in np.ndenumerate(ROWS):
        if row < 0:
            assert np.isnan(found[number, column])
            continue
        (expected,) = model.score([(LABELLED.queries[number].text, documents[row])])
        assert found[number, column] == pytest.approx(float(expected), abs=1e-5)
    assert len(np.unique(found[~np.isnan(found)])) == 6, "different pairs, different scores"


def test_nothing_is_scored_twice(corpus: TrainingCorpus, models: Path, asked: list[int]) -> None:
    model = str(models / "one")
    first = teacher(corpus, name="cross_encoder", model=model)
    found = first.scores(LABELLED, ROWS)
    assert asked == [6], "a pair that occurs twice is one pair"
    again = teacher(corpus, name="cross_encoder", model=model)  # as another process would
    np.testing.assert_array_equal(again.scores(LABELLED, ROWS), found)
    assert asked == [6]
    # Other negatives for the same queries, in another order and with another id: only new pairs.
    renamed = Query("renamed", LABELLED.queries[1].text)
    turned = LabelledQueries([renamed, LABELLED.queries[0]], [[7], [3]])
    more = again.scores(turned, np.array([[9, 3], [5, 6]], dtype=np.int32))
    assert asked == [6, 2]
    assert more[0, 0] == found[1, 2]
    assert more[1, 0] == found[0, 1]
    # Another teacher's scores, or those of documents without titles, are others.
    teacher(corpus, name="cross_encoder", model=str(models / "other")).scores(LABELLED, ROWS)
    teacher(
        training_corpus(Path(corpus.spec), STUDENT, titles=False), name="cross_encoder", model=model
    ).scores(LABELLED, ROWS)
    # So are those of another corpus, whose rows are other documents.
    other = replace(corpus, fingerprint="another corpus")
    teacher(other, name="cross_encoder", model=model).scores(LABELLED, ROWS)
    assert asked == [6, 2, 6, 6, 6]


def test_a_hybrid_adds_standard_scores_of_two_rankings(
    corpus: TrainingCorpus, encoder: Path
) -> None:
    made = teacher(corpus, name="hybrid", retriever=str(encoder), weight=0.25, depth=5)
    found = made.scores(LABELLED, ROWS)
    rankers = (
        Bm25(Bm25.Settings()).open(corpus),
        Retriever(Retriever.Settings(model=str(encoder))).open(corpus),
    )
    expected = np.zeros(ROWS.shape)
    for ranker, weight in zip(rankers, (0.75, 0.25), strict=True):
        for number, ranking in enumerate(ranker.rank(LABELLED.queries, 5)):
            values = np.array(ranking.scores, dtype=float)
            mean, spread = values.mean(), np.sqrt(((values - values.mean()) ** 2).mean())
            known = dict(zip(ranking.document_ids, values, strict=True))
            for column, row in enumerate(ROWS[number]):
                score = known.get(f"d{row}", values.min())
                expected[number, column] += weight * (score - mean) / (spread or 1)
    expected[ROWS < 0] = np.nan
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert len(np.unique(found[~np.isnan(found)])) == 5, "of six, two are in neither ranking"
    alone = teacher(corpus, name="hybrid", retriever=str(encoder), weight=1.0, depth=5)
    assert alone.fingerprint != made.fingerprint


def test_a_query_without_a_ranking_has_scores_of_zero() -> None:
    rows = np.array([[4, -1], [-1, -1], [3, 7]], dtype=np.int32)
    scores = np.array([[2.0, -np.inf], [-np.inf, -np.inf], [1.0, 1.0]], dtype=np.float32)
    wanted = np.array([[4, 5]] * 3, dtype=np.int32)
    np.testing.assert_array_equal(standard_scores(Candidates(rows, scores), wanted), 0.0)


RUN = """\
q1 Q0 d4 1 3.5 tag
q1 Q0 d5 2 -1.25 tag
q2 Q0 d0 1 7 tag
q2 Q0 d9 2 6.5 tag
q3 Q0 d2 1 1e-3 tag
q3 Q0 d1 2 0 tag
elsewhere Q0 d1 1 100 tag
"""
KNOWN = [[3.5, -1.25, 3.5], [7.0, np.nan, 6.5], [np.nan, 1e-3, 0.0]]


def as_tabs(run: str) -> str:
    columns = (line.split() for line in run.splitlines())
    return "".join(f"{query}\t{document}\t{score}\n" for query, _, document, _, score, _ in columns)


@pytest.mark.parametrize(
    "written", [RUN, as_tabs(RUN), "qid\tdocid\tscore\n" + as_tabs(RUN), RUN.replace(" ", "\t")]
)
def test_a_file_of_scores(written: str, corpus: TrainingCorpus, tmp_path: Path) -> None:
    file = tmp_path / "scores"
    file.write_text(written, encoding="utf-8")
    taught = teacher(corpus, name="scores", file=str(file))
    np.testing.assert_array_equal(taught.scores(LABELLED, ROWS), np.array(KNOWN, dtype=np.float32))


def as_published(run: str, form: str) -> bytes:
    """The same scores as jsonl of pairs or of queries."""
    rows = [(q, d, float(score)) for q, _, d, _, score, _ in map(str.split, run.splitlines())]
    records: list[dict[str, Any]] = [{"qid": q, "pid": d, "score": s} for q, d, s in rows]
    if form != "pairs":
        queries = {q: {d: s for other, d, s in rows if other == q} for q, _, _ in rows}
        records = [{"qid": q, "scores": scores} for q, scores in queries.items()]
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@pytest.mark.parametrize("form", ["pairs", "queries"])
def test_scores_as_they_are_published(form: str, corpus: TrainingCorpus, tmp_path: Path) -> None:
    file = tmp_path / "scores.jsonl.gz"
    file.write_bytes(gzip.compress(as_published(RUN, form)))
    taught = teacher(corpus, name="scores", file=str(file))
    np.testing.assert_array_equal(taught.scores(LABELLED, ROWS), np.array(KNOWN, dtype=np.float32))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.pkl.gz", b"\x80\x04N.", "is a pickle, which runs code"),
        ("s.jsonl", b'{"qid": 1, "pid": 2, "score": NaN}', "the score nan is not a finite"),
        ("s.jsonl", b'{"qid": [], "pid": 2, "score": 1}', "are not both ids"),
    ],
)
def test_scores_that_cannot_be_used(
    name: str, content: bytes, message: str, corpus: TrainingCorpus, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        teacher(corpus, name="scores", file=str(tmp_path / name)).scores(LABELLED, ROWS)


def test_pairs_that_a_file_does_not_have(
    corpus: TrainingCorpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scores.tsv"
    file.write_text(as_tabs(RUN.replace("d9", "d99")), encoding="utf-8")
    with pytest.raises(MismatchError, match="1 of 7 pairs have no score") as caught:
        teacher(corpus, name="scores", file=str(file)).scores(LABELLED, ROWS)
    assert "query 'q2' and document 'd9' first" in caught.value.what
    assert "teacher.missing" in caught.value.fix
    assert "1 scores are of documents that the corpus does not have" in " ".join(
        capsys.readouterr().err.split()
    )
    lowest = teacher(corpus, name="scores", file=str(file), missing=-9.0)
    found = lowest.scores(LABELLED, ROWS)
    assert found[1, 2] == -9.0
    assert np.isnan(found[1, 1]), "where there is no document there is no score either"
    assert lowest.fingerprint != teacher(corpus, name="scores", file=str(file)).fingerprint


def by_row(labelled: LabelledQueries, rows: Any) -> Any:
    """A teacher whose score tells the query and the row."""
    numbers = 100 * np.arange(len(labelled.queries))[:, None]
    return np.where(rows < 0, np.nan, numbers + rows).astype(np.float32)


@pytest.mark.parametrize("epoch", range(4))
def test_every_passage_of_a_group_has_its_own_score(epoch: int, corpus: TrainingCorpus) -> None:
    negatives = np.array([[1, 2, 4, 5], [0, 1, 2, 3], [8, 9, 10, 11]], dtype=np.int32)
    taught = taught_scores(Teacher("t", by_row), LABELLED, negatives)
    examples = PairExamples(
        LABELLED, negatives, 3, corpus.tokenised, STUDENT, DenseSettings(), taught, alike=True
    )
    groups = [examples[epoch, number] for number in (2, 0, 1)]
    batch = examples.collate(groups)
    expected = [
        [100.0 * number + row for row in group.rows]
        for number, group in zip((2, 0, 1), groups, strict=True)
    ]
    assert batch["teacher"].tolist() == expected
    assert batch["teacher"].dtype == torch.float32


def test_without_a_teacher_the_batch_has_none(corpus: TrainingCorpus) -> None:
    plain = PairExamples(LABELLED, None, 1, corpus.tokenised, STUDENT, DenseSettings(), alike=True)
    assert "teacher" not in plain.collate([plain[0, 0]])
