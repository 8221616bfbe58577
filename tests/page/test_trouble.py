"""What the page says of a run that is not well, that waits in the queue, or that has nothing to show yet, and of a call that is refused."""
import shutil

import pytest

from harness import DATA, Cluster, call, grpo_config, warmup_config
from test_page import SHOTS, visit
from test_roles import TOKENS, Guarded, bearer


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Every dataset is checked after its run was taken: one that is refused fails the run."""
    data = tmp_path_factory.mktemp("data")
    for name in ("train", "warmup", "validation"):
        shutil.copy(DATA / f"{name}.jsonl", data)
    (data / "bad.jsonl").write_text("{}\n")
    with Cluster(tmp_path_factory.mktemp("trouble"), trainer=["--random-init", 1, "--threads", 1], coordinator=["--data-dir", data, "--check-ms", 0, "--reward-hosts", "127.0.0.1", "--heartbeat-ms", 100]) as made:
        made.add_server("gen", "--slots", 8)
        made.wait_until("both are registered", lambda: len(call("GET", made.coordinator.url + "/v1/workers")["workers"]) == 2)
        yield made


def small(rounds=1, **more):
    return {**grpo_config(rounds, groups=2, samples=4), "start": "model", **more}


def tiles(page):
    return page.evaluate("Object.fromEntries([...document.querySelectorAll('.tile')].map((tile) => [tile.querySelector('dt').textContent, [...tile.querySelectorAll('dd')].map((dd) => dd.textContent)]))")


def buttons(page):
    return page.evaluate("[...document.querySelectorAll('#bar .now button')].map((button) => button.textContent)")


def facts(page):
    return page.evaluate("Object.fromEntries([...document.querySelectorAll('.facts > div')].map((fact) => [fact.querySelector('dt').textContent, fact.querySelector('dd').textContent]))")


def press(page, label):
    page.evaluate(f"[...document.querySelectorAll('#bar button')].find((button) => button.textContent === '{label}').click()")


def stop(cluster, run):
    call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/stop")
    cluster.wait_until("it has stopped", lambda: cluster.status(run)["state"] == "stopped")


def test_a_dead_reward_server_is_told(browser, cluster):
    run = cluster.create_run(small(verifier={"kind": "http", "server": {"url": "http://127.0.0.1:1/get_reward", "breaker_ms": 100}}))
    page = browser.page()
    page.open(f"{cluster.coordinator.url}/#/{run}/overview")  # before it was asked: a run that stalls sends no events
    page.wait("[...document.querySelectorAll('main .note.warn')].some((note) => /[0-9]+ samples wait for the reward server http:..127.0.0.1:1.get_reward, whose last request failed: ./.test(note.textContent))", 30)
    assert page.faults == []
    stop(cluster, run)


def test_a_failed_run_is_not_called_paused(browser, cluster):
    run = cluster.create_run(small(dataset={"path": "bad.jsonl"}))
    cluster.wait(run, state="failed")
    page = browser.page()
    page.open(f"{cluster.coordinator.url}/#/{run}/overview")
    page.wait("document.querySelector('main .note.bad')")
    assert page.evaluate("document.querySelector('main .note.bad').textContent").startswith("The run failed: dataset.path: bad.jsonl line 1")


def test_nothing_is_called_equal_where_nothing_was_compared(browser, cluster):
    page = browser.page()
    for config, compared in ((warmup_config(2), False), (small(), True)):
        run = cluster.run(config)["id"]
        visit(page, cluster, f"{run}/overview")
        assert tiles(page)["Unequal log-probabilities"] == (["0", "trainer and samplers agree bit for bit"] if compared else ["–", "nothing was compared"])
        visit(page, cluster, f"{run}/mismatch")
        page.wait("document.querySelector('.tile')")
        assert [tiles(page)[name][0] for name in ("Unequal tokens", "Not finite", "Largest |d|")] == ["0" if compared else "–"] * 3
        assert page.evaluate("document.querySelectorAll('figure:not(.hidden)').length") == (3 if compared else 0)
    assert page.faults == []


def test_the_distance_from_the_reference_is_drawn_where_there_is_one(browser, cluster):
    page = browser.page()
    for coefficient in (0, 0.05):
        config = small(3)
        config["training"]["kl_coefficient"] = coefficient
        run = cluster.run(config)
        visit(page, cluster, f"{run['id']}/policy")
        page.wait("[...document.querySelectorAll('canvas')].some((canvas) => /^Entropy/.test(canvas.getAttribute('aria-label')))")
        titles = page.evaluate("[...document.querySelectorAll('figure:not(.hidden) h2')].map((title) => title.textContent)")
        assert ("Distance from the reference" in titles) == (coefficient > 0)
        assert "Distance from the reference" not in page.evaluate("document.querySelector('main').lastElementChild.textContent"), "it is missing, and belongs to other runs"
    page.click("figure:nth-of-type(4) details summary")
    page.wait("document.querySelectorAll('details[open] tbody tr').length === 3")
    shown = page.evaluate("[...document.querySelectorAll('details[open] tbody td.number')].map((cell) => cell.textContent)")
    assert [float(figure) for figure in shown] == pytest.approx([row["reference"]["kl"] for row in run["history"]][::-1], rel=0.01)
    assert page.faults == []


def test_a_queued_run_says_what_it_will_begin_with_and_offers_no_pause(browser, cluster):
    first = cluster.create_run(small(100000))
    cluster.wait_until("a few rounds are done", lambda: len(cluster.status(first)["history"]) > 2)
    call("POST", f"{cluster.coordinator.url}/v1/runs/{first}/pause")
    cluster.wait_until("it stands still", lambda: cluster.status(first)["state"] == "paused")
    page = browser.page()
    for start, shown in (("current", "what the trainer holds when the run begins"), ("model", "the model"), ({"run": first, "version": 0}, f"{first} v0")):
        run = cluster.create_run(small(start=start))
        cluster.wait_until("it waits in the queue", lambda: cluster.status(run)["state"] == "queued")
        visit(page, cluster, f"{run}/overview")
        assert facts(page)["Weights from"] == shown and buttons(page) == ["Stop"]
        stop(cluster, run)
    visit(page, cluster, "")
    rounds = f"[...document.querySelectorAll('tbody tr')].find((row) => row.textContent.includes('{first}')).querySelectorAll('td')[6].textContent"
    cluster.wait_until("what is shown as done is", lambda: page.evaluate(rounds) == f"{len(cluster.status(first)['history'])} / 100K")
    assert cluster.status(first)["round"] is not None
    visit(page, cluster, f"{first}/overview")
    assert buttons(page) == ["Resume", "Stop"]
    stop(cluster, first)
    assert page.faults == []


def test_a_refused_token_and_a_refused_action_are_called_so(browser, tmp_path):
    with Guarded(tmp_path) as cluster:
        run = call("POST", cluster.coordinator.url + "/v1/runs", small(), headers=bearer(TOKENS["admin"]))["id"]
        page = browser.page()

        def give(token):
            page.evaluate(f"(() => {{ document.getElementById('token').value = '{token}'; document.querySelector('main form').requestSubmit(); }})()")

        page.open(f"{cluster.coordinator.url}/#/{run}/overview")
        page.wait("document.getElementById('token')")
        assert "refused" not in page.text() and "--token-dir" in page.text()
        give("wrong")
        page.wait("document.querySelector('main .note.bad')?.textContent === 'The coordinator has refused this token.'")
        give(TOKENS["viewer"])
        page.wait("document.querySelector('main h1').textContent === 'Overview'")
        press(page, "Stop")
        page.wait(f"document.querySelector('#bar .note')?.textContent.startsWith('The coordinator refused to stop {run}: ')")
        assert "The connection to the coordinator" not in page.text()
        page.press("2")
        page.wait("document.querySelector('main h1').textContent === 'Reward' && !document.querySelector('#bar .note')")


def test_long_names_leave_the_bar_one_line_and_words_whole(browser, cluster):
    name = "three dependent steps modulo ten, again with a smaller learning rate and twice the samples"
    run = cluster.create_run(small(100000, name=name))
    cluster.wait_until("a few rounds are done", lambda: len(cluster.status(run)["history"]) > 2)
    page = browser.page(1280, 900)
    visit(page, cluster, f"{run}/overview")
    page.wait("document.querySelector('#bar').textContent.includes('to go')")
    assert buttons(page) == ["Pause", "Stop"]
    height = "document.querySelector('{}').getBoundingClientRect().height"
    assert page.evaluate(f"{height.format('#bar')} < 2 * {height.format('#bar button')}")
    page.screenshot(SHOTS / "bar.png", whole=False)
    assert page.evaluate("document.querySelector('#bar .name').title") == name
    phone = browser.page(390, 844)
    visit(phone, cluster, "")
    phone.screenshot(SHOTS / "bar-phone.png", whole=False)
    widths = phone.evaluate("[...document.querySelectorAll('td .wrap')].map((node) => node.getBoundingClientRect().width)")
    assert widths and min(widths) >= 80, "a column that is narrower than its words"
    assert phone.evaluate("document.querySelector('td .chip').getBoundingClientRect().right") <= 390, "the state is what one looks for"
    stop(cluster, run)
    assert page.faults == [] and phone.faults == []
