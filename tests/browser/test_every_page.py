"""Every page: readable by everybody, in both themes, wide and narrow, whatever the names are."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.helpers.browser import MARKUP, Tab
from tests.helpers.live_broker import LiveBroker

PAGES = (
    ("overview",), ("queues",), ("queues", "/", MARKUP), ("queues", "/", "busy"), ("streams",),
    ("streams", "/", f"s{MARKUP}"), ("leases",), ("pipelines",), ("alarms",), ("log",),
    ("exchanges",),
    ("exchanges", "/", MARKUP), ("connections",), ("vhosts",), ("vhosts", "/"),
    ("vhosts", MARKUP), ("admin", "users"), ("admin", "permissions"), ("admin", "topic"),
    ("admin", "policies"), ("admin", "limits"), ("admin", "parameters"), ("admin", "definitions"),
    ("nowhere",),
)  # fmt: skip
TABS = ("consumers", "publishers", "messages", "dead", "bindings", "limits", "history")
NARROW = {"width": 320, "height": 2400}  # CSS pixels: 1280 at a zoom of 400 %


@pytest.fixture(scope="module")
def seen(browser: Browser, broker: LiveBroker) -> Iterator[Tab]:
    """An administrator's tab, for all pages one after the other."""
    broker.control("declare_queue", "/", queue=f"s{MARKUP}", arguments={"x-queue-type": "stream"})
    tab = Tab(browser, broker)
    tab.sign_in("guest")
    yield tab
    tab.close()
    broker.control("delete_queue", "/", queue=f"s{MARKUP}")


def look_at(tab: Tab) -> None:
    """Wide and light, then narrow and dark, without scrolling sideways."""
    page = tab.page
    expect(page.locator("main").get_by_text("Loading …")).to_have_count(0, timeout=30_000)
    problems = page.locator("main [role=alert]").all_inner_texts()
    assert not [one for one in problems if "503" not in one and "does not run" not in one], problems
    tab.check_access()
    page.set_viewport_size(NARROW)
    page.emulate_media(color_scheme="dark")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= NARROW["width"], f"{width} px wide at {page.url}"
    tab.check_access()
    page.set_viewport_size({"width": 1280, "height": 2400})
    page.emulate_media(color_scheme="light")
    tab.check()


@pytest.mark.parametrize("names", PAGES, ids=" ".join)
def test_a_page_is_readable_wide_and_narrow_in_both_themes(
    seen: Tab, names: tuple[str, ...]
) -> None:
    seen.expected += ("503",)  # of a vhost that does not run
    seen.go(*names)
    expect(seen.page.get_by_role("heading", level=1)).to_have_count(1)
    look_at(seen)


@pytest.mark.parametrize("tab", TABS)
def test_a_part_of_a_queue_is_readable_whatever_is_in_it(seen: Tab, tab: str) -> None:
    seen.go("queues", "/", MARKUP, tab=tab)
    look_at(seen)


def test_a_message_that_is_markup_is_shown_as_text(admin: Tab) -> None:
    admin.go("queues", "/", MARKUP, tab="messages")
    rows = admin.page.locator("table", has_text="routing key").locator("tbody tr")
    rows.first.get_by_role("button").first.click()
    body = admin.page.locator("main pre", has_text=MARKUP)
    expect(body.first).to_be_visible()
    admin.check_access()
