"""What an index folder holds and what filled it, written last so that it vouches for the rest."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from isthmus._version import __version__
from isthmus.collections.problems import ReadingSettings
from isthmus.config import Settings
from isthmus.config.output import where_it_leads, write_json
from isthmus.config.safe_names import plain
from isthmus.config.sealed_json import UnreadableError, parse_mapping, read_bounded, sealed
from isthmus.errors import InputError, SettingsError, similar
from isthmus.indexes.integrity import COPY, Count, StoredFile, damaged, described
from isthmus.indexes.languages import AUTO, NONE, UNSTEMMED, Language
from isthmus.text.passages import Cut

FORMAT = 1
MANIFEST = "manifest.json"
SEGMENTS = "segments"
HYBRID = "hybrid.json"  # in a folder of several indexes
STATE = "[0-9]{6}"
"""What the folder of a hybrid's own indexes is named like."""
PROGRESS = "progress.json"  # in a workplace: the rows that are on the disk
PLAN = "shards.json"  # in a workplace: which segments there will be
_CANDIDATES = 6  # that a refusal names
_MANIFESTS = 64  # as they were read last: an index of few segments is opened in several steps


Kind = Literal["bm25", "dense", "inverted"]
TITLES: dict[Kind, str] = {
    "bm25": "a bm25 index",
    "dense": "a dense index",
    "inverted": "an inverted index",
}
"""With their articles."""
_NEEDED: dict[Kind, tuple[str, ...]] = {
    "bm25": ("bm25",),
    "dense": ("dimension", "dtype", "largest_norm"),
    "inverted": ("dimension", "inverted", "layout"),
}  # fields that an index in one piece must have


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


class InvertedSettings(Settings):
    """How term weights are kept in an inverted index."""

    terms: int | None = Field(
        None, ge=1, description="the strongest terms kept of a document; null: all"
    )
    weights: Literal["integer", "float"] = Field("integer", description="how each is kept")
    scale: float = Field(100.0, gt=0, description="more than 0; integer weights are scale * w")
    rounding: Literal["floor", "round"] = Field("floor", description="how scale * w gets whole")


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


class Description(Settings):
    """An index to be built: all that is known before the first document is read."""

    kind: Kind
    corpus: CorpusOrigin
    titles: bool
    texts: bool = True
    encoder: EncoderOrigin | None = None
    dimension: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    dtype: Literal["float32", "float16"] | None = None
    inverted: InvertedSettings | None = None
    bm25: Bm25Settings | None = None
    passages: Cut | None = None

    @property
    def encoder_fingerprint(self) -> str | None:
        """The fingerprint of the encoder; None for BM25, which has none."""
        return None if self.encoder is None else self.encoder.fingerprint

    def identity(self) -> dict[str, Any]:
        """All that two equal indexes share: contents, but neither names nor paths."""
        # The fingerprint of an encoder is of its settings too.
        own = {"name", "settings", "assumed"}
        names = {"corpus": {"spec", "reading"}, "encoder": own, "passages": {"model"}}
        return self.model_dump(include=set(Description.model_fields), exclude=names)


class Layout(Settings):
    """How an inverted index divides its documents, and how many weights it holds.

    Lists of `long_from` postings and more within a block carry bounds.
    """

    block: Annotated[int, Field(ge=1, lt=2**16)]
    long_from: Count
    postings: Count


def _inside(name: str) -> str:
    """The name itself; a ValueError unless its file is in the index or in its `segments` folder."""
    plain(name.removeprefix(f"{SEGMENTS}/"))
    return name


FileName = Annotated[str, AfterValidator(_inside)]
"""The name of a file in the index, or in its folder of segments."""


class Segment(Settings):
    """A part of an index that grows: a whole index of its own in `segments/`, never changed.

    `deleted` names the file of those of its rows that no longer count, where there are any.
    """

    name: Annotated[str, Field(pattern="^[0-9]{1,18}$")]
    documents: Count
    deleted: FileName | None = None


class Manifest(Description):
    """A finished index: its description, counts and files; or the segments it consists of.

    `documents` are those that can be found, or their passages. An index in segments is replaced by
    replacing this.
    """

    format: int = FORMAT
    created_by: str = f"isthmus {__version__}"
    documents: Count
    largest_norm: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    layout: Layout | None = None
    segments: list[Segment] | None = None
    files: dict[FileName, StoredFile]

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> Manifest:
        missing = [name for name in _NEEDED[self.kind] if getattr(self, name) is None]
        if missing and self.segments is None:
            raise ValueError(f"{TITLES[self.kind]} has {', '.join(missing)}")
        return self

    @model_validator(mode="after")
    def _vouches_for_deleted_rows(self) -> Manifest:
        deleted = {one.deleted for one in self.segments or () if one.deleted is not None}
        if unknown := deleted - self.files.keys():
            raise ValueError(f"{', '.join(sorted(unknown))} is not among its files")
        return self


def write_manifest(
    folder: Path,
    description: Description,
    documents: int,
    largest_norm: float | None = None,
    layout: Layout | None = None,
) -> None:
    """Describes every file that is searched; an index exists from this moment on."""
    names = sorted(file.name for file in folder.iterdir() if is_searched(file))
    manifest = Manifest(
        **dict(description),
        documents=documents,
        largest_norm=largest_norm,
        layout=layout,
        files=described(folder, names, shape_of(description, documents, layout)),
    )
    replace_manifest(folder, manifest)


def replace_manifest(folder: Path, manifest: Manifest) -> None:
    """Puts a manifest into its place, in one step."""
    write_json(folder / MANIFEST, sealed(manifest.model_dump()))


def is_searched(file: Path) -> bool:
    """Whether a file of an index folder is one that a manifest vouches for."""
    return file.suffix in (".npy", ".arrow")


def shape_of(description: Description, documents: int, layout: Layout | None) -> str:
    """All that the structure of the files depends on, in one line."""
    kept = (description.kind, description.dimension, description.dtype)
    rows = () if description.passages is None else ("passages",)
    return repr((*kept, description.inverted, documents, layout, *rows))


def stated_manifest(folder: Path) -> Manifest:
    """The manifest of an index, whatever its files are."""
    file = folder / MANIFEST
    try:
        return _parsed(read_bounded(file), folder)
    except UnreadableError as error:
        if not file.is_file():
            raise _not_an_index(folder) from None
        raise damaged(file, str(error), folder) from None


@lru_cache(maxsize=_MANIFESTS)
def _parsed(text: bytes, folder: Path) -> Manifest:
    values = parse_mapping(text)
    version = values.get("format")
    if not isinstance(version, int):
        raise UnreadableError("it states no format version")
    if version != FORMAT:
        raise InputError(
            f"the index {str(folder)!r} has format version {version}; isthmus {__version__} reads "
            f"{FORMAT}",
            "pip install --upgrade isthmus, or build the index again with this version",
        )
    try:
        return Manifest.parse(values, where="")
    except SettingsError as error:
        raise UnreadableError(error.what) from None


def workplace(folder: Path) -> Path:
    """Where an index lives until it is whole: a hidden folder beside its final name."""
    place = where_it_leads(folder.absolute())  # "." has no name
    return place.with_name(f".{place.name}.building")


def keeps_work(folder: Path) -> bool:
    """Whether an index that is not whole yet has recorded steps, from which building goes on."""
    return any((workplace(folder) / record).is_file() for record in (PROGRESS, PLAN))


def _not_an_index(folder: Path) -> InputError:
    fix, expected = "give the folder that `isthmus index --output` wrote", ""
    if workplace(folder).is_dir():
        what = f"the index {str(folder)!r} is not complete"
        fix = "wait until its command has ended, or run the same `isthmus index` command again"
    elif folder.is_file():
        what = f"{str(folder)!r} is a file, not an index"
    elif not folder.exists():
        what = f"there is no index {str(folder)!r}"
        fix = "check the path, or build it with `isthmus index`"
        expected = similar(folder)
    elif (folder / HYBRID).is_file():
        what = f"{str(folder)!r} is a hybrid of several indexes, and one is needed here"
        fix = f"name one of them; `isthmus doctor {folder}` lists them"
    elif any(folder.glob("*.npy")) or any(folder.glob("*.arrow")):
        what = f"the index {str(folder)!r} is half-written: it has no {MANIFEST}"
        fix = COPY
    else:
        what = f"{str(folder)!r} is not an index: it has no {MANIFEST}"
        expected = ", ".join(_indexes_below(folder))
    return InputError(what, fix, expected)


def _indexes_below(folder: Path) -> list[str]:
    """The indexes and hybrids up to two folders below, hidden ones left out; not more than a few.

    Of a hybrid, not the indexes that it consists of.
    """
    found: list[Path] = []
    for depth in ("*", "*/*"):
        for place in sorted(folder.glob(depth)):
            hidden = any(part.startswith(".") for part in place.relative_to(folder).parts)
            if hidden or place.parent in found:
                continue
            if (place / MANIFEST).is_file() or (place / HYBRID).is_file():
                found.append(place)
    return [str(one) for one in found[:_CANDIDATES]]
