"""How many texts are longer than an encoder reads, and how much of them it does not see."""

from __future__ import annotations

from collections.abc import Iterable


class CutTexts:
    """A count of texts, and of the tokens beyond the first `room` of each.

    Texts come with so many tokens of a prompt, which are not theirs.
    """

    def __init__(self, room: int, prompt: int = 0) -> None:
        self.room = room
        self.prompt = prompt
        self.restart()

    def restart(self) -> None:
        """Counts from nothing again."""
        self.texts = self.cut = self.tokens = self.lost = 0

    def count(self, lengths: Iterable[int]) -> None:
        """Takes in texts of these numbers of tokens."""
        for length in (whole - self.prompt for whole in lengths):
            beyond = max(0, length - self.room)
            self.texts += 1
            self.cut += beyond > 0
            self.tokens += length
            self.lost += beyond

    def add(self, other: CutTexts) -> None:
        """Takes in the texts that another count, whose room it takes over, holds."""
        self.room = other.room
        self.texts += other.texts
        self.cut += other.cut
        self.tokens += other.tokens
        self.lost += other.lost

    def summary(self) -> str:
        """One sentence: how many texts are cut, and the share of all text that is lost."""
        if not self.cut:
            room = f"it reads up to {self.room} tokens"
            return f"the encoder reads all {self.texts:,} texts whole ({room})"
        share = 100 * self.lost / self.tokens
        lost = f"{share:.0f}" if share >= 1 else f"{share:.1g}"
        return (
            f"{self.cut:,} of {self.texts:,} texts are longer than the {self.room} tokens that the "
            f"encoder reads: {lost} % of the text is not seen"
        )
