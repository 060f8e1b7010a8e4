"""Exact sparse search against its peers: a plain compiled index and Lucene.

    python -m benchmarks.sparse_search [--documents 100000 1000000] [--queries 200]
        [--systems isthmus plain] [--vectors FOLDER] [--anserini JAR] [--output FILE.json]

All get the same vectors of whole numbers (floor(100 w)), so that all have one right answer. Every
system builds its index in a process of its own, from arrays on disk, and opens what it built in
another, fresh one. There it answers one query at a time, on one thread; the systems take turns of
ten queries, so that a busy machine slows all alike; the best of `--rounds` counts for a query.
Then it answers all queries at once, on one thread and on all.

**recall** counts the documents found whose score, computed here from the vectors, is among the k
highest: equal scores are equally right. **memory** is what the process holds after all queries,
less what it held before opening (Python, its libraries and the queries; what numba loads or
compiles with the first query comes on top, 60 MB or so); *anonymous* leaves out files that are
mapped, whose pages are given up when memory is short. **MB on disk** is the whole folder; **bytes
per posting** leaves out the ids of the documents, which only isthmus keeps. Building starts with
vectors in the format that the system reads: writing those is not counted.

The vectors go where temporary files go (TMPDIR); 4 million documents of 156 terms take 5 GB there,
and each index its own. All systems are open at the same time: `--systems` chooses those that fit
into memory together. A system that fails, or makes one wait longer than `--patience` seconds, is a
row that says so.

`--vectors` takes documents.npz and queries.npz, sparse matrices of scipy with whole numbers, of a
trained model say. `--anserini` is the jar inside the wheel of pyserini 0.25.0, for Java 17.
"""
