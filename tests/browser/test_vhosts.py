"""The pages of vhosts."""

from playwright.sync_api import expect

from tests.helpers.browser import MARKUP, Tab
from tests.helpers.live_broker import LiveBroker


def test_a_vhost_from_its_beginning_to_its_end(admin: Tab, broker: LiveBroker) -> None:
    page = admin.page
    dialog = page.get_by_role("dialog")
    admin.go("vhosts")
    page.get_by_role("link", name=MARKUP).wait_for()
    admin.check_access()
    page.get_by_role("button", name="Add a vhost").click()
    dialog.get_by_label("Name").fill("shop")
    dialog.get_by_label("Description").fill("sells things")
    dialog.get_by_label("Type of queues").select_option("quorum")
    dialog.get_by_role("button", name="Add").click()
    page.get_by_role("link", name="shop").click()
    page.get_by_text("sells things").wait_for()
    page.get_by_role("button", name="Start …").click()
    dialog.get_by_role("button", name="Start").click()
    page.get_by_role("button", name="Restart …").wait_for()
    admin.check_access()
    page.get_by_role("button", name="Checkpoint …").click()
    dialog.get_by_role("button", name="Make it").click()
    page.get_by_text("is on disk").wait_for()

    limits = page.locator("section", has=page.get_by_role("heading", name="Limits"))
    limits.get_by_role("button", name="Change …").click()
    dialog.get_by_label("Most queues").fill("5")
    dialog.get_by_role("button", name="Change").click()
    limits.get_by_text("5", exact=True).wait_for()
    (found,) = broker.control("list_vhost_limits", "shop")
    assert found["max-queues"] == 5

    page.get_by_role("button", name="Stop …").click()
    dialog.get_by_text("The same as a command").click()
    expect(dialog.get_by_text("penstock stop_vhost shop")).to_be_visible()
    dialog.get_by_role("button", name="Stop").click()
    page.get_by_text("stopped by an operator").first.wait_for()

    page.get_by_role("button", name="Delete …").click()
    delete = dialog.get_by_role("button", name="Delete")
    expect(delete).to_be_disabled()
    dialog.get_by_label("Type shop to go on").fill("shop")
    dialog.get_by_text("The same as a command").click()
    expect(dialog.get_by_text("penstock delete_vhost shop")).to_be_visible()
    admin.check_access()
    admin.expected += ("404",)  # the page may ask for the vhost while it is being deleted
    delete.click()
    page.get_by_role("heading", name="Vhosts", level=1).wait_for()
    assert "shop" not in [row["name"] for row in broker.control("list_vhosts")]


def test_lists_say_why_rows_of_a_vhost_are_not_there(admin: Tab, broker: LiveBroker) -> None:
    broker.control("add_vhost", name="unopened")
    admin.go("queues")
    line = admin.page.locator("p.sentence", has_text="(nobody has opened it yet)")
    expect(line).to_contain_text("unopened")
    admin.check_access()
    line.get_by_role("link", name="unopened").click()
    admin.page.get_by_text("Nobody, until a user gets permissions.").wait_for()
    broker.control("delete_vhost", name="unopened")


def test_a_watcher_sees_vhosts_and_changes_none(tab: Tab) -> None:
    tab.sign_in("mon")
    tab.go("vhosts")
    tab.page.locator("main").get_by_text(MARKUP).first.wait_for()
    expect(tab.page.get_by_role("button", name="Add a vhost")).to_have_count(0)
    tab.go("vhosts", "/")
    tab.page.get_by_text("its share of the memory").wait_for()
    expect(tab.page.get_by_role("button", name="Delete …")).to_have_count(0)
    tab.check_access()


def test_what_a_user_may_not_see_is_asked_for_once(tab: Tab) -> None:
    """It is a 401, after which the page asks who is signed in: still the same user."""
    tab.sign_in("ada")
    told = tab.page.evaluate(
        """async () => {
            const files = performance.getEntriesByType("resource").map((one) => one.name);
            const api = await import(files.find((name) => name.endsWith("/parts/api.js")));
            let told = 0;
            api.user.follow(() => told++);
            const error = await api.get("permissions").catch((error) => error);
            return [error.status, told];
        }"""
    )
    assert told == [401, 0]


def test_a_vhost_whose_publishers_wait_is_as_red_as_its_alarm(
    admin: Tab, broker: LiveBroker
) -> None:
    broker.control("set_config", key="storage.disk_free_limit", value="900TiB")
    try:
        admin.go("vhosts", "/")
        line = admin.page.locator("main p.sentence.danger", has_text="vhost '/': publishers wait")
        line.first.wait_for()  # one for each alarm
        chip = admin.page.locator("main .chip.danger", has_text="running, publishers wait: disk")
        expect(chip).to_have_count(1)
    finally:
        broker.control("set_config", key="storage.disk_free_limit", value="50MiB")
    admin.go("vhosts")
    expect(admin.page.locator("main .chip.danger", has_text="publishers wait")).to_have_count(0)
