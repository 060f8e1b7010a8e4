"""One step of every pre-training recipe on one text, as docs/steps.md writes it out.

python docs/steps.py    # writes the numbers of the page again
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers, processors
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from isthmus.config import resolve
from isthmus.nn.backbone import Backbone
from isthmus.pretraining.bottlenecks import shares
from isthmus.pretraining.corruption import importance
from isthmus.pretraining.decoders import visibility
from isthmus.pretraining.examples import PretrainExamples
from isthmus.pretraining.recipe import assemble
from isthmus.pretraining.settings import PretrainSettings
from isthmus.pretraining.step import IGNORED
from isthmus.pretraining.task import PretrainTask
from isthmus.records import Document
from isthmus.text.corpus import tokenise
from isthmus.text.tokenizer import Tokenizer

PAGE = Path(__file__).with_name("steps.md")
BLOCK = re.compile(r"(<!-- step of ([\w-]+) -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
TEXTS = (
    "hokey stuff is a crossword puzzle clue. there are related clues.",
    "kind of meter is a crossword clue. there are related clues.",
)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    "hokey", "stuff", "is", "a", "cross", "##word", "puzzle", "clue", "there", "are", "related",
    "##s", "kind", "of", "meter", ".",
]  # fmt: skip
LENGTH, SEED, BLANK = 11, 1, ""
CONTEXT = {"log": math.log, "exp": math.exp, "sqrt": math.sqrt, "__builtins__": {}}


def equation(name: str, left: str) -> str:
    """The line `name  left = right`, the right side computed from the numbers that are shown."""
    return f"{name:<15}{left} = {evaluated(left):.3f}"


def evaluated(left: str) -> float:
    """What a pocket calculator makes of an expression on the page."""
    plain = left.replace("−", "-").replace("×", "*").replace("√", "sqrt").replace("²", "**2")
    return float(eval(plain, CONTEXT))


def result(line: str) -> str:
    """The right side of an equation on the page."""
    return line.rpartition("= ")[2]


def number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}f}".replace("-", "−")


def tiny_tokenizer() -> Tokenizer:
    ids = {token: place for place, token in enumerate([*SPECIAL, *WORDS])}
    backend = FastTokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    named = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return Tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, **named))


def draw_weights(module: torch.nn.Module, seed: int) -> None:
    """Weights that are the same on every machine: torch's own draws depend on the chip."""
    generator = np.random.default_rng(seed)
    for name, parameter in module.named_parameters():
        drawn = 0.4 * generator.standard_normal(parameter.shape)
        is_scale = "norm" in name.lower() and name.endswith("weight")
        parameter.data = torch.from_numpy(drawn + is_scale).to(parameter.dtype)


def tiny_backbone(tokenizer: Tokenizer) -> Backbone:
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=LENGTH, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    backbone = Backbone(BertForMaskedLM(config))
    draw_weights(backbone.model, SEED)
    return backbone.eval()


class Step:
    """One step of a recipe: the task in float64, its batch, and what it computes."""

    def __init__(self, recipe: str, folder: Path) -> None:
        self.recipe = recipe
        self.tokenizer = tiny_tokenizer()
        backbone = tiny_backbone(self.tokenizer)
        overrides: dict[str, Any] = {"max_length": LENGTH}
        plain = PretrainSettings.parse(self._resolved({}), recipe)
        if plain.view["name"] == "neighbours":
            overrides["view.span"] = LENGTH
        if recipe == "simlm":
            backbone.save(folder)
            self.tokenizer.save(folder)
            overrides["corruption.generator"] = str(folder)
        self.settings = PretrainSettings.parse(self._resolved(overrides), recipe)
        parts = assemble(self.settings)
        documents = [Document(str(place), text) for place, text in enumerate(TEXTS)]
        self.corpus = tokenise(documents, "steps", self.tokenizer.serialised, cache=folder)
        columns = parts.columns(self.corpus, self.tokenizer)
        self.task = PretrainTask(backbone, self.tokenizer, parts).double().eval()
        for module in (self.task.bottleneck, self.task.decoder):
            if module is not None and (self.settings.decoder or {}).get("init") != "last":
                draw_weights(module, SEED + 1)
        examples = PretrainExamples(self.corpus, parts.view, self.tokenizer, LENGTH, SEED, columns)
        rows = range(2) if "span_contrast" in parts.objectives else range(1)
        collated = examples.collate([examples[0, row] for row in rows])
        with torch.no_grad():
            self.batch = self.task.prepare(collated)
            self.step = self.task.decode(self.task.encode(self.batch))
            self.sums, self.counts = self.task(self.batch), self.task.counts(self.batch)
            found = backbone.model(
                self.batch.get("encoder_ids", self.batch["input_ids"]),
                self.batch["attention_mask"],
                output_hidden_states=True,
            )
        self.states = found.hidden_states[-1]
        self.log_p = found.logits.log_softmax(-1)
        self.logits = found.logits
        self.lengths = self.batch["attention_mask"].sum(1).tolist()
        self.names = self._names(len(rows), parts.view.rows)
        self.partner = self.batch["partner"].tolist()

    def _resolved(self, overrides: dict[str, Any]) -> dict[str, Any]:
        return resolve(
            "pretrain", self.recipe, {"documents": "c", "output": "o", "model": "m"}, overrides
        )

    @staticmethod
    def _names(documents: int, rows: int) -> list[str]:
        if rows == 1:
            return [""]
        if documents == 1:
            return [" A", " B"]
        return [f" {letter}{place}" for letter in "AB" for place in range(1, documents + 1)]

    def values(self) -> dict[str, float]:
        """What the code computes: each objective's mean, as training adds them."""
        return {
            name: self.sums[name].item() / self.counts[name].item()
            for name in self.task.weights(0.0)
        }

    def loss(self) -> float:
        """What training minimises."""
        weights = self.task.weights(0.0)
        return sum(weights[name] * value for name, value in self.values().items())

    def tokens(self, ids: Tensor) -> list[str]:
        return list(self.tokenizer.pretrained.convert_ids_to_tokens(ids.tolist()))

    def page(self) -> str:
        """The blocks of the recipe's section."""
        parts = [self._grid(row) for row in range(len(self.lengths))]
        parts += [*self._further(), "\n".join(self._equations())]
        return "\n\n".join(f"```text\n{part}\n```" for part in parts)

    # What each position reads and must tell

    def _grid(self, row: int) -> str:
        length, batch, name = self.lengths[row], self.batch, self.names[row]
        read = self.tokens(batch["input_ids"][row, :length])
        rows = {f"text{name}": read}
        if "pmi" in batch:
            inside = ~self.task.vocabulary.is_special(batch["input_ids"])
            scores = importance(batch["pmi"], inside)[row, :length]
            rows["AMI"] = [
                number(float(score), 2) if regular else BLANK
                for score, regular in zip(scores, inside[row], strict=False)
            ]
        rows["encoder"] = self.tokens(batch["encoder_ids"][row, :length])
        objectives = self.task.parts.objectives
        if "masked_lm" in objectives or "replaced_token" in objectives:
            labels = batch["labels"][row]
            if "replaced_token" in objectives:
                special = self.task.vocabulary.is_special(batch["input_ids"][row])
                labels = torch.where(special, IGNORED, batch["input_ids"][row])
            rows |= {"label": self._labels(labels, length), "−log p": self._terms(row, labels)}
        if "bag_of_words" in objectives:
            rows[f"bag{self._target_name(row)}"] = self._bag_tokens(row)
            rows["−log p [CLS]"] = self._bag_terms(row)
        if "term_frequency" in objectives:
            rows["score [CLS]"] = [
                BLANK if token in SPECIAL else number(self.logits[row, 0, id_])
                for token, id_ in zip(read, batch["input_ids"][row], strict=False)
            ]
        if self.task.decoder is not None:
            rows |= self._decoder_rows(row, length)
        return _aligned(rows)

    def _target_name(self, row: int) -> str:
        other = self._bag_row(row)
        return "" if other == row else f" of{self.names[other]}"

    def _bag_row(self, row: int) -> int:
        settings: Any = self.task.parts.objectives["bag_of_words"].settings
        return self.partner[row] if settings.target == "partner" else row

    def _bag(self, row: int) -> list[int]:
        ids = self.batch["input_ids"][self._bag_row(row)].tolist()
        return list(dict.fromkeys(id_ for id_ in ids if id_ >= len(SPECIAL)))

    def _bag_tokens(self, row: int) -> list[str]:
        return [BLANK, *self.tokens(torch.tensor(self._bag(row)))]

    def _bag_terms(self, row: int) -> list[str]:
        return [BLANK, *(number(-self.log_p[row, 0, id_].item()) for id_ in self._bag(row))]

    def _labels(self, labels: Tensor, length: int) -> list[str]:
        known = labels[:length].tolist()
        return [BLANK if id_ == IGNORED else self.tokens(torch.tensor([id_]))[0] for id_ in known]

    def _terms(self, row: int, labels: Tensor) -> list[str]:
        return [
            BLANK if id_ == IGNORED else number(-self.log_p[row, place, id_].item())
            for place, id_ in enumerate(labels[: self.lengths[row]].tolist())
        ]

    def _decoder_rows(self, row: int, length: int) -> dict[str, list[str]]:
        kind = type(self.task.decoder).__name__
        name = self.names[self.partner[row]] if kind != "Condenser" else self.names[row]
        ids = self.step["decoder_ids" if kind == "Bidirectional" else "input_ids"][row, :length]
        read = ["H1"] * length if kind == "Condenser" else self.tokens(ids)
        labels = self.step["decoder_labels"][row]
        return {
            "decoder": [f"b{name}".replace(" ", ""), *read[1:]],
            "label ": self._labels(labels, length),
            "−log p ": self._decoder_terms(row, length),
        }

    def _decoder_terms(self, row: int, length: int) -> list[str]:
        labels = self.step["decoder_labels"]
        log_p = self.step.prediction.logits().log_softmax(-1)
        found = iter(-log_p[torch.arange(len(log_p)), self.step["decoder_targets"]])
        terms = [
            [BLANK if id_ == IGNORED else number(next(found).item()) for id_ in line]
            for line in labels.tolist()
        ]
        return terms[row][:length]

    # What stands between encoder and decoder, and beside them

    def _further(self) -> Iterator[str]:
        if self.task.bottleneck is not None:
            yield "\n".join(self._bottlenecks())
        if self.recipe == "retromae":
            yield self._visibility()
        if self.recipe == "cdmae":
            yield "\n".join(self._pmi())
        if "span_contrast" in self.task.parts.objectives:
            dots = self._dots()
            names = [name.strip() for name in self.names]
            grid = {"": names, **dict(zip(names, dots, strict=True))}
            yield "[CLS] · [CLS]\n" + _aligned(grid)

    def _bottlenecks(self) -> Iterator[str]:
        part, batch = self.task.bottleneck, self.batch
        if type(part).__name__ == "Lexicon":
            inside = ~self.task.vocabulary.is_special(batch["input_ids"])
            largest = self.logits.masked_fill(~inside[:, :, None], -torch.inf).amax(1)
            weights, ids = shares(largest, inside.any(1, keepdim=True), part.settings.form)[0].topk(
                5
            )
            named = zip(self.tokens(ids), weights.tolist(), strict=True)
            yield (
                f"{'a':<11}"
                + "  ".join(f"{name} {number(weight)}" for name, weight in named)
                + "  …"
            )
        for name, vector in zip(self.names, self.step["bottleneck"], strict=True):
            shown = "  ".join(f"{number(value, 2):>5}" for value in vector.tolist())
            yield f"{('b' + name).replace(' ', ''):<11}{shown}"

    def _visibility(self) -> str:
        batch = self.batch
        seen = visibility(batch["keys"], batch["words"], batch["attention_mask"].bool(), 0.5)[0]
        read = self.tokens(batch["input_ids"][0])
        marks = {"row sees": ["b", *read[1:]]}
        for token, line in zip(["b", *read[1:]], seen, strict=True):
            marks[token] = ["●" if see else "·" for see in line.tolist()]
        return _aligned({key: marks[key] for key in marks if key not in ("b", "[SEP]")})

    def _pmi(self) -> Iterator[str]:
        """AMI of the first word, from counts; nothing ends in it, three n-grams begin."""
        rows = [self.corpus[row].tokens.tolist() for row in range(len(self.corpus))]
        counts = {
            n: Counter(tuple(row[k : k + n]) for row in rows for k in range(len(row) - n + 1))
            for n in (1, 2, 3, 4)
        }
        first = tuple(rows[0][:4])
        values = []
        for n in (2, 3, 4):
            left = f"log({counts[n][first[:n]]}/{counts[n].total()})"
            for id_ in first[:n]:
                left += f" − log({counts[1][id_,]}/{counts[1].total()})"
            yield (line := equation(f"PMI {n}-gram", left))
            values.append(result(line))
        name = self.tokens(torch.tensor(first[:1]))[0]
        yield equation(f"AMI {name}", f"({' + '.join(values)}) / {len(values)}")

    def _dots(self) -> list[list[str]]:
        first = self.states[:, 0]
        return [
            ["–" if one == other else number(float(first[one] @ first[other]))
             for other in range(len(first))]
            for one in range(len(first))
        ]  # fmt: skip

    # The arithmetic

    def _equations(self) -> Iterator[str]:
        results = []
        for name, weight in self.task.weights(0.0).items():
            lines = list(getattr(self, f"_{name}")())
            yield from lines
            results.append((weight, result(lines[-1])))
        terms = (value if weight == 1 else f"{weight:g} × {value}" for weight, value in results)
        yield equation("loss", " + ".join(terms))

    def _mean(self, name: str, terms: list[str]) -> Iterator[str]:
        shown = [term for term in terms if term != BLANK]
        if len(shown) == 1:
            yield equation(name, shown[0])
        else:
            yield equation(name, f"({' + '.join(shown)}) / {len(shown)}")

    def _masked_lm(self) -> Iterator[str]:
        rows = range(len(self.lengths))
        return self._mean(
            "masked_lm",
            [term for row in rows for term in self._terms(row, self.batch["labels"][row])],
        )

    def _replaced_token(self) -> Iterator[str]:
        special = self.task.vocabulary.is_special(self.batch["input_ids"])
        labels = torch.where(special, IGNORED, self.batch["input_ids"])
        return self._mean("replaced_token", self._terms(0, labels[0]))

    def _reconstruction(self) -> Iterator[str]:
        rows = range(len(self.lengths))
        terms = [term for row in rows for term in self._decoder_terms(row, self.lengths[row])]
        return self._mean("reconstruction", terms)

    def _bag_of_words(self) -> Iterator[str]:
        means = []
        for row, name in enumerate(self.names):
            (line,) = self._mean(
                f"bag from{name}" if name else "bag_of_words", self._bag_terms(row)
            )
            means.append(result(line))
            yield line
        if len(means) > 1:
            yield equation("bag_of_words", f"({' + '.join(means)}) / {len(means)}")

    def _term_frequency(self) -> Iterator[str]:
        ids = [id_ for id_ in self.batch["input_ids"][0].tolist() if id_ >= len(SPECIAL)]
        counts, scores = Counter(ids), self.logits[0, 0]
        squares = " + ".join(f"{count}²" for count in counts.values())
        size = equation("length of tf", f"√({squares})")
        yield size
        norm = result(size)
        inside = [f"({number(scores[id_])} − {count}/{norm})²" for id_, count in counts.items()]
        text = equation("its tokens", " + ".join(inside))
        yield text
        others = [number(score) for id_, score in enumerate(scores.tolist()) if id_ not in counts]
        rest = equation("all others", " + ".join(f"{value.removeprefix('−')}²" for value in others))
        yield rest
        values = [result(line) for line in (text, rest)]
        yield equation("term_frequency", " + ".join(values))

    def _span_contrast(self) -> Iterator[str]:
        values = []
        for row, line in enumerate(self._dots()):
            others = [value for value in line if value != "–"]
            total = " + ".join(f"exp({value})" for value in others)
            found = equation(
                f"contrast{self.names[row]}", f"log({total}) − {line[self.partner[row]]}"
            )
            yield found.replace("− −", "+ ")
            values.append(result(found))
        yield from self._mean("span_contrast", values)


def _aligned(rows: dict[str, list[str]]) -> str:
    width = max(map(len, rows)) + 2
    columns = max(map(len, rows.values()))
    wide = [
        max((len(row[n]) for row in rows.values() if n < len(row)), default=0)
        for n in range(columns)
    ]
    return "\n".join(
        (
            f"{name:<{width}}" + "  ".join(f"{cell:<{wide[n]}}" for n, cell in enumerate(cells))
        ).rstrip()
        for name, cells in rows.items()
    )


def written(text: str) -> str:
    """The page with every block computed anew."""

    def block(found: re.Match[str]) -> str:
        with tempfile.TemporaryDirectory() as folder:
            return f"{found[1]}{Step(found[2], Path(folder)).page()}{found[3]}"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
