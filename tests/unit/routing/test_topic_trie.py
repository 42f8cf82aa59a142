"""TopicTrie: what each pattern matches, that removing undoes adding, that matching stays cheap."""

import pytest

import penstock
from penstock.routing.exchange_types import TopicTrie
from tests.helpers.steps import cost_of


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a.b", ["a.b"], ["", "a", "a.b.c", "b.a", "a.", ".a.b"]),
        ("*", ["a", "*", "#"], ["", "a.b", "a."]),
        ("#", ["", "a", "a.b", "a..b", "."], []),
        ("", [""], ["a", "."]),
        ("a.*", ["a.b", "a."], ["a", "a.b.c"]),
        ("a.#", ["a", "a.b", "a.b.c"], ["b", "", "ab"]),
        ("#.a", ["a", "b.a", "a.a", "a.b.a"], ["b", "a.b", ""]),
        ("*.#", ["a", "a.b"], [""]),
        ("#.*", ["a", "a.b"], [""]),
        ("#.#", ["", "a", "a.b"], []),
        ("a.#.b", ["a.b", "a.c.b", "a.b.b", "a.c.d.b"], ["a", "b", "a.c", "a.b.c"]),
        ("#.a.#", ["a", "b.a", "a.b", "b.a.c"], ["", "b", "b.c"]),
        ("*.a.*", ["x.a.y"], ["a", "a.a", "x.a.y.z"]),
        ("..", [".."], [".", "...", ""]),
    ],
)
def test_a_pattern_matches(pattern: str, yes: list[str], no: list[str]) -> None:
    trie = TopicTrie()
    trie.add(pattern, "q")
    assert [key for key in yes if trie.match(key) != ["q"]] == []
    assert [key for key in no if trie.match(key)] == []


def test_a_target_is_found_once_however_many_patterns_lead_to_it() -> None:
    trie = TopicTrie()
    for pattern in ("#", "a.#", "a.*", "a.b", "#.b"):
        trie.add(pattern, "q")
    assert trie.match("a.b") == ["q"]


def test_a_target_added_twice_is_there_until_it_was_removed_twice() -> None:
    trie = TopicTrie()
    trie.add("a.*", "q")
    trie.add("a.*", "q")
    assert trie.remove("a.*", "q")
    assert trie.match("a.b") == ["q"]
    assert trie.remove("a.*", "q")
    assert trie.match("a.b") == []
    assert not trie.remove("a.*", "q")


def test_what_was_never_added_cannot_be_removed() -> None:
    trie = TopicTrie()
    trie.add("a.b.c", "q")
    for pattern, target in (("a.b", "q"), ("a.b.c", "other"), ("a.b.c.d", "q"), ("*", "q")):
        assert not trie.remove(pattern, target)
    assert trie.match("a.b.c") == ["q"]


def test_removing_leaves_no_node_behind_and_takes_no_other_pattern() -> None:
    trie = TopicTrie()
    patterns = ("a.b", "a.b.c", "a.*", "#", "a.#.c", "", "*.*")
    for pattern in patterns:
        trie.add(pattern, pattern)
    assert not trie.is_empty()
    for at, pattern in enumerate(patterns):
        assert trie.remove(pattern, pattern)
        assert set(trie.match("a.b")) == {"a.b", "a.*", "#", "*.*"} & set(patterns[at + 1 :])
    assert trie.is_empty()


def test_many_patterns_cost_nothing_to_a_key_that_shares_no_word_with_them() -> None:
    trie = TopicTrie()
    for number in range(1000):
        trie.add(f"w{number}.*.#", f"q{number}")
    children = CountingDict(trie._root.children)
    trie._root.children = children  # type: ignore[assignment]
    assert trie.match("w77.x.y") == ["q77"]
    if penstock.build_kind() == "pure":  # compiled code asks a dict past its class
        assert children.lookups == 1


def test_hashes_in_a_row_are_not_a_power_of_the_length() -> None:
    trie = TopicTrie()
    trie.add(".".join(["#", "a"] * 20), "q")
    assert trie.match(".".join(["a"] * 200)) == ["q"]
    assert trie.match(".".join(["a"] * 200) + ".b") == []


class CountingDict(dict[str, object]):
    """Counts how often it is asked, and fails if it is walked through."""

    lookups = 0

    def get(self, key: str, default: object = None) -> object:
        self.lookups += 1
        return super().get(key, default)

    def __iter__(self):  # type: ignore[no-untyped-def]
        raise AssertionError("all children were looked at")

    def items(self):  # type: ignore[no-untyped-def]
        raise AssertionError("all children were looked at")

    values = items


def test_a_match_costs_a_visit_for_each_node_and_word_at_most() -> None:
    """1,024 patterns of `*` and `#` are all alive; each `#` is reached in two ways."""
    costs = []
    for n in (128, 1024):
        trie = TopicTrie()
        for i in range(n):
            bits = format(i, "010b")
            trie.add(".".join("#" if bit == "1" else "*" for bit in bits), f"q{i}")
        lines = cost_of(lambda t=trie: t.match(".".join(["a"] * 24))).lines  # type: ignore[misc]
        costs.append((lines / trie.visits, trie.visits / n))
    assert costs[1][0] <= costs[0][0] * 1.2, "each visit costs the same"
    assert costs[1][1] <= 25 * 3, "a pattern is a few nodes of the tree, visited once a word"


def test_patterns_of_hashes_are_no_power_of_the_key() -> None:
    trie = TopicTrie()
    trie.add(".".join(["#"] * 100), "q")
    assert trie.match(".".join(["a"] * 100)) == ["q"]
    assert trie.visits <= 101 * 101


def test_one_queue_bound_by_many_patterns_is_found_once() -> None:
    trie = TopicTrie()
    for i in range(1000):
        trie.add(f"#.{i}.#", "q")
    trie.add("#", "q")
    assert trie.match("1.2.3.4") == ["q"]
    assert trie.visits < 100
