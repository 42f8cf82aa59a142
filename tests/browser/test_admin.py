"""The pages of users, permissions, policies, limits and definitions."""

import json
from pathlib import Path

from playwright.sync_api import expect

from tests.helpers.browser import MARKUP, Tab
from tests.helpers.http_caller import HttpCaller
from tests.helpers.live_broker import LiveBroker


def test_a_user_with_permissions_comes_and_goes(admin: Tab, broker: LiveBroker) -> None:
    page = admin.page
    dialog = page.get_by_role("dialog")
    admin.go("admin", "users")
    page.get_by_role("link", name=MARKUP).wait_for()
    admin.check_access()
    page.get_by_role("button", name="Add a user").click()
    dialog.get_by_label("Name").fill("eve")
    dialog.get_by_label("Password").fill("first")
    dialog.get_by_label("management").check()
    dialog.get_by_role("button", name="Add").click()
    page.get_by_role("checkbox", name="Select eve").check()
    page.get_by_role("button", name="Change …").click()
    dialog.get_by_label("New password").fill("eve")
    dialog.get_by_label("policymaker").check()
    dialog.get_by_role("button", name="Change").click()
    page.get_by_text("The user was changed.").wait_for()
    with HttpCaller(broker, "eve") as eve:
        assert eve.json("GET", "whoami")["tags"] == ["management", "policymaker"]

    page.get_by_role("link", name="Permissions", exact=True).click()
    page.get_by_role("button", name="eve permissions on /").click()
    dialog.get_by_label("Configure").fill("^eve")
    dialog.get_by_label("Write").fill("")
    admin.check_access()
    dialog.get_by_role("button", name="Set").click()
    page.get_by_role("button", name="what eve may do in /").wait_for()
    admin.check_access()
    page.get_by_label("User", exact=True).fill("eve")
    page.get_by_label("the queue or exchange").fill("orders")
    page.get_by_role("button", name="Test").click()
    page.get_by_text("configure is '^eve', which does not allow 'orders'").wait_for()
    page.get_by_role("button", name="/ from eve").click()
    dialog.get_by_role("button", name="Take away").click()
    page.get_by_role("button", name="eve permissions on /").wait_for()

    page.get_by_role("link", name="Topic permissions").click()
    page.get_by_role("button", name="Set …").first.click()
    dialog.get_by_label("User").fill("eve")
    dialog.get_by_label("Write").fill("^eu")
    dialog.get_by_role("button", name="Set").click()
    page.get_by_text("^eu").wait_for()
    admin.check_access()

    page.get_by_role("link", name="Users", exact=True).click()
    page.get_by_role("checkbox", name="Select eve").check()
    page.get_by_role("button", name="Delete …").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("link", name="eve", exact=True)).to_have_count(0)


def test_a_policy_shows_what_it_is_for_before_it_is_set(admin: Tab, broker: LiveBroker) -> None:
    page = admin.page
    dialog = page.get_by_role("dialog")
    admin.go("admin", "policies")
    page.locator("main").get_by_text(MARKUP).first.wait_for()
    admin.check_access()
    page.get_by_role("button", name="Set a policy").click()
    dialog.get_by_label("Name").fill("cap")
    dialog.get_by_label("Pattern").fill("^bus")
    dialog.get_by_text("1 of 2 queues have such a name").wait_for()
    dialog.get_by_label("Definition").fill('{"max-length": "many"}')
    dialog.get_by_role("button", name="Set").click()
    expect(dialog.get_by_role("alert")).to_contain_text("max-length")
    admin.expected += ("400",)
    dialog.get_by_label("Definition").fill('{"max-length": 100000}')
    dialog.get_by_text("The same as a command").click()
    admin.check_access()
    dialog.get_by_role("button", name="Set").click()
    page.get_by_text('{"max-length":100000}').wait_for()
    policies = broker.control("list_policies", "/")
    assert [row["name"] for row in policies if row["pattern"] == "^bus"] == ["cap"]
    page.get_by_role("checkbox", name="Select /\ncap").check()
    page.get_by_role("button", name="Delete …").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_text('{"max-length":100000}')).to_have_count(0)
    page.get_by_role("link", name="Operator policies").click()
    page.locator("main").get_by_text(MARKUP).first.wait_for()
    admin.check_access()


def test_limits(admin: Tab, broker: LiveBroker) -> None:
    page = admin.page
    admin.go("admin", "limits")
    page.get_by_role("button", name="the limits of ada").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Most channels").fill("77")
    dialog.get_by_text("The same as a command").click()
    command = """penstock set_user_limits ada '{"max-channels":77}'"""
    expect(dialog.get_by_text(command)).to_be_visible()
    dialog.get_by_role("button", name="Change").click()
    page.get_by_role("cell", name="77").wait_for()
    admin.check_access()
    found = broker.control("list_user_limits", user="ada", without_defaults=True)
    assert found == [{"user": "ada", "max-channels": 77}]


def test_definitions_show_what_they_would_change(
    admin: Tab, broker: LiveBroker, tmp_path: Path
) -> None:
    page = admin.page
    admin.go("admin", "definitions")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download all definitions").click()
    exported = json.loads(download.value.path().read_text())
    assert {row["name"] for row in exported["users"]} >= {"guest", "ada", MARKUP}
    file = tmp_path / "more.json"
    file.write_text(json.dumps({**exported, "vhosts": [*exported["vhosts"], {"name": "more"}]}))
    page.get_by_label("File").set_input_files(file)
    page.get_by_role("button", name="Show what would change").click()
    page.get_by_role("row", name="vhosts 1").wait_for()
    page.get_by_role("row", name="queues 0").wait_for()
    admin.check_access()
    assert "more" not in [row["name"] for row in broker.control("list_vhosts")]
    page.get_by_role("button", name="Import …").click()
    page.get_by_role("dialog").get_by_role("button", name="Import").click()
    page.get_by_text("The definitions were imported.").wait_for()
    assert "more" in [row["name"] for row in broker.control("list_vhosts")]
    broker.control("delete_vhost", name="more")


def test_what_a_user_may_not_do_is_not_there(tab: Tab) -> None:
    """A policymaker sets policies, and sees neither users nor operator policies to change."""
    tab.sign_in("pol")
    tab.go("admin")
    page = tab.page
    page.get_by_role("button", name="Set a policy").wait_for()
    expect(page.get_by_role("link", name="Users")).to_have_count(0)
    page.get_by_role("link", name="Operator policies").click()
    page.locator("main").get_by_text(MARKUP).first.wait_for()
    expect(page.get_by_role("button", name="Set a policy")).to_have_count(0)
    expect(page.get_by_role("checkbox")).to_have_count(0)


def test_admin_is_not_for_users_who_manage_their_own_vhosts(tab: Tab) -> None:
    tab.sign_in("ada")
    tab.go("admin", "users")
    tab.page.get_by_text("For users with the tag policymaker").wait_for()


def test_parameters_are_set_and_deleted(admin: Tab, broker: LiveBroker) -> None:
    page, dialog = admin.page, admin.page.get_by_role("dialog")
    admin.go("admin", "parameters")
    page.get_by_role("button", name="Set a parameter …").first.click()
    dialog.get_by_label("Name").fill(MARKUP)
    dialog.get_by_label("Value").fill("{")
    dialog.get_by_role("button", name="Set").click()
    expect(dialog.get_by_role("alert")).to_contain_text("expected JSON")
    dialog.get_by_label("Value").fill('{"a": 1}')
    dialog.get_by_text("The same as a command").click()
    admin.check_access()
    dialog.get_by_role("button", name="Set").click()
    page.get_by_role("cell", name='{"a":1}').wait_for()
    page.get_by_role("checkbox", name=f"Select {MARKUP}").check()
    page.get_by_role("button", name="Delete …").click()
    dialog.get_by_role("button", name="Delete").click()
    dialog.wait_for(state="detached")
    page.get_by_role("button", name="Set a parameter …").nth(1).click()
    dialog.get_by_label("Name").fill("upstream")
    dialog.get_by_label("Component").select_option("federation-upstream")
    dialog.get_by_label("Value").fill("5")
    dialog.get_by_role("button", name="Set").click()
    page.get_by_role("cell", name="federation-upstream", exact=True).wait_for()
    admin.check_access()
    assert not [one for one in broker.control("list_global_parameters") if one["name"] == MARKUP]
    (stored,) = broker.control("list_parameters", "/")
    assert (stored["name"], stored["value"]) == ("upstream", 5)
