"""The one record of an index folder: what its fields are, and which segments they consist of.

Replacing `manifest.json` is what commits a change. It vouches for itself by a checksum, and for
every file of every segment by theirs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from isthmus._version import __version__
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Settings
from isthmus.config.output import write_json
from isthmus.config.safe_names import plain
from isthmus.config.sealed_json import UnreadableError, parse_mapping, read_bounded, sealed
from isthmus.errors import InputError, SettingsError, choices, similar
from isthmus.indexes.integrity import COPY, Count, StoredFile, damaged
from isthmus.indexes.languages import AUTO, NONE, UNSTEMMED, Language
from isthmus.text.passages import Cut

FORMAT = 1
MANIFEST = "manifest.json"
SEGMENTS = "segments"
DOCUMENTS, METADATA, PASSAGES = "documents", "metadata", "passages"
"""The parts of a segment besides its fields, by the names of their folders."""
_CANDIDATES = 6  # that a refusal names
_MANIFESTS = 64  # as they were read last
_LARGEST = 2**26  # bytes
_FAR = 1e4  # no number of a centre is: what is left of vectors must fit into 16 bits

Type = Literal["bm25", "dense", "sparse", "tokens"]


class Bm25Settings(Settings):
    """How BM25 splits texts and weighs terms."""

    k1: float = Field(1.2, ge=0, description="0 or more; higher lets repetition count longer")
    b: float = Field(0.75, ge=0, le=1, description="0 to 1; how much long texts are marked down")
    language: Language = Field(
        AUTO,
        description="german, de, …: how words are split and shortened; auto: the one that their "
        "script tells (chinese, japanese, korean, thai: pairs of characters), else english; "
        "none: any",
    )
    stemmer: Language | None = Field(None, description="what shortens words; null: the language's")
    stopwords: Language | None = Field(None, description="words left out; null: the language's")
    accents: Literal["keep", "fold"] | None = Field(
        None, description="fold: é is e; null: in languages other than english and none"
    )

    def resolved(self, language: str) -> Bm25Settings:
        """The settings for texts of a language, which leave nothing open."""
        shortened = NONE if language in UNSTEMMED else language
        chosen = {
            "language": language,
            "stemmer": self.stemmer or shortened,
            "stopwords": self.stopwords or shortened,
            "accents": self.accents or ("keep" if language in ("english", NONE) else "fold"),
        }
        return self.model_copy(update=chosen)


class HnswSettings(Settings):
    """How a graph of vectors is built and searched: more of anything finds more."""

    neighbours: int = Field(32, ge=2, description="links of a vector")
    construction: int = Field(200, ge=1, description="vectors met while one is placed")
    effort: int = Field(128, ge=1, description="vectors met while searching")
    oversampling: int = Field(2, ge=1, description="candidates scored exactly for every answer")


class DenseSettings(Settings):
    """How dense vectors are stored."""

    dtype: Literal["float32", "float16"] = Field("float32", description="type of the numbers")
    hnsw: bool | HnswSettings = Field(
        False, description="a graph of the vectors, for approximate search, or how it is built"
    )

    @property
    def graph(self) -> HnswSettings | None:
        """How a graph is built; None for none."""
        if isinstance(self.hnsw, HnswSettings):
            return self.hnsw
        return HnswSettings() if self.hnsw else None


class SparseSettings(Settings):
    """How term weights are stored."""

    terms: int | None = Field(
        None, ge=1, description="the strongest terms kept of a document; null: all"
    )
    weights: Literal["integer", "float"] = Field("integer", description="how each is kept")
    scale: float = Field(100.0, gt=0, description="more than 0; integer weights are scale * w")
    rounding: Literal["floor", "round"] = Field("floor", description="how scale * w gets whole")


class TokensSettings(Settings):
    """How token vectors are stored."""

    stored: bool = Field(
        True,
        description="false: none are, and those of the candidates are computed for every query",
    )
    pooling: int | None = Field(
        None,
        ge=1,
        le=8,
        description="neighbouring tokens that are stored as one; null: 2, and 1 of a model whose "
        "token vectors were trained",
    )
    bits: Literal[2, 4] | None = Field(
        None, description="of each number; null: 2, and 4 of a model whose vectors were trained"
    )


class CorpusOrigin(Settings):
    """The corpus as the user named it, how it was read, and the fingerprint of what it held."""

    spec: str
    fingerprint: str
    reading: ReadingSettings = ReadingSettings()


class EncoderOrigin(Settings):
    """Where the encoder came from, and the fingerprint of its weights, tokenizer and settings.

    The backend computed the documents' vectors with it. `settings` say how it encodes, prompts
    among them; `assumed` is what of them the files of the encoder did not say.
    """

    name: str
    fingerprint: str
    backend: Literal["torch", "torch-float32", "onnx-int8"] = "torch"
    settings: dict[str, Any] = Field({})
    assumed: str = ""


class Bm25Field(Settings):
    """BM25, whose rows are whole documents."""

    type: Literal["bm25"] = "bm25"
    titles: bool = True
    settings: Bm25Settings = Bm25Settings()

    encoder: ClassVar[None] = None
    on_passages: ClassVar[bool] = False


class _VectorField(Settings):
    """Vectors of an encoder, whose rows are passages where the index has these."""

    titles: bool = True
    encoder: EncoderOrigin
    dimension: Annotated[int, Field(ge=1, lt=2**31)]

    on_passages: ClassVar[bool] = True


class DenseField(_VectorField):
    """One vector per row."""

    type: Literal["dense"] = "dense"
    settings: DenseSettings = DenseSettings()


class SparseField(_VectorField):
    """Weights of terms, in lists."""

    type: Literal["sparse"] = "sparse"
    settings: SparseSettings = SparseSettings()


class TokensField(_VectorField):
    """A vector for each token, of which words of queries meet the nearest one.

    `centre` is the mean of the encoder's vectors, which stored ones are without. Tokens of queries
    count by how rare they are, or alike, as a model was trained.
    """

    type: Literal["tokens"] = "tokens"
    settings: TokensSettings = TokensSettings()
    centre: list[Annotated[float, Field(gt=-_FAR, lt=_FAR)]] = Field([])
    weights: Literal["rarity", "alike"] = "rarity"

    @model_validator(mode="after")
    def _fits(self) -> TokensField:
        if self.settings.bits is None or self.settings.pooling is None:
            raise ValueError("it does not say how its vectors are stored")
        if len(self.centre) != self.dimension:
            raise ValueError("its centre is no vector of it")
        return self

    @property
    def bits(self) -> int:
        """The bits of each number."""
        assert self.settings.bits is not None
        return self.settings.bits

    @property
    def pooling(self) -> int:
        """How many neighbouring tokens are stored as one."""
        assert self.settings.pooling is not None
        return self.settings.pooling


FieldAbout = Annotated[
    Bm25Field | DenseField | SparseField | TokensField, Field(discriminator="type")
]
"""What a field is, and how it was filled."""


class Layout(Settings):
    """How a sparse field divides its rows, and how many weights it holds.

    Lists of `long_from` postings and more within a block carry bounds.
    """

    block: Annotated[int, Field(ge=1, lt=2**16)]
    long_from: Count
    postings: Count


class FieldCounts(Settings):
    """What is known of the rows of a field in one segment, by its type."""

    tokens: Count | None = None
    largest_norm: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    layout: Layout | None = None
    vectors: Count | None = None
    recall: dict[str, float] | None = Field(
        None, description="of the graph: fraction of the nearest documents found, by depth"
    )


_NEEDED: dict[Type, str] = {
    "bm25": "tokens",
    "dense": "largest_norm",
    "sparse": "layout",
    "tokens": "vectors",
}


def _field_name(name: str) -> str:
    if name in (DOCUMENTS, METADATA, PASSAGES) or name.startswith(".") or len(name.split()) != 1:
        raise ValueError("not the name of a field")
    return plain(name)


def _file_name(path: str) -> str:
    for step in path.split("/"):
        plain(step)
    return path


FieldName = Annotated[str, AfterValidator(_field_name)]
FileName = Annotated[str, AfterValidator(_file_name)]
"""The name of a file inside the folder of its segment."""


class SegmentAbout(Settings):
    """A segment, whose files never change: its counts, and what vouches for it.

    `deleted` names the file of those of its documents that no longer count, `dead` of them.
    """

    name: Annotated[str, Field(pattern="^[0-9]{6,18}$")]
    documents: Count
    passages: Count | None = None
    deleted: FileName | None = None
    dead: Count = 0
    fields: dict[FieldName, FieldCounts] = Field({})
    files: dict[FileName, StoredFile] = Field({})

    @model_validator(mode="after")
    def _vouches_for_all(self) -> SegmentAbout:
        if self.deleted is not None and self.deleted not in self.files:
            raise ValueError(f"{self.deleted} is not among its files")
        if self.dead > self.documents or bool(self.dead) != (self.deleted is not None):
            raise ValueError("it has other deleted documents than it says")
        return self

    @property
    def living(self) -> int:
        """The number of documents that were not deleted."""
        return self.documents - self.dead

    def rows(self, field: FieldAbout) -> int:
        """The number of rows of a field in it."""
        over_passages = field.on_passages and self.passages is not None
        return self.passages if over_passages and self.passages is not None else self.documents

    def files_of(self, part: str) -> dict[str, StoredFile]:
        """The files of a part or field, by their names in its folder."""
        prefix = f"{part}/"
        return {
            name.removeprefix(prefix): stored
            for name, stored in self.files.items()
            if name.startswith(prefix)
        }


class Fusion(Settings):
    """How the answers of several fields become one."""

    fusion: str = Field("weighted_sum", description="weighted_sum, reciprocal_rank or raw_sum")
    candidates: int = Field(1000, ge=1, description="documents per query and field that are fused")
    weights: dict[str, float] = Field(
        {}, description="of fields, by name; 1 for one that is not named"
    )
    compared: int = Field(30, ge=1, description="documents per query that token vectors score")


class Manifest(Settings):
    """All that an index is: where it is from, its fields, how they are fused, and its segments."""

    format: int = FORMAT
    made_by: dict[str, Any] = Field({})
    corpus: CorpusOrigin
    passages: Cut | None = None
    fields: Annotated[dict[FieldName, FieldAbout], Field(min_length=1)]
    fusion: Fusion = Fusion()
    segments: list[SegmentAbout] = Field([])

    @model_validator(mode="after")
    def _has_every_field_everywhere(self) -> Manifest:
        names = [segment.name for segment in self.segments]
        if len(set(names)) < len(names):
            raise ValueError("a segment is named twice")
        for segment in self.segments:
            if segment.fields.keys() != self.fields.keys():
                raise ValueError(f"segment {segment.name} has other fields")
            for name, field in self.fields.items():
                if getattr(segment.fields[name], _NEEDED[field.type]) is None:
                    raise ValueError(f"segment {segment.name} has no {_NEEDED[field.type]}")
            if (segment.passages is None) != (self.passages is None):
                raise ValueError(f"segment {segment.name} has other rows than the index")
        return self

    @property
    def documents(self) -> int:
        """The number of documents that can be found."""
        return sum(segment.living for segment in self.segments)

    @property
    def encoders(self) -> dict[str, EncoderOrigin]:
        """The encoders of the fields that have one, by the field's name."""
        return {
            name: field.encoder for name, field in self.fields.items() if field.encoder is not None
        }

    def identity(self) -> dict[str, Any]:
        """All that two equal indexes share: contents, but neither names nor paths."""
        fields = {name: field_identity(field) for name, field in self.fields.items()}
        cut = None if self.passages is None else self.passages.model_dump(exclude={"model"})
        return {"corpus": self.corpus.fingerprint, "passages": cut, "fields": fields}

    def has_passages(self, field: str) -> bool:
        """Whether the rows of a field are passages."""
        return self.passages is not None and self.field(field).on_passages

    def field(self, name: str) -> FieldAbout:
        """The field of this name; a SettingsError if there is none."""
        if name not in self.fields:
            raise SettingsError(
                f"the index has no field {name!r}",
                f"name one of {', '.join(self.fields)}, or leave it out to search all of them",
                choices(name, list(self.fields)),
            )
        return self.fields[name]


def field_identity(field: FieldAbout) -> dict[str, Any]:
    """What two fields of equal contents share; an encoder's fingerprint is of its settings too."""
    own = {"name", "settings", "assumed"}
    # The centre is what the encoder gives, but for the last bits of another machine.
    return field.model_dump(exclude={"encoder": own, "centre": True})


def sizes_of(fields: Mapping[str, FieldAbout]) -> list[str]:
    """The fields that are other sizes of an earlier one: searched by their names alone."""
    found, seen = [], set()
    for name, field in fields.items():
        if isinstance(field, SparseField):
            if field.encoder.fingerprint in seen:
                found.append(name)
            seen.add(field.encoder.fingerprint)
    return found


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replaces the manifest of a folder in one step; once this returns, no crash can undo it."""
    write_json(folder / MANIFEST, sealed(manifest.model_dump(mode="json")))
    settle_names(folder)


def settle_names(folder: Path) -> None:
    """Brings the names in a folder to the disk."""
    if os.name == "posix":  # elsewhere folders cannot be opened, and need not be
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index; its files are looked at when they are opened."""
    file = folder / MANIFEST
    try:
        return _parsed(read_bounded(file, _LARGEST), folder)
    except UnreadableError as error:
        if not file.is_file():
            raise not_an_index(folder) from None
        raise damaged(file, str(error), folder) from None


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index."""
    return (folder / MANIFEST).is_file()


def index_folder(folder: str | Path) -> Path:
    """The folder itself, or the index in it where it is the output of `adapt`."""
    inner = Path(folder, "index")
    return inner if not is_index(Path(folder)) and is_index(inner) else Path(folder)


@lru_cache(maxsize=_MANIFESTS)
def _parsed(text: bytes, folder: Path) -> Manifest:
    values = parse_mapping(text)
    version = values.get("format")
    if version != FORMAT:
        raise InputError(
            f"the index {str(folder)!r} has format version {version!r:.20}; isthmus {__version__} "
            f"reads {FORMAT}",
            "pip install --upgrade isthmus, or build the index again with this version",
        )
    try:
        return Manifest.parse(values, where="")
    except SettingsError as error:
        raise UnreadableError(error.what) from None


def not_an_index(folder: Path) -> InputError:
    """The refusal of a folder without a manifest."""
    fix, expected = "give the folder that `isthmus index --output` wrote", ""
    if folder.is_file():
        what = f"{str(folder)!r} is a file, not an index"
    elif not folder.exists():
        what = f"there is no index {str(folder)!r}"
        fix = "check the path, or build it with `isthmus index`"
        expected = similar(folder)
    elif any((folder / SEGMENTS).glob("*/progress.json")):
        what = f"the index {str(folder)!r} is not complete"
        fix = "wait until its command has ended, or run the same `isthmus index` command again"
    elif (folder / SEGMENTS).is_dir():
        what = f"the index {str(folder)!r} has no {MANIFEST}"
        fix = COPY
    else:
        what = f"{str(folder)!r} is not an index: it has no {MANIFEST}"
        expected = ", ".join(_indexes_below(folder))
    return InputError(what, fix, expected)


def _indexes_below(folder: Path) -> list[str]:
    """The indexes up to two folders below, hidden ones left out; not more than a few."""
    found: list[str] = []
    for depth in ("*", "*/*"):
        for place in sorted(folder.glob(depth)):
            hidden = any(part.startswith(".") for part in place.relative_to(folder).parts)
            if not hidden and is_index(place) and len(found) < _CANDIDATES:
                found.append(str(place))
    return found


def parts_of(manifest: Manifest) -> Iterator[str]:
    """The parts of every segment: documents, passages where it has these, and its fields."""
    yield from (DOCUMENTS, METADATA)
    if manifest.passages is not None:
        yield PASSAGES
    yield from manifest.fields


def updated(manifest: Manifest, **changes: Any) -> Manifest:
    """A copy of a manifest in which some values are others, checked as a whole."""
    values: Mapping[str, Any] = {**dict(manifest), **changes}
    return Manifest(**values)
