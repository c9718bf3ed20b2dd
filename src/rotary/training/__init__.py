"""Training: run config, one Trainer for all stages, exact resume, metrics, picture, report."""
