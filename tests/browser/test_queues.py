"""The pages of the overview, of queues, and of one queue with its messages and dead letters."""

import json
import os
import signal

import pytest
from playwright.sync_api import Locator, Route, expect

from penstock.server.control import ControlError
from tests.helpers.browser import MARKUP, Tab
from tests.helpers.live_broker import LiveBroker


def do(dialog: Locator, action: str) -> None:
    """Press the button of a dialog, and wait until it was done."""
    dialog.get_by_role("button", name=action, exact=True).click()
    dialog.wait_for(state="detached")


def test_the_overview_is_live(admin: Tab) -> None:
    page = admin.page
    admin.go("overview")
    page.get_by_text("live", exact=True).wait_for()
    published = page.locator(".figure", has=page.get_by_text("published")).locator("b")
    expect(published).to_contain_text("/s")
    page.get_by_role("img", name="Messages by state: alpha").wait_for()
    for scale in ("log", "linear", "share"):
        page.get_by_role("group", name="scale").get_by_role("button", name=scale).click()
    page.get_by_text("as numbers").first.click()
    expect(page.get_by_role("rowheader", name="/").first).to_be_visible()
    for top in ("ready", "oldest", "redelivered"):
        page.get_by_role("group", name="top").get_by_role("button", name=top).click()
    admin.check_access()


def test_no_letter_of_a_filter_is_lost_however_fast_it_is_typed(admin: Tab) -> None:
    admin.go("queues")
    admin.page.get_by_role("link", name="busy").wait_for()
    field = admin.page.get_by_label("Filter: Queues and streams")
    field.press_sequentially("busy and not another name")
    expect(field).to_have_value("busy and not another name")
    expect(admin.page.get_by_text("Nothing has this in its name.")).to_be_visible()
    field.fill("")
    admin.page.get_by_role("link", name="busy").wait_for()


def test_the_last_figures_stay_until_the_user_signs_in_again(
    admin: Tab, broker: LiveBroker
) -> None:
    page = admin.page
    admin.expected += ("net::ERR", "503")
    admin.go("overview")
    page.get_by_role("heading", name="Vhosts").wait_for()  # there are figures
    os.kill(broker.control("status")["http"]["pid"], signal.SIGKILL)
    page.get_by_text("Your session has ended").wait_for()
    page.get_by_text("these are the last figures").wait_for()
    expect(page.get_by_role("heading", name="Vhosts")).to_be_visible()
    admin.check_access()
    page.get_by_label("User").fill("guest")
    page.get_by_label("Password").fill("guest")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("live", exact=True).wait_for()
    expect(page.get_by_text("these are the last figures")).to_have_count(0)


def test_a_cold_list_is_asked_for_before_its_modules_are_there(admin: Tab) -> None:
    asked: list[Route] = []

    def answer(route: Route) -> None:
        asked.append(route)
        if len(asked) == 1:  # a second question gets no answer
            route.continue_()

    admin.page.route("**/api/queues?*", answer)
    admin.page.goto("about:blank")
    admin.page.goto("/#/queues")
    admin.page.get_by_role("link", name="busy").wait_for()
    starts = admin.page.evaluate(
        """["/api/queues?", "/pages/queues.js"].map((part) => performance.getEntriesByType(
            "resource").find((one) => one.name.includes(part)).startTime)"""
    )
    assert starts == sorted(starts)
    admin.page.unroute_all(behavior="ignoreErrors")


def test_a_queue_from_its_declaration_to_its_end(admin: Tab, broker: LiveBroker) -> None:
    page = admin.page
    admin.go("queues")
    page.get_by_role("table").get_by_role("link", name=MARKUP, exact=True).wait_for()
    admin.check_access()
    page.get_by_role("button", name="Declare a queue").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("works")
    dialog.get_by_label("Arguments").fill('{"x-max-length": 10')
    dialog.get_by_role("button", name="Declare").click()
    dialog.get_by_text("expected JSON").wait_for()
    dialog.get_by_label("Arguments").fill('{"x-max-length": 10, "x-dead-letter-exchange": ""}')
    dialog.get_by_text("The same as a command").click()
    command = "penstock declare_queue works --type classic -a x-max-length=10 -a"
    expect(dialog.get_by_text(command)).to_be_visible()
    admin.check_access()
    do(dialog, "Declare")
    page.get_by_label("Filter: Queues and streams").fill("/^work/")
    expect(page).to_have_url(page.url.split("#")[0] + "#/queues?filter=%2F%5Ework%2F")
    page.get_by_role("link", name="works").click()

    page.get_by_role("button", name="Publish …").click()
    dialog.get_by_label("Body").fill('{"kind": "<b>"}')
    dialog.get_by_label("Headers").fill('{"tries": 2}')
    do(dialog, "Publish")
    page.get_by_role("link", name="Messages", exact=True).click()
    page.get_by_role("button", name="works").click()
    page.get_by_text("kind:").wait_for()
    page.get_by_role("button", name="hex").click()
    page.get_by_text("7b 22 6b 69 6e 64").wait_for()
    page.get_by_role("checkbox", name="Select message 1").check()
    page.get_by_text("1 selected").wait_for()
    admin.check_access()
    page.locator(".foot").get_by_role("button", name="Move …").click()
    dialog.get_by_text("The 1 selected messages").wait_for()
    dialog.get_by_label("To queue").fill("chosen")
    dialog.get_by_text("The same as a command").click()
    expect(dialog.get_by_text("penstock move works chosen --match tag=")).to_be_visible()
    dialog.get_by_role("button", name="Move", exact=True).click()
    dialog.get_by_role("alert").get_by_text("no queue 'chosen'").wait_for()
    admin.expected += ("404",)
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_label("Body has").fill("no such text")
    page.get_by_role("button", name="Find").click()
    page.get_by_text("No message is like this.").wait_for()

    page.get_by_role("button", name="Pause …").click()
    dialog.get_by_text("The same as a command").click()
    expect(dialog.get_by_text("penstock pause_queue works")).to_be_visible()
    do(dialog, "Pause")
    page.get_by_text("its delivery is paused").wait_for()
    page.get_by_role("button", name="Resume …").click()
    do(dialog, "Resume")
    page.get_by_role("button", name="Pause …").wait_for()

    page.get_by_role("link", name="Limits and policy").click()
    page.get_by_text("of 10 messages; when it is full, the oldest messages are dropped").wait_for()
    admin.check_access()
    page.get_by_role("link", name="Bindings").click()
    page.get_by_role("button", name="Bind …").click()
    dialog.get_by_label("From exchange").fill("amq.topic")
    dialog.get_by_label("Routing key").fill("w.#")
    do(dialog, "Bind")
    page.get_by_role("button", name="Unbind …").click()
    do(dialog, "Unbind")
    expect(page.get_by_role("link", name="amq.topic")).to_have_count(0)

    broker.control("publish", "/", routing_key="works", bodies=["bad", "b", "c"])
    page.get_by_role("link", name="Messages", exact=True).click()
    page.get_by_label("Body has").fill("")
    page.get_by_role("button", name="Find").click()
    page.get_by_label("Begin with").select_option("last")
    page.get_by_label("Older than").fill("1h")
    page.get_by_role("button", name="Find").click()
    page.get_by_text("No message is like this.").wait_for()
    page.get_by_label("Begin with").select_option("position")
    page.get_by_label("Position or time").fill("3")
    page.get_by_label("Older than").fill("")
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("row").filter(has_text="bad")).to_have_count(0)
    expect(page.get_by_role("row").filter(has_text="alpha")).to_have_count(2)
    page.get_by_label("Begin with").select_option("")
    page.get_by_role("button", name="Find").click()
    page.get_by_role("row").filter(has_text="bad").get_by_role("checkbox").check()
    page.locator(".foot").get_by_role("button", name="Delete …").click()
    dialog.get_by_text("1 ready message is deleted").wait_for()
    dialog.get_by_text("The same as a command").click()
    expect(dialog.get_by_text("penstock delete_messages works --match tag=")).to_be_visible()
    do(dialog, "Delete 1")
    expect(page.get_by_role("row").filter(has_text="bad")).to_have_count(0)
    page.get_by_role("button", name="Purge …").click()
    dialog.get_by_label("Only so many from the head").fill("2")
    dialog.get_by_text("The same as a command").click()
    expect(dialog.get_by_text("penstock delete_messages --count 2 works")).to_be_visible()
    do(dialog, "Purge 2")
    left = broker.control("browse_messages", "/", queue="works", count=9)["messages"]
    assert [one["payload"] for one in left] == ["c"]

    page.get_by_role("button", name="Purge …").click()
    dialog.get_by_role("button", name="Purge").click()
    page.get_by_text("All messages are consumed.").wait_for()
    page.get_by_role("button", name="Delete …").click()
    do(dialog, "Delete")
    page.get_by_role("heading", name="Queues", level=1).wait_for()
    assert "works" not in [row["name"] for row in broker.control("list_queues", "/")]


def test_a_queue_that_refuses_says_how_much(admin: Tab, broker: LiveBroker) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    broker.control("declare_queue", "/", queue="full", arguments=arguments)
    with pytest.raises(ControlError, match="a queue is full"):
        broker.control("publish", "/", routing_key="full", bodies=["1", "2", "3"])
    admin.go("queues", "/", "full")
    refused = admin.page.locator(".pairs div", has=admin.page.get_by_text("refused", exact=True))
    expect(refused).to_contain_text("/s 1 in all")
    admin.go("queues", "/", "full", tab="history")
    expect(admin.page.get_by_role("img", name="refused")).to_be_visible()
    broker.control("delete_queue", "/", queue="full")


def test_selected_queues_are_purged_by_their_name_only(admin: Tab, broker: LiveBroker) -> None:
    for name in ("heap.1", "heap.2"):
        broker.control("declare_queue", "/", queue=name)
        broker.control("publish", "/", exchange="", routing_key=name, bodies=[b"x"] * 6000)
    page = admin.page
    admin.go("queues", filter="heap.")
    page.get_by_role("checkbox", name="Select all rows of this page").check()
    page.get_by_role("button", name="Purge …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("12,000 ready messages are deleted").wait_for()
    purge = dialog.get_by_role("button", name="Purge 12,000")
    expect(purge).to_be_disabled()
    dialog.get_by_label("to go on").fill("purge")
    purge.click()
    dialog.wait_for(state="detached")
    rows = broker.control("list_queues", "/")
    assert [row["messages_ready"] for row in rows if row["name"].startswith("heap.")] == [0, 0]


def test_a_queue_that_grows_is_asked_about_again(admin: Tab, broker: LiveBroker) -> None:
    broker.control("declare_queue", "/", queue="grows")
    broker.control("publish", "/", exchange="", routing_key="grows", bodies=[b"x"] * 3)
    page = admin.page
    dialog = page.get_by_role("dialog")
    admin.expected += ("400", "404")  # it may be asked for while it is being deleted
    admin.go("queues", "/", "grows")
    for ask, act, first in (("Purge …", "Purge 3", "Purge 5"), ("Delete …", "Delete", "Delete")):
        page.get_by_text("ready", exact=True).first.wait_for()
        page.get_by_role("button", name=ask).click()
        broker.control("publish", "/", exchange="", routing_key="grows", bodies=[b"x"] * 2)
        dialog.get_by_role("button", name=act, exact=True).click()
        dialog.get_by_text("It was not done. grows has 2 more messages than you saw.").wait_for()
        dialog.get_by_role("button", name=first, exact=True).wait_for()
        admin.check_access()
        broker.control("publish", "/", exchange="", routing_key="grows", bodies=[b"x"])
        dialog.get_by_label("also messages that come until it is done").check()
        do(dialog, {"Purge 5": "Purge all"}.get(first, first))
    assert "grows" not in [row["name"] for row in broker.control("list_queues", "/")]


def test_the_consumers_of_a_queue_and_the_names_that_are_markup(admin: Tab) -> None:
    admin.go("queues", "/", "busy")
    row = admin.page.get_by_role("row", name="worker")
    row.get_by_role("link", name="load").wait_for()  # the name that the client gave
    admin.page.get_by_role("img", name="put").wait_for()
    admin.check_access()
    admin.page.get_by_role("link", name="Publishers", exact=True).click()
    admin.page.get_by_text("(default)").wait_for()
    admin.page.get_by_role("link", name="History", exact=True).click()
    admin.page.get_by_role("img", name="Rates: published").wait_for()
    admin.check_access()
    for tab in ("messages", "dead", "bindings", "limits", "consumers"):
        admin.go("queues", "/", MARKUP, tab=tab)
        admin.page.get_by_role("heading", name=MARKUP, level=1).wait_for()
    admin.go("queues", "/", MARKUP, tab="messages")
    admin.page.get_by_role("button", name=MARKUP).click()
    admin.page.locator("pre", has_text=MARKUP).wait_for()
    admin.check_access()


def test_dead_letters_go_back_to_where_they_died(admin: Tab, broker: LiveBroker) -> None:
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    broker.control("declare_queue", "/", queue="dead")
    broker.control("declare_queue", "/", queue="lives", arguments=dead)
    broker.control("publish", "/", exchange="", routing_key="lives", bodies=[b"1", b"2"])
    broker.control("get_messages", "/", queue="lives", count=2, ackmode="reject_requeue_false")
    page = admin.page
    admin.go("queues", "/", "dead", tab="dead")
    page.get_by_role("rowheader", name="rejected").wait_for()
    page.get_by_role("button", name="one of them").click()
    page.get_by_text("1 times, from the default exchange").wait_for()
    admin.check_access()
    page.get_by_role("button", name="Replay …", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("2 to lives").wait_for()
    dialog.get_by_text("The same as a command").click()
    command = "penstock replay dead --match header=x-first-death-reason:rejected"
    expect(dialog.get_by_text(command)).to_be_visible()
    admin.check_access()
    do(dialog, "Replay 2")
    page.get_by_text("2 moved (lives 2)").wait_for()
    page.get_by_text("There are no dead letters here.").wait_for()
    page.get_by_role("button", name="Look again").click()
    assert broker.control("describe_row", "/", kind="queues", name="lives")["messages"] == 2


def test_keys(admin: Tab) -> None:
    page = admin.page
    admin.go("overview")
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.get_by_role("link", name="busy").wait_for()
    page.keyboard.press("j")
    page.keyboard.press("x")
    page.get_by_text("1 selected").wait_for()
    page.keyboard.press("Space")
    page.get_by_role("button", name="Go on").wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Limits and policy").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("heading", name="Queues", level=1).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("busy")
    page.get_by_role("option", name="busy").wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="busy").wait_for()
    page.keyboard.press("?")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Single keys are on").uncheck()
    admin.check_access()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page.get_by_role("heading", name="busy")).to_be_visible()


def test_a_narrow_dark_page_needs_no_scrolling_sideways(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 320, "height": 2400})
    tab.page.emulate_media(color_scheme="dark")
    tab.sign_in("guest")
    for names, shown in (
        (["overview"], "Top queues"), (["queues"], "busy"), (["queues", "/", "busy"], "busy"),
    ):  # fmt: skip
        tab.go(*names)
        tab.page.get_by_text(shown).first.wait_for()
        assert tab.page.evaluate("document.documentElement.scrollWidth") == 320, names
    tab.check_access()


def test_a_user_without_a_tag_is_told_so(tab: Tab, broker: LiveBroker) -> None:
    broker.control("add_user", name="bob", password="bob")
    tab.expected += ("401",)
    tab.page.goto("/")
    for password, said in (("no", "wrong name or password"), ("bob", "'bob' has none of the tags")):
        tab.page.get_by_label("User").fill("bob")
        tab.page.get_by_label("Password").fill(password)
        tab.page.get_by_role("button", name="Sign in").click()
        expect(tab.page.get_by_role("alert")).to_contain_text(said)
    tab.check_access()
    broker.control("delete_user", name="bob")


def test_who_may_not_do_it(tab: Tab) -> None:
    tab.sign_in("ada")  # may configure what begins with a, read all
    tab.go("queues", "/", "busy")
    expect(tab.page.get_by_role("button", name="Move …")).to_have_count(0)
    tab.page.get_by_role("button", name="Delete …").click()
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Delete", exact=True).click()
    dialog.get_by_role("alert").get_by_text("busy").wait_for()
    dialog.get_by_role("button", name="Cancel").click()
    assert json.loads(tab.page.evaluate("fetch('api/whoami').then(a => a.text())"))["name"] == "ada"
