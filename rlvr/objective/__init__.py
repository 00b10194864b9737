"""The mathematics of a step: tensors in, tensors out."""
