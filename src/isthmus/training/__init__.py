"""All training of the project: one task interface, one thin subclass of transformers.Trainer."""
