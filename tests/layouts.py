"""Tiny multi-vector models, written by hand as PyLate and Stanford's ColBERT write them."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tests.factories import bert
from transformers import AutoTokenizer, BertModel

from isthmus.text.tokenizer import new_tokenizer

WORDS = "the quick brown fox jumps over the lazy dog and"
PUNCTUATION = list(string.punctuation)
IDENTITY = "torch.nn.modules.linear.Identity"
Layer = tuple[Mapping[str, Any], Mapping[str, torch.Tensor]]  # configuration and weights
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def backbone(folder: Path, markers: Sequence[str] = (), signs: Sequence[str] = PUNCTUATION) -> Any:
    """A BERT in a folder, whose tokens are letters, words and signs; PyLate's markers are added."""
    learnt = new_tokenizer([WORDS] * 2, 120).backend.get_vocab()
    others = sorted(set(learnt) - set(SPECIAL))
    folder.mkdir(parents=True)
    tokens = [*SPECIAL, "[unused0]", "[unused1]", *signs, *others]
    (folder / "vocab.txt").write_text("\n".join(tokens), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    assert tokenizer.is_fast
    assert tokenizer.get_vocab()["[unused1]"] == 6
    tokenizer.add_tokens(list(markers))
    tokenizer.save_pretrained(str(folder))
    torch.manual_seed(0)
    model = BertModel(bert(len(tokenizer)))
    model.save_pretrained(folder)
    return model


def pylate(
    folder: Path, layers: Sequence[Layer] = (), signs: Any = PUNCTUATION, **about: Any
) -> str:
    """What PyLate saves; a value of ... leaves a key out."""
    place = folder / "pylate"
    backbone(place, ["[Q] ", "[D] "], signs)
    torch.manual_seed(1)
    plain: Layer = ({"activation_function": IDENTITY}, {"linear.weight": torch.randn(8, 16)})
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    ]
    for number, (config, weights) in enumerate(layers or [plain], start=1):
        inside = place / f"{number}_Dense"
        inside.mkdir()
        kind = "pylate.models.Dense.Dense"
        listed.append({"idx": number, "name": str(number), "path": inside.name, "type": kind})
        outputs, inputs = weights["linear.weight"].shape
        shape = {"in_features": inputs, "out_features": outputs, "bias": "linear.bias" in weights}
        (inside / "config.json").write_text(json.dumps({**shape, "use_residual": False, **config}))
        save_file(dict(weights), inside / "model.safetensors")
    stated = {
        "model_type": "ColBERT", "prompts": {}, "default_prompt_name": None,
        "similarity_fn_name": "MaxSim", "query_prefix": "[Q] ", "document_prefix": "[D] ",
        "query_length": 14, "document_length": 18, "attend_to_expansion_tokens": False,
        "skiplist_words": PUNCTUATION, "do_query_expansion": True, **about,
    }  # fmt: skip
    stated = {key: one for key, one in stated.items() if one is not ...}
    (place / "modules.json").write_text(json.dumps(listed))
    (place / "config_sentence_transformers.json").write_text(json.dumps(stated))
    read = {"max_seq_length": 17, "do_lower_case": False}
    (place / "sentence_bert_config.json").write_text(json.dumps(read))
    return str(place)


def stanford(folder: Path, signs: Any = PUNCTUATION, **about: Any) -> str:
    """What Stanford's ColBERT saves."""
    place = folder / "stanford"
    model = backbone(place, signs=signs)
    torch.manual_seed(1)
    weights = {f"bert.{key}": one for key, one in model.state_dict().items()}
    save_file({**weights, "linear.weight": torch.randn(8, 16)}, place / "model.safetensors")
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
    stated = {
        "query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_token": "[Q]",
        "doc_token": "[D]", "dim": 8, "similarity": "cosine", "query_maxlen": 14,
        "doc_maxlen": 18, "mask_punctuation": True, "attend_to_mask_tokens": False,
        "interaction": "colbert", **about,
    }  # fmt: skip
    (place / "artifact.metadata").write_text(json.dumps(stated))
    return str(place)
