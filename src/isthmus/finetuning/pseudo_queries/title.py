"""The title of the document, which is left out of it."""

from __future__ import annotations

import numpy as np

from isthmus.finetuning.pseudo_queries._base import PseudoQuery, PseudoQuerySource
from isthmus.records import Document, Passage
from isthmus.text.passages import BETWEEN


class Title(PseudoQuerySource):
    """Titles are the closest thing to a query that most documents have."""

    def draw(
        self, document: Document, count: int, random: np.random.Generator
    ) -> list[PseudoQuery]:
        """The title, or nothing where the document has none or nothing besides.

        The first passage of a document gives its title, each later one its heading.
        """
        title = document.title.strip()
        if isinstance(document, Passage) and document.number > 1:
            title = document.heading.rpartition(BETWEEN)[2]
        if not title or not document.text.strip() or not count:
            return []
        return [PseudoQuery(title, title)]
