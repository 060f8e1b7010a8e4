"""Commands as users run them, in processes of their own that can be killed at any moment."""

from __future__ import annotations

import copy
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Generator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.forking import start

Result = subprocess.CompletedProcess[str]
_PARENT = pytest.StashKey[tuple[FileIO, FileIO]]()
TINY = (
    "training.per_device_train_batch_size=8", "training.gradient_accumulation_steps=1",
    "training.logging_steps=1", "training.save_steps=3", "training.report_to=[]",
    "training.bf16=false",
)  # fmt: skip


class Commands:
    """Runs `isthmus` commands, one at a time, in children of a process that is warm already."""

    def __init__(self, folder: Path, parent: tuple[FileIO, FileIO]) -> None:
        self.folder = folder
        # Threads that wait for each other cost these small matrices more than they bring.
        self.environment = {
            **os.environ,
            "ISTHMUS_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
        }
        self._arguments: tuple[str, ...] = ()
        self.path: list[str] = []
        self._commands, self._answers = parent

    def where_installed(self, folder: Path) -> Commands:
        """Commands that find the distributions in a folder, and have a cache of their own there."""
        other = copy.copy(self)
        other.folder, other.path = folder, [str(folder)]
        path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        own = {"ISTHMUS_CACHE": str(folder / "cache"), "PYTHONPATH": path}
        other.environment = {**self.environment, **own}
        return other

    def run(self, *arguments: str | Path, **how: Any) -> Result:
        """What the command answered, whatever that is."""
        self.start(*arguments, **how)
        result = self.wait()
        assert result is not None
        return result

    def succeed(self, *arguments: str | Path, **how: Any) -> Result:
        """The answer of a command that must end well."""
        result = self.run(*arguments, **how)
        assert result.returncode == 0, result.stderr
        return result

    def start(
        self,
        *arguments: str | Path,
        processes: int = 1,
        cache: Path | None = None,
        plots: bool = False,
        cores: int | None = 1,
        module: str = "isthmus.cli",
    ) -> None:
        """Starts a command; `wait` or `kill` must follow.

        `processes` are ranks that train together; `plots`: as where matplotlib is installed;
        `cores`: as on a machine of so many, None for those that are there; `module`: whose `main`
        is the command.
        """
        self._arguments = tuple(map(str, arguments))
        environment = dict(self.environment)
        if cache is not None:
            environment["ISTHMUS_CACHE"] = str(cache)
        if processes > 1:
            environment |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
            environment |= {"MASTER_ADDR": "localhost", "MASTER_PORT": _free_port()}
        output = {name: self.folder / name for name in ("stdout", "stderr")}
        for file in output.values():
            file.write_bytes(b"")
        command = {
            "arguments": self._arguments, "environment": environment, "processes": processes,
            "plots": plots, "cores": cores, "path": self.path, "folder": os.getcwd(),
            "module": module,
            **{name: str(file) for name, file in output.items()},
        }  # fmt: skip
        self._commands.write(json.dumps(command).encode() + b"\n")
        self.child = int(self._answers.readline())

    def wait(self, seconds: float | None = None) -> Result | None:
        """The result, or None when the command still runs after so many seconds."""
        if not select.select([self._answers], [], [], seconds)[0]:
            return None
        code = int(self._answers.readline())
        output = [(self.folder / name).read_text(encoding="utf-8") for name in ("stdout", "stderr")]
        return Result(self._arguments, code, *output)

    def kill_when(self, reached: Callable[[], object], *arguments: str | Path, **how: Any) -> None:
        """Kills a command as soon as it has left something on the disk."""
        self.start(*arguments, **how)
        while not reached():
            assert self.wait(0.005) is None, "it ended before it could be killed"
        assert self.kill().returncode == -signal.SIGKILL

    def kill(self) -> Result:
        """Kills the command and its workers; its result, should it have ended by itself."""
        with suppress(ProcessLookupError):
            os.killpg(self.child, signal.SIGKILL)
        result = self.wait()
        assert result is not None
        return result


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return str(free.getsockname()[1])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Starts the parent of commands before the first test, which could leave threads or patches."""
    wanted = any("commands" in getattr(item, "fixturenames", ()) for item in session.items)
    if not wanted or session.config.option.collectonly:
        return (yield)
    process, *pipes = start()
    session.config.stash[_PARENT] = (pipes[0], pipes[1])
    ended = yield
    pipes[0].close()
    os.waitpid(process, 0)
    return ended


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Commands:
    """A runner of commands with a cache of its own."""
    return Commands(tmp_path_factory.mktemp("commands"), pytestconfig.stash[_PARENT])


@pytest.fixture(scope="session")
def settings() -> Callable[..., list[str]]:
    """`--set` arguments for runs small enough to test, and whatever is given beside."""

    def arguments(*more: str) -> list[str]:
        return [part for setting in (*TINY, *more) for part in ("--set", setting)]

    return arguments


@pytest.fixture(scope="session")
def words() -> list[str]:
    """A synthetic vocabulary of words that share syllables."""
    syllables = ["ba", "do", "ke", "li", "mu", "na", "po", "ri", "su", "te", "vo", "za"]
    generator = random.Random(1)
    return ["".join(generator.choices(syllables, k=generator.randint(1, 4))) for _ in range(800)]


@pytest.fixture(scope="session")
def write_corpus(words: list[str]) -> Callable[[Path, int], Path]:
    """Writes a jsonl corpus of so many synthetic documents."""

    def write(file: Path, documents: int) -> Path:
        generator = random.Random(2)
        with file.open("w", encoding="utf-8") as stream:
            for number in range(documents):
                text = " ".join(generator.choices(words, k=generator.randint(5, 30)))
                record = {"_id": f"d{number}", "title": generator.choice(words), "text": text}
                stream.write(json.dumps(record) + "\n")
        return file

    return write


@pytest.fixture(scope="session")
def collection(
    write_corpus: Callable[[Path, int], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A BEIR folder: every query is half of the words of the document that answers it."""
    folder = tmp_path_factory.mktemp("collection")
    corpus = write_corpus(folder / "corpus.jsonl", 400)
    (folder / "qrels").mkdir()
    generator = random.Random(3)
    queries, judged = [], ["query-id\tcorpus-id\tscore"]
    for number, line in enumerate(corpus.read_text(encoding="utf-8").splitlines()[:120]):
        document = json.loads(line)
        text = document["text"].split()
        asked = " ".join(generator.sample(text, k=(len(text) + 1) // 2))
        queries.append(json.dumps({"_id": f"q{number}", "text": asked}))
        judged.append(f"q{number}\t{document['_id']}\t1")
    (folder / "queries.jsonl").write_text("\n".join(queries) + "\n", encoding="utf-8")
    (folder / "qrels" / "train.tsv").write_text("\n".join(judged) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def judged(collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the queries to train on, the others to test with."""
    folder: Path = tmp_path_factory.mktemp("judged") / "collection"
    shutil.copytree(collection, folder)
    head, *lines = (collection / "qrels" / "train.tsv").read_text(encoding="utf-8").splitlines()
    for split, chosen in (("train", lines[:60]), ("test", lines[60:])):
        text = "\n".join([head, *chosen, ""])
        (folder / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def model(
    commands: Commands,
    collection: Path,
    settings: Callable[..., list[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A tiny encoder with dropout, pre-trained for a moment."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    commands.succeed(
        "pretrain", collection, "--model", "scratch:tiny", "--output", folder,
        *settings("vocabulary=600", "max_length=32", "training.max_steps=2"),
    )  # fmt: skip
    return folder
