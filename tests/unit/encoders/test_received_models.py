"""A model folder from elsewhere runs no code, opens nothing outside itself, and fails in words."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import isthmus
from isthmus.cli import main
from isthmus.encoders import load_encoder, load_reranker
from isthmus.encoders.dense import DenseEncoder, DenseSettings
from isthmus.errors import InputError, IsthmusError
from isthmus.nn.backbone import Backbone, new_backbone
from isthmus.retrieval.index import index
from isthmus.retrieval.reranker import RerankSettings
from isthmus.retrieval.search import SearchSettings, search
from isthmus.text.tokenizer import new_tokenizer

TOKENIZER = new_tokenizer(["the quick brown fox jumps over the lazy dog"] * 2, 80)
SOURCE = Path(isthmus.__file__).parent
Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "model"
    backbone = new_backbone("tiny", len(TOKENIZER), TOKENIZER.pad_id, max_length=144)
    DenseEncoder(backbone, TOKENIZER, DenseSettings()).save(folder)
    return folder


@pytest.fixture
def model(whole: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "received" / "model"
    shutil.copytree(whole, folder)
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    """A corpus file; its folder is a judged collection."""
    rows = [{"_id": f"d{n}", "text": f"the fox {n} jumps"} for n in range(4)]
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nq\td1\t1\n")
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "fox"}\n')
    file = tmp_path / "corpus.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return str(file)


@pytest.fixture(autouse=True)
def yes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is asked on standard input is answered with yes."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))


def update(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def own_code(folder: Path) -> Path:
    """Makes the model one whose own code leaves a mark when it is run."""
    mark = folder.parent / "mark"
    code = f"open({str(mark)!r}, 'w').close()\nfrom transformers import BertConfig\n"
    (folder / "evil.py").write_text(code + "class Evil(BertConfig):\n    model_type = 'mine'\n")
    classes = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForMaskedLM"), "evil.Evil")
    update(folder / "config.json", model_type="mine", auto_map=classes)
    tokenizer = {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}
    stated = folder / "tokenizer_config.json"
    update(stated, auto_map=tokenizer, tokenizer_class="EvilTokenizer")
    update(stated, custom_pipelines={"evil": {"impl": "evil.Evil"}})
    return mark


def test_own_code_is_not_run_however_it_is_reached(model: Path, corpus: str) -> None:
    place = model.parent
    made = index(corpus, place / "dense", str(model))
    bm25 = index(corpus, place / "bm25")
    mark = own_code(model)
    judged = f"beir:{Path(corpus).parent}"
    attempts: list[Callable[[], Any]] = [
        lambda: Backbone.load(str(model)),
        lambda: load_encoder(str(model)),
        lambda: load_reranker(str(model)),
        lambda: index(corpus, place / "other", str(model)),
        lambda: search(made, "the fox"),
        lambda: search(
            bm25, "fox", settings=SearchSettings(rerank=RerankSettings(model=str(model)))
        ),
        lambda: isthmus.pretrain(corpus, model, place / "p"),
        lambda: isthmus.finetune(judged, model, place / "f"),
    ]
    for attempt in attempts:
        with pytest.raises(InputError, match="contains custom code"):
            attempt()
        assert not mark.exists()


def test_own_code_is_not_run_from_the_command_line(
    model: Path, corpus: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An index whose encoder is looked up in its manifest; other verbs are tested above."""
    made = index(corpus, model.parent / "dense", str(model))
    mark = own_code(model)
    monkeypatch.setattr("sys.argv", ["isthmus", "search", str(made), "the fox"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not mark.exists()
    assert ended.value.code == 2
    assert "contains custom code" in " ".join(capsys.readouterr().err.split())


def test_everything_is_loaded_through_one_door() -> None:
    calls = {
        file.relative_to(SOURCE).as_posix()
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in ("from_pretrained", "SentenceTransformer")
    }
    assert calls == {"config/model_files.py"}


def test_own_code_of_a_tokenizer_is_not_run(model: Path) -> None:
    config = (model / "config.json").read_text()
    mark = own_code(model)
    (model / "config.json").write_text(config)
    load_encoder(str(model))  # transformers has a tokenizer for BERT
    assert not mark.exists()


def pickled(folder: Path) -> None:
    class Marking:
        def __reduce__(self) -> Any:
            return (Path.touch, (folder.parent / "mark",))

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Marking()))


def adapter(folder: Path) -> None:
    described = {"base_model_name_or_path": str(folder.parent / "other"), "peft_type": "LORA"}
    (folder / "adapter_config.json").write_text(json.dumps(described))


def sharded(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    names = load_file(folder.parent / "outside.safetensors")
    described = {"metadata": {}, "weight_map": dict.fromkeys(names, "../outside.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(described))


def linked(folder: Path, file: str) -> None:
    (folder / file).rename(folder.parent / "outside")
    (folder / file).symlink_to("../outside")


def module_at(folder: Path, path: object) -> None:
    (folder / "encoder.json").unlink()
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = path
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (pickled, "only pickled weights"),
        (adapter, "holds an adapter"),
        (sharded, "not inside the model"),
        (lambda folder: linked(folder, "model.safetensors"), "symbolic link out of the folder"),
        (lambda folder: linked(folder, "config.json"), "symbolic link out of the folder"),
        (lambda folder: linked(folder, "tokenizer.json"), "symbolic link out of the folder"),
        (lambda folder: linked(folder, "1_Pooling"), "symbolic link out of the folder"),
        (lambda folder: module_at(folder, "../other"), "not inside the model"),
        (lambda folder: module_at(folder, "/etc"), "not inside the model"),
        (lambda folder: module_at(folder, 7), "not inside the model"),
        (
            lambda folder: update(
                folder / "config.json", quantization_config={"quant_method": "bitsandbytes"}
            ),
            "asks for quantization_config",
        ),
        (
            lambda folder: update(folder / "config.json", transformers_weights="../x.safetensors"),
            "must reference a file inside",
        ),
    ],
)
def test_what_leads_out_of_the_folder_is_refused(model: Path, change: Change, what: str) -> None:
    change(model)
    with pytest.raises(InputError, match=what) as caught:
        load_encoder(str(model))
    assert str(model) in caught.value.what
    assert not (model.parent / "mark").exists()


def test_links_of_the_hub_s_cache_are_followed(model: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b/snapshots/1", tmp_path / "models--a--b/blobs"
    shutil.copytree(model, snapshot)
    blobs.mkdir()
    for file in (file for file in snapshot.iterdir() if file.is_file()):
        file.rename(blobs / file.name)
        file.symlink_to(f"../../blobs/{file.name}")
    assert load_encoder(str(snapshot)).fingerprint == load_encoder(str(model)).fingerprint


def test_kernels_that_a_configuration_names_are_not_fetched(model: Path) -> None:
    update(model / "config.json", attn_implementation="some/kernel")
    update(model / "config.json", _attn_implementation="some/kernel")
    load_encoder(str(model))


def weights(file: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    state = load_file(file)
    change(state)
    save_file(state, file, {"format": "pt"})


QUERY = "bert.encoder.layer.0.attention.self.query.weight"
HUGE = 10**9


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", lambda file: update(file, hidden_size=HUGE)),
        ("config.json", lambda file: update(file, num_hidden_layers=HUGE)),
        ("config.json", lambda file: update(file, num_hidden_layers=HUGE, model_type="modernbert")),
        ("config.json", lambda file: update(file, num_labels=2**63)),
        ("tokenizer_config.json", lambda file: update(file, extra_ids=HUGE)),
        ("config.json", lambda file: update(file, num_hidden_layers=5_000)),
        ("config.json", lambda file: update(file, vocab_size=10**8)),
        ("config.json", lambda file: update(file, intermediate_size=10**8)),
        ("config.json", lambda file: update(file, max_position_embeddings=HUGE)),
        ("config.json", lambda file: update(file, hidden_size=-1)),
        ("config.json", lambda file: update(file, hidden_dropout_prob=float("nan"))),
        ("config.json", lambda file: update(file, chunk_size_feed_forward=100)),
        ("config.json", lambda file: file.write_text("[]")),
        ("config.json", lambda file: file.write_text("")),
        ("config.json", lambda file: file.write_text("[" * 200_000)),
        ("config.json", lambda file: file.write_bytes(b'{"a": "\xff"}')),
        ("encoder.json", lambda file: file.write_text("[]")),
        ("encoder.json", lambda file: file.write_text('{"kind": ["dense"]}')),
        ("tokenizer_config.json", lambda file: file.write_text("3")),
        ("model.safetensors", lambda file: file.write_bytes(b"\xff" * 8 + b"{}")),
        ("model.safetensors", lambda file: file.write_bytes(file.read_bytes()[:100])),
        ("model.safetensors", lambda file: file.write_bytes(b"")),
        ("model.safetensors", lambda file: weights(file, lambda w: w[QUERY].fill_(torch.nan))),
        ("model.safetensors", lambda file: weights(file, lambda w: w.__delitem__(QUERY))),
    ],
)  # fmt: skip
def test_damage_names_the_file(model: Path, file: str, change: Change) -> None:
    change(model / file)
    with pytest.raises(IsthmusError) as caught:
        load_encoder(str(model))
    assert str(model / file) in caught.value.what


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("modules.json", "{}"),
        ("modules.json", "[3]"),
        ("modules.json", '[{"type": 3}]'),
        (
            "modules.json",
            json.dumps([{"type": "a.Transformer"}, {"type": "Pooling", "path": "x" * 999}]),
        ),
        ("config_sentence_transformers.json", "[]"),
        ("config_sentence_transformers.json", '{"prompts": [1]}'),
        ("sentence_bert_config.json", '{"max_seq_length": "many"}'),
        ("sentence_bert_config.json", '{"max_seq_length": -Infinity}'),
        ("sentence_bert_config.json", '{"max_seq_length": NaN}'),
        ("sentence_bert_config.json", '{"max_seq_length": -3}'),
        ("1_Pooling/config.json", "[]"),
        ("1_Pooling/config.json", '{"a'),
    ],
)
def test_damage_of_sentence_transformers_files(model: Path, file: str, text: str) -> None:
    (model / "encoder.json").unlink()
    (model / file).write_text(text)
    with pytest.raises(InputError) as caught:
        load_encoder(str(model))
    assert str(model / file) in caught.value.what


def test_a_tokenizer_with_ids_beyond_the_embeddings(model: Path) -> None:
    file = model / "tokenizer.json"
    values = json.loads(file.read_text())
    vocabulary = values["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 5_000
    file.write_text(json.dumps(values))
    with pytest.raises(IsthmusError, match="the tokenizer"):
        load_encoder(str(model))


STRANGE: list[Any] = [
    None, True, 0, -1, 7, 10**9, 10**30, 1.5, float("nan"), "", "x", "/etc/passwd", "\0", "\ud800",
    [], {}, [None], {"": 1}, "bert", "mpnet", "org/name",
]  # fmt: skip


def mutated(choice: random.Random, text: bytes) -> bytes:
    """The file with a value replaced or removed, its end cut off, or a bit flipped."""
    if choice.random() < 0.6:
        values = json.loads(text)
        inner = values
        while isinstance(inner, dict | list) and inner:
            key = choice.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
            if choice.random() < 0.6 or not isinstance(inner[key], dict | list):
                if choice.random() < 0.8:
                    inner[key] = choice.choice(STRANGE)
                else:
                    del inner[key]
                break
            inner = inner[key]
        return json.dumps(values).encode()
    place = choice.randrange(len(text))
    if choice.random() < 0.5:
        return text[:place]
    return text[:place] + bytes([text[place] ^ 1 << choice.randrange(8)]) + text[place + 1 :]


@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_metadata_says_the_error_is_ours(model: Path, seed: int) -> None:
    choice = random.Random(seed)
    files = [file for file in sorted(model.rglob("*.json")) if file.stat().st_size > 2]
    beside = (model / "encoder.json").read_bytes()
    for round_ in range(16):
        if round_ % 2:
            (model / "encoder.json").unlink()
        file = choice.choice([file for file in files if file.exists()])
        whole = file.read_bytes()
        file.write_bytes(mutated(choice, whole))
        with contextlib.suppress(IsthmusError):
            load_encoder(str(model)).encode_queries(["the fox", "a dog \u5b57"])
        file.write_bytes(whole)
        (model / "encoder.json").write_bytes(beside)
