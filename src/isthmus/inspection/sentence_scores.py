"""What each sentence of a document does for its score: the score falls by so much without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from isthmus.encoders.cross import CrossEncoder
from isthmus.encoders.encoder import Encoder
from isthmus.inspection.explanation import SentencePart
from isthmus.records import Document
from isthmus.text.sentences import sentence_starts
from isthmus.text.tokenizer import Tokenizer

_SHORT = 20_000  # characters of a document that are always looked at
_PER_TOKEN = 16  # characters that hold a token or more, nearly always
Score = Callable[[Sequence[Document]], Sequence[float]]


def sentence_scores(
    document: Document, titles: bool, read: int, score: Score
) -> tuple[SentencePart, ...]:
    """Title, headings and sentences in their order, each with the score's fall without it.

    `read` is the number of characters that the model reads of the document's contents: what comes
    after them is not read in their place either when something before is left out. `score` gives
    the scores of texts that have neither title nor heading.
    """
    pieces = _pieces(document, titles)
    ends = [0]
    for piece in pieces:
        ends.append(ends[-1] + len(piece))
    kept = [piece[: max(0, read - start)] for piece, start in zip(pieces, ends, strict=False)]
    reached = [place for place, piece in enumerate(kept) if piece.strip()]
    variants = ["".join(kept), *("".join(kept[:at] + kept[at + 1 :]) for at in reached)]
    whole, *without = map(float, score([Document("", text) for text in variants]))
    falls = {place: whole - left for place, left in zip(reached, without, strict=True)}
    return tuple(
        SentencePart(piece.strip(), falls.get(place))
        for place, piece in enumerate(pieces)
        if piece.strip()
    )


def beginning(document: Document, titles: bool, tokenizer: Tokenizer, tokens: int) -> Document:
    """The document as far as it matters to a model that reads so many tokens, and some more.

    Only of a very long one something is cut off.
    """
    length = max(_SHORT, _PER_TOKEN * tokens)
    while True:
        text, title = document.text[:length], document.title[:length]
        cut = replace(document, text=text, title=title)
        if (text, title) == (document.text, document.title):
            return document
        if len(tokenizer.starts([cut.contents(titles)])[0]) > 2 * tokens:
            return cut
        length *= 2


def _pieces(document: Document, titles: bool) -> list[str]:
    """What the contents of a document are put together of: lines above the text, sentences."""
    contents = document.contents(titles)
    above = contents[: len(contents) - len(document.text)]
    edges = [*sentence_starts(document.text), len(document.text)]
    return [
        *above.splitlines(keepends=True),
        *(document.text[start:end] for start, end in pairwise(edges)),
    ]


def read_by_encoder(encoder: Encoder, contents: str) -> int:
    """How many characters of a document an encoder of vectors reads."""
    prompt, tokenizer = encoder.settings.document_prompt, encoder.tokenizer
    room = encoder.settings.document_max_length - len(tokenizer.prefix) - len(tokenizer.suffix)
    return _reached(tokenizer, prompt + contents, room) - len(prompt)


def read_by_reranker(scorer: CrossEncoder, query: str, contents: str) -> int:
    """How many characters of a document a cross-encoder reads beside a query."""
    asked, text = scorer.tokens([query, contents])
    return _reached(scorer.tokenizer, contents, len(scorer.pairing.cut(asked, text)[1]))


def _reached(tokenizer: Tokenizer, text: str, tokens: int) -> int:
    """Where the first token begins that is not read."""
    (starts,) = tokenizer.starts([text])
    return len(text) if len(starts) <= tokens else int(starts[tokens])
