"""The page of exchanges and bindings."""

from playwright.sync_api import expect

from tests.helpers.browser import MARKUP, Tab
from tests.helpers.live_broker import LiveBroker


def test_an_exchange_from_its_declaration_to_its_end(admin: Tab, broker: LiveBroker) -> None:
    page = admin.page
    admin.go("exchanges")
    page.get_by_role("table").get_by_role("link", name=MARKUP).wait_for()
    admin.check_access()

    page.get_by_role("button", name="Declare an exchange").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("orders")
    dialog.get_by_label("Type").select_option("topic")
    dialog.get_by_label("Arguments").fill('{"alternate-exchange": "amq.fanout"}')
    dialog.get_by_text("The same as a command").click()
    command = "penstock declare_exchange orders --type topic -a alternate-exchange=amq.fanout"
    expect(dialog.get_by_text(command)).to_be_visible()
    admin.check_access()
    dialog.get_by_role("button", name="Declare").click()
    page.get_by_role("link", name="orders").click()

    page.get_by_role("button", name="Bind …").first.click()
    dialog.get_by_label("its name").fill("busy")
    dialog.get_by_label("Routing key").fill("order.#")
    dialog.get_by_role("button", name="Bind").click()
    page.get_by_role("table", name="Bindings from orders").get_by_text("order.#").wait_for()
    page.get_by_role("img", name="orders sends to 1 destination").wait_for()

    look = page.locator("section", has=page.get_by_role("heading", name="Where would this go?"))
    look.get_by_label("Routing key").fill("order.eu")
    look.get_by_role("button", name="Look").click()
    look.get_by_role("link", name="busy").wait_for()
    look.get_by_label("Routing key").fill("other")
    look.get_by_role("button", name="Look").click()
    look.get_by_text("nowhere").wait_for()

    publish = page.locator("section", has=page.get_by_role("heading", name="Publish"))
    publish.get_by_label("Routing key").fill("other")
    publish.get_by_label("Body").fill("hello")
    publish.get_by_role("button", name="Publish").click()
    publish.get_by_text("No queue got it.").wait_for()
    admin.check_access()

    bindings = page.get_by_role("table", name="Bindings from orders")
    bindings.get_by_role("checkbox").last.check()
    page.get_by_role("button", name="Unbind …").click()
    dialog.get_by_role("button", name="Unbind").click()
    page.get_by_text("Nothing is bound to this exchange").wait_for()
    page.get_by_role("button", name="Delete …").click()
    dialog.get_by_role("button", name="Delete").click()
    page.get_by_role("heading", name="Exchanges", level=1).wait_for()
    names = [row["name"] for row in broker.control("list_exchanges", "/")]
    assert "orders" not in names


def test_names_that_are_markup_are_shown_as_they_are(admin: Tab) -> None:
    admin.go("exchanges", "/", MARKUP)
    admin.page.get_by_role("heading", name=MARKUP, level=1).wait_for()
    admin.page.get_by_role("link", name=MARKUP).first.wait_for()
    admin.check_access()


def test_the_default_exchange_has_no_bindings_to_change(admin: Tab) -> None:
    admin.go("exchanges", "/", "amq.default")
    admin.page.get_by_text("these bindings cannot be changed").wait_for()
    expect(admin.page.get_by_role("button", name="Delete …")).to_have_count(0)
