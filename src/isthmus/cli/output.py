"""How results are printed: for people, or as one JSON object."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType

from isthmus import progress
from isthmus.errors import IsthmusError, visible


@dataclasses.dataclass
class Said:
    """What a command says when it has written something."""

    text: RenderableType
    fields: dict[str, Any]
    next: str = ""
    code: int = 0


def show(command: str, found: Any, typed: Mapping[str, Any], seconds: float) -> int:
    """Prints what a command returned; its exit code."""
    if os.environ.get("RANK", "0") != "0":
        return 0  # of several processes, the first one prints
    if found is None:
        return 0  # it said everything while it ran
    as_json = typed["as_json"]
    if isinstance(found, Iterator):
        return _show_lines(found, as_json)
    if not hasattr(found, "__rich__"):
        said = _SAID[command](found, typed)
        if as_json:
            next_ = {"next": said.next} if said.next else {}
            _print_json({"command": command, **said.fields, "seconds": round(seconds, 3), **next_})
        else:
            progress.result(said.text)
            if said.next and not typed["quiet"]:
                progress.result(f"next: {said.next}")
        return said.code
    if as_json:
        plain = found.to_dict() if hasattr(found, "to_dict") else json.loads(found.to_json())
        _print_json({**plain, "seconds": round(seconds, 3)} if command == "search" else plain)
    else:
        _print(found)
        if (following := getattr(found, "next", "")) and not typed["quiet"]:
            progress.result(f"next: {following}")
    return int(getattr(found, "exit_code", 0))


def _print(found: Any) -> None:
    from rich.console import Console

    Console().print(found)


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, default=str))


def show_error(error: IsthmusError, as_json: bool) -> None:
    """Prints an error on standard error or, as JSON, on standard output."""
    if as_json:
        _print_json({"error": error.to_dict()})
    else:
        sys.stderr.write(visible(f"error: {error}\n"))


def _show_lines(answers: Iterator[Any], as_json: bool) -> int:
    """Prints the answer to every line, one line each as JSON; 1 if some had none."""
    code = 0
    for found in answers:
        if found.error is not None:
            code = 1
            sys.stderr.write(visible(f"error: {found.error}\n"))
        if as_json:
            _print_json(found.to_dict())
        elif found.query and found.error is None:
            if found:
                progress.result(f"“{found.query}”")
            _print(found)
    return code


def _typed(*words: object) -> str:
    """A command that can be pasted."""
    return " ".join(["isthmus", *(shlex.quote(str(word)) for word in words)])


def _index(found: Any, typed: Mapping[str, Any]) -> Said:
    fields = {"output": str(found.folder), "documents": len(found), "retrievers": found.names}
    text = f"index: {found.folder} ({_documents(len(found))}; {', '.join(found.names)})"
    return Said(text, fields, _typed("search", found.folder, "a query"))


def _searched(found: Path, typed: Mapping[str, Any]) -> Said:
    split = ["--split", typed["split"]] if typed["split"] else []
    queries = typed["queries"]
    judged = "COLLECTION" if Path(queries).is_file() else queries
    return Said(f"run: {found}", {"output": str(found)}, _typed("evaluate", judged, found, *split))


def _added(found: Any, typed: Mapping[str, Any]) -> Said:
    return Said(
        f"added {_documents(found.added)}, replaced {found.replaced:,}; the index has "
        f"{found.documents:,}",
        {"output": typed["index"], **_counts(found, "added", "replaced", "documents")},
        _typed("search", typed["index"], "a query"),
    )


def _deleted(found: Any, typed: Mapping[str, Any]) -> Said:
    return Said(
        f"deleted {_documents(found.deleted)}; the index has {found.documents:,}",
        {"output": typed["index"], **_counts(found, "deleted", "documents")},
    )


def _documents(count: int) -> str:
    return f"{count:,} document{'s' * (count != 1)}"


def _counts(found: Any, *names: str) -> dict[str, int]:
    return {name: getattr(found, name) for name in names}


def _synced(found: Any, typed: Mapping[str, Any]) -> Said:
    return Said(
        str(found),
        {"output": typed["index"], **dataclasses.asdict(found)},
        code=1 if found.undecided else 0,
    )


def _exported(found: Path, typed: Mapping[str, Any]) -> Said:
    return Said(f"vectors: {found}", {"output": str(found)})


def _recipes(found: Any, typed: Mapping[str, Any]) -> Said:
    return Said(str(found), found.to_dict())


def _benchmarked(found: Any, typed: Mapping[str, Any]) -> Said:
    next_ = "" if typed["dry_run"] else _typed("research", "report", found.folder)
    code = 1 if found.failed or found.missing else 0
    return Said(str(found), dataclasses.asdict(found), next_, code)


def _pretrained(found: Path, typed: Mapping[str, Any]) -> Said:
    from isthmus.pretraining.handover import next_recipe_of

    recipe = next_recipe_of(found.parent)
    chosen = ["-r", recipe] if recipe else []
    next_ = _typed("finetune", "COLLECTION", "-m", found.parent, *chosen, "-o", "RUN")
    return Said(f"encoder: {found}", {"output": str(found.parent), "model": str(found)}, next_)


def _finetuned(found: Path, typed: Mapping[str, Any]) -> Said:
    from isthmus.finetuning.summary import next_words, result

    fields = {"output": str(found.parent), "model": str(found)}
    return Said(result(found.parent), fields, _typed(*next_words(found.parent)))


_SAID: dict[str, Callable[[Any, Mapping[str, Any]], Said]] = {
    "index": _index,
    "search": _searched,
    "add": _added,
    "delete": _deleted,
    "sync": _synced,
    "export": _exported,
    "recipes": _recipes,
    "benchmark": _benchmarked,
    "pretrain": _pretrained,
    "finetune": _finetuned,
}
