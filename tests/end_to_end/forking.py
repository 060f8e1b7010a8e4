"""A process that has everything imported and forks one child per command.

Importing the training libraries takes seconds; the tests run dozens of commands. Each line on
standard input is a command; its process id, then its exit status, come back on standard output.
A command of several processes is one group of them, as torchrun starts it. The process is forked
from that of the tests before the first of them runs; where there is a GPU, it is a new one.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from io import FileIO
from typing import Any, NoReturn

import torch

_PRELOADED = (
    "isthmus.cli", "isthmus.pretraining.pretrain", "isthmus.finetuning.finetune",
    "isthmus.retrieval.index", "isthmus.retrieval.search", "isthmus.indexes.bm25.field",
    "isthmus.indexes.bm25.builder", "isthmus.indexes.dense.builder",
    "isthmus.indexes.dense.field", "isthmus.evaluation", "isthmus.encoders",
    "isthmus.pretraining.corruption", "isthmus.pretraining.objectives",
    "isthmus.finetuning.kinds", "isthmus.finetuning.losses",
    "isthmus.finetuning.tasks", "isthmus.collections.formats.beir",
    "transformers.models.bert.modeling_bert", "transformers.models.auto.tokenization_auto",
    "matplotlib.figure", "matplotlib.backends.backend_svg",
)  # fmt: skip


def start() -> tuple[int, FileIO, FileIO]:
    """Starts the process: its id, where commands are written, and where its answers are read."""
    (commands, writing), (reading, answers) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            os.dup2(commands, 0)
            os.dup2(answers, 1)
            _let_go_of_files()
            if torch.cuda.is_available():  # which forked processes could not use
                os.execv(sys.executable, [sys.executable, __file__])
            sys.stdin = os.fdopen(0, encoding="utf-8")
            sys.stdout = os.fdopen(1, "w", encoding="utf-8")
            _serve()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)  # must not go on as a second process of tests
    os.close(commands)
    os.close(answers)
    # Not buffered: whether there is an answer is asked of the pipe.
    return child, FileIO(writing, "w"), FileIO(reading)


def _let_go_of_files() -> None:
    """Points every file but the standard ones to nothing, and leaves its number taken.

    What belongs to an object of the tests is closed by it some day: were the number free, that
    would close a file or socket that a command has opened since.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/dev/fd")):
        if number > 2 and number != nothing:
            os.dup2(nothing, number, inheritable=False)


def warm_up() -> None:
    """Computes what every process computes once: patterns, recipes, versions, parts."""
    importlib.import_module("transformers.conversion_mapping").get_checkpoint_conversion_mapping("")
    importlib.import_module("isthmus.config.recipes").shipped_recipes()
    importlib.import_module("isthmus.config.output").environment()
    importlib.import_module("isthmus.registry").announced()


def _become(command: dict[str, Any], rank: int, group: int) -> None:
    """Turns this child into what the shell, or torchrun, would have started."""
    os.setpgid(0, group)
    os.chdir(command["folder"])
    os.nice(10)  # a kill at a chosen moment must not come late
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(command[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.environ.clear()
    os.environ.update(command["environment"])
    if command["processes"] > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    if not command["plots"]:  # they take longer than most commands: as if it were not installed
        sys.modules["matplotlib"] = None  # type: ignore[assignment]
    if command["cores"] is not None:  # a process for each imports everything anew
        os.cpu_count = lambda: command["cores"]
    if command["path"]:  # with distributions that were not there before
        sys.path[:0] = command["path"]
        registry = importlib.import_module("isthmus.registry")
        registry.announced.cache_clear()
        registry.Registry.outsiders = property(registry.Registry.outsiders.func)
    sys.argv = ["isthmus", *command["arguments"]]


def _run(main: Callable[[], object]) -> NoReturn:
    """Runs the command to its end, but does not take the interpreter down.

    To free millions of objects that it shares with its parent would take longer than most commands.
    """
    code: object = 1
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _wait(children: list[int]) -> int:
    """The exit status of the group: that of the first to fail, which ends the others."""
    codes = []
    for _ in children:
        _, status = os.waitpid(-children[0], 0)
        codes.append(os.waitstatus_to_exitcode(status))
        if codes[-1] != 0 and len(codes) < len(children):
            os.killpg(children[0], signal.SIGKILL)
    return next((code for code in codes if code != 0), 0)


def _serve() -> None:
    for module in _PRELOADED:
        importlib.import_module(module)
    # Models from nothing, smaller than the smallest that is published: most of what tests compute.
    importlib.import_module("isthmus.nn.shapes").SIZES["tiny"] = (2, 64)
    warm_up()
    gc.freeze()  # or every child walks through all of it when it ends
    while line := sys.stdin.readline():
        command = json.loads(line)
        children: list[int] = []
        for rank in range(command["processes"]):
            group = children[0] if children else 0
            child = os.fork()
            if child == 0:
                _become(command, rank, group)
                _run(importlib.import_module(command["module"]).main)
            os.setpgid(child, group)  # here too: either process may run first
            children.append(child)
        print(children[0], flush=True)
        print(_wait(children), flush=True)


if __name__ == "__main__":
    _serve()
