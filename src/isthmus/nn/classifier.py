"""A backbone with a single score on top: any sequence classifier of one label."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from isthmus.config.model_files import load_pretrained, loadable
from isthmus.errors import InputError
from isthmus.nn.architectures import ARCHITECTURES, MASKED_LM
from isthmus.nn.attention import Attention
from isthmus.nn.backbone import Backbone
from isthmus.nn.loading import (
    explained,
    load_seeded,
    loading_options,
    quiet,
    read_config,
    replace_dropout,
)


class Classifier(Backbone):
    """An encoder under a classifier of one label, whose logit is the score of a text."""

    _several_types = True  # a query and a document

    def __init__(self, model: Any) -> None:
        assert model.config.num_labels == 1, "a score is one number"
        super().__init__(model)
        self.takes_segments = "token_type_ids" in inspect.signature(model.forward).parameters
        # A partial of a method, not a closure: the copy of a model computes with its own weights.
        self.encoder.forward = partial(_given_or_computed, self.encoder.forward)

    def score(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        segments: Tensor,
        tokens: Tensor | None = None,
    ) -> Tensor:
        """The float32 scores of padded texts; `tokens` as in `forward`.

        Every architecture pools and classifies in its own way. So transformers' classifier runs,
        and its encoder returns states that were computed before, without padding.
        """
        given = {"token_type_ids": segments} if self.takes_segments else {}
        if self.packs:  # only those pass further arguments on to their encoder
            given["encoded"] = self._encoded(input_ids, attention_mask, tokens, **given)
        logits: Tensor = self.model(
            input_ids=input_ids, attention_mask=attention_mask, **given
        ).logits
        return logits[:, 0].float()

    def _encoded(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        tokens: Tensor | None,
        token_type_ids: Tensor | None = None,
    ) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        found = self.encode(input_ids, attention_mask, tokens, token_type_ids)
        if found.output is not None:
            return found.output
        states = found.states
        # BERT's encoder ends in a pooler, which would read the stream as one text.
        pooler = getattr(self.encoder, "pooler", None)
        return BaseModelOutputWithPooling(states, None if pooler is None else pooler(states))


def _given_or_computed(
    compute: Callable[..., Any], *arguments: Any, encoded: Any = None, **options: Any
) -> Any:
    return compute(*arguments, **options) if encoded is None else encoded


def load_classifier(
    name: str,
    head: Literal["add", "keep"] = "keep",
    dropout: float | None = None,
    seed: int = 0,
    attention: Attention | None = None,
) -> Classifier:
    """The sequence classifier of a folder or hub name, in float32 and with one label.

    Args:
        name: Anything AutoModelForSequenceClassification loads from safetensors.
        head: "add" gives an encoder without a classifier a fresh one; "keep" refuses it.
        dropout: Replaces every dropout rate of the model.
        seed: Draws the fresh classifier's weights.
        attention: Its implementation; by default, the one that trains faster on this machine.

    """
    from transformers import AutoConfig, AutoModelForSequenceClassification

    with quiet(), explained(name):
        config = load_pretrained(AutoConfig, name)
        _refuse_other_classifiers(name, config)
        config.num_labels = 1
        own_dropout = replace_dropout(config, dropout)
        options = loading_options(config, attention)
        model, missing = load_seeded(AutoModelForSequenceClassification, name, options, seed)
    if missing and head == "keep":
        raise _no_classifier(name)
    _score_in_float32(model)
    with loadable(name):
        backbone = Classifier(model)
    backbone.own_dropout = own_dropout
    backbone.fresh_head = bool(missing)
    return backbone


def check_classifier(name: str) -> None:
    """Raises on anything but a classifier of one label, by its configuration alone."""
    config = read_config(name)
    _refuse_other_classifiers(name, config)
    stated = config.architectures
    if stated and not any(each.endswith("ForSequenceClassification") for each in stated):
        raise _no_classifier(name)


def _no_classifier(name: str) -> InputError:
    return InputError(
        f"{name!r} scores no pairs: it has no classifier",
        "choose a re-ranker (a sequence classifier with one label), or train this model first: "
        "isthmus finetune --set encoder=cross",
    )


def _refuse_other_classifiers(name: str, config: Any) -> None:
    if config.model_type in ARCHITECTURES and config.model_type not in MASKED_LM:
        raise InputError(
            f"{name!r} is a {config.model_type!r} model, which cannot be a re-ranker here",
            "choose one of these architectures, or make it a dense encoder: isthmus finetune "
            "--set encoder=dense",
            ", ".join(MASKED_LM),
        )
    # A plain encoder's configuration counts labels too: those of a classifier that is not there.
    architecture = next(iter(config.architectures or ()), "")
    if architecture.endswith("ForSequenceClassification") and config.num_labels != 1:
        raise InputError(
            f"{name}/config.json: a re-ranker has one label, this model {config.num_labels} "
            f"({', '.join(list(config.id2label.values())[:5])})",
            "choose a re-ranker with one label, or train one from a plain encoder: isthmus "
            "finetune --set encoder=cross",
        )


class _Float32Linear(nn.Linear):
    def forward(self, states: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        with torch.autocast(states.device.type, enabled=False):
            return functional.linear(states.float(), self.weight.float(), bias)


def _score_in_float32(model: nn.Module) -> None:
    """Makes the last layer compute in float32, whatever the precision of the others.

    In bf16, scores between 4 and 8 would be multiples of 1/32: many candidates would tie.
    """
    for module in model.modules():
        if type(module) is nn.Linear and module.out_features == 1:
            module.__class__ = _Float32Linear
