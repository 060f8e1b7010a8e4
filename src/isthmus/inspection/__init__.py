"""Looking inside: data, machines and models, before hours are spent."""
