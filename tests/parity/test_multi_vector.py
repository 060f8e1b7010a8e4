"""Token vectors are those of sentence-transformers 6, from folders of all three layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import MultiVectorEncoder as Theirs
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from tests.layouts import PUNCTUATION, WORDS, backbone, pylate, stanford
from torch import nn

from isthmus.encoders import MultiVectorEncoder, load_encoder
from isthmus.encoders.model_settings import stored_settings
from isthmus.indexes.ragged import TokenVectors
from isthmus.records import Document

TEXTS = [
    "the quick, brown fox!",
    "dog",
    "jumps over. the lazy dog and " * 20,  # longer than any limit
    "",
    "!",  # of which a document keeps what stands around it
    "the [MASK] fox",  # seen by the others of its query, unlike those that fill it up
]


def dense(width: int, outputs: int, **options: Any) -> Dense:
    chosen = {"bias": False, "activation_function": nn.Identity(), **options}
    return Dense(width, outputs, module_input_name="token_embeddings", **chosen)


def written(layers: Sequence[Dense]) -> list[Any]:
    """Configurations and weights, as PyLate keeps them."""
    found = []
    for layer in layers:
        about = layer.get_config_dict()
        kept = {key: about[key] for key in about if not key.startswith("module_")}
        found.append(({**kept, "use_residual": layer.use_residual}, layer.state_dict()))
    return found


def native(folder: Path, *modules: Any, prompts: Any = None, **options: Any) -> str:
    """What sentence-transformers 6 saves."""
    backbone(folder / "plain")
    torch.manual_seed(1)
    transformer = Transformer(str(folder / "plain"), **options)
    chosen = modules or (
        dense(16, 8), MultiVectorMask(PUNCTUATION), Normalize("token_embeddings"),
    )  # fmt: skip
    there = Theirs(modules=[transformer, *chosen], prompts=prompts, device="cpu")
    there.save(str(folder / "native"), create_model_card=False)
    return str(folder / "native")


def here(folder: str, **options: Any) -> MultiVectorEncoder:
    encoder = load_encoder(folder, exact=True, **options)
    assert isinstance(encoder, MultiVectorEncoder)
    return encoder


def documents(texts: Sequence[str] = TEXTS) -> list[Document]:
    return [Document("", text) for text in texts]


def rows(found: TokenVectors) -> list[Any]:
    return [found.vectors.row(number) for number in range(len(found))]


def close(found: TokenVectors, expected: Sequence[Any]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(rows(found), expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def same(encoder: MultiVectorEncoder, folder: str) -> None:
    """The vectors of queries and documents are those that sentence-transformers 6 makes.

    And each is known to be of a token.
    """
    there = Theirs(folder, device="cpu")
    queries, found = encoder.encode_queries(TEXTS), encoder.encode_documents(documents())
    close(queries, there.encode_query(TEXTS, convert_to_numpy=True))
    close(found, there.encode_document(TEXTS, convert_to_numpy=True))
    for number, text in enumerate(TEXTS):
        ((ids, _),) = encoder.token_places([text], queries=True)
        assert ids.tolist() == queries.pieces.row(number).tolist()
        ((ids, spans),) = encoder.token_places([text])
        assert np.unique(ids).tolist() == found.pieces.row(number).tolist()
        assert len(ids) == len(found.vectors.row(number))
        assert spans.max(initial=-1) <= len(text)


FIXED: Mapping[str, Any] = {"strategy": "fixed", "length": 14}
NATIVE: dict[str, Any] = {
    "fixed": {"query_expansion": FIXED, "document_length": 18},
    "fixed, attended": {"query_expansion": {**FIXED, "attend": True}},
    "at least": {"query_expansion": {"strategy": "min", "length": 14}},
    "at least, attended": {"query_expansion": {"strategy": "min", "length": 14, "attend": True}},
    "between": {"query_expansion": {"strategy": "min", "length": 8}, "query_length": 20},
    "another token": {"query_expansion": {**FIXED, "token": "fox"}},
    "not expanded": {"query_length": 9, "document_length": 40},
    "prompts": {"query_expansion": FIXED, "prompts": {"query": "the ", "document": "fox: "}},
}
LAYERS: dict[str, Any] = {
    "none": list,
    "bias and activation": lambda: [dense(16, 8, bias=True, activation_function=nn.Tanh())],
    "residual": lambda: [dense(16, 16, use_residual=True), dense(16, 8, use_residual=True)],
    "several": lambda: [dense(16, 24, activation_function=nn.GELU()), dense(24, 8, bias=True)],
}
MASKS: dict[str, Any] = {
    "none": lambda: MultiVectorMask(),
    "queries too": lambda: MultiVectorMask(["the", "!"], skiplist_tasks=["query", "document"]),
    "queries alone": lambda: MultiVectorMask(["fox", "[MASK]"], skiplist_tasks="query"),
    "special": lambda: MultiVectorMask(["[CLS]", "[SEP]", "!", "unheard of", "[UNK]"]),
}


@pytest.mark.parametrize("name", NATIVE)
def test_native_lengths_and_expansion(name: str, tmp_path: Path) -> None:
    folder = native(tmp_path, **NATIVE[name])
    same(here(folder), folder)


@pytest.mark.parametrize("name", LAYERS)
def test_native_projections(name: str, tmp_path: Path) -> None:
    folder = native(tmp_path, *LAYERS[name](), MultiVectorMask(PUNCTUATION), query_expansion=FIXED)
    same(here(folder), folder)  # not normalised


@pytest.mark.parametrize("name", MASKS)
def test_native_skip_lists(name: str, tmp_path: Path) -> None:
    modules = dense(16, 8), MASKS[name](), Normalize("token_embeddings")
    folder = native(tmp_path, *modules, query_expansion=FIXED)
    same(here(folder), folder)


PYLATE: dict[str, Any] = {
    "as usual": {},
    "attended": {"attend_to_expansion_tokens": True},
    "not expanded": {"do_query_expansion": False},
    "prompts": {"prompts": {"query": "the ", "document": "fox: "}},
    "no skip list": {"skiplist_words": []},
    "before types": {"model_type": ...},
    "from a dense model": {"model_type": "SentenceTransformer"},
}


@pytest.mark.parametrize("name", PYLATE)
def test_pylate(name: str, tmp_path: Path) -> None:
    folder = pylate(tmp_path, **PYLATE[name])
    same(here(folder), folder)


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "none"])
def test_pylate_projections(name: str, tmp_path: Path) -> None:
    folder = pylate(tmp_path, written(LAYERS[name]()))
    same(here(folder), folder)


STANFORD: dict[str, Any] = {
    "as usual": {},
    "attended": {"attend_to_mask_tokens": True},
    "with punctuation": {"mask_punctuation": False},
    "markers the other way round": {"query_token_id": "[unused1]", "doc_token_id": "[unused0]"},
}


@pytest.mark.parametrize("name", STANFORD)
def test_stanford(name: str, tmp_path: Path) -> None:
    folder = stanford(tmp_path, **STANFORD[name])
    same(here(folder), folder)


def test_a_saved_encoder_gives_the_same_vectors_there(tmp_path: Path) -> None:
    folders = {
        "native": native(
            tmp_path / "1", *LAYERS["several"](), MASKS["queries too"](), **NATIVE["between"]
        ),
        "PyLate": pylate(
            tmp_path / "2", written(LAYERS["residual"]()), attend_to_expansion_tokens=True
        ),
        "Stanford": stanford(tmp_path / "3"),
    }
    for name, folder in folders.items():
        encoder, ours = here(folder), tmp_path / "ours" / name
        ours.mkdir(parents=True)
        encoder.save(ours)
        same(encoder, str(ours))
        again = here(str(ours))
        assert again.fingerprint == encoder.fingerprint
        assert again.settings == encoder.settings
        same(again, folder)


def test_maxsim_there_is_that_of_our_vectors(tmp_path: Path) -> None:
    folder = pylate(tmp_path)
    encoder, there = here(folder), Theirs(folder, device="cpu")
    queries, found = encoder.encode_queries(TEXTS), encoder.encode_documents(documents())
    expected = there.similarity(there.encode_query(TEXTS), there.encode_document(TEXTS))
    scores = [
        [sum(max(float(q @ d) for d in np.float64(text)) for q in np.float64(query))
         for text in rows(found)]
        for query in rows(queries)
    ]  # fmt: skip
    np.testing.assert_allclose(scores, expected.numpy(), atol=1e-5)


def test_unknown_signs_are_skipped_as_the_library_of_the_layout_does(tmp_path: Path) -> None:
    """Of a sign without a token, PyLate and Stanford's ColBERT skip the unknown token."""
    signs = [sign for sign in PUNCTUATION if sign != "~"]
    texts = ["the fox 日 dog", "fox ~ dog!", "[PAD] the dog"]
    for folder in (pylate(tmp_path, signs=signs), stanford(tmp_path, signs=signs)):
        encoder = here(folder)
        there = Theirs(folder, device="cpu").encode_document(texts, convert_to_numpy=True)
        found = rows(encoder.encode_documents(documents(texts)))
        # sentence-transformers keeps it: behind [CLS], the marker and two words, or one.
        np.testing.assert_allclose(found[0], np.delete(there[0], 4, 0), atol=1e-6)
        np.testing.assert_allclose(found[1], np.delete(there[1], 3, 0), atol=1e-6)
        if "stanford" in folder:  # which never keeps padding
            np.testing.assert_allclose(found[2], np.delete(there[2], 2, 0), atol=1e-6)
        else:
            np.testing.assert_allclose(found[2], there[2], atol=1e-6)


def test_lengths_that_a_folder_leaves_out(tmp_path: Path) -> None:
    """They are those of the library of the layout."""
    left = dict.fromkeys(("query_length", "document_length", "skiplist_words"), ...)
    folders = {pylate(tmp_path, **left): (32, 180), stanford(tmp_path): (32, 220)}
    (tmp_path / "stanford" / "artifact.metadata").unlink()
    for folder, lengths in folders.items():
        settings = stored_settings(folder).settings
        assert (settings.query_max_length, settings.document_max_length) == lengths
        assert {"!", "~"} < set(settings.skiplist_words)


def test_pieces(tmp_path: Path) -> None:
    encoder = here(stanford(tmp_path))
    names = encoder.tokenizer.names
    queries = encoder.encode_queries(["the fox", ""])
    assert names(queries.pieces.row(0).tolist()) == (
        ["[CLS]", "[unused0]", "the", "fox", "[SEP]", *["[MASK]"] * 9]
    )
    found = encoder.encode_documents(documents(["dog the dog!", ""]))
    assert found.pieces.row(0).tolist() == sorted(found.pieces.row(0).tolist())
    assert set(names(found.pieces.row(0).tolist())) == {"[CLS]", "[unused1]", "the", "dog", "[SEP]"}
    assert len(found.vectors.row(0)) == 6
    nothing = encoder.encode_documents([])
    assert (len(nothing), nothing.vectors.values.shape) == (0, (0, 8))


def test_blocks_are_encoded_as_documents(tmp_path: Path) -> None:
    encoder = here(pylate(tmp_path))
    texts = [" ".join(WORDS.split()[: number % 10]) for number in range(300)]
    blocks = [documents(texts[:7]), [], documents(texts[7:])]
    for block, found in encoder.encode_blocks(blocks):
        one_by_one = [encoder.encode_documents([document]) for document in block]
        close(found, [rows(each)[0] for each in one_by_one])
        for number, each in enumerate(one_by_one):
            np.testing.assert_array_equal(found.pieces.row(number), each.pieces.row(0))
