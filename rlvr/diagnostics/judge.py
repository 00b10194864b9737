"""A language model that judges how different the approaches of several responses are, on LAD's scale of 1 to 5.

It is reached through any server with OpenAI's chat protocol. Its verdicts are kept in a file, so that each question is
sent once: an interrupted measurement goes on where it was, and a repeated one costs nothing. The key of the API is read
from OPENAI_API_KEY and stored nowhere.
"""

import hashlib
import http.client
import json
import logging
import math
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlvr.ledger.files import read_json_lines

log = logging.getLogger("rlvr")

ATTEMPTS, WAIT_S = 4, 1.0  # attempts of a request, and seconds before the second; each further wait is twice as long
WORKERS = 8  # requests at the same time
BAD_QUESTION = (400, 413, 422)  # HTTP codes that concern one question only, for example one that is too long
FAILURES = (
    *(urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError),
    *(KeyError, IndexError, TypeError, ValueError),  # a reply that does not follow the protocol
)
MAX_TOKENS = 1024  # of a verdict and the reasoning before it; servers refuse more than fits into their context

SYSTEM = """\
You are evaluating the DIVERSITY of solution approaches for a mathematics competition problem. Focus on detecting even \
SUBTLE differences in methodology that indicate different problem-solving strategies."""
# LAD (arXiv:2602.20132), Box C.0.
USER = """\
PROBLEM: {problem}

{count} SOLUTION ATTEMPTS:
{responses}

EVALUATION CRITERIA - Rate diversity from 1 to 5:

Score 1 - Minimal Diversity:
• 14+ responses use essentially identical approaches
• Same mathematical setup, same variable choices, same solution path
• Only trivial differences (arithmetic, notation, wording)
• Indicates very low exploration/diversity in the generation process

Score 2 - Low Diversity:
• 11-13 responses use the same main approach
• 1-2 alternative approaches appear but are rare
• Minor variations within the dominant method (different substitutions, orderings)
• Some exploration but heavily biased toward one strategy

Score 3 - Moderate Diversity:
• 7-10 responses use the most common approach
• 2-3 distinct alternative approaches present
• Noticeable variation in problem setup or mathematical techniques
• Balanced mix showing reasonable exploration

Score 4 - High Diversity:
• 4-6 responses use the most common approach
• 3-4 distinct solution strategies well-represented
• Multiple mathematical techniques and problem framings
• Strong evidence of diverse exploration strategies

Score 5 - Maximum Diversity:
• No single approach dominates (≤3 responses use same method)
• 4+ distinctly different solution strategies
• Wide variety of mathematical techniques and creative approaches
• Excellent exploration and generation diversity

IMPORTANT: Focusing on the DIVERSITY of the attempted approaches. Return ONLY a number from 1 to 5."""

RESPONSES = 16  # number of responses for which the scale above is written


class Judge:
    """Sends questions to a model on a server, and keeps its verdicts."""

    def __init__(self, url: str, model: str, cache: Path) -> None:
        """url: up to and including `/v1`, such as http://127.0.0.1:8000/v1. cache: the file of verdicts, one JSON
        object per line.
        """
        if not re.match(r"https?://", url):
            raise ValueError(f"--judge {url} is no address. Type for example http://127.0.0.1:8000/v1.")
        self.url, self.model, self.cache = url.rstrip("/"), model, cache
        lines, damaged = read_json_lines(cache, "question")
        if damaged:
            log.warning("%s: %s; these questions are asked again", cache, ", ".join(damaged))
            with cache.open("a", encoding="utf-8") as file:
                file.write("\n")  # else the next line would be appended to an incomplete last one, and lost
        self._verdicts = {line["question"]: str(line["said"]) for line in lines}
        self._lock = threading.Lock()
        self.num_new = 0  # verdicts that were not in the cache

    def scores(self, sets: Sequence[tuple[str, Sequence[str]]]) -> list[float]:
        """The score, 1 to 5, of each (problem, responses); NaN if the verdict contains no score.

        Raises RuntimeError if the server cannot be reached or refuses; the verdicts until then are kept.
        """

        def score_of(problem_and_responses: tuple[str, Sequence[str]]) -> float:
            return score(self._verdict(messages(*problem_and_responses)))

        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(score_of, sets))

    def _verdict(self, content: list[dict[str, str]]) -> str:
        """The model's verdict, from the cache or the server; "" if there is none, which is not kept in the cache."""
        body = {"model": self.model, "messages": content, "temperature": 0, "max_tokens": MAX_TOKENS}
        question = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        with self._lock:
            if question in self._verdicts:
                return self._verdicts[question]
        verdict = self._request(body)
        if not verdict:
            return ""
        line = json.dumps({"question": question, "model": self.model, "said": verdict})
        with self._lock:
            self.num_new += 1
            self._verdicts[question] = verdict
            self.cache.parent.mkdir(parents=True, exist_ok=True)
            with self.cache.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        return verdict

    def _request(self, body: dict[str, Any]) -> str:
        """The server's verdict; "" if it refused this question, or if the reply was cut before the verdict."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(f"{self.url}/chat/completions", json.dumps(body).encode(), headers)
        for attempt in range(ATTEMPTS):
            try:
                with urllib.request.urlopen(request, timeout=600) as reply:
                    choice = json.load(reply)["choices"][0]
                    verdict = str(choice["message"]["content"] or "").strip()
                    cut = choice.get("finish_reason") == "length" and math.isnan(score(verdict))
                    return "" if cut else verdict
            except urllib.error.HTTPError as error:
                text = error.read().decode(errors="replace")[:300]
                if error.code in BAD_QUESTION:
                    log.warning("the judge refuses a question (%s): %s", error.code, text)
                    return ""
                if error.code < 500 and error.code != 429:
                    raise RuntimeError(f"the judge refuses ({error.code}): {text}") from error
                problem = f"{error.code}: {text}"
            except FAILURES as error:
                problem = f"{type(error).__name__}: {error}"
            time.sleep(WAIT_S * 2**attempt)
        raise RuntimeError(f"the judge at {self.url} does not answer ({problem}). The same command goes on from here.")


def scale(count: int) -> str:
    """The question with the scale for `count` responses: its limits are the paper's shares of 16 responses.

    A line with a range in which no number of responses lies (there are such ranges for 2 and 3) is left out.
    """
    least = [math.ceil(share * count / RESPONSES) for share in (4, 7, 11, 14)]
    limits = {"≤3": f"≤{least[0] - 1}", "14+": f"{least[-1]}+"}
    for of_paper, (low, above) in zip(("4-6", "7-10", "11-13"), pairwise(least), strict=True):
        limits[of_paper] = "-".join(map(str, sorted({low, above - 1}))) if low < above else ""
    # All at once: of 25 responses, 4-6 becomes 7-10, which is also a range of the paper.
    filled = re.sub(f"({'|'.join(map(re.escape, limits))}) responses", lambda m: f"{limits[m[1]]} responses", USER)
    return re.sub(r"•  responses .*\n", "", filled)


def messages(problem: str, responses: Sequence[str]) -> list[dict[str, str]]:
    """The question of LAD's Box C.0, as chat messages."""
    listed = "\n\n".join(f"[Response {i}]\n{text}" for i, text in enumerate(responses, start=1))
    filled = scale(len(responses)).replace("{count}", str(len(responses)))
    filled = filled.replace("{problem}", problem).replace("{responses}", listed)
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": filled}]


VERDICT = re.compile(
    r"\W*(?:score|rating|answer|diversity)?\W*(?<!-)([1-5])(?:\.0+)?(?:\s*/\s*5)?(?:\s+\1)*\W*", re.IGNORECASE
)


def score(verdict: str) -> float:
    """The number from 1 to 5 in the last line of a verdict; NaN if it has none. `4/5` and `Score: 4` are 4."""
    last_line = next((line for line in reversed(verdict.splitlines()) if line.strip()), "")
    match = VERDICT.fullmatch(last_line)
    return float(match[1]) if match else float("nan")
