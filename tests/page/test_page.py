"""The page in a browser: every view in light, dark and at a phone's width, live, by keyboard, with a token, and with text that would like to be markup.

Screenshots of every view lie in build/page afterwards, to be looked at.
"""
import contextlib
import json
import re
import sqlite3
import time

import pytest

from harness import ROOT, Cluster, call
from zombie import Conversation

SHOTS = ROOT / "build/page"
HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
VIEWS = ("overview", "reward", "groups", "lengths", "policy", "mismatch", "versions", "timeline", "rollouts", "configuration")


def config(**more):
    return {"name": f"named {HOSTILE}", "rounds": 3, "seed": 1, "dataset": {"path": "prompts.jsonl", "shuffle": False}, "groups_per_round": 4, "samples_per_group": 4,
            "sampling": {"max_new_tokens": 8}, "verifier": {"terms": [{"kind": "numeric"}, {"kind": "length", "max": 7, "weight": 0.25}]}, "training": {"lr": 0.001, "chunk_tokens": 2048}, **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("data")
    (made / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"{HOSTILE}{i}+1=", "answer": str(i + 1)}) + "\n" for i in range(40)))
    return made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, folder):
    with Cluster(tmp_path_factory.mktemp("page"), trainer=["--random-init", 1, "--threads", 1], coordinator=["--data-dir", folder, "--heartbeat-ms", 100]) as made:
        made.add_server("gen-1", "--slots", 8)
        made.add_server("gen-2", "--slots", 8)
        yield made


@pytest.fixture(scope="module")
def run(cluster):
    """A run that has ended, with completions that would like to be markup."""
    made = cluster.run(config())["id"]
    cluster.coordinator.kill()
    with contextlib.closing(sqlite3.connect(cluster.database)) as database, database:
        database.execute("UPDATE rollouts SET text = ?", (HOSTILE.encode(),))
    cluster.coordinator.restart()
    cluster.wait_until("the workers are back", lambda: len(call("GET", cluster.coordinator.url + "/v1/workers")["workers"]) == 3)
    return made


@pytest.fixture(scope="module")
def talk(tmp_path_factory, folder):
    """A run of one round whose completions have two turns."""
    with Cluster(tmp_path_factory.mktemp("talk"), trainer=["--random-init", 1, "--threads", 1], coordinator=["--data-dir", folder, "--heartbeat-ms", 100]) as made:
        yield made, Conversation.play(made, made.create_run(config(rounds=1, groups_per_round=2, verify_samples=False)))["id"]  # what it samples is made up


def choose(page, option):
    """Of the view's first choice."""
    page.evaluate(f"(() => {{ const by = [...document.querySelectorAll('main select')][0]; by.value = '{option}'; by.dispatchEvent(new Event('change')); }})()")


def visit(page, cluster, address):
    page.open(f"{cluster.coordinator.url}/#/{address}")
    page.wait(f"document.querySelector('main h1') && document.querySelector('main').dataset.shows === {json.dumps('#/' + address)}")
    assert not page.evaluate("document.querySelector('main .note.bad') !== null"), page.text()


@pytest.mark.parametrize("look, width, dark", [("light", 1360, False), ("dark", 1360, True), ("phone", 390, False), ("phone-dark", 390, True)])
def test_every_view_opens_without_a_fault_and_fits_its_window(browser, cluster, run, look, width, dark):
    SHOTS.mkdir(parents=True, exist_ok=True)
    page = browser.page(width, 860, dark)
    places = {"runs": "", **{view: f"{run}/{view}" for view in VIEWS}, "group": f"{run}/group?id={run}.1.2", "compare": f"compare?runs={run}", "start": "start"}
    seen = set()
    for name, address in places.items():
        visit(page, cluster, address)
        heading = page.evaluate("document.querySelector('main h1').textContent")
        assert heading not in seen
        seen.add(heading)
        time.sleep(0.3)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} is wider than a window of {width}"
        page.screenshot(SHOTS / f"{name}-{look}.png")
    assert page.faults == []
    assert all(url.startswith((cluster.coordinator.url + "/", "about:")) for url in page.requests), "the page has asked somebody else"
    background = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (sum(map(int, background[4:-1].split(",")[:3])) < 200) == dark


def test_a_duration_has_no_sixtieth_second(browser, cluster):
    page = browser.page()
    page.open(f"{cluster.coordinator.url}/#/")
    durations = {0.4: "400 µs", 59940: "59.9 s", 59960: "1 min 0 s", 60000: "1 min 0 s", 119499: "1 min 59 s", 119700: "2 min 0 s", 3599400: "59 min 59 s", 3599600: "1 h 0 min", 7500000: "2 h 5 min"}
    assert page.evaluate(f"(async () => {{ const {{ duration }} = await import('/page/format.js'); return {json.dumps(list(durations))}.map(duration); }})()") == list(durations.values())


def test_text_of_models_and_datasets_is_never_markup(browser, cluster, run):
    page = browser.page()
    for address in ("", f"{run}/overview", f"{run}/rollouts", f"{run}/group?id={run}.0.1", f"{run}/configuration", f"compare?runs={run}"):
        visit(page, cluster, address)
        page.wait(f"document.body.innerText.includes({json.dumps(HOSTILE)})")
        assert page.evaluate("window.hacked === undefined && document.querySelectorAll('main img, main script').length === 0")
    for shown in ("logprob", "version", "mask"):
        visit(page, cluster, f"{run}/group?id={run}.0.1")
        choose(page, shown)
        page.click(".token")
        page.wait("[...document.querySelectorAll('main [role=status]')].some((node) => /log-probability -[0-9]/.test(node.textContent))")
    assert page.faults == []
    # What protects even where an element were made of text: the policy.
    with pytest.raises(RuntimeError, match="TrustedHTML"):
        page.evaluate(f"document.querySelector('main').innerHTML = {json.dumps(HOSTILE)}")
    assert page.evaluate("(() => { try { eval('1'); return 'ran'; } catch (error) { return error.name; } })()") == "EvalError"
    assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize("look, width, dark", [("light", 1360, False), ("dark", 1360, True), ("phone", 390, False)])
def test_turns_components_and_entropies_are_shown(browser, talk, look, width, dark):
    cluster, run = talk
    page = browser.page(width, 860, dark)
    visit(page, cluster, f"{run}/group?id={run}.0.0")
    turns = page.evaluate("[...document.querySelectorAll('.card')].map((card) => [...card.querySelectorAll('.turn > span:first-child')].map((label) => label.textContent))")
    assert turns == [["model, turn 1 of 2", "not trained on", "model, turn 2 of 2"]] * 4
    assert page.evaluate("[...document.querySelectorAll('.card')].every((card) => [...card.querySelectorAll('.terms dt')].map((term) => term.textContent).join() === 'numeric,length')")
    page.screenshot(SHOTS / f"talk-text-{look}.png")
    choose(page, "mask")
    assert page.evaluate("[...document.querySelectorAll('.strip')].every((strip) => strip.querySelectorAll('.token.masked').length === 2 && strip.querySelectorAll('.token.begins').length === 2)")
    choose(page, "entropy")
    said = "[...document.querySelectorAll('main [role=status]')].map((node) => node.textContent).join()"
    group = call("GET", f"{cluster.coordinator.url}/v1/groups/{run}.0.0")
    page.click(".token[data-at='1']")
    shown = re.search(r"entropy ([0-9.]+) nats", page.evaluate(said))
    assert "not trained on" not in page.evaluate(said) and float(shown[1]) == pytest.approx(group["samples"][0]["entropies"][1], rel=0.01)
    page.click(".token[data-at='3']")
    assert "not trained on" in page.evaluate(said) and "entropy" not in page.evaluate(said)
    fills = page.evaluate("[...document.querySelectorAll('.strip')].map((strip) => [...strip.querySelectorAll('.token')].map((token) => token.style.getPropertyValue('--token-fill').endsWith(' 0.45)')))")
    assert fills == [[at not in (3, 4) for at in range(len(sample["token_ids"]))] for sample in group["samples"]]  # random weights leave everything open
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(SHOTS / f"talk-entropy-{look}.png")
    visit(page, cluster, f"{run}/lengths")
    page.wait("[...document.querySelectorAll('canvas')].some((canvas) => /^Turns\\..*highest 2/.test(canvas.getAttribute('aria-label')))")
    page.screenshot(SHOTS / f"talk-lengths-{look}.png")
    visit(page, cluster, f"{run}/reward")
    page.wait("[...document.querySelectorAll('canvas')].some((canvas) => /^Components\\. numeric:.*length .weight 0.25.:/.test(canvas.getAttribute('aria-label')))")
    page.screenshot(SHOTS / f"talk-reward-{look}.png")
    assert page.faults == []


def test_rollouts_are_searched_over_all_rounds(browser, cluster, run):
    page = browser.page()
    visit(page, cluster, f"{run}/rollouts?text=7%2B1&purpose=training")
    page.wait("document.querySelectorAll('tbody tr').length === 4")
    assert "7+1=" in page.text() and "8+1=" not in page.text()
    visit(page, cluster, f"{run}/rollouts?text=nowhere")
    page.wait("document.body.innerText.includes('No rollout fits')")
    visit(page, cluster, f"{run}/rollouts?round_min=1&round_max=1")
    page.wait("document.querySelectorAll('tbody tr').length === 16")
    page.click("tbody tr td:nth-child(3)")
    page.wait("document.querySelector('main h1').textContent.startsWith('Group ')")
    assert page.faults == []


def test_a_run_is_started_by_the_form_watched_live_paused_resumed_and_stopped(browser, cluster, run):
    page = browser.page()
    visit(page, cluster, "start")
    page.click("form button.main")
    page.wait("document.querySelector('[role=alert]')")  # refused with the coordinator's sentence
    assert page.evaluate("document.querySelector('[role=alert]').textContent") == "dataset: expected this field, got none"
    page.evaluate("sessionStorage.setItem('leasehold-draft', " + json.dumps(json.dumps(config(name="by the form", rounds=4000))) + ")")
    visit(page, cluster, "")
    visit(page, cluster, "start")
    assert page.evaluate("document.getElementById('field-dataset-path').value") == "prompts.jsonl"
    page.click("form button.main")
    page.wait("/^#.r[0-9]+.overview$/.test(location.hash)")
    made = page.evaluate("location.hash.split('/')[1]")
    assert cluster.status(made)["config"]["name"] == "by the form"
    page.wait("Number(document.querySelector('[role=progressbar]').getAttribute('aria-valuenow')) >= 3")
    asked = sum(count for url, count in page.requests.items() if "/rounds" in url)
    at = int(page.evaluate("document.querySelector('[role=progressbar]').getAttribute('aria-valuenow')"))
    page.wait(f"Number(document.querySelector('[role=progressbar]').getAttribute('aria-valuenow')) >= {at + 5}")
    assert sum(count for url, count in page.requests.items() if "/rounds" in url) == asked, "new rounds come as events, and are not asked for"

    def press(label, state):
        page.evaluate(f"[...document.querySelectorAll('#bar button')].find((button) => button.textContent === '{label}').click()")
        page.wait(f"document.querySelector('#bar .chip').textContent.includes('{state}')")
        cluster.wait_until(f"the run is {state}", lambda: cluster.status(made)["state"] == state)

    press("Pause", "paused")
    press("Resume", "running")
    press("Stop", "stopped")
    assert page.dialogs and "for good" in page.dialogs[0]
    faults = [fault for fault in page.faults if "422" not in fault]  # the refusal above
    assert faults == []


def test_the_keyboard_reaches_everything(browser, cluster, run):
    page = browser.page()
    visit(page, cluster, f"{run}/overview")
    page.press("8")
    page.wait("document.querySelector('main h1').textContent === 'Timeline'")
    page.wait("document.querySelector('.timeline canvas').getAttribute('aria-label')")
    page.evaluate("document.querySelector('.timeline canvas').focus()")
    picture = "document.querySelector('.timeline canvas').toDataURL()"
    time.sleep(0.5)
    before = page.evaluate(picture)
    page.press("+")
    time.sleep(0.3)
    assert page.evaluate(picture) != before
    page.press("0")
    time.sleep(0.3)
    assert page.evaluate(picture) == before
    page.press("Tab", code="Tab", windowsVirtualKeyCode=9)
    assert page.evaluate("document.activeElement !== document.body && getComputedStyle(document.activeElement).outlineStyle !== 'none'")
    page.press("r")
    page.wait("document.querySelector('main h1').textContent === 'Runs'")
    assert page.faults == []


def test_readers_of_the_screen_are_told_what_there_is(browser, cluster, run):
    page = browser.page()
    for address in ("", *(f"{run}/{view}" for view in VIEWS), f"{run}/group?id={run}.1.2", "compare", "start"):
        visit(page, cluster, address)
        time.sleep(0.3)
        nodes = page.accessibility()
        roles = {role for role, _ in nodes}
        assert {"banner", "main", "heading"} <= roles, address
        nameless = [role for role, name in nodes if role in ("button", "link", "textbox", "searchbox", "combobox", "spinbutton", "checkbox", "image", "img", "progressbar") and not name]
        assert nameless == [], address
    visit(page, cluster, f"{run}/reward")
    page.wait("[...document.querySelectorAll('figure:not(.hidden) canvas')].every((canvas) => canvas.getAttribute('aria-label').includes('highest'))")
    page.click("details summary")
    page.wait("document.querySelectorAll('details[open] tbody tr').length === 3")


def test_colours_have_contrast(browser, cluster, run, talk):
    """Text against what lies behind it: at least 4.5 to 1, in light and dark."""
    contrast = """(() => {
      const channel = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
      const light = (rgb) => { const [r, g, b] = rgb.match(/[\\d.]+/g).map(Number); return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
      const behind = (node) => {
        const over = []; // what can be seen through, the nearest first
        for (; node; node = node.parentElement) {
          const own = getComputedStyle(node);
          if (own.backgroundImage !== 'none') return null;
          const [r, g, b, alpha = 1] = own.backgroundColor.match(/[\\d.]+/g).map(Number);
          over.push([r, g, b, alpha]);
          if (alpha === 1) return `rgb(${over.reduceRight((below, [red, green, blue, a]) => [red, green, blue].map((c, i) => a * c + (1 - a) * below[i]), [0, 0, 0]).join(', ')})`;
        }
        return null;
      };
      const low = [];
      for (const node of document.querySelectorAll('body *')) {
        if (![...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()) || !node.checkVisibility()) continue;
        const back = behind(node);
        if (!back || node.disabled) continue;
        const [a, b] = [light(getComputedStyle(node).color), light(back)];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) low.push(`${node.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
      }
      return low;
    })()"""
    for dark in (False, True):
        page = browser.page(dark=dark)
        for address in ("", f"{run}/overview", f"{run}/timeline", f"{run}/rollouts", f"{run}/group?id={run}.1.2", "start"):
            visit(page, cluster, address)
            time.sleep(0.3)
            assert page.evaluate(contrast) == [], (address, dark)
        visit(page, talk[0], f"{talk[1]}/group?id={talk[1]}.0.0")
        for shown in ("logprob", "entropy", "version", "mask"):
            choose(page, shown)
            assert page.evaluate(contrast) == [], (shown, dark)


def test_a_token_is_asked_for_and_kept_in_the_tab(browser, tmp_path):
    with Cluster(tmp_path, trainer=["--random-init", 1, "--auth-token", "secret"], coordinator=["--auth-token", "secret"]) as cluster:
        page = browser.page()

        def give(token):
            page.wait("document.getElementById('token')")
            page.evaluate(f"(() => {{ document.getElementById('token').value = '{token}'; document.querySelector('main form').requestSubmit(); }})()")

        page.open(cluster.coordinator.url + "/")
        give("wrong")
        time.sleep(0.5)
        give("secret")
        page.wait("document.querySelector('main h1').textContent === 'Runs'")
        page.wait("/warmup.json[^]*grpo.json/.test(document.querySelector('main pre').textContent)")  # no runs yet: in this order they work
        page.open(cluster.coordinator.url + "/#/start")
        page.wait("document.querySelector('main h1').textContent === 'Start a run'")
        assert page.evaluate("localStorage.getItem('leasehold-token')") is None
        assert all("401" in fault for fault in page.faults)
