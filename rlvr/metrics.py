"""Evaluation metrics on counts and answers. numpy only."""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

# Prefixes of the names of metrics on held-out problems: of the test split, and of the validation split.
EVALUATION, VALIDATION = "evaluation/", "validation/"

# Metrics of an evaluation's samples that say why it came out so, and are no result: shares, and a length in tokens.
OF_SAMPLES = ("error", "unparsable", "finished", "length")


def is_main_result(name: str) -> bool:
    """Whether a metric is the main result of an evaluation: avg@n of a benchmark, or a bandit's expected reward."""
    return "/avg_at_" in name or name.endswith("/expected_reward")


def accuracy(metrics: Mapping[str, float]) -> float | None:
    """The main result of an evaluation: the mean of avg@n over its benchmarks, or a bandit's expected reward.

    On the validation split, if it is measured, so that what is selected by it is reported on other problems. metrics:
    all metrics of a step, by name. None if there is no evaluation among them.
    """
    return _mean_of_benchmarks({name: value for name, value in metrics.items() if is_main_result(name)})


def standing(metrics: Mapping[str, float]) -> list[float] | None:
    """By what an evaluation is better than another: its accuracy, then, if rewards are graded, the mean reward.

    The first alone would not tell evaluations apart where no answer is called right. Parameters as of `accuracy`.
    """
    rewards = {name: value for name, value in metrics.items() if name.endswith("/mean_reward")}
    ranks = [accuracy(metrics), _mean_of_benchmarks(rewards)]
    return None if ranks[0] is None else [rank for rank in ranks if rank is not None]


def _mean_of_benchmarks(scores: Mapping[str, float]) -> float | None:
    validation = [value for name, value in scores.items() if name.startswith(VALIDATION)]
    values = validation or list(scores.values())
    return math.fsum(values) / len(values) if values else None


def shown_scores(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """What `status` shows of an evaluation: its accuracy, and the shares of responses without an answer that the
    verifier can read ("unparsable") and that ended by themselves ("finished"), as means over its benchmarks.

    metrics: all metrics of a step, by name. None without an evaluation among them, and for "finished" where responses
    have one token, whose end is no other.
    """
    means = {name: _mean_of_responses(metrics, name) for name in ("unparsable", "finished", "length")}
    length = means.pop("length")
    if length is not None and length <= 1:
        means["finished"] = None
    return {"accuracy": accuracy(metrics), **means}


def _mean_of_responses(metrics: Mapping[str, float], name: str) -> float | None:
    values = [value for key, value in metrics.items() if key.startswith(EVALUATION) and key.endswith(f"/{name}")]
    return math.fsum(values) / len(values) if values else None


def pass_at_k(n: ArrayLike, c: ArrayLike, k: int) -> Floats:
    """1 − C(n − c, k)/C(n, k): the chance that k of n samples, c of them correct, include a correct one.

    n, c: integer arrays that broadcast, one entry per problem; the result has their shape. Unbiased (Chen et al. 2021,
    arXiv:2107.03374), as the product Π_{i<k} (n − c − i)/(n − i), which neither overflows nor rounds a 1 away.
    Raises ValueError unless 1 ≤ k ≤ n and 0 ≤ c ≤ n.
    """
    n, c = np.broadcast_arrays(np.asarray(n, dtype=np.int64), np.asarray(c, dtype=np.int64))
    if k < 1 or (n < k).any():
        raise ValueError(f"pass@{k} needs 1 ≤ k ≤ samples, and there are {n.min()} samples of some problem. Lower k.")
    if ((c < 0) | (c > n)).any():
        raise ValueError("pass@k got a number of correct samples below 0 or above the number of samples.")
    fail = np.ones(n.shape)
    for i in range(k):
        fail *= np.maximum(n - c - i, 0) / (n - i)
    return 1 - fail


def maj_at_k(answers: Sequence[Hashable | None], correct: Sequence[bool], k: int) -> float:
    """Chance that the most frequent answer among the first k samples of a problem is right, ties broken at random.

    answers: [n] parsed answers, None if there is none: such samples have no vote, and if no sample has an answer the
    result is 0. correct: [n] verdicts; if verdicts on one answer differ, their mean counts. Raises ValueError unless
    1 ≤ k ≤ n, or if the lengths differ.
    """
    if not 1 <= k <= len(answers):
        raise ValueError(f"maj@{k} needs 1 ≤ k ≤ samples, and there are {len(answers)}. Lower k or sample more.")
    pairs = list(zip(answers, correct, strict=True))[:k]
    votes = Counter(answer for answer, _ in pairs if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    tied = [answer for answer, count in votes.items() if count == most]
    return float(np.mean([np.mean([right for vote, right in pairs if vote == answer]) for answer in tied]))


def distinct_at_k(answers: Sequence[Hashable | None], k: int) -> float:
    """Expected number of different right answers among k of the n samples of a problem, drawn without replacement.

    answers: [n] the right answer of each sample, None for a sample that is not right. An answer of m samples is among k
    of them with chance 1 − C(n − m, k)/C(n, k): the result is the sum of `pass_at_k` over the answers, and at k = n the
    number of different answers. Raises ValueError as `pass_at_k` does.
    """
    counts = Counter(answer for answer in answers if answer is not None)
    return float(pass_at_k(len(answers), np.array([*counts.values(), 0]), k).sum())  # 0: to check k without answers


def distinct_n(responses: Sequence[Sequence[Hashable]], n: int) -> float:
    """Different n-grams over all n-grams of a set of responses (sequences of words or token ids).

    Li et al. 2016, arXiv:1510.03055. NaN if no response has n elements. Falls with the size of the set: compare only
    sets of equal size.
    """
    grams = [tuple(response[i : i + n]) for response in responses for i in range(len(response) - n + 1)]
    return len(set(grams)) / len(grams) if grams else float("nan")


def embedding_diversity(embeddings: ArrayLike) -> float:
    """1 − mean cosine similarity over all pairs of a set of responses: Div of PACS (arXiv:2509.02522, Eq. 13).

    embeddings: [K, d], one row per response, with any norm but 0. Σ_{m<n} cos = (|Σ v|² − K)/2 with unit rows v.
    NaN for fewer than two responses, which have no pair.
    """
    rows = np.asarray(embeddings, dtype=np.float64)
    K = len(rows)
    if K < 2:
        return math.nan
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return float(1 - (np.sum(unit.sum(0) ** 2) - K) / (K * (K - 1)))


def approach_score(answers: Sequence[Hashable]) -> int:
    """LAD's scale of logical diversity (arXiv:2602.20132, Box C.0) as a rule, from 1 (minimal) to 5 (maximum).

    answers: a label for the approach of each response. If, of 16 responses, the most common approach has 14 or more,
    the score is 1; 11 to 13: 2; 7 to 10: 3; 4 to 6: 4; at most 3: 5. For other numbers of responses the shares are
    the same (14/16, ...). Raises ValueError without responses.
    """
    if not answers:
        raise ValueError("no response: there is no approach to count.")
    most_of_16 = 16 * max(Counter(answers).values()) / len(answers)
    return 1 + sum(most_of_16 < bound for bound in (4, 7, 11, 14))


def elo_rating(solved: ArrayLike, ratings: ArrayLike) -> float:
    """The rating r at which Σ 1/(1 + 10^((d − r)/400)), over problems of ratings d, equals Σ solved.

    The maximum-likelihood rating of the Elo model, on CodeForces' scale if `ratings` are. solved, ratings: [P]; solved
    is the share of samples that solve each problem. NaN if none or all are solved: the likelihood has no maximum then.
    """
    p, d = np.asarray(solved, dtype=np.float64), np.asarray(ratings, dtype=np.float64)
    total = float(p.sum())
    if not 0 < total < len(p):
        return math.nan
    low, high = float(d.min()) - 8000, float(d.max()) + 8000
    for _ in range(100):
        middle = (low + high) / 2
        expected = float(np.sum(1 / (1 + 10 ** ((d - middle) / 400))))
        low, high = (middle, high) if expected < total else (low, middle)
    return (low + high) / 2


def percentile(rating: float, contestants: ArrayLike) -> float:
    """Share of contestants with a lower rating. contestants: their ratings."""
    return float(np.mean(np.asarray(contestants, dtype=np.float64) < rating))


def coverage(c: ArrayLike) -> float:
    """Fraction of problems with a correct sample. c: [P] numbers of correct samples. NaN if P = 0."""
    return _mean(np.asarray(c) > 0)


def weight_rl(p: ArrayLike) -> Floats:
    """w(p) = 1: the weight of a problem of success rate p in reinforcement learning (MaxRL, arXiv:2602.02710).

    Here and below: population weights, so the expected gradient of a problem is w(p)·∇p. p: success rates in [0, 1].
    """
    return np.ones(_rates(p).shape)


def weight_grpo(p: ArrayLike) -> Floats:
    """w(p) = 1/√(p(1 − p)), in the limit of large groups; inf at p = 0 and 1."""
    p = _rates(p)
    with np.errstate(divide="ignore"):
        return np.asarray(1 / np.sqrt(p * (1 - p)))


def weight_maxrl(p: ArrayLike, order: int) -> Floats:
    """w(p) = (1 − (1 − p)^T)/p = Σ_{i<T} (1 − p)^i with T = order: 1 is `weight_rl`, ∞ `weight_ml`; T at p = 0.

    The estimator `rlvr.objective.advantage.maxrl` with G samples has T = G − 1.
    """
    if order < 1:
        raise ValueError(f"MaxRL has orders 1, 2, …, got {order}.")
    p = _rates(p)
    positive = np.where(p > 0, p, 1.0)
    with np.errstate(divide="ignore"):
        return np.where(p > 0, -np.expm1(order * np.log1p(-positive)) / positive, float(order))


def weight_pass(p: ArrayLike, k: int) -> Floats:
    """w(p) = k(1 − p)^(k−1), the weight for pass@k = 1 − (1 − p)^k, which PKPO maximises (arXiv:2505.15201)."""
    if k < 1:
        raise ValueError(f"pass@k has k = 1, 2, …, got {k}.")
    return np.asarray(k * (1 - _rates(p)) ** (k - 1))


def weight_ml(p: ArrayLike) -> Floats:
    """w(p) = 1/p: the weight for maximum likelihood, from the gradient of log p; inf at p = 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(1 / _rates(p))


def _rates(p: ArrayLike) -> Floats:
    p = np.asarray(p, dtype=np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError("success rates lie in [0, 1].")
    return p


def _mean(x: NDArray[np.bool_]) -> float:
    return float(x.mean()) if x.size else float("nan")
