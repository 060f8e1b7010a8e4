"""What someone else made to do harm: models, indexes, recipes, checkpoints, ids, bombs.

Every command that meets it does its work or ends in the project's error, within a limit of memory,
whatever is typed at its prompts; none of its code runs; nothing outside of its folder is touched.
"""

from __future__ import annotations

import gzip
import json
import os
import resource
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.torture.children import Child, Harm
from tests.torture.resealed import seal, stored
from tests.torture.scene import JOBS, Case, Job, Outcome, Scene, drawn

_MEMORY = 400 * 2**20
_BOMB = 2**30
_ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\x08"
_PICKLE = b"cposix\nsystem\n(S'touch MARKER'\ntR."
_SEARCH = "search HOSTILE bapo"
_UPDATES = (_SEARCH, "delete HOSTILE d1", "add HOSTILE MORE", "sync HOSTILE OTHER --compact",
            "doctor HOSTILE")  # fmt: skip
_MODELS = (
    "index CORPUS --model HOSTILE --output NEW", "search NAMING bapo",
    "pretrain CORPUS --model HOSTILE --output NEW TINY",
    "finetune DATA --model HOSTILE --output NEW TINY",
    "search DENSE bapo --rerank HOSTILE", "add NAMING MORE",
)  # fmt: skip
Attack = Callable[["Stage"], tuple[str, ...]]


class Stage:
    """Where an attack is prepared: HOSTILE, what it must not touch, and the mark it would leave."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.hostile = scene.place / "hostile"
        self.canary = scene.folder / "canary"
        self.marker = scene.folder / "marker"
        scene.clear(Job(""))
        shutil.rmtree(self.canary, ignore_errors=True)
        self.marker.unlink(missing_ok=True)
        assert scene.run_file  # made before anything is compared
        assert scene.index("fields grown")
        shutil.copytree(scene.index("dense grown"), self.canary / "index")
        (self.canary / "thesis.txt").write_text("years of work")
        self.before = self.outside()

    @property
    def code(self) -> bytes:
        """A pickle that leaves the mark."""
        return _PICKLE.replace(b"MARKER", str(self.marker).encode())

    def outside(self) -> dict[str, Any]:
        """All that must not change: names, bytes, links."""
        files = sorted(self.canary.rglob("*"))
        found: dict[str, Any] = {str(f): f.read_bytes() if f.is_file() else None for f in files}
        return {**found, "names": sorted(os.listdir(self.scene.folder))}

    def copy(self, source: Path) -> Path:
        """HOSTILE as a copy of something good."""
        return Path(shutil.copytree(source, self.hostile, symlinks=True))

    def change(self, file: str, /, **values: Any) -> None:
        """Sets some keys of a JSON file of HOSTILE."""
        path = self.hostile / file
        found = json.loads(path.read_text()) if path.is_file() else {}
        found.pop("checksum", None)  # one that is there must hold
        path.write_text(json.dumps({**found, **values}))

    def words(self, command: str) -> list[str]:
        """A command, with the place of the attack filled in."""
        here = self.scene.place
        places = {"HOSTILE": self.hostile, "NEW": here / "new", "LINK": here / "link"}
        words = [str(places.get(word, word)) for word in command.split()]
        words = [word.replace("jsonl:HOSTILE", f"jsonl:{self.hostile}") for word in words]
        if "NAMING" in words:
            naming = self.scene.place / "naming"
            if not naming.exists():
                shutil.copytree(self.scene.index("dense"), naming)
                manifest = json.loads((naming / "manifest.json").read_text())
                manifest["fields"]["dense"]["encoder"]["name"] = str(self.hostile)
                del manifest["checksum"]
                (naming / "manifest.json").write_text(json.dumps(manifest))
            words = [str(naming) if word == "NAMING" else word for word in words]
        return self.scene.words(" ".join(words))


def cases(scene: Scene, short: bool) -> Iterable[Case]:
    """A case per attack."""
    found = [Case(name, partial(_attacked, scene, attack)) for name, attack in _attacks()]
    return drawn(found, 8 if short else None)


def _attacked(scene: Scene, attack: Attack) -> Outcome:
    stage = Stage(scene)
    outcome = Outcome(Counter(attacks=1))
    for command in attack(stage):
        shutil.rmtree(scene.place / "new", ignore_errors=True)
        limits = {resource.RLIMIT_AS: _MEMORY}
        child = Child(stage.words(command), scene.place, limits=limits, answers=b"y\n" * 50)
        ended = child.end(120)
        outcome.counts.update(commands=1, refused=int(ended.refused))
        diagnosed = command.startswith("doctor") and ended.code == 1
        if (ended.code and not ended.refused and not diagnosed) or "Traceback" in ended.err:
            outcome.findings.append(f"{command}: {ended.tail}")
        if "\x1b" in ended.out + ended.err:
            outcome.findings.append(f"{command}: control characters reach the terminal")
        if stage.marker.exists():
            outcome.findings.append(f"{command}: its code ran")
            stage.marker.unlink()
        if stage.outside() != stage.before:
            outcome.findings.append(f"{command}: something outside was changed")
            stage.before = stage.outside()
    return outcome


def _attacks() -> Iterator[tuple[str, Attack]]:
    for known in ("bert", "evil"):
        yield f"code of model type {known}", partial(_code, known)
    yield "pickled weights", _pickled_weights
    for target in ("../canary", "/canary", "1_Pooling/../../../canary"):
        yield f"modules at {target}", partial(_modules, target)
    yield "weights elsewhere", _weights_elsewhere
    for name in _OUTSIDE:
        for kind in ("fields", "bm25 grown"):
            yield f"files of {kind} named {name!r}", partial(_files, kind, name)
        for key in ("name", "deleted"):
            yield f"segment's {key} {name!r}", partial(_segment, {key: name})
        yield f"field {name!r}", partial(_renamed, name)
    for name, values in _SEGMENTS.items():
        yield f"segment with {name}", partial(_segment, values)
    for name, values in _MANIFESTS.items():
        yield f"manifest with {name}", partial(_changed, values)
    for name, values in _VALUES.items():
        yield f"field with {name}", partial(_field, values)
    for name, change in _TOKENS.items():
        yield f"tokens with {name}", partial(_tokens, change)
    yield "a segment twice", _twice
    for name in ("documents/documents.arrow", "fields.json", "vectors.npy", "deleted-1.npy"):
        for kind in ("a pipe", "a device", "a folder"):
            yield f"{kind} as {name}", partial(_special, name, kind)
    for kind in ("fields", "bm25 grown"):
        yield f"links in {kind}", partial(_links, kind)
        yield f"pickles in {kind}", partial(_pickles, kind)
    for place in ("segments", "segments/000009", "segments/000001/new", ".manifest.json.partial"):
        yield f"a link at {place}", partial(_link, place)
    for count in (0, 10**6, -1, 2**70, "a"):
        yield f"progress of {count}", partial(_progress, count)
    yield "a bomb of documents", _packed
    yield "an index that is a link", _linked_index
    yield "an output that is a link", _linked_output
    for name, text in _RECIPES.items():
        yield f"recipe with {name}", partial(_recipe, text)
    for name in (
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "training_args.bin",
        "trainer_state.json",
        "complete.json",
    ):
        for verb in ("pretrain", "finetune"):
            yield f"pickle as {name} of {verb}", partial(_checkpoint, verb, name)
    for name, identifier in _IDS.items():
        yield f"ids with {name}", partial(_ids, identifier)
    for ending in ("zst", "gz", "plain"):
        for command in _READING:
            yield f"bomb {ending} for {command.split()[0]}", partial(_bomb, ending, command)
    yield "a device", lambda _: tuple(c.replace("HOSTILE", "/dev/zero") for c in _READING)
    yield "names of files", _names


def _code(known: str, stage: Stage) -> tuple[str, ...]:
    folder = stage.copy(stage.scene.folder / "model")
    kinds = ("Config", "Model", "ModelForMaskedLM", "ModelForSequenceClassification", "Tokenizer")
    own = {f"Auto{kind}": f"evil.Evil{kind}" for kind in kinds}
    stage.change("config.json", model_type=known, auto_map=own)
    own["AutoTokenizer"] = ["evil.EvilTokenizer", "evil.EvilTokenizer"]
    stage.change("tokenizer_config.json", auto_map=own, tokenizer_class="EvilTokenizer")
    (folder / "evil.py").write_text(f"open({str(stage.marker)!r}, 'w').close()\n")
    (folder / "modeling_evil.py").write_text((folder / "evil.py").read_text())
    return _MODELS


def _pickled_weights(stage: Stage) -> tuple[str, ...]:
    folder = stage.copy(stage.scene.folder / "model")
    for file in folder.glob("*.safetensors"):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(stage.code)
    return _MODELS


def _modules(target: str, stage: Stage) -> tuple[str, ...]:
    target = target.replace("/canary", str(stage.canary)) if target[0] == "/" else target
    folder = stage.copy(stage.scene.folder / "model")
    (folder / "encoder.json").unlink()
    kinds = (("", "sentence_transformers.models.Transformer"), (target, "evil.Pooling"))
    modules = [{"idx": n, "name": str(n), "path": p, "type": t} for n, (p, t) in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "evil.py").write_text(f"open({str(stage.marker)!r}, 'w').close()\n")
    return _MODELS


def _weights_elsewhere(stage: Stage) -> tuple[str, ...]:
    folder = stage.copy(stage.scene.folder / "model")
    (folder / "model.safetensors").rename(stage.scene.place / "elsewhere.safetensors")
    names = {"bert.embeddings.word_embeddings.weight": "../elsewhere.safetensors"}
    index = {"metadata": {}, "weight_map": names}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return _MODELS


def _manifest(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((stage.hostile / "manifest.json").read_text())
    del found["checksum"]  # else that alone would be refused
    return found


def _stored(file: Path) -> dict[str, Any]:
    return stored(file.read_bytes())


def _outside(stage: Stage, name: Any) -> Any:
    if not isinstance(name, str) or not name.startswith("/"):
        return name
    return name.replace("/canary", str(stage.canary))


_OUTSIDE = (
    "../../canary/thesis.txt", "/canary/thesis.txt", "..", "", "a\0b", "documents/../../x",
    _ESCAPES, "a\\b", "C:x", "x" * 300, "\ud800",
)  # fmt: skip
_SEGMENTS: dict[str, dict[str, Any]] = {
    "a huge count": {"documents": 2**52}, "a number of 400 digits": {"documents": 10**400},
    "no documents": {"documents": 0}, "less than none": {"documents": -1},
    "huge passages": {"passages": 2**52}, "no passages": {"passages": None},
    "all deleted": {"dead": 40}, "more deleted than there are": {"dead": 2**40},
    "other files": {"files": {}}, "other fields": {"fields": {}}, "a surprise": {"surprise": 1},
    "a name of a million": {"name": "9" * 10**6}, "deleted documents as deleted": {
        "deleted": "documents/order.npy", "dead": 1},
}  # fmt: skip
_MANIFESTS: dict[str, dict[str, Any]] = {
    "another format": {"format": 99}, "a format of 1e999": {"format": 1e999},
    "no segments": {"segments": []}, "no fields": {"fields": {}},
    "a list of fields": {"fields": []},
    "weights of nothing": {"fusion": {"weights": {"nothing": 1}}},
    "weights below 0": {"fusion": {"weights": {"bm25": -1}}},
    "weights of NaN": {"fusion": {"weights": {"bm25": float("nan"), "dense": 1e308}}},
    "an unknown fusion": {"fusion": {"fusion": f"os.system{_ESCAPES}"}},
    "huge candidates": {"fusion": {"candidates": 2**62}},
    "a corpus of escapes": {"corpus": {"spec": _ESCAPES, "fingerprint": _ESCAPES}},
    "a corpus elsewhere": {"corpus": {"spec": "/etc/passwd", "fingerprint": "x"}},
    "passages of nothing": {"passages": {"length": 2**62, "overlap": 0.5}},
    "passages of a model": {"passages": {"length": 16, "overlap": 0, "tokenizer": "x",
                                         "model": "../canary"}},
    "much that is nested": {"made_by": json.loads("[" * 900 + "]" * 900)},
}  # fmt: skip
_VALUES: dict[str, dict[str, Any]] = {
    "an unknown type": {"type": "os.system"}, "another type": {"type": "sparse"},
    "a huge dimension": {"dimension": 2**31 - 1}, "too huge a dimension": {"dimension": 2**62},
    "no dimension": {"dimension": 0}, "no encoder": {"encoder": None},
    "another number type": {"settings": {"dtype": "float16"}},
    "a graph that is not there": {"settings": {"hnsw": True}},
    "an encoder of the network": {"encoder": {"name": "org/evil", "fingerprint": "x"}},
    "an encoder elsewhere": {"encoder": {"name": "../../canary", "fingerprint": "x"}},
    "escapes as an encoder": {"encoder": {"name": _ESCAPES, "fingerprint": _ESCAPES}},
    "settings of code": {"encoder": {"name": "x", "fingerprint": "x", "settings": {
        "trust_remote_code": True, "pooling": "os.system"}}},
}  # fmt: skip
_TOKENS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "a short centre": lambda about: {"centre": about["centre"][:-1]},
    "no centre": lambda about: {"centre": []},
    "a centre of NaN": lambda about: {"centre": [float("nan")] * about["dimension"]},
    "a centre out of range": lambda about: {"centre": [1e300] * about["dimension"]},
    "a large centre": lambda about: {"centre": [3e38] * about["dimension"]},
    "more numbers": lambda _: {"dimension": 10**5, "centre": [0.5] * 10**5},
    "a huge dimension": lambda _: {"dimension": 2**31 - 1},
    "3 bits": lambda about: {"settings": {**about["settings"], "bits": 3}},
    "more bits": lambda about: {"settings": {**about["settings"], "bits": 4}},
    "no bits": lambda about: {"settings": {**about["settings"], "bits": None}},
    "pooling of 0": lambda about: {"settings": {**about["settings"], "pooling": 0}},
    "other pooling": lambda about: {"settings": {**about["settings"], "pooling": 8}},
    "nothing stored": lambda about: {"settings": {**about["settings"], "stored": False}},
    "other weights": lambda _: {"weights": "alike"},
    "weights of code": lambda _: {"weights": "os.system"},
    "vectors of one type": lambda _: {"type": "dense", "settings": {}},
}


def _edit(stage: Stage, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the manifest of HOSTILE."""
    manifest = _manifest(stage)
    change(manifest)
    stage.change("manifest.json", **manifest)


def _files(kind: str, name: str, stage: Stage) -> tuple[str, ...]:
    stage.copy(stage.scene.index(kind))
    more = {_outside(stage, name): _stored(stage.canary / "thesis.txt")}
    _edit(stage, lambda manifest: manifest["segments"][-1]["files"].update(more))
    return _UPDATES


def _segment(values: dict[str, Any], stage: Stage) -> tuple[str, ...]:
    stage.copy(stage.scene.index("fields grown"))
    values = {key: _outside(stage, one) for key, one in values.items()}
    if isinstance(name := values.get("deleted"), str) and name != "documents/order.npy":
        stored = {name: _stored(stage.canary / "thesis.txt")}
        _edit(stage, lambda manifest: manifest["segments"][-1]["files"].update(stored))
        values["dead"] = 1
    _edit(stage, lambda manifest: manifest["segments"][-1].update(values))
    return _UPDATES


def _renamed(name: str, stage: Stage) -> tuple[str, ...]:
    stage.copy(stage.scene.index("fields"))
    name = _outside(stage, name)

    def change(manifest: dict[str, Any]) -> None:
        manifest["fields"][name] = manifest["fields"].pop("dense")
        for one in manifest["segments"]:
            one["fields"][name] = one["fields"].pop("dense")
            one["files"] = {
                key.replace("dense", name, 1): stored for key, stored in one["files"].items()
            }

    _edit(stage, change)
    return _UPDATES


def _changed(values: dict[str, Any], stage: Stage) -> tuple[str, ...]:
    stage.copy(stage.scene.index("fields"))
    stage.change("manifest.json", **values)
    return _UPDATES


def _field(values: dict[str, Any], stage: Stage) -> tuple[str, ...]:
    stage.copy(stage.scene.index("fields"))
    _edit(stage, lambda manifest: manifest["fields"]["dense"].update(values))
    return _UPDATES


def _tokens(change: Callable[[dict[str, Any]], dict[str, Any]], stage: Stage) -> tuple[str, ...]:
    stage.copy(stage.scene.index("fields"))

    def edited(manifest: dict[str, Any]) -> None:
        about = manifest["fields"]["tokens"]
        about.update(change(about))

    _edit(stage, edited)
    return (*_UPDATES, f"{_SEARCH} --use tokens")


def _twice(stage: Stage) -> tuple[str, ...]:
    stage.copy(stage.scene.index("fields"))
    _edit(stage, lambda manifest: manifest["segments"].append(manifest["segments"][0]))
    return _UPDATES


def _special(name: str, kind: str, stage: Stage) -> tuple[str, ...]:
    folder = stage.copy(stage.scene.index("fields grown"))
    file = (
        next(file for file in sorted(folder.glob("segments/**/*")) if str(file).endswith(name))
        if not name.startswith("deleted")
        else next(folder.glob("segments/*/deleted-*.npy"))
    )
    size = 0
    file.unlink()
    if kind == "a pipe":
        os.mkfifo(file)
    elif kind == "a device":
        file.symlink_to("/dev/zero")
    else:
        file.mkdir()
        size = file.stat().st_size
    inner = file.relative_to(folder / "segments").as_posix()
    segment, _, rest = inner.partition("/")

    def change(manifest: dict[str, Any]) -> None:
        for one in manifest["segments"]:
            if one["name"] == segment:
                one["files"][rest] = {"bytes": size, "xxh3": "0"}

    _edit(stage, change)
    return _UPDATES


def _links(kind: str, stage: Stage) -> tuple[str, ...]:
    folder = stage.copy(stage.scene.index(kind))
    for file in sorted(folder.rglob("*.*")):
        if file.is_file() and file.name != "manifest.json":
            there = stage.canary / str(file.relative_to(folder)).replace("/", "-")
            shutil.copy(file, there)
            file.unlink()
            file.symlink_to(there)
    stage.before = stage.outside()
    return _UPDATES


def _link(place: str, stage: Stage) -> tuple[str, ...]:
    folder = stage.copy(stage.scene.index("fields"))
    if place == "segments":
        (folder / place).rename(stage.canary / "segments")
        stage.before = stage.outside()
    leads = stage.canary / ("thesis.txt" if "manifest" in place else "segments")
    (folder / place).symlink_to(leads)
    return (*_UPDATES, "index CORPUS --output HOSTILE --overwrite")


def _pickles(kind: str, stage: Stage) -> tuple[str, ...]:
    folder = stage.copy(stage.scene.index(kind))
    for file in sorted(folder.glob("segments/**/*.npy")):
        header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
        content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + stage.code
        seal(folder, str(file.relative_to(folder)), content)
    return _UPDATES


def _progress(count: Any, stage: Stage) -> tuple[str, ...]:
    """Work that nobody began."""
    folder = stage.copy(stage.scene.index("fields"))
    shutil.copytree(folder / "segments/000001", folder / "segments/000002")
    for place in ("000002", "000001/new", "000002/dense"):
        (folder / "segments" / place).mkdir(exist_ok=True)
        parts = {part: {"offset": count, "rows": count} for part in ("documents", "passages")}
        progress = {"job": "", "count": {"documents": count}, "fields": {}, **parts}
        (folder / "segments" / place / "progress.json").write_text(json.dumps(progress))
    return (*_UPDATES, "index CORPUS --output HOSTILE --overwrite")


def _packed(stage: Stage) -> tuple[str, ...]:
    """Documents that take all memory when they are read."""
    import pyarrow as pa

    folder = stage.copy(stage.scene.index("bm25"))
    schema = pa.schema([(one, pa.large_string()) for one in ("id", "title", "text", "metadata")])
    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for number in range(40):
            text = " " * (_BOMB // 40)
            writer.write_batch(pa.record_batch([[f"d{number}"], [""], [text], [""]], schema=schema))
    seal(folder, "segments/000001/documents/documents.arrow", sink.getvalue().to_pybytes())
    return _UPDATES


def _linked_index(stage: Stage) -> tuple[str, ...]:
    stage.hostile.symlink_to(stage.canary / "thesis.txt")
    return _UPDATES


def _linked_output(stage: Stage) -> tuple[str, ...]:
    (stage.scene.place / "link").symlink_to(stage.canary)
    verbs = ("index bm25", "evaluate", "probe", "pretrain")
    return tuple(JOBS[verb].words.replace("OUTPUT", "LINK") for verb in verbs)


_RECIPES = {
    "a python tag": "verb: pretrain\nsettings: !!python/object/apply:os.system ['touch MARKER']\n",
    "a python name": "verb: !!python/name:os.system\n",
    "aliases": "verb: pretrain\na: &a [x, x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in pairwise("abcdefghij"))
    + "settings: {objectives: *j}\n",
    "itself inside": "verb: pretrain\nsettings: &a {objectives: *a}\n",
    "a base elsewhere": "verb: pretrain\nbase: ../../canary/thesis.txt\n",
    "nesting": "verb: pretrain\nsettings: " + "{a: " * 5_000,
    "an impossible date": "verb: pretrain\nsummary: 2024-13-45\n",
}  # fmt: skip


def _recipe(text: str, stage: Stage) -> tuple[str, ...]:
    stage.hostile.mkdir()
    (stage.hostile / "r.yaml").write_text(text.replace("MARKER", str(stage.marker)))
    recipe = stage.hostile / "r.yaml"
    return (f"pretrain CORPUS --model scratch:tiny --output NEW --recipe {recipe}",)


def _checkpoint(verb: str, name: str, stage: Stage) -> tuple[str, ...]:
    job = JOBS[verb]
    steps = stage.scene.reference(verb).ended.steps
    stage.scene.clear(job)
    for at in range(steps, 0, -1):  # the last moment at which a checkpoint is left to go on from
        stage.scene.clear(job)
        stage.scene.start(job, harm=Harm("kill", at)).end()
        if any(stage.scene.output.glob("checkpoint-2/complete.json")):
            break
    stage.scene.output.rename(stage.hostile)
    for checkpoint in stage.hostile.glob("checkpoint-*"):
        (checkpoint / name).write_bytes(stage.code)
    return (f"{verb} --recipe HOSTILE --output HOSTILE",)


_IDS = {
    "line ends": "a\nb\r\nc", "escapes": f"d{_ESCAPES}", "a path": "../../canary/thesis.txt",
    "a million letters": "x" * 10**6, "NUL": "a\0b", "a tab": "a\tb", "spaces": " a b ",
    "other directions": "\u202eabc\u200b", "nothing": "", "a lone surrogate": "\ud800",
}  # fmt: skip


def _ids(identifier: str, stage: Stage) -> tuple[str, ...]:
    stage.hostile.mkdir()
    corpus, made = stage.hostile / "c.jsonl", stage.scene.place / "made"
    texts = [f"bapo bari {_ESCAPES}", "dopo"]
    lines = [
        {"_id": i, "title": _ESCAPES, "text": t}
        for i, t in zip((identifier, "d2"), texts, strict=True)
    ]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return (
        f"index {corpus} --output {made}",
        f"search {made} bapo",
        f"search {made} --queries QUERIES --output {made}.trec",
        f"index {corpus} --model MODEL --output {made}-dense",
        f"add {made}-dense {corpus}",
        f"search {made}-dense bapo",
        f"delete {made}-dense d2",
    )


_READING = (
    "index jsonl:HOSTILE --output NEW",
    "search BM25 --queries HOSTILE --output NEW",
    "evaluate HOSTILE RUN --measures RR@10",
)


def _bomb(ending: str, command: str, stage: Stage) -> tuple[str, ...]:
    from pyarrow import compress

    start = b'{"_id": "d1", "text": "a"}\n'
    zst = partial(compress, codec="zstd", asbytes=True)
    pack: Any = {"zst": zst, "gz": gzip.compress}.get(ending)
    with stage.hostile.open("wb") as stream:
        stream.write(pack(start) if pack else start)
        if pack:
            stream.write(pack(bytes(_BOMB // 64)) * 64)  # one line of zeros
        else:
            stream.truncate(_BOMB)
    return (command,)


def _names(stage: Stage) -> tuple[str, ...]:
    stage.hostile.mkdir()
    for name in (b"caf\xe9.txt", b"\x1b[2J.txt", b"a\nb.txt", b"-rf.txt", b"x" * 200 + b".txt"):
        (Path(os.fsdecode(os.path.join(os.fsencode(stage.hostile), name)))).write_text("bapo bari")
    (stage.hostile / "loop").symlink_to(stage.hostile)
    os.mkfifo(stage.hostile / "pipe.txt")
    made = stage.scene.place / "made"
    return (
        f"index HOSTILE --output {made}",
        f"search {made} bapo",
        "doctor HOSTILE",
    )
