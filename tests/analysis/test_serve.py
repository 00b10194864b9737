"""The page on loopback: built anew while runs go on, reached with its token alone."""

import threading
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from analysis import command, serve
from analysis.serve import PLACE, Built, Site, server
from tests.analysis.ledger_factory import write_study

HERE = "127.0.0.1:8800"


def built(*, live: bool, logs: dict[str, Path] | None = None) -> Built:
    return Built(b"<head></head>", logs or {}, live)


def test_only_the_page_and_its_logs_are_served_and_only_with_the_token(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_bytes(b"x" * serve.LOG_BYTES + b"the end")
    (tmp_path / "secret").write_text("s")
    site = Site(lambda: built(live=False, logs={"runs/a/out.log": log}))
    assert site.answer(f"/{site.token}/{PLACE}", HERE) == (200, "text/html", b"<head></head>")
    status, _, body = site.answer(f"/{site.token}/runs/a/out.log", HERE)
    assert (status, len(body), body[-7:]) == (200, serve.LOG_BYTES, b"the end")
    for path in (f"/{site.token}/secret", f"/{site.token}/runs/a/../../secret", f"/{site.token}/", f"/{site.token}"):
        assert site.answer(path, HERE)[0] == 404, path
    for path in ("/", f"/{PLACE}", f"/{site.token[:-1]}/{PLACE}", f"/é/{PLACE}"):
        assert site.answer(path, HERE)[0] == 403, path
    assert site.answer(f"/{site.token}/{PLACE}", "evil.example:8800")[0] == 403  # a name that leads to loopback


def test_the_page_reloads_itself_and_is_built_anew_until_all_runs_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(serve.time, "monotonic", lambda: now[0])
    states = iter([True, True, False])
    site = Site(lambda: built(live=next(states)))
    address = f"/{site.token}/{PLACE}"
    assert b'http-equiv="refresh" content="20"' in site.answer(address, HERE)[2]
    now[0] = 15
    assert b'content="5"' in site.answer(address, HERE)[2]
    now[0] = 21
    assert b'content="20"' in site.answer(address, HERE)[2]  # built a second time
    now[0] = 42
    for _ in range(2):  # a third time, after which there is nothing left to build
        assert site.answer(address, HERE)[2] == b"<head></head>"
        now[0] += 100


@pytest.mark.parametrize("typed", [["--json"], ["--claims"], ["--studies"]])
def test_options_without_effect_are_refused(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--serve", "0", *typed]) == 2
    assert f"--serve 0: {typed[0]} has no effect with it" in capsys.readouterr().err


@pytest.mark.real
@pytest.mark.slow
def test_a_browser_gets_the_report(tmp_path: Path) -> None:
    write_study(tmp_path)
    options = command.read_options(["--serve", "0", "--home", str(tmp_path), "--no-figures"])
    site = Site(lambda: command._built(options))
    with server(site, 0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        with urlopen(f"http://127.0.0.1:{running.server_port}/{site.token}/{PLACE}") as answer:
            assert "no-referrer" in answer.headers["Referrer-Policy"]
            assert "<h2>Curves</h2>" in answer.read().decode()
        with pytest.raises(HTTPError, match="403"):
            urlopen(f"http://127.0.0.1:{running.server_port}/{PLACE}")
        running.shutdown()
