"""Every file of an index damaged, and numbers in it replaced, by one who makes checksums hold.

What then is answered is the author's affair. But nothing brings the process down, no error is one
of Python's, and nothing takes all memory: the file is refused, or read.
"""

from __future__ import annotations

import io
import json
import resource
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from tests.torture.children import Child
from tests.torture.damage import damages
from tests.torture.scene import Case, Job, Outcome, Scene, drawn, look

_KINDS = ("given grown", "hnsw", "floats")
_FLIPS = 60  # of a file, spread over it
_MEMORY = 2**30


def cases(scene: Scene, short: bool) -> Iterable[Case]:
    """A case per file of each index; in each, many damages."""
    found = []
    for name in _KINDS[:1] if short else _KINDS:
        folder = scene.index(name)
        for file in sorted(folder.glob("segments/**/*")):
            if file.is_file():
                inner = str(file.relative_to(folder))
                run = partial(_resealed, scene, name, inner, 8 if short else _FLIPS)
                found.append(Case(f"{name}/{inner}", run))
    return drawn(found, 8 if short else None)


def stored(content: bytes) -> dict[str, Any]:
    """What a manifest says of a file with these bytes."""
    return {"bytes": len(content), "xxh3": xxhash.xxh3_128_hexdigest(content)}


def seal(folder: Path, inner: str, content: bytes) -> None:
    """Puts other bytes into a file of an index, and has its manifest vouch for them."""
    file = folder / inner
    file.unlink(missing_ok=True)  # a new one: it may still be mapped
    file.write_bytes(content)
    _, segment, name = inner.split("/", 2)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("checksum", None)
    for about in manifest["segments"]:
        if about["name"] == segment:
            about["files"][name] = stored(content)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def arrays(content: bytes) -> Iterator[tuple[str, bytes]]:
    """The array in a file with numbers that lead out of others, and of other shapes and types."""
    array = np.load(io.BytesIO(content))
    if array.dtype.kind in "iu":
        limits = np.iinfo(array.dtype)
        for value in (limits.max, limits.min, -1, 1, 31, len(array), array.size * 1000):
            if limits.min <= value <= limits.max:
                yield f"all {value}", _saved(np.full_like(array, value))
                for place in (0, array.size // 2, array.size - 1):
                    if array.size:
                        other = array.copy()
                        other.reshape(-1)[place] = value
                        yield f"{value} at {place}", _saved(other)
        if array.dtype == np.int64 and array.size > 3:
            other = array.copy()
            other.reshape(-1)[1:3] = limits.max, -2  # the sum of whose differences overflows
            yield "differences that overflow", _saved(other)
    else:
        for value in (np.nan, np.inf, -1, 1e38):
            yield f"all {value}", _saved(np.full_like(array, value))
    yield "backwards", _saved(np.ascontiguousarray(array[::-1]))
    yield "of one more", _saved(np.concatenate([array, array[:1]]))
    yield "of one less", _saved(array[:-1])
    yield "of none", _saved(array[:0])
    yield "transposed", _saved(array.T)
    yield "in Fortran's order", _saved(np.asfortranarray(array))
    for kind in ("O", ">i8", "<f8", "<i8", "<u4", "u1", "<f2", "U3"):
        head = f"{{'descr': '{'|' * (kind == 'O')}{kind}', 'fortran_order': False, 'shape': "
        if kind != "O":
            yield f"as {kind}", _saved(array.astype(kind))
        yield f"{kind} by its head", _headed(f"{head}{array.shape}}}", content)
    for shape in ((2**40,), (2**32, 2**32), (-1,), (2**62, 4), ()):
        kind = array.dtype.str
        head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}"
        yield f"of shape {shape} by its head", _headed(head, content)


def _saved(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _headed(head: str, content: bytes) -> bytes:
    text = head.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + content[128:]


def _resealed(scene: Scene, name: str, inner: str, flips: int) -> Outcome:
    whole = scene.index(name)
    content = (whole / inner).read_bytes()
    every = [(how, one) for how, one in damages(content, flips, {}) if one is not None]
    if inner.endswith(".npy"):
        every += arrays(content)
    findings, counts = [], Counter[str]()
    start, questions = 0, scene.questions
    while start < len(every):  # again after one that brought the process down
        scene.clear(Job(""))
        place = scene.place / "index"
        shutil.copytree(whole, place)
        work = partial(_try, place, inner, every[start:], questions, scene.place / "done")
        ended = Child(work, scene.place, limits={resource.RLIMIT_AS: _MEMORY}).end(600)
        done = len((scene.place / "done").read_bytes())
        if ended.value is not None:
            tried, found = ended.value
            counts += tried
            findings += found
            break
        findings.append(f"{every[start + done][0]}: {ended.tail}")
        start += done + 1
    return Outcome(counts, findings)


def _try(
    folder: Path, inner: str, every: list[tuple[str, bytes]], questions: Any, done: Path
) -> tuple[Counter[str], list[str]]:
    counts, findings = Counter[str](), []
    changed = folder.with_name("changed")
    with done.open("wb", buffering=0) as progress:
        for how, content in every:
            seal(folder, inner, content)
            shutil.rmtree(changed, ignore_errors=True)
            shutil.copytree(folder, changed)
            for what, use in (
                ("read", lambda: look(folder, questions)),
                ("changed", lambda: _change(changed)),
            ):
                try:
                    found = use()
                except Exception as error:
                    told = f"{type(error).__name__}: {str(error)[:200]}"
                    findings.append(f"{how}, {what}: {told}")
                else:
                    refused = isinstance(found, str)
                    counts[f"{what}: {'refused' if refused else 'done'}"] += 1
            progress.write(b".")
    return counts, findings


def _change(folder: Path) -> Any:
    """A deletion and a merge of all segments; what is wrong where they are refused."""
    from isthmus.errors import IsthmusError
    from isthmus.indexes.writer import IndexWriter

    try:
        with IndexWriter(folder) as writer:
            writer.delete(["d9"])
            writer.commit()
            writer.merge(everything=True)
    except IsthmusError as error:
        return f"refused: {error.what}"
    return None
