"""The page on loopback: built anew while runs go on, reached with its token alone."""

import threading
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from analysis import command, serve
from analysis.serve import PLACE, Built, Site, server
from tests.analysis.ledger_factory import write_study

HERE = "127.0.0.1:8800"


def built(*, live: bool, logs: dict[str, Path] | None = None) -> Built:
    return Built(b"<head></head>", logs or {}, live)


def no_act(action: str, name: str) -> str:
    raise AssertionError((action, name))


def test_only_the_page_and_its_logs_are_served_and_only_with_the_token(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_bytes(b"x" * serve.LOG_BYTES + b"the end")
    (tmp_path / "secret").write_text("s")
    site = Site(lambda: built(live=False, logs={"runs/a/out.log": log}), no_act)
    assert site.answer(f"/{site.token}/{PLACE}", HERE) == (200, "text/html", b"<head></head>")
    status, _, body = site.answer(f"/{site.token}/runs/a/out.log", HERE)
    assert (status, len(body), body[-7:]) == (200, serve.LOG_BYTES, b"the end")
    for path in (f"/{site.token}/secret", f"/{site.token}/runs/a/../../secret", f"/{site.token}/", f"/{site.token}"):
        assert site.answer(path, HERE)[0] == 404, path
    for path in ("/", f"/{PLACE}", f"/{site.token[:-1]}/{PLACE}", f"/é/{PLACE}"):
        assert site.answer(path, HERE)[0] == 403, path
    assert site.answer(f"/{site.token}/{PLACE}", "evil.example:8800")[0] == 403  # a name that leads to loopback


def test_a_button_is_heeded_with_the_token_from_our_own_page_on_what_is_shown_there() -> None:
    pressed = list[tuple[str, str]]()

    def act(action: str, name: str) -> str:
        pressed.append((action, name))
        return "<done>"

    page = b"<head form-action 'none'></head><body></body>"
    site = Site(lambda: Built(page, {}, False, {"3f2a": "all of <b>"}), act)
    here, form = f"http://{HERE}", "do=cancel&name=3f2a"
    for path, host, origin, typed, status in (
        (f"/{site.token}/act", HERE, here, form, 303),
        (f"/{site.token[:-1]}/act", HERE, here, form, 403),
        (f"/{site.token}/{PLACE}", HERE, here, form, 403),
        (f"/{site.token}/act", HERE, "", form, 403),
        (f"/{site.token}/act", HERE, "null", form, 403),
        (f"/{site.token}/act", HERE, "http://127.0.0.1:8801", form, 403),
        (f"/{site.token}/act", "evil.example:8800", "http://evil.example:8800", form, 403),
        (f"/{site.token}/act", HERE, here, "do=gc&name=3f2a", 400),
        (f"/{site.token}/act", HERE, here, "do=cancel&name=other", 400),
        (f"/{site.token}/act", HERE, here, "", 400),
    ):
        assert site.act(path, host, origin, typed) == status, (path, host, origin, typed)
    assert pressed == [("cancel", "3f2a")]
    shown = site.answer(f"/{site.token}/{PLACE}", HERE)[2].decode()
    assert f'<form method="post" action="/{site.token}/act"' in shown
    assert "form-action 'self'" in shown
    assert "all of &lt;b&gt;" in shown
    assert "&lt;done&gt;" in shown


def test_the_page_reloads_itself_and_is_built_anew_until_all_runs_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(serve.time, "monotonic", lambda: now[0])
    states = iter([True, True, False])
    site = Site(lambda: built(live=next(states)), no_act)
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


def test_what_cannot_be_built_anew_leaves_the_page_as_it_was_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(serve.time, "monotonic", lambda: now[0])
    page = Built(b"<head></head><body></body>", {}, True, {"3f2a": "all"})
    builds = iter([page, LookupError("<code> was not the same"), page])

    def build() -> Built:
        result = next(builds)
        if isinstance(result, LookupError):
            raise result
        return result

    site = Site(build, no_act)
    address = f"/{site.token}/{PLACE}"
    shown = [site.answer(address, HERE)[2].decode()]
    for now[0] in (21, 22, 42):
        shown.append(site.answer(address, HERE)[2].decode())
    assert ["As of before: &lt;code&gt; was not the same" in text for text in shown] == [False, True, True, False]
    assert all("refresh" in text and "all</option>" in text for text in shown)


@pytest.mark.parametrize("typed", [["--json"], ["--claims"], ["--studies"]])
def test_options_without_effect_are_refused(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--serve", "0", *typed]) == 2
    assert f"--serve 0: {typed[0]} has no effect with it" in capsys.readouterr().err


@pytest.mark.real
@pytest.mark.slow
def test_a_browser_gets_the_report(tmp_path: Path) -> None:
    write_study(tmp_path)
    options = command.read_options(["--serve", "0", "--home", str(tmp_path), "--no-figures"])
    site = Site(lambda: command._built(options), serve.actions(tmp_path))
    with server(site, 0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        with urlopen(f"http://127.0.0.1:{running.server_port}/{site.token}/{PLACE}") as answer:
            assert "same-origin" in answer.headers["Referrer-Policy"]
            page = answer.read().decode()
        assert "<h2>Curves</h2>" in page
        here, (sweep,) = f"http://127.0.0.1:{running.server_port}", (tmp_path / "runs" / "sweeps").iterdir()
        form = f"do=cancel&name={sweep.name}".encode()
        with urlopen(Request(f"{here}/{site.token}/act", form, {"Origin": here})) as answer:
            assert f"Nothing of sweep {sweep.name} is running" in answer.read().decode()
        with pytest.raises(HTTPError, match="403"):
            urlopen(Request(f"{here}/{site.token}/act", form, {"Origin": "http://127.0.0.1"}))
        with pytest.raises(HTTPError, match="403"):
            urlopen(f"http://127.0.0.1:{running.server_port}/{PLACE}")
        running.shutdown()
