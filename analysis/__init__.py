"""Tables and figures rebuilt from what runs left behind: the ledger on disk, or MLflow."""
