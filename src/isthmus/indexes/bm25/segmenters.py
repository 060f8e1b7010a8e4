"""Words of scripts without spaces, by the dictionaries of other libraries, one for each language.

Of Japanese and Korean, which join endings and particles to words, the stems of what carries
meaning, as Lucene's analyzers of these languages give them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from isthmus.errors import needing

Segmenter = Callable[[str], Iterable[str]]
"""The words of a run of characters without spaces."""

# Kinds of words that are left out: particles, endings, auxiliary verbs, signs.
_JAPANESE = ("助詞", "助動詞", "記号", "フィラー")
_KOREAN = ("E", "J", "VC", "VX", "XP", "XS", "SF", "SE", "SS", "SP", "SC", "SY")


def segmenter(language: str) -> Segmenter:
    """What splits a language into words; an error says which library is not installed."""
    package, load = _SEGMENTERS[language]
    needed_for = f"bm25.segmenter=words of {language}"
    with needing(package, extra="segmenters", needed_for=needed_for):
        return load()


def _chinese() -> Segmenter:
    import rjieba

    # Of a long word its parts too, so that each of them finds it.
    segment: Segmenter = rjieba.cut_for_search
    return segment


def _japanese() -> Segmenter:
    from janome.tokenizer import Tokenizer

    tokenize = Tokenizer().tokenize

    def words(run: str) -> Iterable[str]:
        for token in tokenize(run):
            if not token.part_of_speech.startswith(_JAPANESE):
                yield token.surface if token.base_form == "*" else token.base_form

    return words


def _korean() -> Segmenter:
    from mecab import MeCab

    parse = MeCab().parse

    def words(run: str) -> Iterable[str]:
        for token in parse(run):
            if token.feature.pos.startswith(_KOREAN):
                continue
            parts = (token.feature.expression or "").split("+")
            spelt = [part.partition("/")[0] for part in parts if "/" in part]
            if not spelt:
                yield token.surface
            elif token.feature.type == "Compound":
                yield from spelt
            else:
                yield spelt[0]  # the stem, without its endings

    return words


def _thai() -> Segmenter:
    from pythainlp.tokenize import word_tokenize

    return lambda run: word_tokenize(run, engine="newmm", keep_whitespace=False)


_SEGMENTERS: dict[str, tuple[str, Callable[[], Segmenter]]] = {
    "chinese": ("rjieba", _chinese),
    "japanese": ("janome", _japanese),
    "korean": ("python-mecab-ko", _korean),
    "thai": ("pythainlp", _thai),
}
