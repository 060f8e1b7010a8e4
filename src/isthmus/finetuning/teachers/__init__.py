"""Teachers: whoever says how well a document answers a query, for a student to learn it."""
