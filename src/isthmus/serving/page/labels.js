// What retrievers and grades are called.

const KINDS = { bm25: "BM25", dense: "Dense", sparse: "Sparse", hybrid: "Hybrid", reranked: "Re-ranked" };

/** A retriever's name as the page shows it: that of its kind, or its own where it has another. */
export function label(retriever) {
  return retriever.name === retriever.kind ? (KINDS[retriever.kind] ?? retriever.name) : retriever.name;
}

export const GRADES = ["not relevant", "related", "relevant", "perfect"];
