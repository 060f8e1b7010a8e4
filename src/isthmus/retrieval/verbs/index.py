"""The verb `isthmus index`: a corpus and a model in, a searchable folder out."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field

from isthmus.cluster import Cluster, ClusterSettings, connected
from isthmus.collections import Corpus, open_corpus
from isthmus.collections.in_memory import called
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Overrides
from isthmus.config.encoding import Backend, EncodingChoice, EncodingSettings
from isthmus.config.models import full_name, model_folder
from isthmus.config.output import only_writer, publish
from isthmus.config.settings import check_arguments
from isthmus.errors import InputError, MismatchError, OutputError, SettingsError
from isthmus.indexes.construction import already_built, place_to_build
from isthmus.indexes.documents import blocks
from isthmus.indexes.kinds import builder_for
from isthmus.indexes.manifest import (
    MANIFEST,
    Bm25Settings,
    CorpusOrigin,
    Description,
    EncoderOrigin,
    SparseSettings,
    keeps_work,
    stated_manifest,
)
from isthmus.indexes.replacement import remove_leftovers, replacement
from isthmus.indexes.verification import read_manifest
from isthmus.progress import Bar, notice, said_once, track, waiting
from isthmus.retrieval.hnsw import ChosenHnsw, add_hnsw, check_hnsw
from isthmus.retrieval.living_hybrid import build_hybrid, by_name
from isthmus.retrieval.passage_cutter import chosen_cutter, rows
from isthmus.retrieval.shards import fill_shards
from isthmus.text.passages import Chosen, Cutter
from isthmus.text.truncation import CutTexts

if TYPE_CHECKING:
    from isthmus.encoders import DenseEncoder, SparseEncoder

    _Model = str | DenseEncoder | SparseEncoder
BM25 = "bm25"
_SAMPLE = 128  # documents on which the change of quality by int8 is measured
_ENOUGH = 8  # documents of which an average cosine says something
_ALIKE = 0.999  # on average: bf16 keeps two to three digits of what is left


class IndexSettings(ReadingSettings, EncodingChoice):
    """How an index is filled and what it keeps."""

    verb = "index"

    titles: bool | None = Field(None, description="titles too; null: as the encoder was trained")
    passages: Chosen = Field(
        None,
        description="whether long documents are searched by passages, or how these are cut; null: "
        "yes for a folder of files, no otherwise",
    )
    texts: bool = Field(True, description="keep titles and texts in the index, to show results")
    dtype: Literal["float32", "float16"] = Field("float32", description="of dense vectors on disk")
    hnsw: ChosenHnsw = Field(
        False, description="a graph beside a dense index, for search by hnsw, or how it is built"
    )
    block_size: int = Field(1024, ge=1, description="documents between two recorded steps")
    encoding: EncodingSettings = EncodingSettings()
    inverted: SparseSettings = SparseSettings()
    bm25: Bm25Settings = Bm25Settings()
    memory: float = Field(
        1.0, gt=0, description="GiB of postings that building a BM25 index may hold"
    )
    cluster: ClusterSettings | None = Field(None, description="machines that share the work")

    def for_bm25(self) -> Self:
        """These settings without those that are there for vectors alone."""
        unset = dict.fromkeys((*EncodingChoice.model_fields, "cluster"))
        return self.model_copy(update={**unset, "hnsw": False, "encoding": EncodingSettings()})


def index(
    corpus: str,
    output: str | Path,
    models: _Model | Sequence[_Model] = BM25,
    *,
    language: str | None = None,
    overwrite: bool = False,
    settings: IndexSettings | Overrides = None,
) -> Path:
    """The folder of the finished index, with a retriever for each model.

    A model is "bm25", the name of an encoder, or an encoder that is loaded already.

    Interrupted and run again, it resumes where it stopped; an index of the same corpus, encoder
    and settings is reused. To `overwrite` replaces another index once the new one is complete, and
    never a folder that holds anything else. The indexes of several models are searched together
    and change together.
    """
    settings = IndexSettings.given(settings, {"bm25.language": language})
    check_arguments("index", {"corpus": corpus, "output": output})
    named = by_name(list(models) if isinstance(models, list | tuple) else [models])
    _check_language(language, named.values(), settings)
    if len(named) == 1:
        (model,) = named.values()
        return _index_one(corpus, Path(output), model, settings, overwrite)

    def build(one: _Model, folder: Path, replace: bool) -> None:
        chosen = settings.for_bm25() if one == BM25 else settings
        _index_one(corpus, folder, one, chosen, replace)

    request = {
        "corpus": corpus,
        "model": None,
        "models": [one if isinstance(one, str) else one.name for one in named.values()],
        "settings": settings.model_dump(exclude={"cluster"}),
    }
    with said_once():
        build_hybrid(Path(output), named, build, request, overwrite)
    return Path(output)


def _check_language(
    language: str | None, models: Iterable[object], settings: IndexSettings
) -> None:
    """Refuses a language where no BM25 index is built, which alone has one."""
    if BM25 in models:
        return
    if language is not None:
        raise SettingsError(
            f"--language {language} is of BM25, and no such index is built",
            "leave it out: a model reads the languages it was trained on; or add -m bm25",
        )
    if settings.bm25 != Bm25Settings():
        notice("settings of bm25 have no effect: no such index is built")


def _index_one(
    corpus: str, output: Path, model: _Model, settings: IndexSettings, overwrite: bool
) -> Path:
    if settings.cluster is not None and model == BM25:
        raise SettingsError(
            "cluster: a BM25 index is not built on a cluster, as its weights come from all "
            "documents at once",
            "leave out cluster (BM25 takes seconds where vectors take hours), or give --model",
        )
    if model == BM25 or not isinstance(model, str):
        _check_nothing_is_loaded(model, settings)
    with connected(settings.cluster) as machines, place_to_build(output):
        folder = _index(corpus, output, model, settings, machines, overwrite)
        remove_leftovers(folder)
    if (hnsw := check_hnsw(settings.hnsw, stated_manifest(folder).kind)) is not None:
        name = model if isinstance(model, str) else model.name
        notice(add_hnsw(folder, name, hnsw).summary())
    return folder


def _check_nothing_is_loaded(model: _Model, settings: IndexSettings) -> None:
    """Raises on settings of loading an encoder, where there is none or it is loaded already."""
    values, backend = settings.chosen(), settings.encoding.backend
    there = None if isinstance(model, str) else model
    in_full = there is not None and not there.rounded and there.int8 is None
    if backend != "torch" and not (in_full and backend == "torch-float32"):
        values["encoding.backend"] = backend
    for key, value in values.items():
        why = "a BM25 index encodes nothing" if there is None else "the encoder is loaded already"
        raise SettingsError(
            f"{key} = {value!r}, but {why}",
            f"give --model, by name, or leave {key} out",
        )


def _index(
    corpus: str,
    output: Path,
    model: _Model,
    settings: IndexSettings,
    cluster: Cluster | None,
    overwrite: bool,
) -> Path:
    problems = settings.account()
    source = open_corpus(corpus, problems)
    with waiting(f"reading {called(corpus)} once, to know it again"):
        origin = CorpusOrigin(
            spec=corpus, fingerprint=source.fingerprint(), reading=settings.reading
        )
    if isinstance(model, str) and model != BM25 and not keeps_work(output):
        model_folder(model)  # a name that leads nowhere is found before documents are read,
        # and bad data before the model is loaded.
        for _ in track(
            source.documents(), f"checking {called(corpus)}", source.count(), "documents"
        ):
            pass
    with waiting(f"loading the encoder {model}"):
        encoder = _load(model, settings)
    cutter = chosen_cutter(_passages(settings, output, overwrite), source, encoder)
    known = None if overwrite or not (output / MANIFEST).is_file() else stated_manifest(output).bm25
    description = _describe(origin, encoder, cutter, settings, source, known)
    check_hnsw(settings.hnsw, description.kind, sharded=cluster is not None)
    if already_built(output, description, overwrite):
        notice(f"{output} already holds this index; nothing to do")
        return output
    if overwrite and output.is_dir() and any(output.iterdir()):
        # Beside it, until it is whole: what is there goes on being searched.
        beside = replacement(output)
        with only_writer(output), place_to_build(beside):
            try:
                already_built(beside, description)
            except (InputError, OutputError):  # left there by a killed command
                shutil.rmtree(beside)
            _index(corpus, beside, encoder or BM25, settings, cluster, overwrite=False)
            publish(beside, output)
        return output
    request = {
        "corpus": corpus,
        "model": BM25 if encoder is None else encoder.name,
        # Not the cluster: with it and without, the same index is built.
        "settings": settings.model_dump(exclude={"cluster"}),
        "fingerprints": {
            "corpus": origin.fingerprint,
            "encoder": description.encoder_fingerprint,
        },
    }
    if encoder is None:
        _fill_bm25(source, cutter, output, description, request, settings.memory)
    elif cluster is not None:
        read = rows(cutter, source.documents())
        cut = fill_shards(cluster, read, output, description, request, settings.block_size)
        _say_what_was_cut(cut, read_manifest(output).documents - cut.texts, output)
    else:
        done = _fill(source, cutter, encoder, output, description, request, settings.block_size)
        _say_what_was_cut(encoder.cut_texts, done, output)
    if problems.counts:
        notice(problems.summary())
    built = read_manifest(output)
    if built.layout is not None and built.documents:
        notice(f"{built.layout.postings / built.documents:.1f} terms in an average document")
    return output


def _say_what_was_cut(found: CutTexts, done: int, output: Path) -> None:
    """Says how many texts are cut, without those that an earlier command has encoded."""
    said, doctor = found.summary(), f"`isthmus doctor {output}` counts"
    if done == read_manifest(output).documents:
        said = f"all {done:,} texts were encoded before; {doctor} those that are cut"
    elif done:
        said += f" (without the {done:,} from before; {doctor} all)"
    notice(said)


def _passages(settings: IndexSettings, output: Path, overwrite: bool) -> Chosen:
    """What settings say of passages; where they say nothing, whether an index that is there has."""
    if settings.passages is None and not overwrite and (output / MANIFEST).is_file():
        return stated_manifest(output).passages is not None
    return settings.passages


def _load(model: _Model, settings: IndexSettings) -> DenseEncoder | SparseEncoder | None:
    if model == BM25:
        return None
    if not isinstance(model, str):
        return model
    from isthmus.encoders import load_encoder, load_int8_encoder  # torch, unneeded for BM25

    if settings.encoding.backend == "onnx-int8":
        return load_int8_encoder(model, settings.chosen())
    return load_encoder(model, settings.chosen(), settings.encoding.backend == "torch-float32")


def _describe(
    corpus: CorpusOrigin,
    encoder: DenseEncoder | SparseEncoder | None,
    cutter: Cutter | None,
    settings: IndexSettings,
    source: Corpus,
    known: Bm25Settings | None,
) -> Description:
    cut = None if cutter is None else cutter.cut
    if encoder is None:
        from isthmus.indexes.bm25.chosen_language import in_language

        return Description(
            kind="bm25",
            corpus=corpus,
            titles=settings.titles is not False,
            texts=settings.texts,
            bm25=in_language(settings.bm25, source.documents(), corpus.spec, known),
            passages=cut,
        )
    if settings.titles not in (None, encoder.settings.titles):
        raise MismatchError(
            f"titles = {settings.titles}, but the encoder {encoder.name!r} was trained with "
            f"titles = {encoder.settings.titles}",
            "leave titles out, or choose an encoder trained the other way",
        )
    sparse = encoder.kind == "sparse"
    return Description(
        kind="inverted" if sparse else "dense",
        corpus=corpus,
        titles=encoder.settings.titles,
        texts=settings.texts,
        encoder=EncoderOrigin(
            name=full_name(encoder.name),
            fingerprint=encoder.fingerprint,
            backend=settings.encoding.backend,
            settings=encoder.described(),
            assumed=encoder.assumed,
        ),
        dimension=encoder.dimension,
        dtype=None if sparse else settings.dtype,
        inverted=settings.inverted if sparse else None,
        passages=cut,
    )


def _fill_bm25(
    source: Corpus,
    cutter: Cutter | None,
    output: Path,
    description: Description,
    request: Mapping[str, Any],
    memory: float,
) -> None:
    from isthmus.indexes.bm25.builder import build_bm25

    documents = track(
        source.documents(),
        f"indexing {called(description.corpus.spec)}",
        source.count(),
        "documents",
    )
    build_bm25(rows(cutter, documents), output, description, request, memory)


def _fill(
    source: Corpus,
    cutter: Cutter | None,
    encoder: DenseEncoder | SparseEncoder,
    output: Path,
    description: Description,
    request: Mapping[str, Any],
    block_size: int,
) -> int:
    """Fills an index; how many of its rows were there before."""
    assert description.encoder is not None
    encoder.cut_texts.restart()
    with builder_for(output, description) as builder:
        done = builder.rows
        total, unit = (source.count(), "documents") if cutter is None else (None, "passages")
        if done:
            notice(f"resuming after {done:,} {unit}")
        remaining = islice(rows(cutter, source.documents()), done, None)
        with Bar(f"indexing {called(description.corpus.spec)}", total, unit, done) as bar:
            parts = blocks(remaining, block_size)
            for block, vectors in encoder.encode_blocks(parts, bar.advance):
                if description.encoder.backend == "onnx-int8" and builder.rows == done:
                    notice(encoder.difference_of_int8(block[:_SAMPLE]))
                if description.kind == "dense" and builder.rows == done:
                    _notice_if_alike(vectors[:_SAMPLE], description.encoder.backend)
                builder.add(block, vectors)
        with waiting(f"completing {output}"):
            builder.finish(request)
    return done


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
