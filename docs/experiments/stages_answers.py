"""How often a wrong first answer is a paragraph of an article that was trained on.

    python docs/experiments/stages_answers.py --data DATA --output runs/stages

DATA and OUTPUT as stages.py had them; openwiki's run files, of all of its models.
"""

from __future__ import annotations

import argparse
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
    collection = open_collection(
        f"beir:{options.data / 'collections' / COLLECTION}", Problems("skip")
    )
    titles = {document.id: document.title for document in collection.documents()}
    judged = collection.judgements("test")
    trained = {titles[d] for of in collection.judgements("train").values() for d in of}
    share = fmean(title in trained for title in titles.values())
    print(f"{share:.3f} of {len(titles):,} paragraphs are of {len(trained):,} articles trained on")
    print("| model | wrong first answers | of articles trained on | of the right article |")
    print("| --- | ---: | ---: | ---: |")
    models: dict[tuple[str, ...], list[Path]] = defaultdict(list)
    for file in sorted((options.output / "searched").glob(f"{COLLECTION}-*.trec")):
        _, model, kind, _seed, stage, way = file.stem.split("-")
        models[model, kind, stage, way].append(file)
    for words, files in models.items():
        counted = [wrong_answers(first_answers(file), judged, titles, trained) for file in files]
        wrong, known, near = (fmean(numbers) for numbers in zip(*counted, strict=True))
        print(f"| {' '.join(words)} | {wrong:.0f} | {known:.2f} | {near:.2f} |")


def first_answers(run: Path) -> dict[str, str]:
    """The best document of each query."""
    rankings = read_run(run, Problems("refuse")).rankings
    return {query: found.document_ids[0] for query, found in rankings.items()}


def wrong_answers(
    first: Mapping[str, str],
    judged: Judgements,
    titles: Mapping[str, str],
    trained: Set[str],
) -> tuple[int, float, float]:
    """How many first answers are wrong; the shares of articles trained on and of the right one."""
    wrong = [query for query in judged if query in first and first[query] not in judged[query]]
    known = [titles[first[query]] in trained for query in wrong]
    near = [titles[first[query]] in {titles[d] for d in judged[query]} for query in wrong]
    return len(wrong), fmean(known or [0.0]), fmean(near or [0.0])


if __name__ == "__main__":
    main()
