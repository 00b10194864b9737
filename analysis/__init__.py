"""Tables and figures rebuilt from the results of runs, in the ledger on disk or in MLflow (`rlvr.load`)."""
