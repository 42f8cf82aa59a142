"""TopicTrie: which patterns of a topic exchange match a routing key.

A key is a list of words between dots; so is a pattern, in which `*` matches exactly one word and
`#` any number of words, also none. The empty key has no words, as in RabbitMQ; "a." has two, the
second one empty. Patterns are kept as a tree of words:

    quick.orange.rabbit -> A        root -- quick -- orange -- rabbit  {A}
    quick.#             -> B               \\      \\ #  {B}
    *.orange.*          -> C               \\ * -- orange -- *  {C}

A key is matched by following all ways at once, word by word: the active nodes after a word are the
children for that word and for `*`, and every `#` that was active. A `#` also matches no word, so it
is active as soon as its parent is. Each node is active at most once per word: only a `#` can be
reached in two ways, and its stamp is the word for which it was reached last. So for each word a
match visits every node at most once: "#.#.#.#" costs a few nodes, not a power of the key's length,
and patterns that share no words with the key cost nothing. `visits` counts the nodes.

Invariants: a node without targets and children is not in the tree. A target that was added n times
for a pattern stays until it was removed n times (bindings that differ in arguments).
"""

from typing import Final

STAR: Final = "*"
HASH: Final = "#"


class TopicNode:
    """One word of some patterns. targets: of patterns that end here, and how often each was
    added."""

    __slots__ = ("children", "hash", "is_hash", "stamp", "star", "targets")

    def __init__(self, is_hash: bool) -> None:
        self.children: dict[str, TopicNode] = {}
        self.star: TopicNode | None = None
        self.hash: TopicNode | None = None
        self.targets: dict[str, int] = {}
        self.is_hash: bool = is_hash
        self.stamp: int = 0  # of a `#`: the word for which it was last active

    def child(self, word: str) -> "TopicNode | None":
        """Return the child for a word of a pattern."""
        if word == STAR:
            return self.star
        if word == HASH:
            return self.hash
        return self.children.get(word)

    def is_empty(self) -> bool:
        """Return whether no pattern ends here or below."""
        return not self.targets and not self.children and self.star is None and self.hash is None


def words_of(text: str) -> list[str]:
    """Return the words of a key or a pattern; the empty one has none."""
    return text.split(".") if text else []


class TopicTrie:
    """Patterns and their targets, which are any strings. visits: nodes that matches visited."""

    def __init__(self) -> None:
        self.visits: int = 0
        self._root: TopicNode = TopicNode(False)
        self._stamp: int = 0  # one for each word of each match

    def add(self, pattern: str, target: str) -> None:
        """Add a target for keys that the pattern matches."""
        node = self._root
        for word in words_of(pattern):
            below = node.child(word)
            if below is None:
                below = TopicNode(word == HASH)
                if word == STAR:
                    node.star = below
                elif word == HASH:
                    node.hash = below
                else:
                    node.children[word] = below
            node = below
        node.targets[target] = node.targets.get(target, 0) + 1

    def remove(self, pattern: str, target: str) -> bool:
        """Undo one `add`. Returns False if there was none."""
        words = words_of(pattern)
        path: list[TopicNode] = [self._root]
        for word in words:
            below = path[-1].child(word)
            if below is None:
                return False
            path.append(below)
        count = path[-1].targets.get(target, 0)
        if count == 0:
            return False
        if count > 1:
            path[-1].targets[target] = count - 1
            return True
        del path[-1].targets[target]
        for depth in range(len(words), 0, -1):
            if not path[depth].is_empty():
                break
            parent = path[depth - 1]
            word = words[depth - 1]
            if word == STAR:
                parent.star = None
            elif word == HASH:
                parent.hash = None
            else:
                del parent.children[word]
        return True

    def match(self, key: str) -> list[str]:
        """Return the targets of all patterns that match, each once."""
        found: dict[str, int] = {}
        self.match_into(key, found)
        return list(found)

    def match_into(self, key: str, found: dict[str, int]) -> None:
        """Add the targets of all patterns that match to `found`. Its values have no meaning."""
        stamp = self._stamp + 1
        active: list[TopicNode] = []
        _enter(self._root, active, stamp)
        visits = len(active)
        for word in words_of(key):
            stamp += 1
            following: list[TopicNode] = []
            for node in active:
                below = node.children.get(word)
                if below is not None:
                    _enter(below, following, stamp)
                if node.star is not None:
                    _enter(node.star, following, stamp)
                if node.is_hash:
                    _enter(node, following, stamp)
            active = following
            visits += len(active)
            if not active:
                break
        for node in active:
            found.update(node.targets)
        self._stamp = stamp
        self.visits += visits

    def is_empty(self) -> bool:
        """Return whether there is no pattern."""
        return self._root.is_empty()


def _enter(node: TopicNode | None, active: list[TopicNode], stamp: int) -> None:
    """Add a node to the active ones, and the `#` below it, which also matches no word. A `#` can be
    reached from its parent and from itself; any other node from its parent only."""
    while node is not None:
        if node.is_hash:
            if node.stamp == stamp:
                return
            node.stamp = stamp
        active.append(node)
        node = node.hash
