"""Building an index: documents and models in, a searchable folder out."""

from __future__ import annotations

import difflib
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import Field

from isthmus.cluster import Cluster, ClusterSettings, connected
from isthmus.collections import Corpus, open_corpus
from isthmus.collections.in_memory import called
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Overrides, Settings
from isthmus.config.encoding import Backend, EncodingChoice, EncodingSettings
from isthmus.config.models import PACKAGE, full_name, model_folder
from isthmus.config.output import differences, environment, writing
from isthmus.config.settings import check_arguments
from isthmus.errors import InputError, MismatchError, OutputError, SettingsError
from isthmus.indexes.bm25.builder import MEMORY
from isthmus.indexes.documents import blocks
from isthmus.indexes.fields import of_type
from isthmus.indexes.manifest import (
    SEGMENTS,
    Bm25Field,
    Bm25Settings,
    CorpusOrigin,
    DenseField,
    DenseSettings,
    EncoderOrigin,
    FieldAbout,
    Fusion,
    Manifest,
    SparseField,
    SparseSettings,
    TokensField,
    TokensSettings,
    field_identity,
    is_index,
    read_manifest,
    sizes_of,
)
from isthmus.indexes.segment import Segment
from isthmus.indexes.writer import IndexWriter
from isthmus.progress import Bar, notice, track, waiting
from isthmus.records import Document, Passage
from isthmus.retrieval.passage_cutter import chosen_cutter, cutter_of, rows
from isthmus.text.passages import Chosen, Cutter

if TYPE_CHECKING:
    from isthmus.encoders import DenseEncoder, SparseEncoder

    _Model = str | DenseEncoder | SparseEncoder
BM25 = "bm25"
_SAMPLE = 128  # documents on which the change of quality by int8 is measured
_ENOUGH = 8  # documents of which an average cosine says something
_ALIKE = 0.999  # on average: bf16 keeps two to three digits of what is left
_UNRECORDED = 64  # blocks between two recorded steps where nothing is encoded
_NOT_OF_INDEXES = re.compile(r"\.lock|\..+\.(?:lock|partial)|\.DS_Store|\.nfs\w+")


class IndexSettings(ReadingSettings, EncodingChoice):
    """How an index is filled and what it keeps."""

    verb = "index"

    titles: bool | None = Field(None, description="titles too; null: as the encoder was trained")
    passages: Chosen = Field(
        None,
        description="whether vectors are of passages that the model reads in full, or how these "
        "are cut; null: yes. BM25 reads documents whole",
    )
    bm25: Bm25Settings | Literal[False] = Field(
        Bm25Settings(), description="the field of words; false: none next to a model's"
    )
    dense: DenseSettings = DenseSettings()
    tokens: TokensSettings | Literal[False] = Field(
        TokensSettings(),
        description="a vector for each token, next to the one vector of a dense model; false: none",
    )
    sparse: SparseSettings = SparseSettings()
    sparse_sizes: list[int] = Field(
        [],
        description="further fields of a sparse model, each of so many of the strongest terms of a "
        "passage; searched by their names alone",
    )
    block_size: int = Field(1024, ge=1, description="documents between two recorded steps")
    encoding: EncodingSettings = EncodingSettings()
    memory: float = Field(MEMORY, gt=0, description="GiB of postings that building BM25 may hold")
    cluster: ClusterSettings | None = Field(None, description="machines that share the work")


@dataclass(frozen=True)
class Filling:
    """An encoder, and the fields that are filled with its vectors."""

    encoder: Any
    fields: tuple[str, ...]

    @classmethod
    def of(cls, encoder: Any, names: Iterable[str], fields: Mapping[str, FieldAbout]) -> Filling:
        """An encoder that gives in one pass all that these fields take."""
        names = tuple(names)
        types = {fields[name].type for name in names}
        both = encoder.kind == "dense" and "tokens" in types
        return cls(encoder.with_tokens() if both else encoder, names)


def index(
    corpus: str | Corpus,
    output: str | Path,
    models: _Model | Sequence[_Model] = BM25,
    *,
    language: str | None = None,
    overwrite: bool = False,
    settings: IndexSettings | Overrides = None,
) -> Path:
    """The folder of the finished index, with a field for BM25 and for each model.

    A model is "bm25", the name of an encoder, or an encoder that is loaded already.

    Interrupted and run again, it resumes where it stopped. An index of the same documents gets the
    fields that it does not have yet. To `overwrite` replaces another index once the new one is
    complete, without a gap for its readers.
    """
    settings = IndexSettings.given(settings, {"bm25.language": language})
    if not isinstance(corpus, Corpus):
        check_arguments("index", {"corpus": corpus, "output": output})
    output = Path(output)
    several: list[Any] = list(models) if isinstance(models, list | tuple) else [models]
    chosen = [str(one) if isinstance(one, Path) else one for one in dict.fromkeys(several)]
    _check_models(chosen, settings, language)
    _check_output(output, overwrite)
    with connected(settings.cluster) as machines:
        _index(corpus, output, chosen, settings, overwrite, machines)
    return output


def _index(
    corpus: str | Corpus,
    output: Path,
    chosen: Sequence[_Model],
    settings: IndexSettings,
    overwrite: bool,
    machines: Cluster | None,
) -> None:
    problems = settings.account()
    source = corpus if isinstance(corpus, Corpus) else open_corpus(corpus, problems)
    spec = corpus if isinstance(corpus, str) else source.spec or "documents"
    with waiting(f"reading {called(spec)} once, to know it again"):
        origin = CorpusOrigin(spec=spec, fingerprint=source.fingerprint(), reading=settings.reading)
    named = [one for one in chosen if isinstance(one, str) and one != BM25]
    if named and not (output / SEGMENTS).is_dir():
        for name in named:
            model_folder(name)  # a name that leads nowhere is found before documents are read,
        # and bad data before a model is loaded.
        _read_once(source, spec)
    with writing(output):
        _build(source, origin, output, chosen, settings, overwrite, machines)
    if problems.counts:
        notice(problems.summary())


def _read_once(source: Corpus, spec: str) -> None:
    for _ in track(source.documents(), f"checking {called(spec)}", source.count(), "documents"):
        pass


def _check_models(models: Sequence[_Model], settings: IndexSettings, language: str | None) -> None:
    """Refuses models and settings that do not go together."""
    if not models:
        raise SettingsError("no model is given to index with", "give bm25 or a model")
    for model in models:
        misspelt = isinstance(model, str) and model != BM25 and not Path(model).exists()
        if misspelt and difflib.get_close_matches(str(model).lower(), (BM25,), cutoff=0.7):
            raise SettingsError(f"there is no model {model!r}", f"write {BM25}, or name a model")
    if settings.bm25 is False:
        if BM25 in models:
            raise SettingsError(
                "bm25 = false, but bm25 is among the models", "leave out one of both"
            )
        if language is not None:
            raise SettingsError(
                f"--language {language} is of BM25, and bm25 = false", "leave it out"
            )
    loading = settings.chosen()
    backend = settings.encoding.backend
    for model in models:
        if isinstance(model, str) and model != BM25:
            return
        in_full = not isinstance(model, str) and not model.rounded and model.int8 is None
        if backend != "torch" and not (in_full and backend == "torch-float32"):
            loading["encoding.backend"] = backend
    why = "BM25 encodes nothing" if list(models) == [BM25] else "the encoder is loaded already"
    for key, value in loading.items():
        raise SettingsError(
            f"{key} = {value!r}, but {why}", f"give --model, by name, or leave {key} out"
        )


def _check_output(output: Path, overwrite: bool) -> None:
    """Refuses a place that holds anything but an index, complete or not."""
    if output.is_file():
        raise OutputError(f"--output {str(output)!r} is a file", "choose another --output")
    if not output.is_dir() or is_index(output) or (output / SEGMENTS).is_dir():
        return
    if any(not _NOT_OF_INDEXES.fullmatch(entry.name) for entry in output.iterdir()):
        raise OutputError(
            f"--output {str(output)!r} already holds something that is not an index",
            "choose another --output, or move what is there",
        )


def _build(
    source: Corpus,
    origin: CorpusOrigin,
    output: Path,
    models: Sequence[_Model],
    settings: IndexSettings,
    overwrite: bool,
    machines: Cluster | None,
) -> None:
    known = _there(output, overwrite)
    base = None if overwrite else known
    encoders = [one for model in models if (one := _load(model, settings)) is not None]
    fields, fillings = _fields(models, encoders, settings, source, origin.spec, base)
    cutter = _cutter(settings, encoders, base, output)
    wanted = Manifest(
        made_by=environment(),
        corpus=origin,
        passages=None if cutter is None else cutter.cut,
        fields=fields,
        fusion=Fusion(weights=dict.fromkeys(sizes_of(fields), 0.0)),
    )
    if known is not None and (not overwrite or wanted.identity() == known.identity()):
        if new := _new_fields(known, wanted, output):
            _add_fields(output, wanted, new, fillings, cutter, settings)
        else:
            notice(f"{output} already holds this index; nothing to do")
            IndexWriter(output).close()  # removes what a killed command left
        return
    job = xxhash.xxh3_128_hexdigest(f"{wanted.identity()} {settings.kept}".encode())
    # What one machine began is not resumed by several.
    own = job if machines is None else ""
    with IndexWriter(output, wanted, own, settings.memory) as writer:
        if machines is not None:
            from isthmus.retrieval.shards import fill_shards

            fill_shards(machines, writer, source.documents(), fillings, settings, job)
        else:
            _fill(source, cutter, fillings, writer, settings)
        with waiting(f"completing {output}"):
            _finish(writer, origin)


def _finish(writer: IndexWriter, origin: CorpusOrigin) -> None:
    """Commits a new index; one in which nothing could be found is refused."""
    if not writer.done:
        raise InputError(
            f"the corpus {origin.spec} has no documents",
            "check the path and the format of the corpus",
        )
    writer.complete()
    manifest = writer.manifest
    if [one.type for one in manifest.fields.values()] == ["bm25"] and not writer.words(BM25):
        raise InputError(
            f"no document of {origin.spec} has a word to search for",
            "check the format of the corpus, or set bm25.stopwords=none",
        )
    writer.commit()
    notice(f"{writer.folder}: {_sizes_on_disk(writer.manifest)}")
    for segment in writer.manifest.segments:
        for name, counts in segment.fields.items():
            if counts.layout is not None:
                rows_ = max(1, segment.rows(manifest.fields[name]))
                notice(f"{name}: {counts.layout.postings / rows_:.1f} terms in an average row")
            for depth, recall in (counts.recall or {}).items():
                notice(f"{name}: hnsw finds {recall:.1%} of the {depth} nearest rows")


def _sizes_on_disk(manifest: Manifest) -> str:
    """The bytes of each part of an index."""
    found: dict[str, int] = {}
    for segment in manifest.segments:
        for name, stored in segment.files.items():
            part = name.partition("/")[0]
            part = part if part in manifest.fields else "documents"
            found[part] = found.get(part, 0) + stored.bytes
    return ", ".join(f"{name} {_readable(size)}" for name, size in found.items())


def _readable(size: float) -> str:
    """A number of bytes as people read it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            return f"{size:,.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def _there(output: Path, overwrite: bool) -> Manifest | None:
    """The manifest of an index that is there; a damaged one is no obstacle to replacing it."""
    if not is_index(output):
        return None
    try:
        manifest = read_manifest(output)
        if overwrite:
            for about in manifest.segments:
                Segment(output, about, manifest).check()
        return manifest
    except InputError:
        if overwrite:
            return None
        raise


def _new_fields(known: Manifest, wanted: Manifest, output: Path) -> dict[str, FieldAbout]:
    """The fields that an index of these documents lacks; an index of others is refused."""
    mine, theirs = wanted.identity(), known.identity()
    both = [name for name in wanted.fields if name in known.fields]
    for one in (mine, theirs):
        one["fields"] = {name: one["fields"][name] for name in both}
        if not (wanted.encoders and known.encoders):  # nothing of one of them is of passages
            one["passages"] = None
    changed = differences(mine, theirs)
    if not changed:
        return {name: one for name, one in wanted.fields.items() if name not in known.fields}
    fix = "choose another --output, or replace what is there: --overwrite"
    if changed == ["corpus"]:
        fix = f"isthmus sync {output} DOCUMENTS brings it up to date; or replace it: --overwrite"
    raise OutputError(
        f"--output {str(output)!r} already holds another index: it differs in {', '.join(changed)}",
        fix,
    )


def _load(model: _Model, settings: IndexSettings) -> Any:
    if model == BM25:
        return None
    if not isinstance(model, str):
        return model
    from isthmus.encoders import load_encoder, load_int8_encoder  # torch, unneeded for BM25

    with waiting(f"loading the encoder {model}"):
        if settings.encoding.backend == "onnx-int8":
            return load_int8_encoder(model, settings.chosen())
        return load_encoder(model, settings.chosen(), settings.encoding.backend == "torch-float32")


def _fields(
    models: Sequence[_Model],
    encoders: Sequence[Any],
    settings: IndexSettings,
    source: Corpus,
    spec: str,
    known: Manifest | None,
) -> tuple[dict[str, FieldAbout], list[Filling]]:
    """The fields that are asked for, by name, and what fills those of vectors."""
    fields: dict[str, FieldAbout] = {}
    fillings = []
    if settings.bm25 is not False:
        from isthmus.indexes.bm25.chosen_language import in_language

        before = None if known is None else known.fields.get(BM25)
        earlier = before.settings if isinstance(before, Bm25Field) else None
        fields[BM25] = Bm25Field(
            titles=settings.titles is not False,
            settings=in_language(settings.bm25, source.documents(), spec, earlier),
        )
    for encoder in encoders:
        _check_titles(settings, encoder)
        found: dict[str, FieldAbout] = {}
        for kind, chosen in _wanted(encoder, settings):
            name = _name_of(encoder, kind, chosen, {**fields, **found}, known)
            found[name] = _field_of(encoder, kind, chosen, settings)
        fields |= found
        fillings.append(Filling.of(encoder, found, fields))
    return fields, fillings


def _wanted(encoder: Any, settings: IndexSettings) -> Iterator[tuple[str, Settings]]:
    """The types of the fields that an encoder fills, and the settings of each."""
    if encoder.kind == "sparse":
        yield "sparse", settings.sparse
        for size in settings.sparse_sizes:
            yield "sparse", settings.sparse.model_copy(update={"terms": size})
        return
    plain = encoder.kind == "dense"
    if plain:
        yield "dense", settings.dense
    if settings.tokens is not False or not plain:
        chosen = settings.tokens or TokensSettings()
        pooling, bits = chosen.pooling or (2 if plain else 1), chosen.bits or (2 if plain else 4)
        yield "tokens", chosen.model_copy(update={"pooling": pooling, "bits": bits})


def _name_of(
    encoder: Any,
    kind: str,
    wanted: Settings,
    fields: Mapping[str, FieldAbout],
    known: Manifest | None,
) -> str:
    """The name of an encoder's field: its type, or its own name where there is one of that type."""
    for name, field in {} if known is None else known.fields.items():
        alike = field.type == kind and _terms(field.settings) == _terms(wanted)
        if _is_of(field, encoder) and alike and name not in fields:
            return name
    taken = {*fields, *(known.fields if known is not None else ())}
    mine = [name for name, field in fields.items() if _is_of(field, encoder)]
    if kind == "sparse" and mine:
        return f"{mine[0]}-{_terms(wanted)}"
    if kind not in taken:
        return kind
    last = re.sub(r"[^\w.-]", "-", Path(encoder.name.removeprefix(PACKAGE)).name).strip(".")
    last = last or "model"
    name = last = f"{last}-tokens" if mine else last
    while name in taken:
        name = f"{last}-{len(taken)}"
    return name


def _is_of(field: FieldAbout, encoder: Any) -> bool:
    """Whether an encoder fills a field."""
    return field.encoder is not None and field.encoder.fingerprint == encoder.fingerprint


def _terms(settings: Settings) -> int | None:
    """How many terms a field keeps, which tells the sizes of one encoder apart."""
    return getattr(settings, "terms", None)


def _field_of(encoder: Any, kind: str, chosen: Settings, settings: IndexSettings) -> FieldAbout:
    about = {
        "titles": encoder.settings.titles,
        "encoder": EncoderOrigin(
            name=full_name(encoder.name),
            fingerprint=encoder.fingerprint,
            backend=settings.encoding.backend,
            settings=encoder.described(),
            assumed=encoder.assumed,
        ),
        "settings": chosen,
    }
    if kind == "sparse":
        return SparseField(**about, dimension=encoder.dimension)
    if kind == "tokens":
        from isthmus.encoders.token_centre import token_centre

        if encoder.kind == "dense":
            centre = token_centre(encoder.with_tokens())
            return TokensField(**about, dimension=len(centre), centre=centre)
        centre = token_centre(encoder)
        return TokensField(**about, dimension=len(centre), centre=centre, weights="alike")
    if settings.dense.graph is not None:
        from isthmus.indexes.dense.hnsw import import_faiss

        import_faiss("hnsw")
    return DenseField(**about, dimension=encoder.dimension)


def _check_titles(settings: IndexSettings, encoder: Any) -> None:
    if settings.titles not in (None, encoder.settings.titles):
        raise MismatchError(
            f"titles = {settings.titles}, but the encoder {encoder.name!r} was trained with "
            f"titles = {encoder.settings.titles}",
            "leave titles out, or choose an encoder trained the other way",
        )


def _cutter(
    settings: IndexSettings, encoders: Sequence[Any], known: Manifest | None, output: Path
) -> Cutter | None:
    """What cuts documents into passages: as the index that is there did, or as settings say."""
    if not encoders:
        return None
    if settings.passages is None and known is not None and known.encoders:
        return cutter_of(known, output, encoders)
    return chosen_cutter(settings.passages, encoders)


def encoded(
    fillings: Sequence[Filling],
    parts: Iterator[list[Document]],
    advance: Callable[[int], None] | None = None,
) -> Iterator[tuple[Sequence[Document], dict[str, Any]]]:
    """Blocks of rows with their vectors by field, each row encoded once by each encoder."""
    first, *others = fillings
    for block, vectors in first.encoder.encode_blocks(parts, advance):
        found = dict.fromkeys(first.fields, vectors)
        for one in others:
            found |= dict.fromkeys(one.fields, one.encoder.encode_documents(block))
        yield block, found


def _fill(
    source: Corpus,
    cutter: Cutter | None,
    fillings: Sequence[Filling],
    writer: IndexWriter,
    settings: IndexSettings,
) -> None:
    """Adds all documents that are not there from an interrupted command."""
    done = writer.done
    if done:
        notice(f"resuming after {done:,} documents")
    said = f"indexing {called(writer.manifest.corpus.spec)}"
    remaining = islice(source.documents(), done, None)
    with Bar(said, source.count(), "documents", done) as bar:
        add_all(remaining, cutter, fillings, writer, settings.block_size, bar)
    said_of_encoders(fillings, done, writer.folder)


def add_all(
    documents: Iterable[Document],
    cutter: Cutter | None,
    fillings: Sequence[Filling],
    writer: IndexWriter,
    size: int,
    bar: Bar,
) -> None:
    """Adds documents with their vectors, block by block, each recorded."""
    if not fillings:
        for number, block in enumerate(blocks(documents, size)):
            writer.add(block, block, {}, record=number % _UNRECORDED == 0)
            bar.advance(len(block))
        return
    for one in fillings:
        one.encoder.cut_texts.restart()
    ahead: deque[list[Document]] = deque()

    def parts() -> Iterator[list[Document]]:
        for block in blocks(documents, size):
            ahead.append(block)
            yield list(rows(cutter, block))

    for number, (read, vectors) in enumerate(encoded(fillings, parts())):
        if number == 0:
            _say_of_first(fillings, read, vectors, writer.manifest)
        block = ahead.popleft()
        writer.add(block, read, vectors)
        bar.advance(len(block))


def said_of_encoders(fillings: Sequence[Filling], done: int, output: Path) -> None:
    """Says how many texts are cut, without those that an earlier command has encoded."""
    for one in fillings:
        said = one.encoder.cut_texts.summary()
        if done:
            said += f" (without the {done:,} documents from before; `isthmus doctor {output}` all)"
        notice(said)


def _say_of_first(
    fillings: Sequence[Filling],
    read: Sequence[Document],
    vectors: Mapping[str, Any],
    manifest: Manifest,
) -> None:
    for one in fillings:
        about = manifest.fields[one.fields[0]]
        assert about.encoder is not None
        if about.encoder.backend == "onnx-int8":
            notice(one.encoder.difference_of_int8(read[:_SAMPLE]))
        if about.type == "dense":
            given = of_type(about, vectors[one.fields[0]])
            _notice_if_alike(given[:_SAMPLE], about.encoder.backend)
        for name in one.fields:
            field = manifest.fields[name]
            if isinstance(field, TokensField) and field.settings.stored and len(read):
                from isthmus.indexes.tokens.codes import bytes_of

                size = bytes_of(field, of_type(field, vectors[name])) / len(read)
                without = "; --set tokens=false stores none" if field.weights == "rarity" else ""
                notice(f"{name}: about {_readable(size)} for each passage{without}")


def _add_fields(
    output: Path,
    wanted: Manifest,
    new: Mapping[str, FieldAbout],
    fillings: Sequence[Filling],
    cutter: Cutter | None,
    settings: IndexSettings,
) -> None:
    """Gives an index further fields, from the documents that it holds."""
    here = [
        Filling.of(one.encoder, names, new)
        for one in fillings
        if (names := [name for name in one.fields if name in new])
    ]
    identity = {name: field_identity(field) for name, field in new.items()}
    job = xxhash.xxh3_128_hexdigest(f"fields {identity} {wanted.passages}".encode())
    notice(f"{output}: adding {', '.join(new)}")

    def cut(documents: Iterable[Document]) -> Iterator[Passage]:
        assert cutter is not None
        return cutter.passages(documents)

    with IndexWriter(output, job=job, memory=settings.memory) as writer:
        for one in here:
            one.encoder.cut_texts.restart()
        writer.add_fields(
            new,
            (lambda parts: encoded(here, parts)) if here else None,
            None if cutter is None else (cutter.cut, cut),
            wanted.fusion.weights,
        )
    said_of_encoders(here, 0, output)


def _notice_if_alike(vectors: npt.NDArray[np.float32], backend: Backend) -> None:
    """Gives a notice if vectors hardly differ, as those of an untrained model."""
    cosine = float(np.square(vectors.mean(0)).sum() / max(np.square(vectors).sum(1).mean(), 1e-30))
    if len(vectors) < _ENOUGH or cosine < _ALIKE:
        return
    rounded = (
        ", and what bf16 rounds off may be what does (encoding.backend=torch-float32 rounds none)"
    )
    notice(
        f"{len(vectors)} documents have nearly the same vector (cosines of {cosine:.5f} on "
        "average): the model has hardly learnt to tell them apart"
        + ("" if backend == "torch-float32" else rounded)
    )
