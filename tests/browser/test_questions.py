"""Each question of operators is asked in a real browser, of real workers, and answered within two clicks."""

from __future__ import annotations

import re
import signal
import threading
import time
from typing import Any

import pytest

from taskbridge.process.runtime import runtime_of
from tests.browser.board import MODULE, NARROW, Board
from tests.deployment import Deployment
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

MARKUP = "<img src=x onerror=alert(1)>"
ARABIC = "متجر الكتب العربية"
LONG = "a-very-long-name-" * 11 + "of-a-shop"


def wait_for_failures(deployment: Deployment, count: int) -> None:
    wait_until(lambda: deployment.rows("SELECT count(*) FROM taskbridge.quarantine")[0][0] >= count, "quarantine", 40)


def everything(board: Board) -> None:
    """Bring tenants into all states; a worker must run."""
    board.save("orders", "Bäckerei Müller", *(f"B-{number}" for number in range(1, 4)), total="74.25")
    board.save("orders", MARKUP, "M-1", do="reject")
    board.save("orders", ARABIC, "A-1", total="12.00")
    board.save("orders", LONG, "L-1", total="1.00")
    board.save("orders", "Nordwind", "N-1", "N-2", do="fail")
    board.save("orders", "Südwind", "S-1", do="fail")
    runtime_of(board.deployment.app).pauses.pause("orders", "Zeisig", "the price list is wrong", "ada")
    board.save("orders", "Zeisig", "Z-1", total="3.00")
    board.save("calls", "first caller", "C-1", "C-2")
    board.save("narrow", "one", "1", seconds=6)
    board.save("narrow", "two", "2", seconds=1)
    wait_for_failures(board.deployment, 2)


def click(board: Board, *names: str) -> None:
    """Click on links by their texts, at most two, from the first page."""
    board.open()
    assert len(names) <= 2
    for name in names:
        board.page.get_by_role("link", name=name, exact=True).first.click()


def search(board: Board, text: str) -> None:
    board.open()
    board.page.get_by_role("searchbox").fill(text)
    board.page.get_by_role("button", name="Search").click()


def test_each_question_is_answered(board: Board) -> None:
    with board.deployment.worker("-c", "4", TASKBRIDGE_PIPELINES=MODULE):
        everything(board)

        # Is it healthy now?
        board.open()
        board.wait_for("[0-9]+ records? [a-z ]*in quarantine|quarantine")
        assert "yellow" in board.page.locator("#status").inner_text()
        board.page.wait_for_selector("body[data-live=yes]")
        board.picture("how-to/dashboard/now.png")
        dark = board.new_page(color_scheme="dark")
        dark.goto(board.url)
        board.picture("how-to/dashboard/now-dark.png", dark)

        # Where did record X go?
        search(board, "B-2")
        board.picture("how-to/dashboard/search.png")
        board.page.get_by_role("link", name="B-2").first.click()
        story = board.page.locator("ol.story").inner_text()
        for what in ("recorded", "read", "handled"):
            assert what in story, story
        assert re.search(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\.\d\d\d UTC", story)
        assert "74.25" in board.page.locator("pre.document").inner_text()
        board.picture("how-to/dashboard/record.png")

        # Why is this tenant not running?
        for pipeline, tenant, why in (
            ("orders", "Zeisig", r"paused by ada.*the price list is wrong|paused"),
            ("calls", "first caller", "rate limit"),
            ("orders", "Nordwind", "back-off"),
            ("orders", "Bäckerei Müller", "nothing to do"),
            ("narrow", "two", "wait queue|nothing to do|running"),
        ):
            search(board, tenant)
            board.page.get_by_role("link", name=tenant).first.click()
            assert f"of {pipeline}" in board.text()
            board.wait_for(why)
        search(board, "Zeisig")
        board.page.get_by_role("link", name="Zeisig").first.click()
        assert "by ada" in board.text()
        assert "the price list is wrong" in board.text()
        board.picture("how-to/dashboard/tenant.png")

        # What fails, since when?
        click(board, "Failing")
        assert "the price has no currency" in board.text()
        assert "the total is <b>negative</b>" in board.text()
        board.picture("how-to/dashboard/failing.png")
        click(board, "Failing", "Südwind")
        assert "S-1" in board.text()

        # Who is noisy?
        click(board, "Tenants", "orders")
        board.picture("how-to/dashboard/tenants.png")
        board.page.get_by_role("button", name="Show the noisiest").click()
        assert "Bäckerei Müller" in board.text()
        board.picture("how-to/dashboard/noisy.png")

        wait_until(lambda: board.deployment.rows("SELECT 1 FROM taskbridge.run_minutes"), "the minute is summed up", 90)

        # What did bursts save?
        board.open()
        saved = board.page.get_by_role("region", name="Savings").inner_text()
        assert re.search(r"orders\s+\d+\s+\d+", saved), saved

        click(board, "Runs")
        assert "worker-0@test" in board.text()
        board.picture("how-to/dashboard/runs.png")


A_NIGHT = """
INSERT INTO taskbridge.run_minutes (pipeline, minute, runs, failed, events, bursts, records, rejected, run_ms,
                                    first_event_ms_sum, first_event_counts)
SELECT 'orders', m, events / 6, CASE WHEN at BETWEEN 0.55 AND 0.6 THEN events / 9 ELSE 0 END, events, events / 20,
       events, 0, events * 4, events, ARRAY[0, 0, 10, 40, 9, CASE WHEN at BETWEEN 0.55 AND 0.6 THEN 30 ELSE 0 END,
                                          0, 0, 0, 0, 0, 0]
FROM (
    SELECT m, at, (60 * (1.2 + sin(6.28 * at)) + 20 * random())::integer AS events
    FROM (
        SELECT m, extract(epoch FROM now() - m) / 86400 AS at
        FROM generate_series(date_trunc('minute', now()) - interval '1 day', now(), interval '1 minute') m
    ) t
) d
"""


def test_what_happened_last_night_is_seen(board: Board) -> None:
    with board.deployment.worker(TASKBRIDGE_PIPELINES=MODULE):
        board.save("orders", "acme", "1")
        wait_until(lambda: board.deployment.rows("SELECT 1 FROM taskbridge.runs"), "a run is in the history")
    with board.deployment.engine.begin() as connection:
        connection.exec_driver_sql(A_NIGHT)
    board.open()
    said = str(board.page.locator("svg").first.get_attribute("aria-label"))
    events, runs = (int(one.replace(",", "")) for one in re.findall(r"([\d,]+) (?:events|runs)", said))
    assert events > runs > 0
    assert board.page.locator("svg path.bars").count() == 3
    board.page.get_by_text("Show as a table").click()
    assert board.page.get_by_role("region", name="Totals").locator("tbody tr").count() > 90
    board.page.get_by_text("Show as a table").click()
    board.picture("how-to/dashboard/last-day.png")


def test_who_holds_a_tenant_and_whether_that_is_alive(board: Board) -> None:
    with board.deployment.worker("-P", "solo", TASKBRIDGE_PIPELINES=MODULE) as worker:
        board.save("orders", "acme", "1", seconds=60)
        board.open("tenant", pipeline="orders", tenant="acme")
        board.wait_for("alive")
        holder = board.wait_for(r"token\s+\d{16}-\S+\s+worker\s+worker-0@test")
        assert holder
        board.wait_for(r"alive\s+alive")
        worker.signal_all(signal.SIGSTOP)
        try:
            board.wait_for(r"alive\s+not alive")
            board.wait_for("no heartbeat")
            board.picture("how-to/dashboard/frozen.png")
            board.open()
            board.wait_for("acme")
        finally:
            worker.signal_all(signal.SIGCONT)
            worker.kill()


def test_a_burst_is_seen_while_it_goes_on(board: Board) -> None:
    with board.deployment.worker(TASKBRIDGE_PIPELINES=MODULE):
        ended = threading.Event()

        def burst(tenant: str) -> None:
            number = 0
            while not ended.wait(0.03):
                number += 1
                board.save("orders", tenant, f"{tenant}-{number}", total="74.25")

        senders = [threading.Thread(target=burst, args=(one,)) for one in ("Bäckerei Müller", "Nordwind", ARABIC)]
        for sender in senders:
            sender.start()
        try:
            board.open()
            board.wait_for(r"Bäckerei Müller[\s\S]*% runs saved")
            time.sleep(5)
            board.picture("burst.png")
        finally:
            ended.set()
            for sender in senders:
                sender.join()
        events, runs = (
            int(text.replace(",", ""))
            for text in re.findall(
                r"Bäckerei Müller\s+\w+\s+([\d,]+)\s+([\d,]+)", board.page.locator("body").inner_text()
            )[0]
        )
        assert events > 2 * runs


def test_a_page_changes_by_itself_and_stands_still_without_the_script(board: Board) -> None:
    without = board.new_page(java_script_enabled=False)
    without.goto(board.url)
    assert "Health" in without.locator("body").inner_text()
    without.get_by_role("link", name="Tenants").click()
    without.get_by_role("link", name="orders").click()
    assert "Tenants of orders" in without.locator("body").inner_text()

    board.save("orders", "acme", "1")
    board.open("tenant", pipeline="orders", tenant="acme")
    runtime_of(board.deployment.app).pauses.pause("orders", "acme", "the price list is wrong", "ada")
    board.wait_for("the price list is wrong")
    board.page.get_by_role("link", name="All runs").focus()
    board.page.wait_for_timeout(1500)
    assert board.page.evaluate("document.activeElement.textContent") == "All runs and bursts"


def test_a_page_that_is_shown_again_goes_on(board: Board) -> None:
    page = board.open("")
    page.wait_for_selector("body[data-live=yes]")
    board.page.get_by_role("link", name="Tenants").click()
    runtime_of(board.deployment.app).pauses.pause("orders")
    page.go_back()
    board.wait_for("the whole pipeline is paused")


def test_an_open_page_says_that_it_is_of_before_while_a_server_is_silent(board: Board) -> None:
    board.save("orders", "acme", "1")
    page = board.open("")
    live = page.locator("#live")
    page.wait_for_selector('body[data-live="yes"] #live[data-stale="no"]')
    runtime_of(board.deployment.app).redis.client_pause(6_000)
    page.wait_for_selector('#live[data-stale="yes"]')
    said = live.evaluate("one => getComputedStyle(one, '::before').content")
    assert re.fullmatch(r'"as it was .*\d\d:\d\d.*: a server does not answer"', said), said
    page.wait_for_selector('#live[data-stale="no"]')
    assert live.evaluate("one => getComputedStyle(one, '::before').content") == "none"


def test_all_can_be_reached_by_the_keyboard_alone(board: Board) -> None:
    board.save("orders", "acme", "in-1", total="1.00")
    page = board.open()

    def outline() -> Any:
        return page.evaluate(
            "(() => { const s = getComputedStyle(document.activeElement);"
            " return [document.activeElement.textContent.trim(), s.outlineStyle, parseFloat(s.outlineWidth)]; })()"
        )

    page.keyboard.press("Tab")
    assert outline() == ["Skip to the content", "solid", 2]
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.goto(f"{board.url}/tenants?pipeline=orders")
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name, style, width = outline()
        assert (style, width) == ("solid", 2), name
        seen.append(name)
        if name == "acme":
            break
    assert seen[-1] == "acme"
    assert {"TaskBridge", "Search", "Now", "Failing", "Show"} <= set(seen)
    page.keyboard.press("Enter")
    page.wait_for_url("**/tenant?**")
    for _ in range(60):
        page.keyboard.press("Tab")
        if outline()[0].startswith("Pause"):
            break
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("the price list")
    page.keyboard.press("Enter")
    page.get_by_text("Paused. Events are accepted").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_fits_into_360_pixels_whatever_tenants_are_called(board: Board, scheme: str) -> None:
    names = (MARKUP, ARABIC, LONG, "日本語の店" * 30, "\u202eright to left")
    with board.deployment.worker(TASKBRIDGE_PIPELINES=MODULE):
        for name in names:
            board.save("orders", name, f"{name}"[:190] + " 1", do="reject")
        wait_for_failures(board.deployment, len(names))
    board.page = board.new_page(viewport=NARROW, color_scheme=scheme)
    for path in ("", "tenants", "tenants?by=events", "failing", "runs", "record?q=a", "nowhere"):
        page = board.open(path)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= NARROW["width"], path
    for name in names:
        page = board.open("tenant", pipeline="orders", tenant=name)
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"], name
        assert page.locator("h1 bdi").inner_text() == name.replace("\u202e", "\\u202e")
        if name == LONG:
            board.picture(f"how-to/dashboard/narrow-{scheme}.png")
    board.complaints[:] = [one for one in board.complaints if "404" not in one]
