"""How small and fast a sparse index gets, and what that costs.

The corpus is encoded once; every block goes to an index of each size, which keeps only so many of
the strongest terms of a document.
"""

from __future__ import annotations

import importlib.util
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import xxhash
from pydantic import Field

from isthmus.collections import Corpus, open_corpus, read_judgements, read_queries
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.output import claimed, finish, is_complete, read_snapshot, writing
from isthmus.errors import InputError, MismatchError, SettingsError
from isthmus.evaluation import Cell, Table
from isthmus.evaluation.measures import parse_measure, per_query
from isthmus.indexes.construction import already_built
from isthmus.indexes.documents import DOCUMENTS, ORDER, blocks
from isthmus.indexes.manifest import CorpusOrigin, Description, EncoderOrigin, SparseSettings
from isthmus.indexes.verification import read_manifest
from isthmus.progress import Bar, notice, track
from isthmus.records import Judgements, Query, Run

if TYPE_CHECKING:
    from isthmus.encoders import SparseEncoder

_PASSES = 3  # over all queries, the quickest of which counts
_POSTING = 3  # bytes by the papers' accounting: two for the term, one for its weight


class SparsifySettings(ReadingSettings):
    """Which sizes are compared, on what."""

    verb = "sparsify"

    terms: list[int] = Field(
        [1, 2, 4, 8, 16, 32, 64, 128, 256], description="the strongest kept of a document, each"
    )
    measure: str = Field("RR@10", description="any measure of `isthmus evaluate`")
    depth: int = Field(10, ge=1, description="documents per query while time is taken")
    inverted: SparseSettings = SparseSettings()
    keep: bool = Field(False, description="keep the indexes, which hold no texts")
    block_size: int = Field(1024, ge=1, description="documents between two recorded steps")


@dataclass(frozen=True, slots=True)
class Size:
    """One size of an index; `terms` is None where all are kept.

    `accounted` are three bytes per weight, as papers count; `stored` is what the lists take on
    disk, documents and their ids apart. `rate` is of one core, queries answered one by one.
    """

    terms: int | None
    weights: float
    accounted: float
    stored: int
    rate: float
    value: float


@dataclass(frozen=True, slots=True)
class Sparsification:
    """Every size that was tried, smallest first, as numbers and as a table."""

    sizes: tuple[Size, ...]
    table: Table
    folder: Path


def sparsify(
    model: str,
    corpus: str,
    queries: str | Path,
    qrels: str | Path,
    output: str | Path,
    *,
    measure: str | None = None,
    settings: SparsifySettings | Overrides = None,
) -> Sparsification:
    """Size, speed and quality of an inverted index by the terms kept of each document.

    The folder `output` then holds table.md, table.tex, curve.tsv and curve.svg. Interrupted and run
    again, it goes on where it stopped.
    """
    settings = SparsifySettings.given(settings, {"measure": measure})
    _check(settings)
    problems = settings.account()
    judgements = read_judgements(Path(qrels), problems)
    judged = [query for query in read_queries(queries, problems) if judgements.get(query.id)]
    source = open_corpus(corpus, problems)
    origin = CorpusOrigin(spec=corpus, fingerprint=source.fingerprint())
    encoder = _load(model)
    asked = _searchable(judged, encoder, str(queries))
    output = Path(output)
    identity = {
        "corpus": corpus,
        "model": model,
        "settings": settings.model_dump(),
        "fingerprints": {
            "corpus": origin.fingerprint,
            "encoder": encoder.fingerprint,
            "judgements": xxhash.xxh3_128(repr(sorted(judgements.items())).encode()).hexdigest(),
            "queries": xxhash.xxh3_128(repr(asked).encode()).hexdigest(),
        },
    }
    with claimed(output, "sparsify", identity) as known, writing(output):
        if known and is_complete(output):
            notice(f"{output} already holds this comparison; nothing to do")
            _tidy(output, settings)
            sizes = tuple(Size(**size) for size in read_snapshot(output)["results"]["sizes"])
            return Sparsification(sizes, _table(sizes, settings.measure, len(asked)), output)
        folders = _fill(source, encoder, origin, output / "indexes", identity, settings)
        if problems.counts:
            notice(problems.summary())
        vectors = encoder.encode_queries([query.text for query in asked])
        sizes = tuple(
            _size(terms, folder, vectors, asked, judgements, settings)
            for terms, folder in track(folders.items(), "measuring", len(folders), "indexes")
        )
        table = _table(sizes, settings.measure, len(asked))
        _write(sizes, table, output, settings)
        finish(output, {"sizes": [asdict(size) for size in sizes]})
        _tidy(output, settings)
        return Sparsification(sizes, table, output)


def _tidy(output: Path, settings: SparsifySettings) -> None:
    """Removes the indexes of a finished comparison; of an unfinished one, half would be left."""
    if not settings.keep:
        shutil.rmtree(output / "indexes", ignore_errors=True)


def _check(settings: SparsifySettings) -> None:
    parse_measure(settings.measure, "measure")
    if not settings.terms or min(settings.terms) < 1 or settings.inverted.terms is not None:
        raise SettingsError(
            f"terms = {settings.terms} and inverted.terms = {settings.inverted.terms} cannot be "
            "used",
            "give numbers of 1 or more, as in --set 'terms=[4, 16, 64]', and leave "
            "inverted.terms out; all terms are always tried, too",
        )


def _searchable(judged: Sequence[Query], encoder: SparseEncoder, where: str) -> list[Query]:
    asked = [query for query in judged if encoder.has_tokens(query.text)]
    if not asked:
        raise InputError(
            f"{where}: none of the queries is judged and has words to search for",
            "give the judgements of the collection and split that the queries belong to",
        )
    return asked


def _load(model: str) -> SparseEncoder:
    from isthmus.encoders import load_encoder  # brings torch

    encoder: Any = load_encoder(model)
    if encoder.kind != "sparse":
        raise MismatchError(
            f"--model {model!r} is a {encoder.kind} encoder: its vectors have no terms to leave "
            "out",
            "give a sparse encoder, such as `isthmus finetune --recipe splade` trains",
        )
    found: SparseEncoder = encoder
    return found


def _fill(
    source: Corpus,
    encoder: SparseEncoder,
    origin: CorpusOrigin,
    output: Path,
    request: Mapping[str, Any],
    settings: SparsifySettings,
) -> dict[int | None, Path]:
    """The folder of a finished index for every number of terms, and for all terms."""
    from isthmus.indexes.sparse.builder import InvertedBuilder  # brings numba

    folders: dict[int | None, Path] = {n: output / str(n) for n in sorted(set(settings.terms))}
    folders[None] = output / "all"
    with ExitStack() as stack:
        builders = []
        for terms, folder in folders.items():
            description = Description(
                kind="inverted",
                corpus=origin,
                titles=encoder.settings.titles,
                texts=False,
                encoder=EncoderOrigin(
                    name=encoder.name,
                    fingerprint=encoder.fingerprint,
                    settings=encoder.described(),
                    assumed=encoder.assumed,
                ),
                dimension=encoder.dimension,
                inverted=settings.inverted.model_copy(update={"terms": terms}),
            )
            if not already_built(folder, description):
                builders.append(stack.enter_context(InvertedBuilder(folder, description)))
        if not builders:
            return folders
        # A block may have reached some indexes and not the others.
        done, total = min(builder.rows for builder in builders), source.count()
        remaining = islice(source.documents(), done, None)
        with Bar("encoding", total, "documents", done) as bar:
            for block in blocks(remaining, settings.block_size):
                vectors = encoder.encode_documents(block)
                for builder in builders:
                    if builder.rows == done:
                        builder.add(block, vectors)
                done += len(block)
                bar.advance(len(block))
        for builder in track(builders, "building", len(builders), "indexes"):
            builder.finish(request)
    return folders


def _size(
    terms: int | None,
    folder: Path,
    vectors: Any,
    asked: Sequence[Query],
    judgements: Judgements,
    settings: SparsifySettings,
) -> Size:
    from isthmus.indexes.sparse.index import InvertedIndex

    index = InvertedIndex.open(folder, threads=1)
    names = [query.id for query in asked]
    depth = parse_measure(settings.measure).params.get("cutoff", 1000)
    run = Run("sparsify", {r.query_id: r for r in index.search(vectors, depth, names)})
    (values,) = per_query(
        run, {name: judgements[name] for name in names}, [settings.measure]
    ).values()
    seconds = []
    for _ in range(_PASSES):
        began = time.perf_counter()
        for row, name in enumerate(names):
            index.find(vectors[row : row + 1], settings.depth, [name])
        seconds.append(time.perf_counter() - began)
    manifest = read_manifest(folder)
    assert manifest.layout is not None
    weights = manifest.layout.postings / manifest.documents
    lists = manifest.files.items()
    return Size(
        terms=terms,
        weights=weights,
        accounted=_POSTING * weights,
        stored=sum(file.bytes for name, file in lists if name not in (DOCUMENTS, ORDER)),
        rate=len(names) / min(seconds),
        value=fmean(values.values()),
    )


def _table(sizes: Sequence[Size], measure: str, queries: int) -> Table:
    whole = sizes[-1].value
    rows = [
        (
            Cell("all" if size.terms is None else str(size.terms)),
            Cell(f"{size.weights:,.1f}"),
            Cell(f"{size.accounted:,.0f}"),
            Cell(f"{size.stored / 2**20:,.1f}"),
            Cell(f"{size.rate:,.0f}"),
            Cell(f"{size.value:.3f}"),
            Cell(f"{size.value / whole:.1%}" if whole else "–"),
        )
        for size in sizes
    ]
    columns = ("terms", "weights", "bytes", "MiB", "queries/s", measure, "of all")
    caption = (
        f"Means over {queries:,} judged queries. Terms: the strongest kept of a document; weights: "
        "how many a document has; bytes: three for each, per document; MiB: the lists on disk; "
        "queries/s: on one core, one query at a time."
    )
    return Table(columns, tuple(rows), caption)


def _write(sizes: Sequence[Size], table: Table, output: Path, settings: SparsifySettings) -> None:
    names = [field.name for field in fields(Size)]
    lines = ["\t".join(names)]
    for size in sizes:
        values = asdict(size) | {"terms": size.terms or "all"}
        lines.append("\t".join(str(values[name]) for name in names))
    with writing(output):
        (output / "table.md").write_text(table.markdown(), encoding="utf-8")
        (output / "table.tex").write_text(table.latex(), encoding="utf-8")
        (output / "curve.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        _plot(sizes, settings.measure, output / "curve.svg")


def _plot(sizes: Sequence[Size], measure: str, file: Path) -> None:
    """Quality and speed over the bytes of a document; nothing where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        notice("for a plot: pip install 'isthmus[report]'")
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    panels: Any = figure.subplots(1, 2)
    for panel, name, label in zip(
        panels, ("value", "rate"), (measure, "queries/s on one core"), strict=True
    ):
        panel.plot(
            [size.accounted for size in sizes], [getattr(size, name) for size in sizes], marker="."
        )
        for size in sizes:
            place = (size.accounted, getattr(size, name))
            panel.annotate(str(size.terms or "all"), place, fontsize=7)
        panel.set_xscale("log")
        panel.set_xlabel("bytes per document", fontsize=8)
        panel.set_ylabel(label, fontsize=8)
        panel.tick_params(labelsize=8)
    figure.savefig(file)
