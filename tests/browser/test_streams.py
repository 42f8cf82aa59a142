"""The pages of streams, leases, pipelines and alarms."""

import pytest
from playwright.sync_api import expect

from tests.helpers.browser import Tab
from tests.helpers.http_caller import HttpCaller
from tests.helpers.live_broker import LiveBroker


@pytest.fixture(scope="module", autouse=True)
def readers(broker: LiveBroker) -> None:
    """A stream with a reader that is 30 records behind, and a queue with a lease of 10 messages."""
    broker.control(
        "declare_queue", "/", queue="events",
        arguments={"x-queue-type": "stream", "x-max-age": "7D"},
    )  # fmt: skip
    broker.control("declare_queue", "/", queue="leased")
    for name in ("events", "leased"):
        broker.control("publish", "/", routing_key=name, bodies=["a"] * 50, properties={})
    with HttpCaller(broker) as http:
        for reader in ("spark", "old"):
            address = f"streams/%2F/events/readers/{reader}"
            assert http.ask("PUT", address, {"offsets": {"0": 20}}) == (204, b"")
        http.json("POST", "leases/%2F/leased/report", {"messages": 10})


def test_a_reader_is_set_and_another_forgotten(admin: Tab, broker: LiveBroker) -> None:
    page, dialog = admin.page, admin.page.get_by_role("dialog")
    admin.go("streams")
    row = page.get_by_role("row").filter(has_text="events")
    expect(row.get_by_role("cell").nth(7)).to_have_text("30")
    row.get_by_role("link", name="events").click()
    page.get_by_text("x-max-age 7D").wait_for()
    admin.check_access()
    page.get_by_role("button", name="49", exact=True).click()  # the newest 50 are shown
    page.locator("pre", has_text="a").wait_for()
    page.get_by_label("From offset").fill("10")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("tr", has_text="events").nth(0)).to_contain_text("10")
    admin.check_access()
    page.get_by_role("button", name="Earlier").click()
    page.get_by_role("button", name="0", exact=True).wait_for()
    page.get_by_role("button", name="Trim …").click()
    dialog.get_by_role("button", name="Trim", exact=True).click()
    page.get_by_text("There was no page beyond the limits.").wait_for()
    readers = page.get_by_role("table", name="Readers")
    readers.get_by_role("row").filter(has_text="old").get_by_text("Forget …").click()
    dialog.get_by_text("30 records that it has not read").wait_for()
    dialog.get_by_role("button", name="Forget").click()
    expect(readers.locator("tr.gone")).to_have_count(1)  # it stays while the pointer is there
    spark = readers.get_by_role("row").filter(has_text="spark")
    for where, offset, shown in (("offset", "45", "5"), ("time", "", "50"), ("head", "", "0")):
        spark.get_by_text("Set …").click()
        dialog.get_by_label("Go on").select_option(where)
        dialog.get_by_label("Offset").fill(offset)
        dialog.get_by_label("Time").fill("2020-01-01T00:00:00Z")
        admin.check_access()
        dialog.get_by_role("button", name="Set").click()
        expect(spark.get_by_role("cell").nth(2)).to_have_text(shown)
    found = broker.control("describe_stream", "/", queue="events")["readers"]
    assert {name: at["offsets"] for name, at in found.items()} == {"spark": {"0": 50}}


def test_a_lease_is_released(admin: Tab, broker: LiveBroker) -> None:
    page, dialog = admin.page, admin.page.get_by_role("dialog")
    admin.go("pipelines")
    page.get_by_role("row").filter(has_text="report").get_by_text("leased").wait_for()
    admin.check_access()
    admin.go("leases")
    page.get_by_role("row").filter(has_text="report").get_by_text("Release …").click()
    dialog.get_by_text("10 messages return").wait_for()
    dialog.get_by_text("The same as a command").click()
    expect(dialog.get_by_text("penstock release_lease leased report --vhost /")).to_be_visible()
    admin.check_access()
    dialog.get_by_role("button", name="Release").click()
    page.get_by_text("Nobody has leased messages.").wait_for()
    assert broker.control("list_leases", "/") == []


def test_alarms_say_what_to_do_and_where(admin: Tab) -> None:
    page = admin.page
    admin.go("alarms")
    item = page.get_by_role("listitem").filter(has_text="queue 'leased'")
    expect(item).to_contain_text("and no consumer")
    admin.check_access()
    item.get_by_role("link", name="show").click()
    page.get_by_role("heading", name="leased").wait_for()


def test_without_the_tag_monitoring_a_user_sees_its_own(tab: Tab) -> None:
    tab.sign_in("ada")
    tab.go("alarms")
    tab.page.get_by_text("need the tag monitoring").wait_for()
    tab.check_access()
    tab.go("streams")
    tab.page.get_by_role("link", name="events").wait_for()
