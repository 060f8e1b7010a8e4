"""Two machines do what one does, with the same results, also when one of them dies at work."""

from __future__ import annotations

import filecmp
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.factories import bert
from tests.index_bytes import verify
from transformers import BertForMaskedLM

from isthmus.cluster import Cluster, ClusterSettings, connected, current, run_task
from isthmus.collections import Problems, open_collection, read_queries
from isthmus.encoders import (
    DenseEncoder,
    DenseSettings,
    SparseEncoder,
    SparseSettings,
    load_encoder,
)
from isthmus.errors import (
    InputError,
    MismatchError,
    MissingPackageError,
)
from isthmus.indexes.manifest import SEGMENTS, read_manifest
from isthmus.indexes.writer import IndexWriter
from isthmus.nn.backbone import Backbone
from isthmus.records import Document
from isthmus.retrieval.index import IndexSettings, index
from isthmus.retrieval.search import search_file
from isthmus.retrieval.searcher import open_searcher
from isthmus.text import corpus as corpus_module
from isthmus.text.corpus import tokenise
from isthmus.text.tokenizer import Tokenizer, new_tokenizer

ray = pytest.importorskip("ray", reason="the extra [cluster] is not installed")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(sys.platform == "win32", reason="clusters run on Linux and macOS"),
    # On some chips the number of threads changes the last bits, and each machine has one.
    pytest.mark.usefixtures("one_thread"),
]

SHARD, BLOCK, DEPTH = 192, 64, 50
# Neither logs nor load are watched: each watcher would be a process that imports Ray.
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20, "include_log_monitor": False}
HEAD = {**NODE, "include_dashboard": False, "no_monitor": True}


@pytest.fixture(scope="module")
def cranfield(shared_data: Path) -> Path:
    return shared_data / "collections" / "cranfield"


@pytest.fixture(scope="module")
def documents(cranfield: Path) -> list[Document]:
    return list(open_collection(str(cranfield), Problems("skip")).documents())


@pytest.fixture(scope="module")
def tokenizer(documents: list[Document]) -> Tokenizer:
    return new_tokenizer([document.contents() for document in documents], 1000)


@pytest.fixture(scope="module")
def models(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dense and a sparse encoder of random weights."""
    folder = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    config = bert(len(tokenizer), hidden_size=32, intermediate_size=64)
    lengths = {"query_max_length": 32, "document_max_length": 64}
    backbone = Backbone(BertForMaskedLM(config))
    sparse = SparseSettings(**lengths, document_terms=60, query_terms=30)
    DenseEncoder(backbone, tokenizer, DenseSettings(**lengths)).save(_made(folder / "dense"))
    SparseEncoder(backbone, tokenizer, sparse).save(_made(folder / "sparse"))
    return {"dense": folder / "dense", "sparse": folder / "sparse"}


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    """Two machines of one core each, which this process has joined."""
    from ray.cluster_utils import Cluster as Machines

    # Workers on other machines know nothing of where this process runs.
    found = Machines(initialize_head=True, head_node_args=HEAD)
    try:
        found.add_node(**NODE)
        ray.init(address=found.address, log_to_driver=False)
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


@pytest.fixture
def cluster(machines: Any) -> Iterator[Cluster]:
    with connected(_settings(machines)) as found:
        assert found is not None
        yield found


def _settings(machines: Any) -> ClusterSettings:
    return ClusterSettings(address=machines.address, shard_documents=SHARD - 1)


def test_dense_vectors_and_rankings_are_the_same(
    machines: Any,
    cluster: Cluster,
    cranfield: Path,
    models: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, corpus = str(models["dense"]), str(cranfield)
    one = index(
        corpus, tmp_path / "one", model, settings=IndexSettings(block_size=BLOCK, problems="skip")
    )
    settings = IndexSettings(block_size=BLOCK, problems="skip", cluster=_settings(machines))
    many = index(corpus, tmp_path / "many", model, settings=settings)
    cut = re.findall(
        r"[\d,]+ of [\d,]+ texts .*? is not seen", " ".join(capsys.readouterr().err.split())
    )
    assert len(cut) == 2
    assert cut[0] == cut[1], "what is cut is said of all machines together"
    np.testing.assert_array_equal(_vectors(many), _vectors(one))
    queries = list(read_queries(cranfield / "queries.jsonl.zst"))[:20]
    expected = open_searcher(one).search(queries, DEPTH)
    assert open_searcher(many).search(queries, DEPTH) == expected
    index(
        corpus, many, model, settings=IndexSettings(block_size=BLOCK, problems="skip")
    )  # is the same
    with IndexWriter(many) as writer:
        writer.merge(everything=True)
    np.testing.assert_array_equal(_vectors(many), _vectors(one))
    assert open_searcher(many).search(queries, DEPTH) == expected


def _vectors(folder: Path) -> Any:
    files = sorted(folder.glob(f"{SEGMENTS}/*/dense/vectors.npy"))
    return np.concatenate([np.load(file) for file in files])


def test_tokenising_makes_the_same_files(
    cluster: Cluster,
    documents: list[Document],
    tokenizer: Tokenizer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(corpus_module, "BLOCK_DOCUMENTS", 300)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # of this machine: it starts no processes

    def work(cache: Path) -> Path:
        return tokenise(documents, "cranfield", tokenizer.serialised, cache=cache).folder

    ran: list[str] = []
    plain: Callable[..., Any] = cluster.map
    monkeypatch.setattr(
        cluster, "map", lambda tasks, folder: plain(_noted(tasks, ran), folder), raising=True
    )
    many = work(tmp_path / "many")
    assert set(ran) == {"_write_block"}
    token = current()
    assert token is cluster
    alone = threading.Thread(target=work, args=[tmp_path / "one"])  # where no cluster is in use
    alone.start()
    alone.join()
    (one,) = (tmp_path / "one" / "tokenised").iterdir()
    names = sorted(str(f.relative_to(one)) for f in one.rglob("*") if f.suffix != ".lock")
    assert names == sorted(str(f.relative_to(many)) for f in many.rglob("*") if f.suffix != ".lock")
    files = [name for name in names if (one / name).is_file()]
    assert len(files) > 4
    assert filecmp.cmpfiles(one, many, files, shallow=False)[0] == files


def _noted(tasks: Any, names: list[str]) -> Iterator[Any]:
    for function, arguments in tasks:
        names.append(function.__name__)
        yield function, arguments


def test_errors_of_other_machines_arrive(
    machines: Any, cranfield: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    """They read the weights from the disk, which are not those that are given here."""
    encoder = load_encoder(str(models["dense"]))
    encoder.fingerprint = "another"
    settings = IndexSettings(problems="skip", cluster=_settings(machines))
    with pytest.raises(MismatchError, match="has another encoder") as caught:
        index(str(cranfield), tmp_path / "index", encoder, settings=settings)
    assert str(models["dense"]) in caught.value.what
    assert not list((tmp_path / "index" / SEGMENTS).glob(".0*"))


class Killer(threading.Thread):
    """Kills a machine once two shards are being encoded, and watches who begins what."""

    def __init__(self, machines: Any, building: Path) -> None:
        super().__init__()
        self.machines, self.building = machines, building
        self.seen: set[str] = set()
        self.killed = False
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.01):
            begun = {file.parents[1].name for file in self.building.glob(".0*/sparse/*.gathered")}
            self.seen |= begun
            if len(begun) == 2 and not self.killed:
                victim = self.machines.worker_nodes.copy().pop()
                self.machines.remove_node(victim, allow_graceful=False)
                self.killed = True

    def attempts(self) -> Counter[str]:
        """How often each shard was begun."""
        return Counter(name.partition("-")[0] for name in self.seen)


def test_a_machine_dies_while_encoding(  # after the tests that need two machines
    machines: Any, cranfield: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    model, corpus = str(models["sparse"]), str(cranfield)
    one = index(
        corpus, tmp_path / "one", model, settings=IndexSettings(block_size=BLOCK, problems="skip")
    )
    killer = Killer(machines, tmp_path / "many" / SEGMENTS)
    killer.start()
    settings = IndexSettings(block_size=BLOCK, problems="skip", cluster=_settings(machines))
    many = index(corpus, tmp_path / "many", model, settings=settings)
    killer.ended.set()
    killer.join()
    assert killer.killed, "the index was whole before a machine could be killed at work on it"
    assert max(killer.attempts().values()) > 1, "nothing was begun again"
    manifest, single = verify(many), read_manifest(one)
    assert manifest.identity() == single.identity()
    assert manifest.documents == single.documents
    assert [part.documents for part in manifest.segments] == [192] * 7 + [54]
    queries = cranfield / "queries.jsonl.zst"
    answers = [
        search_file(folder, queries, f"{folder}.trec", settings={"tag": "run"})
        for folder in (one, many)
    ]
    assert answers[0].read_text().count("\n") > 10_000
    assert answers[0].read_text() == answers[1].read_text()


def test_a_machine_that_cannot_help_says_why(tmp_path: Path) -> None:
    from isthmus import __version__

    with pytest.raises(MismatchError, match=r"has isthmus .*, this one has 0\.0\.1"):
        run_task(("0.0.1", tmp_path), print)
    with pytest.raises(Exception, match="does not see the folder") as caught:
        run_task((__version__, tmp_path / "elsewhere" / "marker"), print)
    assert "ISTHMUS_CACHE" in caught.value.fix  # type: ignore[attr-defined]


def test_what_cannot_be_a_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", _refused)
    with pytest.raises(InputError, match="no Ray cluster answers at 'auto': nobody"):
        index("c", "o", "m", settings=IndexSettings(cluster=ClusterSettings(address="auto")))
    monkeypatch.setattr(ray, "init", pytest.fail)  # not reached: nothing listens there
    for address in ("127.0.0.1:1", "there.invalid:1", "ray://127.0.0.1:1", "127.0.0.1:99999"):
        with pytest.raises(InputError, match=f"no Ray cluster answers at '{address}'"):
            index("c", "o", "m", settings=IndexSettings(cluster=ClusterSettings(address=address)))


def test_a_missing_ray_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError) as caught:
        index("c", "o", "m", settings=IndexSettings(cluster=ClusterSettings(address="local")))
    assert caught.value.fix == "pip install 'isthmus[cluster]'"


def _refused(**_: object) -> None:
    raise ConnectionError("nobody\nlistens")
