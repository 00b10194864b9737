"""Tidy frames of a study, from the ledger or from MLflow."""
