"""The pages of connections and channels."""

from typing import Any

import pika
import pytest
from playwright.sync_api import expect

from tests.helpers.browser import Tab
from tests.helpers.live_broker import LiveBroker


def connected(broker: LiveBroker, name: str) -> Any:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            broker.host, broker.port, client_properties={"connection_name": name}
        )
    )


def until_closed(client: pika.BlockingConnection) -> None:
    while client.is_open:
        client.process_data_events(10)


def test_a_connection_with_its_channel_and_its_end(admin: Tab, broker: LiveBroker) -> None:
    page = admin.page
    client = connected(broker, "closed by hand")
    client.channel().confirm_delivery()
    second = client.channel()
    admin.go("connections")
    page.get_by_role("link", name="load").wait_for()
    admin.check_access()
    page.get_by_role("link", name="closed by hand").click()
    page.get_by_role("heading", name="What the client says about itself").wait_for()
    page.get_by_text("Pika Python Client Library").wait_for()
    admin.check_access()
    page.get_by_role("link", name="(1)").click()
    page.get_by_text("It consumes nothing.").wait_for()
    admin.check_access()
    page.get_by_role("link", name="Its connection").click()
    page.get_by_role("link", name="(2)").click()
    page.get_by_role("button", name="Close …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("The same as a command").click()
    expect(dialog.get_by_text("penstock close_connection --channel 2 ")).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("heading", name="What the client says about itself").wait_for()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="closed by an operator"):
        second.queue_declare("busy", passive=True)

    page.get_by_role("button", name="Close …").click()
    dialog.get_by_label("Reason").fill("you may go")
    dialog.get_by_text("The same as a command").click()
    expect(dialog.get_by_text("penstock close_connection")).to_contain_text("'you may go'")
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("heading", name="Connections", level=1).wait_for()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="you may go"):
        until_closed(client)
    page.get_by_role("link", name="Closed lately").click()
    page.get_by_text("you may go").wait_for()
    admin.check_access()


def test_the_consumers_of_a_channel(admin: Tab) -> None:
    admin.go("connections", tab="channels")
    admin.page.get_by_role("link", name="(1)").first.wait_for()
    admin.check_access()
    admin.page.get_by_role("link", name="(1)").first.click()
    admin.page.get_by_role("table", name="Consumers of").get_by_text("worker").wait_for()


def test_a_user_sees_no_connection_of_others(tab: Tab) -> None:
    tab.sign_in("ada")
    tab.go("connections")
    tab.page.get_by_text("No client is connected").wait_for()
