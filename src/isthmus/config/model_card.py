"""What a run says about its model to others: a card, and where sentence-transformers finds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from isthmus.config.output import finish, read_snapshot, whole_file, write_json
from isthmus.config.recipes import shipped_recipes
from isthmus.config.sealed_json import UnreadableError, parse_json, read_bounded
from isthmus.config.seen_queries import SEEN, all_seen

FINAL = "final"
_MODULES = "modules.json"
_STATED = "config_sentence_transformers.json"
_LOG = ("log", "seconds")
_CARD = """---
library_name: {library}
tags: [isthmus, {verb}]
---

# {name}

{kind} Made by isthmus {version} (`isthmus {verb}`{recipe}).

{use}
## How it was made

Settings and the fingerprints of the data; `isthmus.json` next to this folder has all of it, and
`isthmus {verb} --recipe RUN --output OTHER` repeats it.

```yaml
{settings}```

## Measures

{measures}
## Licences

The weights go back to the model and the texts that the settings name: their licences hold. isthmus
itself is under Apache-2.0.
{citation}"""


def finish_model(
    run: Path,
    results: Mapping[str, Any],
    after: Iterable[str | Path] | None = None,
    folder: str = FINAL,
) -> None:
    """Marks a run as complete, after its model got a card and what loads the run itself.

    `after`: the models that training started from, whose seen splits are recorded with the run's
    own. None for a pipeline: its stages record theirs. `folder` holds the model.
    """
    _present(run, results, folder)
    seen = [] if after is None else all_seen(read_snapshot(run), results, after)
    finish(run, {**results, SEEN: seen} if seen else results)


def _present(run: Path, results: Mapping[str, Any], folder: str) -> None:
    final = run / folder
    modules = _read(final / _MODULES)
    with whole_file(final / "README.md") as stream:
        stream.write(_card(run, read_snapshot(run), results, modules))
    if not isinstance(modules, list):
        return
    for module in modules:
        path = module.get("path") or ""
        module["path"] = f"{folder}/{path}" if path else folder
    write_json(run / _MODULES, modules)
    if (stated := _read(final / _STATED)) is not None:
        write_json(run / _STATED, stated)


def _read(file: Path) -> Any:
    try:
        return parse_json(read_bounded(file))
    except UnreadableError:
        return None


def _card(run: Path, snapshot: Mapping[str, Any], results: Mapping[str, Any], modules: Any) -> str:
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules or ()]
    sparse = "SpladePooling" in kinds
    loader = "SparseEncoder" if sparse else "SentenceTransformer"
    use = ""
    if kinds:
        use = f"```python\nfrom sentence_transformers import {loader}\n\n"
        use += f'model = {loader}("{run.name}")\n```\n'
    recipe = _recipe(snapshot)
    known = [one for one in shipped_recipes(snapshot["verb"]) if one.name == recipe]
    paper = next((each.paper for one in known for each in one.chain if each.paper), "")
    identity = {key: snapshot["identity"].get(key) for key in ("settings", "data")}
    return _CARD.format(
        library="sentence-transformers" if kinds else "transformers",
        verb=snapshot["verb"],
        name=run.name,
        kind="A sparse retriever." if sparse else "A dense retriever." if kinds else "A model.",
        version=snapshot["versions"]["isthmus"],
        recipe=f", recipe `{recipe}`" if recipe else "",
        use=use,
        settings=yaml.safe_dump(identity, sort_keys=False, allow_unicode=True),
        measures=_measures(results),
        citation=f"\n## Citation\n\n{paper}\n" if paper else "",
    )


def _recipe(snapshot: Mapping[str, Any]) -> str | None:
    """The recipe that the command named."""
    command = [str(word) for word in snapshot.get("command", ())]
    for word, following in pairwise(command):
        if word in ("-r", "--recipe"):
            return Path(following).stem
        if word.startswith("--recipe="):
            return Path(word.partition("=")[2]).stem
    return None


def _measures(results: Mapping[str, Any]) -> str:
    """The results as a list; without the log, and without what is too long to read."""
    shown = {key: value for key, value in results.items() if key not in _LOG and value is not None}
    lines = [f"- {key}: {value}" for key, value in shown.items() if len(str(value)) < 400]
    return "".join(f"{line}\n" for line in lines) or "No measures were computed.\n"
