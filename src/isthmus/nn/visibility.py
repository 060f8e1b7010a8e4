"""The random visibility of enhanced decoding, drawn from the texts' keys."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.nn.kernels.available import has_triton
from isthmus.nn.randomness import draw_bits

_LANES = 4  # 16-bit numbers in a draw of 64 bits


def draw_visibility(
    keys: Tensor, words: Tensor, attended: Tensor, stream: int, hidden: int
) -> Tensor:
    """True at [text, row, column] where the row sees the column.

    A row sees column 0, never its own, and every other attended column unless the column's word is
    hidden from it, with a chance of `hidden` in 2¹⁶. A column without a word (-1) is never hidden.
    """
    if has_triton(words.device):
        from isthmus.nn.kernels import visibility_triton

        return visibility_triton.draw_visibility(keys, words, attended, stream, hidden)
    texts, length = words.shape
    lanes = -(-length // _LANES)
    # For every word, 16 random bits for every row that might see it: four numbers from one draw.
    # A key for each word first: what a row sees must not depend on how far its batch is padded.
    word_keys = draw_bits(keys, stream, length).gather(1, words.clamp(min=0)).flatten()
    drawn = draw_bits(word_keys, stream, lanes).view(torch.int16)
    visible = drawn.view(texts, length, lanes * _LANES)[:, :, :length] >= hidden - 2**15
    visible = visible.transpose(1, 2).contiguous()  # the layout that attention's kernels read
    visible |= (words < 0)[:, None]
    visible &= attended[:, None]
    visible.diagonal(dim1=1, dim2=2).fill_(False)
    visible[:, :, 0].fill_(True)
    return visible
