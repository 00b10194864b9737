"""A language model that judges how different the approaches of several responses are, on LAD's scale of 1 to 5.

Any server that speaks OpenAI's protocol for chats. What it has said is kept: a question is asked once, an interrupted
measurement goes on where it was, and one that is repeated costs nothing. The key stands in OPENAI_API_KEY alone.
"""

from __future__ import annotations

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

ATTEMPTS, WAIT_S = 4, 1.0  # of a request that fails, and seconds before the second one; then twice as long each time
WORKERS = 8  # questions asked at once
OF_ONE_QUESTION = (400, 413, 422)  # codes of HTTP: it is too long, for example
FAILURES = (
    *(urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError),
    *(KeyError, IndexError, TypeError, ValueError),  # of what is no such reply
)
LONGEST = 1024  # tokens of a verdict, with the thoughts before it; servers refuse more than their context has left

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

RESPONSES = 16  # that the scale speaks of


class Judge:
    """Asks a model at a server. cache: a file of one JSON object a line, to which every verdict is added."""

    def __init__(self, url: str, model: str, cache: Path) -> None:
        """url: up to and with `/v1`, such as http://127.0.0.1:8000/v1."""
        if not re.match(r"https?://", url):
            raise ValueError(f"--judge {url} is no address. Type for example http://127.0.0.1:8000/v1.")
        self.url, self.model, self.cache = url.rstrip("/"), model, cache
        lines, damaged = read_json_lines(cache, "question")
        if damaged:
            log.warning("%s: %s; these questions are asked again", cache, ", ".join(damaged))
            with cache.open("a", encoding="utf-8") as file:
                file.write("\n")  # a torn last line must not take the next one with it
        self._said = {line["question"]: str(line["said"]) for line in lines}
        self._lock = threading.Lock()
        self.asked = 0  # questions that the cache could not answer

    def scores(self, sets: Sequence[tuple[str, Sequence[str]]]) -> list[float]:
        """1 to 5 of each (problem, responses), NaN where the model said something else. Raises RuntimeError if the
        server does not answer; what it said until then is kept."""
        with ThreadPoolExecutor(WORKERS) as pool:
            return list(pool.map(lambda each: score(self._answer(messages(*each))), sets))

    def _answer(self, content: list[dict[str, str]]) -> str:
        """What it says; "" where it says nothing, which is asked again another time."""
        body = {"model": self.model, "messages": content, "temperature": 0, "max_tokens": LONGEST}
        question = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        with self._lock:
            if question in self._said:
                return self._said[question]
        said = self._request(body)
        if not said:
            return ""
        line = json.dumps({"question": question, "model": self.model, "said": said})
        with self._lock:
            self.asked += 1
            self._said[question] = said
            self.cache.parent.mkdir(parents=True, exist_ok=True)
            with self.cache.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        return said

    def _request(self, body: dict[str, Any]) -> str:
        """What it says; "" where it refused this question, or was cut amid its thoughts."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(f"{self.url}/chat/completions", json.dumps(body).encode(), headers)
        for attempt in range(ATTEMPTS):
            try:
                with urllib.request.urlopen(request, timeout=600) as reply:
                    choice = json.load(reply)["choices"][0]
                    said = str(choice["message"]["content"] or "").strip()
                    cut = choice.get("finish_reason") == "length" and math.isnan(score(said))
                    return "" if cut else said
            except urllib.error.HTTPError as error:
                said = error.read().decode(errors="replace")[:300]
                if error.code in OF_ONE_QUESTION:
                    log.warning("the judge refuses a question (%s): %s", error.code, said)
                    return ""
                if error.code < 500 and error.code != 429:
                    raise RuntimeError(f"the judge refuses ({error.code}): {said}") from error
                trouble = f"{error.code}: {said}"
            except FAILURES as error:
                trouble = f"{type(error).__name__}: {error}"
            time.sleep(WAIT_S * 2**attempt)
        raise RuntimeError(f"the judge at {self.url} does not answer ({trouble}). The same command goes on from here.")


def scale(count: int) -> str:
    """The question with the scale for so many responses: of the most common approach the paper's shares of 16."""
    least = [math.ceil(share * count / RESPONSES) for share in (4, 7, 11, 14)]
    ranges = [f"{low}-{above - 1}" if above - 1 > low else str(low) for low, above in pairwise(least)]
    filled = USER.replace("14+ responses", f"{least[-1]}+ responses")
    filled = filled.replace("≤3 responses", f"≤{least[0] - 1} responses")
    for printed, own in zip(("4-6", "7-10", "11-13"), ranges, strict=True):
        filled = filled.replace(f"• {printed} responses", f"• {own} responses")
    return filled


def messages(problem: str, responses: Sequence[str]) -> list[dict[str, str]]:
    """The question of Box C.0."""
    listed = "\n\n".join(f"[Response {i}]\n{text}" for i, text in enumerate(responses, start=1))
    filled = scale(len(responses)).replace("{count}", str(len(responses)))
    filled = filled.replace("{problem}", problem).replace("{responses}", listed)
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": filled}]


VERDICT = re.compile(
    r"\W*(?:score|rating|answer|diversity)?\W*(?<!-)([1-5])(?:\.0+)?(?:\s*/\s*5)?(?:\s+\1)*\W*", re.IGNORECASE
)


def score(said: str) -> float:
    """The number from 1 to 5 that the last line of a verdict is; NaN of anything else. `4/5` and `Score: 4` are 4."""
    found = VERDICT.fullmatch(next((line for line in reversed(said.splitlines()) if line.strip()), ""))
    return float(found[1]) if found else float("nan")
