"""A look at documents before an encoder learns them: how many, how long, how different."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import xxhash

from isthmus.collections import Corpus
from isthmus.errors import InputError
from isthmus.progress import Bar
from isthmus.text.sentences import word_count

_FEWEST = 50  # documents
_SHORTEST = 5  # words of an average document: fewer have no part that asks for the rest
_MINORITY = 0.1  # share of the documents in a second language from which it is mentioned
_SEEN = 400  # characters of a document that tell its language
# Common words; a text is of the language that has most of its words.
_LANGUAGES = {
    "English": "the of and to is that for with in it as are this be on by an or from",
    "German": "der und die das nicht ist mit von ein eine den dem auf für sich auch des im",
    "French": "le la les des est dans pour une que du et un au par sur il ne pas avec",
    "Spanish": "el la los las una por con para del y que en un se es no su al como",
    "Italian": "il che di per una sono della non gli la e un è in con del dei si le",
    "Portuguese": "o os uma para com não do da em que e um as dos na no se por mais",
    "Dutch": "het een van en dat niet op zijn de is in voor met te aan er ook door",
    "Polish": "i w na nie się z do jest że to o po przez jak od za są dla",
    "Swedish": "och att det som en på är av för med till den inte om ett har de",
}
_JAPANESE = ("HIRAGANA", "KATAKANA")  # written together with CJK


class Survey(NamedTuple):
    """What was found, as a sentence, and the words of every document."""

    sentence: str
    words: Sequence[int]


def survey(corpus: Corpus, where: str) -> Survey:
    """What documents are like; raises where nothing can be learnt from them."""
    lengths, texts, languages = [], Counter[int](), Counter[str]()
    with Bar("look at the documents", corpus.count(), "documents") as bar:
        for document in corpus.documents():
            text = document.contents()
            lengths.append(word_count(text))
            texts[xxhash.xxh3_64_intdigest(text.encode())] += 1
            languages[_language(text)] += 1
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
    return Survey(found, lengths)


def _language(text: str) -> str:
    """The language of a text's common words, or its script where that is not Latin."""
    letters = [character for character in text[:_SEEN] if character.isalpha()]
    scripts = Counter(unicodedata.name(letter, "?").split()[0] for letter in letters)
    script = scripts.most_common(1)[0][0] if scripts else "LATIN"
    if script != "LATIN":
        return "CJK" if script in _JAPANESE else script
    words = Counter(text[:_SEEN].lower().split())
    known = {
        language: sum(words[word] for word in common.split())
        for language, common in _LANGUAGES.items()
    }
    best = max(known, key=lambda language: known[language])
    return best if known[best] else "other"


def _refuse(wrong: bool, what: str, where: str) -> None:
    if wrong:
        raise InputError(
            what,
            where=where,
            allowed=f"{_FEWEST} different documents or more, of {_SHORTEST} words or more",
            remedy="give more documents, or use the encoder as it is: isthmus index --model …",
        )
