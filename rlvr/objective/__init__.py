"""The mathematics of a training step: functions from tensors to tensors."""
