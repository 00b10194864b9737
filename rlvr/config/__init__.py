"""What a run is told: schema, checks, names, composition. No torch."""
