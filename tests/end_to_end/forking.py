"""A process that has everything imported and forks one child per command.

Importing the training libraries takes seconds; the tests run dozens of commands. Each line on
standard input is a command; its process id, then its exit status, come back on standard output.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from typing import Any

_PRELOADED = (
    "isthmus.cli", "isthmus.pretraining.pretrain", "isthmus.finetuning.finetune",
    "isthmus.retrieval.verbs.index", "isthmus.retrieval.verbs.search", "isthmus.indexes.bm25",
    "isthmus.indexes.dense.index", "isthmus.evaluation", "isthmus.encoders",
    "transformers.models.bert.modeling_bert", "transformers.models.auto.tokenization_auto",
)  # fmt: skip


def _become(command: dict[str, Any]) -> None:
    """Turns this child into what the shell would have started."""
    os.setpgid(0, 0)
    os.nice(10)  # who kills it at a chosen moment must not come late
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(command[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, descriptor)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.environ.clear()
    os.environ.update(command["environment"])
    sys.argv = ["isthmus", *command["arguments"]]


def _serve() -> None:
    while line := sys.stdin.readline():
        command = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(command)
            from isthmus.cli import main

            main()
            return
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    for module in _PRELOADED:
        importlib.import_module(module)
    gc.freeze()  # or every child walks through all of it when it ends
    _serve()
