"""The configuration of a run: schema, checks before launch, names, composition. No torch."""
