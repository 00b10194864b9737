import json
import math
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rlvr.diagnostics.judge import Judge, messages, score
from rlvr.metrics import approach_score

VERDICTS = {
    **{"4": 4, "Score: 3": 3, "**2**": 2, "4/5": 4, "5.0": 5, "1.": 1, "4 4 4": 4, "They differ:\n4\n": 4},
    **{"Answer: 2": 2, "Diversity: 4": 4},
}
NO_VERDICTS = ("", "none", "6", "0", "3.5", "12", "45", "On a scale from 1 to 5, I would rate this 4.")


def test_a_verdict_is_a_number_from_one_to_five_and_anything_else_is_none() -> None:
    for verdict, expected in VERDICTS.items():
        assert score(verdict) == expected, verdict
    for verdict in NO_VERDICTS:
        assert math.isnan(score(verdict)), verdict


def test_the_question_is_that_of_the_paper() -> None:
    system, user = messages("What is {count}?", ["first {problem}", "second"])
    assert system["content"].startswith("You are evaluating the DIVERSITY of solution approaches for a mathematics")
    assert "PROBLEM: What is {count}?" in user["content"]
    assert "2 SOLUTION ATTEMPTS:\n[Response 1]\nfirst {problem}\n\n[Response 2]\nsecond" in user["content"]
    assert user["content"].endswith("Return ONLY a number from 1 to 5.")


def test_its_scale_is_the_rules_at_any_number_of_responses() -> None:
    """Each number of responses with one approach lies in the range of one score, the one that the rule gives."""
    for count in range(2, 257):
        content = messages("p", ["r"] * count)[1]["content"]
        ranges = re.findall(r"Score (\d) - .*\n(?:• No.*\(≤|• )([\d-]+)(\+?) responses", content)
        assert len(ranges) == 5 or count < 4
        for most in range(1, count + 1):
            fits = [int(score) for score, *limits in ranges if lies_in(most, score, *limits, count)]
            assert fits == [approach_score(["x"] * most + list(range(count - most)))], (count, most)


def lies_in(most: int, score: str, limits: str, above: str, count: int) -> bool:
    """Whether `most` of `count` responses lie in a printed range: `4-6`, `14+`, or for score 5 from 1 on."""
    low, _, high = limits.partition("-")
    first, last = (1, int(low)) if score == "5" else (int(low), count if above else int(high or low))
    return first <= most <= last


def test_of_two_responses_no_score_is_described_twice() -> None:
    """Both alike are 16/16, score 1; one of each 8/16, score 3."""
    content = messages("p", ["r"] * 2)[1]["content"]
    assert re.findall(r"(?<=• )[\d+-]+ responses", content) == ["2+ responses", "1 responses"]
    assert "Score 2 - Low Diversity:\n• 1-2 alternative approaches" in content


def test_of_16_responses_it_is_the_papers() -> None:
    content = messages("p", ["r"] * 16)[1]["content"]
    for printed in ("14+ responses", "11-13 responses", "7-10 responses", "4-6 responses", "(≤3 responses"):
        assert printed in content


class Server(BaseHTTPRequestHandler):
    """A server with OpenAI's chat protocol that says 4, after `replies`, which a real one does not send on demand."""

    replies: ClassVar[list[tuple[int, bytes]]] = []
    requests: ClassVar[list[tuple[str, str | None, Any]]] = []  # path, authorization, body

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append((self.path, self.headers["Authorization"], body))
        code, reply = self.replies.pop(0) if self.replies else (200, said("4"))
        self.send_response(code)
        self.send_header("Content-Length", str(len(reply) if reply else 9))  # nothing: the reply is cut short
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, format: str, *args: object) -> None: ...


def said(content: str | None, reason: str = "stop") -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}, "finish_reason": reason}]}).encode()


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr("rlvr.diagnostics.judge.WAIT_S", 0.0)
    Server.replies, Server.requests = [], []
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_each_question_is_sent_once_its_verdict_kept(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    cache = tmp_path / "judgements.jsonl"
    first = Judge(url, "m", cache)
    assert (first.scores([("p", ["q"] * 4), ("r", ["q"] * 4)]), first.num_new) == ([4.0, 4.0], 2)
    assert {(path, key) for path, key, _ in Server.requests} == {("/v1/chat/completions", "Bearer secret")}
    asked = {body["messages"][1]["content"]: body for *_, body in Server.requests}
    for problem in "pr":
        question = messages(problem, ["q"] * 4)
        body = {"model": "m", "messages": question, "temperature": 0, "max_tokens": 1024}
        assert asked[question[1]["content"]] == body
    assert "secret" not in cache.read_text()
    cache.write_text(cache.read_text() + '{"torn')
    again = Judge(url, "m", cache)
    assert again.scores([("r", ["q"] * 4), ("s", ["q"] * 4), ("p", ["q"] * 4)]) == [4.0] * 3
    assert again.num_new == 1
    assert Judge("http://127.0.0.1:9/v1", "m", cache).scores([("s", ["q"] * 4)]) == [4.0]  # at another address
    assert len([line for line in cache.read_text().splitlines() if line.endswith("}")]) == 3


def test_a_server_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.diagnostics.judge.WAIT_S", 0.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(RuntimeError, match="does not answer"):
        Judge(f"http://127.0.0.1:{port}/v1", "m", tmp_path / "cache").scores([("p", ["q"])])


def test_a_reply_without_a_verdict_is_not_kept_and_a_failed_request_is_repeated(url: str, tmp_path: Path) -> None:
    """No content, reasoning cut before a verdict, nothing, a question that is too long, two bad replies, a verdict."""
    unusable = [(200, said(None)), (200, said("<think> They all", "length")), (200, said("")), (400, b"too long")]
    Server.replies = [*unusable, (200, b""), (200, b'{"choices": null}'), (200, said("3"))]
    judge = Judge(url, "m", tmp_path / "cache")
    actual = [judge.scores([("p", ["q"] * 4)])[0] for _ in range(5)]
    assert (actual, judge.scores([("p", ["q"] * 4)])) == (pytest.approx([math.nan] * 4 + [3], nan_ok=True), [3])
    assert judge.num_new == 1
