"""A look at documents before an encoder learns them: how many, how long, how different."""

from __future__ import annotations

import unicodedata
from collections import Counter

import numpy as np
import xxhash

from isthmus.collections import Corpus
from isthmus.errors import InputError
from isthmus.progress import Bar

_FEWEST = 50  # documents
_SHORTEST = 5  # words of an average document: fewer have no part that asks for the rest
_MINORITY = 0.1  # share of the documents in a second language from which it is mentioned
_SEEN = 400  # characters of a document that tell its language
# Words that hardly any other of these languages has.
_LANGUAGES = {
    "English": "the of and to is that for with",
    "German": "der und die das nicht ist mit von ein",
    "French": "le les des est dans pour une que du",
    "Spanish": "el los las una por con para del y",
    "Italian": "il che di per una sono della non gli",
    "Portuguese": "o os uma para com não do da em",
    "Dutch": "het een van en dat niet op zijn",
}
_WORDS = {word: language for language, words in _LANGUAGES.items() for word in words.split()}


def survey(corpus: Corpus, where: str) -> str:
    """What was found, as a sentence; raises on documents that nothing can be learnt from."""
    lengths, texts, languages = [], Counter[int](), Counter[str]()
    with Bar("look at the documents", corpus.count(), "documents") as bar:
        for document in corpus.documents():
            text = document.contents()
            lengths.append(len(text.split()))
            texts[xxhash.xxh3_64_intdigest(text.encode())] += 1
            languages[_language(text)] += 1
            bar.advance(1)
    count, median = len(lengths), int(np.median(lengths))
    alike = 1 - len(texts) / count
    _refuse(count < _FEWEST, f"{count} documents are too few to learn from", where)
    spaced = languages.most_common(1)[0][0] not in _UNSPACED
    mean = float(np.mean(lengths))
    _refuse(spaced and mean < _SHORTEST, f"documents of {mean:.1f} words are too short", where)
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


_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")


def _language(text: str) -> str:
    """The language of a text's common words, or its script where that is not Latin."""
    letters = [character for character in text[:_SEEN] if character.isalpha()]
    scripts = Counter(unicodedata.name(letter, "?").partition(" ")[0] for letter in letters)
    script = scripts.most_common(1)[0][0] if scripts else "LATIN"
    if script != "LATIN":
        return script
    known = Counter(
        _WORDS[word] for word in text[:_SEEN].lower().split() if word in _WORDS
    ).most_common(1)
    return known[0][0] if known else "English"


def _refuse(wrong: bool, what: str, where: str) -> None:
    if wrong:
        raise InputError(
            what,
            where=where,
            allowed=f"{_FEWEST} different documents or more, of {_SHORTEST} words or more",
            remedy="give more documents, or use the encoder as it is: isthmus index --model …",
        )
