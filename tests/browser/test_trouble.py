"""What pages show when a vhost is down, when what they show is deleted, and when a list is cut."""

import contextlib
import importlib
import json
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.helpers.browser import Tab
from tests.helpers.live_broker import LiveBroker


@pytest.fixture(scope="module")
def resting(broker: LiveBroker) -> str:
    """A vhost without queues, and a user of this name who may use no other."""
    name = "resting"
    broker.control("add_vhost", name=name)
    broker.control("add_user", name=name, password=name, tags=["monitoring"])
    broker.control("set_permissions", name, user=name, configure=".*", write=".*", read=".*")
    broker.control("list_queues", name)  # it is started
    return name


def test_a_first_queue_is_made_by_the_user_in_the_chosen_vhost(
    tab: Tab, broker: LiveBroker, resting: str
) -> None:
    tab.sign_in(resting)
    tab.go("queues", vhost=resting)
    url = f"amqp://resting:PASSWORD@127.0.0.1:{broker.port}/resting"
    expect(tab.page.locator("main pre")).to_contain_text(url)


@pytest.fixture(scope="module")
def stopped(broker: LiveBroker, resting: str) -> str:
    """That vhost, stopped."""
    broker.control("stop_vhost", name=resting)
    return resting


@pytest.mark.parametrize("page", ["overview", "queues", "streams", "leases", "pipelines"])
def test_no_list_is_called_empty_whose_vhost_is_stopped(tab: Tab, stopped: str, page: str) -> None:
    tab.sign_in(stopped)  # sees no other in the lists of queues
    tab.expected += ("503",)
    tab.go(page, **({} if page in ("overview", "queues") else {"vhost": stopped}))
    main = tab.page.locator("main")
    if page == "overview":
        main.get_by_role("heading", name="Top queues").wait_for()
    line = main.get_by_text("stopped by an operator")
    line.first.wait_for()
    expect(main.get_by_text("There are no")).to_have_count(0)
    expect(main.get_by_text("Nobody has leased")).to_have_count(0)
    expect(main.get_by_text("No pipeline has")).to_have_count(0)


def test_a_deletion_goes_on_after_what_is_gone_already(admin: Tab, broker: LiveBroker) -> None:
    page = admin.page
    names = ["gone1", "gone2", "gone3"]
    for name in names:
        broker.control("declare_queue", "/", queue=name, arguments={})
        broker.control("declare_exchange", "/", exchange=name, type="fanout")
    admin.expected += ("404",)
    for kind in ("queues", "exchanges"):
        admin.go(kind, filter="gone")
        page.get_by_role("link", name="gone3").wait_for()
        page.get_by_label("Select all rows of this page").check()
        page.get_by_role("button", name="Delete …").click()
        broker.control(f"delete_{kind[:-1]}", "/", **{kind[:-1]: "gone1"})
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Delete").click()
        dialog.wait_for(state="detached")
        left = [row["name"] for row in broker.control(f"list_{kind}", "/")]
        assert not set(names) & set(left)


def test_connections_are_closed_although_one_has_ended_meanwhile(
    admin: Tab, broker: LiveBroker
) -> None:
    pika: Any = importlib.import_module("pika")
    page = admin.page
    with contextlib.ExitStack() as stack:
        first, second = (
            stack.enter_context(
                contextlib.closing(
                    pika.BlockingConnection(
                        pika.ConnectionParameters(
                            broker.host, broker.port, client_properties={"connection_name": name}
                        )
                    )
                )
            )
            for name in ("brief 1", "brief 2")
        )
        admin.go("connections", sort="connected_at")
        for name in ("brief 1", "brief 2"):
            page.locator("main tbody tr", has_text=name).get_by_role("checkbox").check()
        page.get_by_role("button", name="Close …").click()
        first.close()
        admin.expected += ("404",)
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("button", name="Close 2").click()
        dialog.wait_for(state="detached")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            second.channel()
        stack.pop_all()


def test_a_page_shows_no_figures_of_what_was_deleted(admin: Tab, broker: LiveBroker) -> None:
    page = admin.page
    admin.expected += ("404",)
    broker.control("declare_queue", "/", queue="brief", arguments={})
    broker.control("declare_queue", "/", queue="flow", arguments={"x-queue-type": "stream"})
    broker.control("declare_exchange", "/", exchange="brief", type="fanout")
    for names, op, given in (
        (("queues", "/", "brief"), "delete_queue", {"queue": "brief"}),
        (("streams", "/", "flow"), "delete_queue", {"queue": "flow"}),
        (("exchanges", "/", "brief"), "delete_exchange", {"exchange": "brief"}),
    ):
        admin.go(*names)
        page.locator("main .pairs").first.wait_for()
        broker.control(op, "/", **given)
        page.locator("main").get_by_text("no ", exact=False).first.wait_for()
        expect(page.locator("main .pairs")).to_have_count(0)
        expect(page.locator("main")).to_contain_text(names[-1])
        admin.check_access()


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_a_browser_cannot_ask_for_is_said(
    admin: Tab, broker: LiveBroker, name: str
) -> None:
    broker.control("declare_queue", "/", queue=name, arguments={})
    admin.go("queues", "/", name)
    admin.page.get_by_text(f'A browser cannot ask for the name "{name}"').first.wait_for()
    broker.control("delete_queue", "/", queue=name)


def test_a_list_that_is_cut_says_so(admin: Tab) -> None:
    def cut(route: Route) -> None:
        answer = route.fetch()
        page = json.loads(answer.text())
        route.fulfill(response=answer, json={**page, "total_count": 501})

    admin.page.route("**/api/penstock/streams/*?*", cut)
    admin.go("streams")
    admin.page.get_by_text("Not all are listed").wait_for()
