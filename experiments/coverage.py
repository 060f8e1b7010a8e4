"""Input token coverage of pre-trained checkpoints, in the order of "Drop your Decoder" and in ours.

    python experiments/coverage.py docs.jsonl runs/coverage none=bert-base-uncased mlm=runs/mlm
        autoencoding=runs/autoencoding autoregressive=runs/autoregressive retromae=runs/retromae
        dupmae=runs/dupmae cotmae=runs/cotmae bow=runs/bow --text "a text to project"

The folder holds coverage.svg, coverage.md, coverage.tsv, texts.md and inspection.json. Every model
reads its own [CLS] (or what it pools by) to --length tokens; a GPU is used where there is one.
"""

from __future__ import annotations

import argparse

from rich.console import Console

import isthmus

# SIGIR 2024, section 3.2 with figure 2 and section 5.2 with figure 4, as its text has it.
PAPER = {
    "bow": "above all others",
    "retromae": "far above BERT",
    "mlm": "not above BERT",
    "autoencoding": "not above BERT",
    "none": "BERT itself",
}


def main() -> None:
    """Prints tables of the texts and of the coverage, and both orders at some k."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Formatter)
    parser.add_argument("corpus")
    parser.add_argument("output")
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL")
    parser.add_argument("--text", action="append", default=[], help="repeatable")
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--length", type=int, default=144)
    given = parser.parse_args()
    encoders = []
    for one in given.models:
        name, _, folder = one.partition("=")
        encoder = isthmus.load_encoder(folder, {"document_max_length": given.length}, exact=True)
        encoder.name = name
        encoders.append(encoder)
    found = isthmus.inspect(
        encoders[0], given.text, beside=encoders[1:], coverage=given.corpus,
        documents=given.documents, output=given.output,
    )  # fmt: skip
    Console().print(found)
    assert found.coverage is not None
    for k in (20, 100):
        place = found.coverage.k.index(k)
        shares = {name: curve[place] for name, curve in found.coverage.models.items()}
        print(f"\nin the order of coverage at k = {k} (in the paper):")
        for rank, name in enumerate(sorted(shares, key=lambda each: -shares[each]), start=1):
            print(f"{rank}. {name:<16} {shares[name]:.3f}  ({PAPER.get(name, 'not stated')})")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as it is written above."""


if __name__ == "__main__":
    main()
