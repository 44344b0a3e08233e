"""Each question of operators is asked in a real browser, of real workers, and answered within two clicks."""

from __future__ import annotations

import re
import threading
import time

import pytest

from taskbridge.process.runtime import runtime_of
from tests.deployment import Deployment
from tests.waiting import wait_until
from verification.browser.board import MODULE, NARROW, Board

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
        board.wait_for("quarantine")
        assert "yellow" in board.page.locator("#status").inner_text()
        board.page.wait_for_selector('#live[data-stale="no"]')

        # Where did record X go?
        search(board, "B-2")
        board.page.get_by_role("link", name="B-2").first.click()
        assert "handled" in board.page.locator("ol.story").inner_text()
        assert "74.25" in board.page.locator("pre.document").inner_text()
        board.picture("how-to/dashboard/record.png")

        # Why is this tenant not running?
        for tenant, why in (
            ("first caller", "rate limit"),
            ("Nordwind", "back-off"),
            ("Bäckerei Müller", "nothing to do"),
            ("Zeisig", r"paused by ada.*the price list is wrong"),
        ):
            search(board, tenant)
            board.page.get_by_role("link", name=tenant).first.click()
            board.wait_for(why)
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
        board.page.get_by_label("Sort by").select_option("records in 24 hours")
        board.page.get_by_role("button", name="Show").click()
        assert "Bäckerei Müller" in board.text()

        click(board, "Runs")
        assert "worker-0@test" in board.text()


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


def test_a_page_changes_by_itself_and_says_that_it_is_of_before_while_a_server_is_silent(board: Board) -> None:
    without = board.new_page(java_script_enabled=False)
    without.goto(board.url)
    without.get_by_role("link", name="Tenants").click()
    without.get_by_role("link", name="orders").click()
    assert "Tenants of orders" in without.locator("body").inner_text()

    board.save("orders", "acme", "1")
    page = board.open("tenant", pipeline="orders", tenant="acme")
    page.wait_for_selector('#live[data-stale="no"]')
    page.get_by_role("link", name="All runs").focus()
    runtime_of(board.deployment.app).pauses.pause("orders", "acme", "the price list is wrong", "ada")
    board.wait_for("the price list is wrong")
    assert page.evaluate("document.activeElement.textContent") == "All runs"
    # also one that is shown again
    page.get_by_role("link", name="Now").click()
    runtime_of(board.deployment.app).pauses.pause("orders", "acme", "another reason", "ada")
    page.go_back()
    board.wait_for("another reason")

    runtime_of(board.deployment.app).redis.client_pause(6_000)
    page.wait_for_selector('#live[data-stale="yes"]')
    said = page.locator("#live").evaluate("one => getComputedStyle(one, '::before').content")
    assert re.fullmatch(r'"as it was .*\d\d:\d\d.*: a server does not answer"', said), said
    page.wait_for_selector('#live[data-stale="no"]')
    board.complaints[:] = [one for one in board.complaints if "503" not in one]


def test_a_form_leads_back_to_its_page(board: Board) -> None:
    board.save("orders", "acme", "1")
    page = board.open("tenant", pipeline="orders", tenant="acme")
    page.get_by_role("button", name="Notify").click()
    assert "runner" in page.locator(".said").inner_text()
    assert page.url.endswith("/tenant?pipeline=orders&tenant=acme")


def test_all_can_be_reached_by_the_keyboard_alone(board: Board) -> None:
    board.save("orders", "acme", "in-1", total="1.00")
    page = board.open("tenants", pipeline="orders")
    seen = []
    while "acme" not in seen:
        page.keyboard.press("Tab")
        name, style, width = page.evaluate(
            "(() => { const s = getComputedStyle(document.activeElement);"
            " return [document.activeElement.textContent.trim(), s.outlineStyle, parseFloat(s.outlineWidth)]; })()"
        )
        assert (style, width) == ("solid", 2), name
        seen.append(name)
        assert len(seen) < 40
    assert {"Skip to the content", "TaskBridge", "Search", "Now", "Failing", "Show"} <= set(seen)
    page.keyboard.press("Enter")
    page.wait_for_url("**/tenant?**")


def test_every_page_fits_into_360_pixels_whatever_tenants_are_called(board: Board) -> None:
    names = (MARKUP, ARABIC, LONG, "日本語の店" * 30, "\u202eright to left")
    with board.deployment.worker(TASKBRIDGE_PIPELINES=MODULE):
        for name in names:
            board.save("orders", name, f"{name}"[:190] + " 1", do="reject")
        wait_for_failures(board.deployment, len(names))
    board.page = board.new_page(viewport=NARROW)
    for path in ("", "tenants", "tenants?sort=events+in+24+hours", "failing", "runs", "record?q=a", "nowhere"):
        page = board.open(path)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= NARROW["width"], path
    for name in names:
        page = board.open("tenant", pipeline="orders", tenant=name)
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"], name
        assert page.locator("h1 bdi").inner_text() == name.replace("\u202e", "\\u202e")
    board.complaints[:] = [one for one in board.complaints if "404" not in one]
