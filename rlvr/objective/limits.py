"""Valid orders and subset sizes for a group of responses: checked before launch and by the advantages. No torch."""

FORMS_OF_EQUAL_GROUPS = ("plain", "sloo")  # of pass@k (PKPO): weights other than 0 where all rewards are equal


def orders(samples: int) -> range:
    """Orders T of the truncated likelihood (MaxRL) that a group of `samples` responses can estimate with a baseline."""
    return range(1, samples)


def subset_sizes(samples: int, form: str) -> range:
    """Valid k of pass@k (PKPO) for `samples` responses: `sloo` omits one of them, `sloo_minus_one` one per subset."""
    least = 2 if form == "sloo_minus_one" else 1
    most = samples - 1 if form == "sloo" else samples
    return range(least, most + 1)
