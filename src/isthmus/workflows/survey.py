"""A look at documents before an encoder learns them: how many, how long, how different."""

from __future__ import annotations

import unicodedata
from collections import Counter

import numpy as np
import xxhash

from isthmus.collections import Corpus
from isthmus.errors import InputError
from isthmus.indexes.bm25.chosen_language import guessed
from isthmus.progress import Bar
from isthmus.text.sentences import word_count

_FEWEST = 50  # documents
_SHORTEST = 5  # words of an average document: fewer have no part that asks for the rest
_MINORITY = 0.1  # share of the documents in a second language from which it is mentioned
_SEEN = 400  # characters of a document that tell its language


def survey(corpus: Corpus, where: str) -> str:
    """What documents are like, as a sentence; raises where nothing can be learnt from them."""
    lengths, texts, languages = [], Counter[int](), Counter[str]()
    with Bar("look at the documents", corpus.count(), "documents") as bar:
        for document in corpus.documents():
            text = document.contents()
            lengths.append(word_count(text))
            texts[xxhash.xxh3_64_intdigest(text.encode())] += 1
            if (language := _language(text)) is not None:
                languages[language] += 1
            bar.advance(1)
    count, median = len(lengths), int(np.median(lengths))
    alike = 1 - len(texts) / count
    _refuse(count < _FEWEST, f"{count} documents are too few to learn from", where)
    mean = float(np.mean(lengths))
    _refuse(mean < _SHORTEST, f"documents of {mean:.1f} words are too short", where)
    _refuse(alike > 1 / 2, f"{alike:.0%} of the documents are copies of others", where)
    found = f"{count:,} documents, {median} words in the middle one"
    if alike > _MINORITY:
        found += f"; {alike:.0%} are copies of others"
    frequent = languages.most_common(3)
    if len(frequent) > 1 and frequent[1][1] > _MINORITY * count:
        shares = [f"{language} {number / count:.0%}" for language, number in frequent]
        found += (
            f"; SEVERAL LANGUAGES ({', '.join(shares)}): queries find documents of their own "
            "language; a folder for each adapts better"
        )
    return found


def _language(text: str) -> str | None:
    """The language of a text, or its script where that alone is known; None for Latin script."""
    seen = text[:_SEEN]
    if (language := guessed(seen)) is not None:
        return language.title()
    scripts = Counter(unicodedata.name(one, "?").split()[0] for one in seen if one.isalpha())
    script = scripts.most_common(1)[0][0] if scripts else "LATIN"
    return None if script == "LATIN" else script.title()


def _refuse(wrong: bool, what: str, where: str) -> None:
    if wrong:
        raise InputError(
            f"{where}: {what}",
            f"give more documents ({_FEWEST} different ones of {_SHORTEST} words or more), or use "
            "the encoder as it is: isthmus index --model …",
        )
