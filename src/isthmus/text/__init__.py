"""Texts as a model sees them: tokenizers, the tokenised corpus on disk, sentences, batches."""
