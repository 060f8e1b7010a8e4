"""Negatives: candidates from any source, margins, draws by epoch, and an audit of the result."""
