"""Queries written by a language model: any sequence-to-sequence or causal model of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from pydantic import Field

from isthmus.config.model_files import load_pretrained
from isthmus.config.models import model_folder
from isthmus.finetuning.pseudo_queries._base import PseudoQuery, PseudoQuerySource, SourceSettings
from isthmus.nn.pretrained import read_config
from isthmus.records import Document


class GeneratorSettings(SourceSettings):
    """Which model writes, from which prompt, and how freely."""

    model: str = Field(description="a folder or hub name, for example of doc2query or an LLM")
    prompt: str = Field("{text}", description="{title} and {text} stand for the document's own")
    max_length: int = Field(384, ge=16, description="tokens of the prompt; longer ones are cut")
    max_new_tokens: int = Field(32, ge=1, description="of a query")
    top_p: float = Field(0.95, gt=0, le=1, description="tokens are sampled from this share")
    batch_size: int = Field(16, ge=1, description="documents at once")


class Generator(PseudoQuerySource):
    """Sampled queries; the first line of what the model writes counts."""

    Settings = GeneratorSettings
    settings: GeneratorSettings

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

        name = model_folder(self.settings.model, "pseudo_queries.generator.model")
        both_sides = read_config(name).is_encoder_decoder
        kind = AutoModelForSeq2SeqLM if both_sides else AutoModelForCausalLM
        model = load_pretrained(kind, name, use_safetensors=True)
        tokenizer = load_pretrained(AutoTokenizer, name, part="tokenizer", padding_side="left")
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer

    def draw(
        self, document: Document, count: int, random: np.random.Generator
    ) -> list[PseudoQuery]:
        """Different queries that the model writes for the document."""
        return self.draw_all([document], count, [random])[0]

    def draw_all(
        self, documents: Sequence[Document], count: int, randoms: Sequence[np.random.Generator]
    ) -> list[list[PseudoQuery]]:
        """Queries of every document, written for batches of documents at once."""
        found = []
        for start in range(0, len(documents), self.settings.batch_size):
            some = documents[start : start + self.settings.batch_size]
            seed = int(randoms[start].integers(2**63))
            found += [
                [PseudoQuery(text) for text in dict.fromkeys(texts) if text]
                for texts in self._written(some, count, seed)
            ]
        return found

    def _written(self, documents: Sequence[Document], count: int, seed: int) -> list[list[str]]:
        model, tokenizer = self._loaded
        chosen = self.settings
        prompts = [
            chosen.prompt.replace("{title}", document.title).replace("{text}", document.text)
            for document in documents
        ]
        given = tokenizer(
            prompts,
            truncation=True,
            max_length=chosen.max_length,
            padding=True,
            return_tensors="pt",
        ).to(model.device)
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(seed)
            tokens = model.generate(
                input_ids=given["input_ids"],
                attention_mask=given["attention_mask"],
                do_sample=True,
                top_p=chosen.top_p,
                max_new_tokens=chosen.max_new_tokens,
                num_return_sequences=count,
                pad_token_id=tokenizer.pad_token_id,
            )
        if not model.config.is_encoder_decoder:
            tokens = tokens[:, given["input_ids"].shape[1] :]
        texts = tokenizer.batch_decode(tokens, skip_special_tokens=True)
        lines = [text.strip().partition("\n")[0].strip() for text in texts]
        return [lines[place : place + count] for place in range(0, len(lines), count)]
