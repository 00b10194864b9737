"""The page in a real browser: it works, fetches nothing, and shows whatever models and configs say as text."""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from analysis import command
from analysis.report.interactive import script
from tests.analysis.ledger_factory import BASE, config, counts, curves, write_run, write_study, write_sweep

EVIL = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">'\"{{7*7}}"
BROWSER, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
browser_needed = pytest.mark.skipif(not (BROWSER and DRIVER), reason="apt-get install chromium chromium-driver")


def hostile(home: Path) -> Path:
    """Two arms whose names, prompts, responses and messages try to break out of the page. Returns the page."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    plan = []
    conversation = {"turns": json.dumps([["assistant", EVIL], [EVIL, "heard"]])}
    for loss, right, said in (
        ("grpo", (0, 8, 4), {"extras": json.dumps({EVIL: 7})}),
        ("pacs", (8, 8, 0), conversation),
    ):
        frozen = config(loss, task={"_target_": "rlvr.task.maze.Maze", "size": 7, "note": EVIL})
        run_id = write_run(
            home,
            frozen,
            {0: {"maze7": counts(4, 4, 4)}, 20: {"maze7": counts(4, 4, 4)}, 40: {"maze7": counts(*right)}},
            training=curves("grpo", 1.0),
            message=EVIL,
            study=f"x{EVIL}",
            cause="ok",
        )
        plan.append((run_id, f"{loss}-s0", [f"loss={loss}"]))
        for file in (home / "runs" / run_id / "samples").glob("*.parquet"):
            rows = pq.read_table(file).to_pylist()
            pq.write_table(
                pa.Table.from_pylist([{**row, "response": EVIL, "prompt": EVIL, **said} for row in rows]), file
            )
    write_sweep(home, "s", plan, study=f"x{EVIL}")
    assert command.main(["--home", str(home)]) == 0
    (page,) = home.glob("reports/*/index.html")
    return page


def test_data_in_a_page_cannot_end_its_script():
    text = script({"a": f"{EVIL}<!--\u2028"})
    assert not {"<", ">", "&", "\u2028"} & set(text)
    assert json.loads(text) == {"a": f"{EVIL}<!--\u2028"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        script({"a": float("nan")})


@pytest.fixture(scope="module")
def browser() -> Iterator:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for word in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,900"):
        options.add_argument(f"--{word}")
    options.binary_location = BROWSER
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def errors(browser) -> list[str]:
    return [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE"]


@browser_needed
@pytest.mark.smoke
@pytest.mark.real
@pytest.mark.slow
def test_whatever_models_and_configs_say_is_shown_as_text(browser, tmp_path):
    browser.get(hostile(tmp_path).as_uri())
    assert (errors(browser), browser.title) == ([], f"Study: x{EVIL}")
    assert browser.execute_script("return document.images.length") == browser.execute_script(
        "return [...document.images].filter((i) => i.src.startsWith('data:image/png')).length"
    )
    shown = browser.execute_script("return document.querySelector('#reader-0').textContent")
    assert shown.count(EVIL) >= 4  # the prompt, a response of both arms, and a role in one of them
    assert f"· {EVIL} 7" in shown
    right = "[...document.querySelectorAll('.sides > div:last-child .turn')].slice(0, 2)"
    turns = f"return {right}.map((t) => [t.className, t.textContent])"
    assert browser.execute_script(turns) == [["turn own", f"assistant{EVIL}"], ["turn", f"{EVIL}heard"]]
    flipped = browser.execute_script(
        "return [...document.querySelectorAll('.problems small')].map((s) => s.textContent)"
    )
    assert flipped == ["0/8 → 8/8", "4/8 → 0/8", "8/8 → 8/8"]
    answer = "return document.querySelector('#reader-0 .reader').textContent.match(/Right answer: (not stored)?/)[0]"
    assert browser.execute_script(answer) == "Right answer: not stored"
    field = "const f = document.querySelector('#reader-0 input');"
    for words, number in (("onerror img", 3), ("nothing has this", 0)):
        browser.execute_script(f"{field} f.value = '{words}'; f.dispatchEvent(new Event('input'))")
        assert browser.execute_script("return document.querySelectorAll('.problems button').length") == number


@browser_needed
@pytest.mark.real
@pytest.mark.slow
def test_runs_are_sorted_and_filtered_arms_toggled_and_nothing_is_wider_than_700_pixels(browser, tmp_path):
    write_study(tmp_path)
    write_run(tmp_path, config("grpo", seed=1), {0: BASE, 20: BASE, 40: BASE}, training=curves("grpo", 1.0))
    assert command.main(["--home", str(tmp_path)]) == 0
    (page,) = tmp_path.glob("reports/*/index.html")
    elsewhere = shutil.copy(page, tmp_path / "mailed.html")
    browser.get(Path(elsewhere).as_uri())
    run = browser.execute_script
    first = "return document.querySelector('#run-table tbody tr:not([hidden])').cells[0].textContent"
    header = "[...document.querySelectorAll('#run-table th')].find((h) => h.textContent.startsWith('avg@8'))"
    run(f"{header}.click()")
    assert run(first) == "grpo-s1"  # it ends where it began, with 8 of 64 right
    run(f"{header}.click()")
    assert run(first) != "grpo-s1"
    run("const f = document.querySelector('#run-filter'); f.value = 'hd finished'; f.dispatchEvent(new Event('input'))")
    assert run("return document.querySelector('#run-count').textContent") == "4 of 14"
    drawn = "return document.querySelectorAll('.panel canvas').length"
    for section, least in (("curves", 2), ("training", 3)):
        run(f"document.querySelector('#{section}').scrollIntoView()")
        browser.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => setTimeout(done, 300))")
        assert run(drawn) >= least
    # A tenth of 40 steps, and the middle one: nine points, as of a long run, would flatten a short one.
    assert run("return document.querySelector('#smooth-text').textContent") == "5 points"
    order = run("return [...document.querySelectorAll('section')].map((s) => s.id)")
    assert order[:4] == ["decided", "curves", "samples", "table-comparison"]
    pressed = "return document.querySelector('.legend').querySelectorAll('button[aria-pressed=true]').length"
    before = run(pressed)
    run("document.querySelector('.legend button').click()")
    assert run(pressed) == before - 1
    assert run("return document.querySelectorAll('#coordinates polyline').length") == 14
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 700, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    assert run("return document.documentElement.scrollWidth") <= 700
    widths = "return [...new Set([...document.querySelectorAll('.panel canvas')].map((c) => c.clientWidth))]"
    phone = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    beside = (
        "const t = document.querySelector('#table-comparison .scroll'); t.scrollLeft = 120; const b = t.querySelector"
    )
    left, right = run(f"{beside}('tbody th').getBoundingClientRect(); return [b.left - t.offsetLeft, b.right]")
    assert abs(left) < 1  # names of rows stay while numbers scroll,
    assert right < 200  # and leave them half of the window
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {**phone, "width": 700})
    run("dispatchEvent(new Event('beforeprint'))")
    assert run(widths) == [330]  # two side by side on A4: 210 mm less two margins of 10 mm are 718 pixels
    run("dispatchEvent(new Event('afterprint'))")
    assert min(run(widths)) > 600
    links = run("return [...document.querySelectorAll('a[download]')].map((a) => a.href.slice(0, 12))")
    assert len(links) > 6
    assert {link.partition(":")[0] for link in links} == {"data"}
    assert run("return performance.getEntriesByType('resource').filter((e) => !e.name.startsWith('data:')).length") == 0
    assert errors(browser) == []


def test_the_picture_of_the_readme_is_of_this_page() -> None:
    """`make picture` takes it anew."""
    root = Path(__file__).parents[3]
    for line in (root / "docs/report.png.sha256").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((root / "analysis/report" / name).read_bytes()).hexdigest() == digest, name
