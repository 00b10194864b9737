"""The judge of diversity against a real server of a real model, which always says 4."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from rlvr.diagnostics.judge import Judge, messages, score
from rlvr.metrics import approach_score

CHAT = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


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


def make_model(path: Path) -> Path:
    """A model that writes 4 after any input: its output does not depend on what it reads."""
    words = [*"12345", "PAD", "END", *{w for m in messages("p", ["q"]) for w in m["content"].split()}]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(words))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="PAD"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="END", pad_token="PAD", unk_token="PAD")
    tokenizer.chat_template = CHAT
    size = GPT2Config(vocab_size=len(vocabulary), n_positions=2048, n_embd=8, n_layer=1, n_head=1)
    size.eos_token_id = size.bos_token_id = size.pad_token_id = vocabulary["END"]
    model = GPT2LMHeadModel(size)
    with torch.no_grad():
        model.transformer.ln_f.weight.zero_()
        model.transformer.ln_f.bias.copy_(torch.eye(8)[0])
        model.transformer.wte.weight[:, 0] = 0
        model.transformer.wte.weight[vocabulary["4"], 0] = 9
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = vocabulary["END"]
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(address, name of the model)."""
    model = make_model(tmp_path_factory.mktemp("model"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = Path(sys.executable).with_name("transformers")
    command = [program, "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    log = (model / "log").open("w")
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        while True:
            assert process.poll() is None, (model / "log").read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1", str(model)
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.real
def test_each_question_is_sent_once_and_its_verdict_kept(server: tuple[str, str], tmp_path: Path) -> None:
    url, model = server
    cache = tmp_path / "judgements.jsonl"
    first = Judge(url, model, cache)
    assert first.scores([("p", ["q"] * 4), ("r", ["q"] * 4)]) == [4.0, 4.0]
    assert first.num_new == 2
    line = json.loads(cache.read_text().splitlines()[0])
    assert line["said"].split()[0] == "4"
    cache.write_text(cache.read_text() + '{"torn')
    again = Judge(url, model, cache)
    assert again.scores([("r", ["q"] * 4), ("s", ["q"] * 4), ("p", ["q"] * 4)]) == [4.0] * 3
    assert again.num_new == 1
    assert Judge(url, model, cache).scores([("s", ["q"] * 4)]) == [4.0]
    assert len([line for line in cache.read_text().splitlines() if line.endswith("}")]) == 3


def test_a_server_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlvr.diagnostics.judge.WAIT_S", 0.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(RuntimeError, match="does not answer"):
        Judge(f"http://127.0.0.1:{port}/v1", "m", tmp_path / "cache").scores([("p", ["q"])])


class Misbehaving(BaseHTTPRequestHandler):
    """A fake server, for replies that a real one does not send on demand."""

    replies: ClassVar[list[tuple[int, bytes]]] = []

    def do_POST(self) -> None:
        code, body = self.replies.pop(0)
        self.send_response(code)
        self.send_header("Content-Length", str(len(body) if body else 9))  # nothing: the reply is cut short
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


def test_a_reply_without_a_verdict_is_not_kept_and_a_failed_request_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No content, reasoning cut before a verdict, nothing, a question that is too long, two bad replies, a verdict."""
    monkeypatch.setattr("rlvr.diagnostics.judge.WAIT_S", 0.0)

    def reply(content: str | None, reason: str = "stop") -> bytes:
        return json.dumps({"choices": [{"message": {"content": content}, "finish_reason": reason}]}).encode()

    Misbehaving.replies = [
        (200, reply(None)),
        (200, reply("<think> They all", "length")),
        (200, reply("")),
        (400, b"too long"),
        (200, b""),
        (200, b'{"choices": null}'),
        (200, reply("3")),
    ]
    server = HTTPServer(("127.0.0.1", 0), Misbehaving)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        judge = Judge(f"http://127.0.0.1:{server.server_port}/v1", "m", tmp_path / "cache")
        actual = [judge.scores([("p", ["q"] * 4)])[0] for _ in range(5)]
        assert actual == pytest.approx([math.nan] * 4 + [3], nan_ok=True)
        assert judge.scores([("p", ["q"] * 4)]) == [3]
        assert judge.num_new == 1
        at_another_address = Judge("http://127.0.0.1:9/v1", "m", tmp_path / "cache")
        assert at_another_address.scores([("p", ["q"] * 4)]) == [3]
    finally:
        server.shutdown()
        server.server_close()
