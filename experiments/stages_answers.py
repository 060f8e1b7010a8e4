"""How often a wrong first answer is a paragraph of an article that was trained on.

    python experiments/stages_answers.py --data DATA --output runs/stages

DATA and OUTPUT as stages.py had them; openwiki's run files, of all of its models.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Set
from pathlib import Path
from statistics import fmean

from isthmus.collections import Problems, open_collection, read_run
from isthmus.records import Judgements

COLLECTION = "openwiki"


def main() -> None:
    """Prints a line for each model, the mean of its seeds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="holds collections/NAME")
    parser.add_argument("--output", type=Path, required=True, help="where stages.py wrote")
    options = parser.parse_args()
    models: dict[str, list[Path]] = defaultdict(list)
    for file in sorted((options.output / "searched").glob(f"{COLLECTION}-*.trec")):
        _, model, kind, _seed, stage, way = file.stem.split("-")
        models[f"{model} {kind} {stage} {way}"].append(file)
    if not models:
        sys.exit(
            f"error: there is no run file {options.output}/searched/{COLLECTION}-*.trec "
            f"(stages.py --output {options.output} --only '{COLLECTION}/*' writes them)"
        )
    collection = open_collection(
        f"beir:{options.data / 'collections' / COLLECTION}", Problems("skip")
    )
    titles = {document.id: document.title for document in collection.documents()}
    judged = collection.judgements("test")
    trained = {titles[d] for of in collection.judgements("train").values() for d in of}
    share = fmean(title in trained for title in titles.values())
    print(f"{share:.3f} of {len(titles):,} paragraphs are of {len(trained):,} articles trained on")
    print("| model | wrong first answers | of articles trained on |")
    print("| --- | ---: | ---: |")
    for name, files in models.items():
        counted = [wrong_answers(first_answers(file), judged, titles, trained) for file in files]
        wrong, known = (fmean(numbers) for numbers in zip(*counted, strict=True))
        print(f"| {name} | {wrong:.0f} | {known:.2f} |")


def first_answers(run: Path) -> dict[str, str]:
    """The best document of each query."""
    return {query: found.document_ids[0] for query, found in read_run(run).rankings.items()}


def wrong_answers(
    first: Mapping[str, str],
    judged: Judgements,
    titles: Mapping[str, str],
    trained: Set[str],
) -> tuple[int, float]:
    """How many first answers are wrong, and the share of them of articles trained on."""
    wrong = [query for query in judged if query in first and first[query] not in judged[query]]
    return len(wrong), fmean([titles[first[query]] in trained for query in wrong] or [0.0])


if __name__ == "__main__":
    main()
