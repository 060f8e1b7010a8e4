"""How many texts are longer than an encoder reads, and how much of them it does not see."""

from __future__ import annotations

from collections.abc import Iterable


class CutTexts:
    """A count of texts, and of the tokens beyond the first `room` of each."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.texts = self.cut = self.tokens = self.lost = 0

    def count(self, lengths: Iterable[int]) -> None:
        """Takes in texts of these numbers of tokens."""
        for length in lengths:
            beyond = max(0, length - self.room)
            self.texts += 1
            self.cut += beyond > 0
            self.tokens += length
            self.lost += beyond

    def summary(self) -> str:
        """One sentence: how many texts are cut, and the share of all text that is lost."""
        if not self.cut:
            return f"the encoder reads all {self.texts:,} texts whole ({self.room} tokens each)"
        share = 100 * self.lost / self.tokens
        lost = f"{share:.0f}" if share >= 1 else f"{share:.1g}"
        return (
            f"{self.cut:,} of {self.texts:,} texts are longer than the {self.room} tokens that the "
            f"encoder reads: {lost} % of the text is not seen"
        )
