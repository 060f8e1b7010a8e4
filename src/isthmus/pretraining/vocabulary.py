"""What parts must know of the tokenizer, as tensors on their device."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.text.tokenizer import Tokenizer


class Vocabulary(torch.nn.Module):
    """Which ids are special, which are not, and the mask."""

    special: Tensor
    regular: Tensor

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        super().__init__()
        special = torch.zeros(size, dtype=torch.bool)
        special[torch.from_numpy(tokenizer.special_ids)] = True
        # Rows that pad the matrix beyond the tokenizer's vocabulary are no tokens either.
        special[len(tokenizer) :] = True
        self.register_buffer("special", special, persistent=False)
        self.register_buffer("regular", torch.from_numpy(tokenizer.regular_ids), persistent=False)
        self.mask_id = tokenizer.mask_id
        self.size = size

    def is_special(self, ids: Tensor) -> Tensor:
        """True where an id is a special token, padding included."""
        return self.special[ids]
