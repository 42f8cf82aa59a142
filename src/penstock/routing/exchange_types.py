"""Exchange types: which bindings of an exchange a message's keys and headers select.

A destination is a target: "q" or "e" and the name, because a queue and an exchange may have the
same name. Each type keeps its bindings in the form in which it finds them:

    direct              key -> targets, one look-up
    fanout              targets; the key is ignored
    topic               a TopicTrie
    headers             the bindings' arguments, compared one by one
    x-consistent-hash   weights; the key, or a header or property, selects one target
    x-modulus-hash      targets in the order of their names; the key selects one
    x-random            targets; chance selects one (x-local-random: the same on one node)
    x-recent-history    as fanout, and the last messages, which the next binding gets
    x-delayed-message   the type that x-delayed-type names; the delay is the vhost's
    x-message-deduplication   as fanout, but for messages whose key it has seen

A message may have several keys (its own, and those of its CC and BCC headers); a target is selected
if any of them selects it. Every type must find exactly what the present bindings say, in whatever
order and however often they were bound and unbound.

Headers are compared as in RabbitMQ: numbers and times by value, whatever their types (1 equals 1.0
and the first second of 1970, but not true), a text equals the same bytes, and an argument without a
value requires only that the header exists. Arguments that begin with "x-" are ignored, except under
all-with-x and any-with-x, where only x-match is. Without conditions `all` selects every message and
`any` none.

Topics. A key is a list of words between dots; so is a pattern, in which `*` matches exactly one
word and `#` any number of words, also none. The empty key has no words, as in RabbitMQ; "a." has
two, the second one empty. Patterns are kept as a tree of words:

    quick.orange.rabbit -> A        root -- quick -- orange -- rabbit  {A}
    quick.#             -> B               \\      \\ #  {B}
    *.orange.*          -> C               \\ * -- orange -- *  {C}

A key is matched by following all ways at once, word by word: the active nodes after a word are the
children for that word and for `*`, and every `#` that was active. A `#` also matches no word, so it
is active as soon as its parent is. Each node is active at most once per word: only a `#` can be
reached in two ways, and its stamp is the word for which it was reached last. So for each word a
match visits every node at most once: "#.#.#.#" costs a few nodes, not a power of the key's length,
and patterns that share no words with the key cost nothing. `visits` counts the nodes.

**Hashing.** A consistent hash must move few messages when a target comes or goes, and must be the
same after a restart, whatever the order of the bindings. So each target has a number for each key
(rendezvous hashing: an exponential variable, divided by the weight), and the lowest one wins: a
target gets its weight's part of all keys, and one that goes leaves only its own keys to others. A
message without the header or property has the empty key. Of several keys the first one counts.

**Steps.** One message may have hundreds of keys and thousands of headers, and others may have bound
thousands of patterns, so selecting may take seconds. It is therefore done in slices: a type takes
what it does from `Asked.steps` (a node visited, a name compared, a key looked up: each about one),
stops where they are used up, and returns the Rest that continues. Bindings may change in between; a
change that is made while a message is on its way may count for it or not.

Nothing is cached here, but for the list of a headers exchange's conditions. Headers are brought
into the form in which they are compared once for each message, not once for each exchange.

**RAM.** A binding keeps its arguments as bytes, and a headers exchange its conditions in a form
whose size these bytes bound: an array or a table, which takes up to 80 times as much when it is
decoded, is kept as a digest. The words of patterns take RAM of their own, which patterns share;
each is counted for the user whose binding has added it, until no pattern has it any more.

Invariants: a node without targets and children is not in the tree. A target that was added n times
for a pattern stays until it was removed n times (bindings that differ in arguments).
"""

from abc import ABC, abstractmethod
from base64 import urlsafe_b64encode
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import blake2b
from math import log
from random import Random
from typing import Final
from urllib.parse import quote_plus

from penstock.codec.fields import decode_table, encode_table
from penstock.codec.properties import BasicProperties
from penstock.errors import COMMAND_INVALID, PRECONDITION_FAILED, AMQPConnectionError, ChannelError
from penstock.native import mypyc_attr
from penstock.storage.index.key_windows import HELD_BYTES, SIZE_MAX, KeyWindow

STAR: Final = "*"
HASH: Final = "#"


class TopicNode:
    """One word of some patterns. targets: of patterns that end here, and how often each was
    added. creator: the user whose pattern was the first with it."""

    __slots__ = ("children", "creator", "hash", "is_hash", "stamp", "star", "targets")

    def __init__(self, is_hash: bool, creator: str) -> None:
        self.children: dict[str, TopicNode] = NO_CHILDREN
        self.creator: str = creator
        self.star: TopicNode | None = None
        self.hash: TopicNode | None = None
        self.targets: dict[str, int] = NO_TARGETS
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


# Most nodes have one of both. These are never changed.
NO_CHILDREN: Final[dict[str, TopicNode]] = {}
NO_TARGETS: Final[dict[str, int]] = {}
WORD_BYTES: Final = 450  # measured: a node with its entry in another one, and a word of 8 bytes
WILD_BYTES: Final = 150  # measured: a node for `*` or `#`


def not_counted(_user: str, _change: int) -> None:
    """Do nothing: nobody counts."""


def word_bytes(word: str) -> int:
    """Return about how many bytes of RAM a node for this word takes."""
    return WILD_BYTES if word in (STAR, HASH) else WORD_BYTES + len(word)


def words_of(text: str) -> list[str]:
    """Return the words of a key or a pattern; the empty one has none."""
    return text.split(".") if text else []


class TopicTrie:
    """Patterns and their targets, which are any strings. visits: nodes that matches visited.
    held: the bytes of RAM of all words, by the user whose pattern has added them; count(user,
    bytes) is called with each change of it."""

    def __init__(self) -> None:
        self.visits: int = 0
        self.held: dict[str, int] = {}
        self.count: Callable[[str, int], None] = not_counted
        self._root: TopicNode = TopicNode(False, "")
        self._stamp: int = 0  # one for each word of each match

    def add(self, pattern: str, target: str, creator: str = "") -> None:
        """Add a target for keys that the pattern matches, for this user."""
        node = self._root
        added = 0
        for word in words_of(pattern):
            below = node.child(word)
            if below is None:
                below = TopicNode(word == HASH, creator)
                added += word_bytes(word)
                if word == STAR:
                    node.star = below
                elif word == HASH:
                    node.hash = below
                else:
                    if node.children is NO_CHILDREN:
                        node.children = {}
                    node.children[word] = below
            node = below
        if added:
            self._changed(creator, added)
        if node.targets is NO_TARGETS:
            node.targets = {}
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
        if not path[-1].targets:
            path[-1].targets = NO_TARGETS
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
                if not parent.children:
                    parent.children = NO_CHILDREN
            self._changed(path[depth].creator, -word_bytes(word))
        return True

    def _changed(self, creator: str, change: int) -> None:
        now = self.held.get(creator, 0) + change
        if now:
            self.held[creator] = now
        else:
            del self.held[creator]
        self.count(creator, change)

    def match(self, key: str) -> list[str]:
        """Return the targets of all patterns that match, each once."""
        found: dict[str, int] = {}
        asked = Asked([key], None)
        match = self.match_into(asked, found)
        while match is not None:
            asked.steps = SLICE_STEPS
            match = self.match_into(asked, found, match)
        return list(found)

    def match_into(
        self, asked: "Asked", found: dict[str, int], match: "TopicMatch | None" = None
    ) -> "TopicMatch | None":
        """Add the targets of all patterns that match one of the keys to `found`. Its values have no
        meaning. Returns what is left to do when the steps are used up. match: what was left."""
        if match is None:
            match = TopicMatch(self)
        while True:
            if not match.active:
                if match.key_at == len(asked.keys):
                    return None
                match.words = words_of(asked.keys[match.key_at])
                match.key_at += 1
                match.word_at = 0
                _enter(self._root, match.active, self.next_stamp(), None)
                self.visits += len(match.active)
            if len(match.active) <= WHOLE_NODES:
                if asked.steps <= 0:
                    return match
                self._match_words(match, asked, found)
            elif asked.steps <= 0 or not match.take_large(asked, found):
                return match

    def _match_words(self, match: "TopicMatch", asked: "Asked", found: dict[str, int]) -> None:
        """Match the words of a key, and take the targets after the last one, as long as there are
        steps and few nodes are active."""
        active = match.active
        words = match.words
        word_at = match.word_at
        steps = asked.steps
        stamp = self._stamp
        visits = 0
        while word_at < len(words) and steps > 0 and 0 < len(active) <= WHOLE_NODES:
            word = words[word_at]
            word_at += 1
            stamp += 1
            following: list[TopicNode] = []
            for node in active:
                below = node.children.get(word)
                if below is not None:
                    _enter(below, following, stamp, None)
                if node.star is not None:
                    _enter(node.star, following, stamp, None)
                if node.is_hash:
                    _enter(node, following, stamp, None)
            active = following
            visits += len(active)
            steps -= 1 + len(active)
        if word_at == len(words) and steps > 0 and len(active) <= WHOLE_NODES:
            for node in active:
                if node.targets:
                    found.update(node.targets)
                    steps -= 1 + len(node.targets) // TARGETS_PER_STEP
            active = []
        match.active = active
        match.word_at = word_at
        asked.steps = steps
        self._stamp = stamp
        self.visits += visits

    def next_stamp(self) -> int:
        """Begin a word of a match; return its number."""
        self._stamp += 1
        return self._stamp

    def is_empty(self) -> bool:
        """Return whether there is no pattern."""
        return self._root.is_empty()


def _enter(
    node: TopicNode | None, active: list[TopicNode], stamp: int, entered: set[TopicNode] | None
) -> None:
    """Add a node to the active ones, and the `#` below it, which also matches no word. A `#` can be
    reached from its parent and from itself; any other node from its parent only. entered: the `#`
    of this word, if other matches may come between, whose stamps would replace its own."""
    while node is not None:
        if node.is_hash:
            if entered is not None:
                if node in entered:
                    return
                entered.add(node)
            elif node.stamp == stamp:
                return
            else:
                node.stamp = stamp
        active.append(node)
        node = node.hash


SLICE_STEPS: Final = 4096  # of what cannot be continued later: some milliseconds
WHOLE_NODES: Final = 512  # a word with so many active nodes is not interrupted
TARGETS_PER_STEP: Final = 16  # copied from one dict to another


class Asked:
    """What exchanges are asked: the keys and headers of one message, and its other properties if
    they are known. steps: how many are left in this slice; what is done is subtracted. What they
    answer beside targets: histories that are to have the message, and is_by_chance, whether the
    next message like it may go elsewhere."""

    __slots__ = ("_given", "_header_hashes", "headers", "histories", "is_by_chance", "key", "keys",
                 "now_ms", "properties", "seen_lsn", "steps", "windows")  # fmt: skip

    def __init__(
        self, keys: list[str], headers: dict[str, object] | None, steps: int = SLICE_STEPS
    ) -> None:
        self.keys: list[str] = keys
        self.headers: dict[str, object] | None = headers
        self.properties: BasicProperties | None = None
        self.steps: int = steps
        self.histories: list[RecentHistoryExchange] = []
        self.is_by_chance: bool = False
        self.key: bytes | None = None  # by which duplicates are known; None: it is no duplicate
        self.now_ms: int = 0
        self.windows: list[KeyWindow] = []  # that are to see the key
        self.seen_lsn: int = 0  # of the windows that have seen it
        self._given: dict[str, object] | None = None
        self._header_hashes: dict[str, int] = {}

    def header_hash(self, name: str) -> int:
        """Return the hash of a header's value; made once for all exchanges."""
        found = self._header_hashes.get(name)
        if found is None:
            value = None if self.headers is None else self.headers.get(name)
            found = self._header_hashes[name] = _hash(_hashed(value))
        return found

    def given(self) -> dict[str, object]:
        """Return name -> `header_value` of each header; made once for all exchanges."""
        given = self._given
        if given is None:
            headers = self.headers or {}
            given = self._given = {name: header_value(value) for name, value in headers.items()}
            self.steps -= len(given)
        return given


@mypyc_attr(allow_interpreted_subclasses=True)
class Rest(ABC):
    """What is left of one exchange's selecting when the steps of a slice are used up."""

    @abstractmethod
    def go_on(self, asked: Asked, found: dict[str, int]) -> "Rest | None":
        """Select further. Returns None when all was selected."""


class TopicMatch(Rest):
    """A match of keys with the patterns of a trie that was interrupted.

    key_at: of the next key; words: of the one before it; word_at: of the next word. active: the
    nodes after the words before that, none between two keys.

    A match stops between two words, or within one for which many nodes are active (`take_large`).
    Then other matches may come between and stamp the same nodes, so the `#` that were entered are
    kept in a set.
    """

    __slots__ = ("_at", "_entered", "_following", "active", "key_at", "trie", "word_at", "words")

    def __init__(self, trie: TopicTrie) -> None:
        self.trie: TopicTrie = trie
        self.key_at: int = 0
        self.words: list[str] = []
        self.word_at: int = 0
        self.active: list[TopicNode] = []
        self._at: int = 0  # of the active node that is next
        self._following: list[TopicNode] = []  # active after this word, so far
        self._entered: set[TopicNode] = set()

    def go_on(self, asked: Asked, found: dict[str, int]) -> Rest | None:
        return self.trie.match_into(asked, found, self)

    def take_large(self, asked: Asked, found: dict[str, int]) -> bool:
        """Take the next word, or after the last one the targets, if many nodes are active. Returns
        False if the steps do not suffice."""
        active = self.active
        start = self._at
        end = self._at = min(len(active), start + max(asked.steps, 1))
        asked.steps -= end - start
        if self.word_at == len(self.words):
            for i in range(start, end):
                targets = active[i].targets
                if targets:
                    found.update(targets)
                    asked.steps -= len(targets) // TARGETS_PER_STEP
        else:
            self._match_word(start, end)
        if end < len(active):
            return False
        self.active, self._following, self._entered = self._following, [], set()
        self.trie.visits += len(self.active)
        self.word_at += 1
        self._at = 0
        return True

    def _match_word(self, start: int, end: int) -> None:
        word = self.words[self.word_at]
        following, entered = self._following, self._entered
        stamp = self.trie.next_stamp()
        for i in range(start, end):
            node = self.active[i]
            below = node.children.get(word)
            if below is not None:
                _enter(below, following, stamp, entered)
            if node.star is not None:
                _enter(node.star, following, stamp, entered)
            if node.is_hash:
                _enter(node, following, stamp, entered)


DIRECT: Final = "direct"
FANOUT: Final = "fanout"
TOPIC: Final = "topic"
HEADERS: Final = "headers"
DELAYED: Final = "x-delayed-message"
CONSISTENT_HASH: Final = "x-consistent-hash"
MODULUS_HASH: Final = "x-modulus-hash"
RANDOM: Final = "x-random"
LOCAL_RANDOM: Final = "x-local-random"
RECENT_HISTORY: Final = "x-recent-history"

DEDUPLICATION: Final = "x-message-deduplication"
CACHE_SIZE: Final = "x-cache-size"
CACHE_TTL: Final = "x-cache-ttl"
HASH_HEADER: Final = "hash-header"
HASH_PROPERTY: Final = "hash-property"
HASH_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")
HISTORY_LENGTH: Final = "x-recent-history-length"
HISTORY_NO_STORE: Final = "x-recent-history-no-store"
HISTORY_LENGTH_DEFAULT: Final = 20  # the plugin's
PROPERTIES_KEY_BYTES: Final = 12
HISTORY_BYTES_MAX: Final = 1 << 20  # of one exchange, beside the limit of its length
KEPT_BYTES: Final = 250  # measured: a message of a history, without header and body
HASHES_PER_STEP: Final = 4

MATCHES: Final = ("all", "any", "all-with-x", "any-with-x")

DIGEST_BYTES: Final = 32
BINDING_BYTES: Final = 1400  # measured: a durable binding without arguments, in all its places
ENTRY_BYTES: Final = 160  # measured: one argument, as a headers exchange holds its condition


class Binding:
    """A binding from an exchange to a destination, for a key. Equal `identity`: the same binding.

    kind: "q" for a queue, "e" for an exchange. encoded: the arguments as an AMQP table, b"" for
    none; a table of Python objects takes up to 80 times as much. creator: the user who asked for
    it, "" if that is not known. held_bytes: its RAM, about. Raises ValueError or TypeError if AMQP
    has no type for an argument.
    """

    __slots__ = ("_decoded", "creator", "destination", "encoded", "held_bytes", "identity", "key",
                 "kind", "source", "target")  # fmt: skip

    def __init__(
        self, source: str, kind: str, destination: str, key: str, arguments: dict[str, object],
        creator: str = "", encoded: bytes | None = None,
    ) -> None:  # fmt: skip
        assert kind in ("q", "e"), kind
        self.source: str = source
        self.kind: str = kind
        self.destination: str = destination
        self.key: str = key
        if encoded is None:
            encoded = encode_table(arguments) if arguments else b""
        self.encoded: bytes = encoded
        self._decoded: dict[str, object] | None = arguments
        self.target: str = kind + destination
        self.creator: str = creator
        self.identity: object = (source, self.target, key, _identity_of(arguments))
        self.held_bytes: int = BINDING_BYTES + 3 * len(self.encoded) + ENTRY_BYTES * len(arguments)

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments, decoded at each call after `forget_decoded`."""
        if self._decoded is not None:
            return self._decoded
        return decode_table(self.encoded)[0] if self.encoded else {}

    @property
    def properties_key(self) -> str:
        """What RabbitMQ's HTTP API calls a binding among those of the same source and destination:
        the key, percent-encoded, "~" if there is nothing else; with arguments "~" and a hash."""
        key = quote_plus(self.key.encode("utf-8", "surrogateescape")).replace("~", "%7E")
        if not self.encoded:
            return key or "~"
        named = blake2b(canonical(self.arguments), digest_size=PROPERTIES_KEY_BYTES).digest()
        return f"{key}~{urlsafe_b64encode(named).decode().rstrip('=')}"

    def forget_decoded(self) -> None:
        """Keep the encoded arguments only."""
        self._decoded = None


@mypyc_attr(allow_interpreted_subclasses=True)
class ExchangeType(ABC):
    """The bindings of one exchange. is_per_message: whether `select` depends on more than the
    keys, so that its result is not cached with theirs."""

    is_per_message: bool = False

    def configure(self, arguments: dict[str, object], chance: Random) -> None:  # noqa: B027 - as below
        """Take the arguments of the exchange, before the first binding. ChannelError 406: one is
        wrong."""

    def count_with(self, count: Callable[[str, int], None]) -> None:  # noqa: B027 - most take none
        """Call count(user, bytes) with what it takes beside its bindings, and with what it
        frees."""

    def held(self) -> dict[str, int]:
        """Return the bytes of RAM that it takes beside its bindings, by user."""
        return {}

    @abstractmethod
    def bind(self, binding: Binding) -> None:
        """Add a binding that is not bound yet. Raises ChannelError 406 for invalid arguments."""

    @abstractmethod
    def unbind(self, binding: Binding) -> None:
        """Remove a binding that is bound."""

    @abstractmethod
    def select(self, asked: Asked, found: dict[str, int]) -> Rest | None:
        """Add the selected targets to `found`. Its values have no meaning; its order is kept.
        Returns what is left to do when the steps are used up; None: nothing."""


class DirectExchange(ExchangeType):
    """A binding selects messages with its key."""

    def __init__(self) -> None:
        self._targets: dict[str, dict[str, int]] = {}

    def bind(self, binding: Binding) -> None:
        _count_up(self._targets.setdefault(binding.key, {}), binding.target)

    def unbind(self, binding: Binding) -> None:
        targets = self._targets[binding.key]
        _count_down(targets, binding.target)
        if not targets:
            del self._targets[binding.key]

    def select(self, asked: Asked, found: dict[str, int]) -> Rest | None:
        if len(asked.keys) > 1:
            return KeysLeft(self._targets).go_on(asked, found)
        targets = self._targets.get(asked.keys[0])
        if targets is not None:
            found.update(targets)
            asked.steps -= len(targets) // TARGETS_PER_STEP
        return None


class KeysLeft(Rest):
    """The keys that a direct exchange has not looked up yet."""

    __slots__ = ("_at", "_targets")

    def __init__(self, targets: dict[str, dict[str, int]]) -> None:
        self._targets: dict[str, dict[str, int]] = targets
        self._at: int = 0

    def go_on(self, asked: Asked, found: dict[str, int]) -> Rest | None:
        keys = asked.keys
        for i in range(self._at, len(keys)):
            targets = self._targets.get(keys[i])
            if targets is not None:
                if asked.steps <= 0:
                    self._at = i
                    return self
                found.update(targets)
                asked.steps -= len(targets) // TARGETS_PER_STEP
            asked.steps -= 1
        return None


class FanoutExchange(ExchangeType):
    """Every binding selects every message."""

    def __init__(self) -> None:
        self._targets: dict[str, int] = {}

    def bind(self, binding: Binding) -> None:
        _count_up(self._targets, binding.target)

    def unbind(self, binding: Binding) -> None:
        _count_down(self._targets, binding.target)

    def select(self, asked: Asked, found: dict[str, int]) -> Rest | None:
        found.update(self._targets)
        asked.steps -= len(self._targets) // TARGETS_PER_STEP
        return None


class TopicExchange(ExchangeType):
    """A binding selects messages whose key matches its pattern of words."""

    def __init__(self) -> None:
        self._trie = TopicTrie()

    def count_with(self, count: Callable[[str, int], None]) -> None:
        self._trie.count = count

    def held(self) -> dict[str, int]:
        return self._trie.held

    def bind(self, binding: Binding) -> None:
        self._trie.add(binding.key, binding.target, binding.creator)

    def unbind(self, binding: Binding) -> None:
        was_there = self._trie.remove(binding.key, binding.target)
        assert was_there

    def select(self, asked: Asked, found: dict[str, int]) -> Rest | None:
        return self._trie.match_into(asked, found)


class HeadersCondition:
    """The condition on headers that a binding's arguments express."""

    __slots__ = ("is_any", "target", "wanted")

    def __init__(self, binding: Binding) -> None:
        arguments = binding.arguments
        match = match_of(arguments)
        has_x = match.endswith("-with-x")
        self.target: str = binding.target
        self.is_any: bool = match.startswith("any")
        # name -> `header_value` of the value, None if the header only has to exist
        self.wanted: dict[str, object] = {
            name: None if value is None else header_value(value)
            for name, value in arguments.items()
            if name != "x-match" and (has_x or not name.startswith("x-"))
        }

    def holds(self, given: dict[str, object]) -> bool:
        """Return whether the headers fulfil it. given: name -> `header_value` of each header."""
        for name, value in self.wanted.items():
            is_equal = name in given and (value is None or given[name] == value)
            if is_equal == self.is_any:
                return self.is_any
        return not self.is_any


class HeadersExchange(ExchangeType):
    """A binding selects messages by a condition on headers; the key is ignored."""

    is_per_message = True

    def __init__(self) -> None:
        self._conditions: dict[object, HeadersCondition] = {}
        self._listed: list[HeadersCondition] | None = None  # the same; a new list after a change

    def bind(self, binding: Binding) -> None:
        self._conditions[binding.identity] = HeadersCondition(binding)
        self._listed = None

    def unbind(self, binding: Binding) -> None:
        del self._conditions[binding.identity]
        self._listed = None

    def select(self, asked: Asked, found: dict[str, int]) -> Rest | None:
        listed = self._listed
        if listed is None:
            listed = self._listed = list(self._conditions.values())
        return ConditionsLeft(listed).go_on(asked, found)


class ConditionsLeft(Rest):
    """The conditions of a headers exchange that are not compared yet."""

    __slots__ = ("_at", "_conditions")

    def __init__(self, conditions: list[HeadersCondition]) -> None:
        self._conditions: list[HeadersCondition] = conditions
        self._at: int = 0

    def go_on(self, asked: Asked, found: dict[str, int]) -> Rest | None:
        given = asked.given()
        conditions = self._conditions
        steps = asked.steps
        for i in range(self._at, len(conditions)):
            if steps <= 0:
                self._at = i
                asked.steps = steps
                return self
            condition = conditions[i]
            steps -= 1 + len(condition.wanted)
            if condition.target not in found and condition.holds(given):
                found[condition.target] = 1
        asked.steps = steps
        return None


class OneOfAll(ExchangeType):
    """Bindings of which each message takes one."""

    def __init__(self) -> None:
        self._targets: dict[str, int] = {}
        self._listed: list[str] = []  # in the order of their names, so that a restart keeps it

    def bind(self, binding: Binding) -> None:
        if binding.target not in self._targets:
            insort(self._listed, binding.target)
        _count_up(self._targets, binding.target)

    def unbind(self, binding: Binding) -> None:
        _count_down(self._targets, binding.target)
        if binding.target not in self._targets:
            del self._listed[bisect_left(self._listed, binding.target)]


class ModulusHashExchange(OneOfAll):
    """The hash of the key, modulo the number of targets, selects one."""

    def select(self, asked: Asked, found: dict[str, int]) -> Rest | None:
        listed = self._listed
        if listed:
            found[listed[_hash(_name_bytes(asked.keys[0])) % len(listed)]] = 1
        return None


class RandomExchange(OneOfAll):
    """Chance selects one target for each message."""

    is_per_message = True

    def __init__(self) -> None:
        super().__init__()
        self._chance: Random = Random(0)

    def configure(self, arguments: dict[str, object], chance: Random) -> None:
        self._chance = chance

    def select(self, asked: Asked, found: dict[str, int]) -> Rest | None:
        asked.is_by_chance = True
        if self._listed:
            found[self._chance.choice(self._listed)] = 1
        return None


class ConsistentHashExchange(ExchangeType):
    """The hash of the key, or of a header or property, selects one target. A binding's key is its
    weight; several bindings of one target add up."""

    def __init__(self) -> None:
        self._weights: dict[str, int] = {}
        self._seeds: dict[str, int] = {}
        self._header: str = ""
        self._property: str = ""

    def configure(self, arguments: dict[str, object], chance: Random) -> None:
        header = arguments.get(HASH_HEADER, "")
        of = arguments.get(HASH_PROPERTY, "")
        if not isinstance(header, str) or not isinstance(of, str):
            raise _wrong(f"{HASH_HEADER} and {HASH_PROPERTY} are texts, given {header!r}, {of!r}")
        if header and of:
            raise _wrong(f"{HASH_HEADER} and {HASH_PROPERTY} are mutually exclusive")
        if of and of not in HASH_PROPERTIES:
            expected = ", ".join(HASH_PROPERTIES)
            raise _wrong(f"Unsupported property: {of}; expected one of {expected}")
        self._header, self._property = header, of
        self.is_per_message = bool(header or of)

    def bind(self, binding: Binding) -> None:
        weight = _weight(binding.key)
        target = binding.target
        self._weights[target] = self._weights.get(target, 0) + weight
        self._seeds[target] = _hash(_name_bytes(target))

    def unbind(self, binding: Binding) -> None:
        target = binding.target
        left = self._weights[target] - _weight(binding.key)
        if left:
            self._weights[target] = left
        else:
            del self._weights[target], self._seeds[target]

    def select(self, asked: Asked, found: dict[str, int]) -> Rest | None:
        key = self._key(asked)
        if len(self._seeds) > asked.steps * HASHES_PER_STEP:
            return HashesLeft(key, list(self._seeds.items()), self._weights).go_on(asked, found)
        asked.steps -= len(self._seeds) // HASHES_PER_STEP
        first, least = "", 0.0
        for target, seed in self._seeds.items():
            number = _draw(seed, key, self._weights[target])
            if not first or number < least:
                first, least = target, number
        if first:
            found[first] = 1
        return None

    def _key(self, asked: Asked) -> int:
        """Return the hash of what decides for this message."""
        value: object
        if self._header:
            return asked.header_hash(self._header)
        if self._property:
            value = None if asked.properties is None else getattr(asked.properties, self._property)
        else:
            value = asked.keys[0]
        return _hash(_hashed(value))


class HashesLeft(Rest):
    """The targets of a consistent hash that have no number for this key yet. weights: of those
    that are bound still."""

    __slots__ = ("_at", "_first", "_key", "_least", "_seeds", "_weights")

    def __init__(self, key: int, seeds: list[tuple[str, int]], weights: dict[str, int]) -> None:
        self._key: int = key
        self._seeds: list[tuple[str, int]] = seeds
        self._weights: dict[str, int] = weights
        self._at: int = 0
        self._first: str = ""
        self._least: float = 0.0

    def go_on(self, asked: Asked, found: dict[str, int]) -> Rest | None:
        start = self._at
        end = self._at = min(len(self._seeds), start + max(asked.steps, 1) * HASHES_PER_STEP)
        asked.steps -= (end - start) // HASHES_PER_STEP
        for i in range(start, end):
            target, seed = self._seeds[i]
            weight = self._weights.get(target)
            if weight is None:
                continue
            number = _draw(seed, self._key, weight)
            if not self._first or number < self._least:
                self._first, self._least = target, number
        if end < len(self._seeds):
            return self
        if self._first:
            found[self._first] = 1
        return None


HASHES: Final = 1 << 64


def _hashed(value: object) -> bytes:
    """Return what a consistent hash is of: a text's own bytes, none of nothing."""
    if value is None:
        return b""
    return _name_bytes(value) if isinstance(value, str) else canonical(value)


def _draw(seed: int, key: int, weight: int) -> float:
    """Return the number of a target for a key: the lowest one wins."""
    return -log((_mixed(seed ^ key) + 0.5) / HASHES) / weight


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


def _mixed(value: int) -> int:
    """Return a number below HASHES that has nothing to do with it (the end of SplitMix64)."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % HASHES
    value = (value ^ value >> 27) * 0x94D049BB133111EB % HASHES
    return value ^ value >> 31


def _weight(key: str) -> int:
    digits = key[1:] if key[:1] in ("+", "-") else key
    if not (digits.isascii() and digits.isdigit()):
        raise _wrong(f"The binding key must be an integer: {key!r}")
    if int(key) < 1:
        raise _wrong(f"The binding key must be greater than 0, given {key!r}")
    return int(key)


def _wrong(text: str) -> ChannelError:
    return ChannelError(PRECONDITION_FAILED, text)


class Kept:
    """A message of a history. header, body: as stored. is_persistent, priority, ttl_ms: as
    published."""

    __slots__ = ("body", "header", "is_persistent", "priority", "ttl_ms")

    def __init__(
        self, header: bytes, body: bytes, is_persistent: bool, priority: int, ttl_ms: int | None
    ) -> None:
        self.header: bytes = header
        self.body: bytes = body
        self.is_persistent: bool = is_persistent
        self.priority: int = priority
        self.ttl_ms: int | None = ttl_ms

    @property
    def held_bytes(self) -> int:
        """Return about how many bytes of RAM it takes."""
        return KEPT_BYTES + len(self.header) + len(self.body)


def _has_any_room(_creator: str, _change: int) -> bool:
    return True


class RecentHistoryExchange(FanoutExchange):
    """Every binding selects every message, and a new one gets the last messages. They are in RAM
    only, as in RabbitMQ's plugin, HISTORY_BYTES_MAX at most, and what the creator's histories may
    take together (broker.usage)."""

    is_per_message = True

    def __init__(self) -> None:
        super().__init__()
        self.kept: deque[Kept] = deque()
        self._length: int = HISTORY_LENGTH_DEFAULT
        self._bytes: int = 0
        self._count: Callable[[str, int], None] = not_counted
        self._creator: str = ""
        self._has_room: Callable[[str, int], bool] = _has_any_room
        self._count_kept: Callable[[str, int], None] = not_counted

    def share(
        self, creator: str, has_room: Callable[[str, int], bool],
        count: Callable[[str, int], None],
    ) -> None:  # fmt: skip
        """Share RAM with the histories of others. creator: who declared the exchange.
        has_room(creator, change): whether its histories may take so many bytes more. count: is
        called with each change."""
        self._creator, self._has_room, self._count_kept = creator, has_room, count

    def configure(self, arguments: dict[str, object], chance: Random) -> None:
        length = arguments.get(HISTORY_LENGTH, HISTORY_LENGTH_DEFAULT)
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            text = f"'{HISTORY_LENGTH}' must be a positive integer"
            raise _wrong(f"Invalid argument {length!r}, {text}")
        self._length = length

    def count_with(self, count: Callable[[str, int], None]) -> None:
        self._count = count

    def held(self) -> dict[str, int]:
        return {"": self._bytes} if self._bytes else {}

    def select(self, asked: Asked, found: dict[str, int]) -> Rest | None:
        if (asked.headers or {}).get(HISTORY_NO_STORE) is not True:
            asked.histories.append(self)
        return super().select(asked, found)

    def keep(self, message: Kept) -> None:
        """Keep a message, in place of the oldest ones if it is too much. One that is too large by
        itself, or for the room that there is, is left out."""
        size = message.held_bytes
        if size > HISTORY_BYTES_MAX or not self._has_room(self._creator, size - self._bytes):
            return
        while self.kept and (
            len(self.kept) >= self._length
            or self._bytes + size > HISTORY_BYTES_MAX
            or not self._has_room(self._creator, size)
        ):
            self._changed(-self.kept.popleft().held_bytes)
        self.kept.append(message)
        self._changed(size)

    def forget_all(self) -> None:
        """Forget all messages: the exchange is deleted."""
        self.kept.clear()
        self._changed(-self._bytes)

    def _changed(self, change: int) -> None:
        self._bytes += change
        self._count("", change)
        self._count_kept(self._creator, change)


def keys_bytes(
    arguments: dict[str, object], size_default: int = 0, *, is_type: bool = False
) -> int:
    """Return the bytes of RAM that as many keys as these arguments ask for take; 0 if they ask for
    none, or their number is wrong. is_type: of an exchange whose type asks for them."""
    if not is_type and arguments.get(DEDUPLICATION) is not True:
        return 0
    size = arguments.get(CACHE_SIZE, size_default)
    return HELD_BYTES * size if type(size) is int and 0 < size <= SIZE_MAX else 0


class DeduplicatedExchange(ExchangeType):
    """Selects as `inner` does, but nothing for a message whose key the window has seen. The owner
    sets the window, and has it see the keys of what is published."""

    is_per_message = True

    def __init__(self, inner: ExchangeType) -> None:
        self.inner: ExchangeType = inner
        self.window: KeyWindow = KeyWindow(b"")
        self.size: int = 0
        self.ttl_ms: int | None = None

    def configure(self, arguments: dict[str, object], chance: Random) -> None:
        size, ttl_ms = arguments.get(CACHE_SIZE), arguments.get(CACHE_TTL)
        if type(size) is not int or not 1 <= size <= SIZE_MAX:
            text = f"'{CACHE_SIZE}' must be an integer from 1 to {SIZE_MAX}"
            raise _wrong(f"Invalid argument {size!r}, {text}")
        if ttl_ms is not None and (type(ttl_ms) is not int or ttl_ms < 1):
            raise _wrong(f"Invalid argument {ttl_ms!r}, '{CACHE_TTL}' must be ms, from 1")
        self.size = size
        self.ttl_ms = ttl_ms if isinstance(ttl_ms, int) else None
        self.inner.configure(arguments, chance)

    def count_with(self, count: Callable[[str, int], None]) -> None:
        self.inner.count_with(count)

    def held(self) -> dict[str, int]:
        return self.inner.held()

    def bind(self, binding: Binding) -> None:
        self.inner.bind(binding)

    def unbind(self, binding: Binding) -> None:
        self.inner.unbind(binding)

    def select(self, asked: Asked, found: dict[str, int]) -> Rest | None:
        if asked.key is not None:
            if self.window.has(asked.key, asked.now_ms):
                asked.seen_lsn = max(asked.seen_lsn, self.window.lsn)
                return None
            asked.windows.append(self.window)
        return self.inner.select(asked, found)


# A new type is added here, and nowhere else.
_TYPES: Final[dict[str, Callable[[], ExchangeType]]] = {
    DIRECT: DirectExchange,
    FANOUT: FanoutExchange,
    TOPIC: TopicExchange,
    HEADERS: HeadersExchange,
    CONSISTENT_HASH: ConsistentHashExchange,
    MODULUS_HASH: ModulusHashExchange,
    RANDOM: RandomExchange,
    LOCAL_RANDOM: RandomExchange,
    RECENT_HISTORY: RecentHistoryExchange,
}
TYPES: Final = (*_TYPES, DELAYED, DEDUPLICATION)


def make_exchange_type(
    name: str, arguments: dict[str, object], chance: Random | None = None
) -> ExchangeType:
    """Return the type of this name, without bindings.

    Raises AMQPConnectionError 503 for an unknown type, ChannelError 406 for a wrong argument.
    """
    if name == DELAYED:
        inner = arguments.get("x-delayed-type")
        if not isinstance(inner, str) or inner not in _TYPES:
            text = "Invalid argument, 'x-delayed-type' must be an existing exchange type"
            raise ChannelError(PRECONDITION_FAILED, text)
        name = inner
    is_deduplicated = name == DEDUPLICATION or arguments.get(DEDUPLICATION) is True
    if name == DEDUPLICATION:
        name = FANOUT
    make = _TYPES.get(name)
    if make is None:
        raise AMQPConnectionError(COMMAND_INVALID, f"unknown exchange type '{name}'")
    made = make()
    if is_deduplicated:
        made = DeduplicatedExchange(made)
    made.configure(arguments, chance or Random(0))
    return made


def match_of(arguments: dict[str, object]) -> str:
    """Return the x-match of a binding, "all" by default. Raises ChannelError 406 for another
    value."""
    match = arguments.get("x-match", "all")
    if not isinstance(match, str):
        text = f"Invalid x-match field type {type(match).__name__}; expected longstr"
        raise ChannelError(PRECONDITION_FAILED, text)
    if match not in MATCHES:
        expected = "all, any, all-with-x, or any-with-x"
        text = f"Invalid x-match field value {match}; expected {expected}"
        raise ChannelError(PRECONDITION_FAILED, text)
    return match


def comparable(value: object) -> object:
    """Return a hashable form of an AMQP value, equal exactly for equal values of one kind. That of
    a table or an array has DIGEST_BYTES at most."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, dict):
        return ("table", _digest(canonical(value)))
    if isinstance(value, list | tuple):
        return ("array", _digest(canonical(value)))
    if isinstance(value, bytearray):
        value = bytes(value)
    return (type(value).__name__, value)


def _identity_of(arguments: dict[str, object]) -> bytes:
    """Return bytes that are equal exactly for arguments with equal `comparable` values."""
    if not arguments:
        return b""
    return _digest(canonical(arguments))


def _digest(text: bytes) -> bytes:
    return text if len(text) <= DIGEST_BYTES else blake2b(text, digest_size=DIGEST_BYTES).digest()


def canonical(value: object) -> bytes:
    """Return the value as bytes, equal exactly for equal values: its kind, the length, the
    value."""
    if isinstance(value, dict):
        parts = [
            canonical(name) + canonical(value[name]) for name in sorted(value, key=_name_bytes)
        ]
        return _framed(b"table", b"".join(parts))
    if isinstance(value, list | tuple):
        if PLAIN_TYPES.issuperset(map(type, value)):
            return _framed(b"plain", repr(list(value)).encode())
        return _framed(b"array", b"".join([canonical(inner) for inner in value]))
    if isinstance(value, str):
        return _framed(b"str", _name_bytes(value))
    if isinstance(value, bytes | bytearray):
        return _framed(b"bytes", bytes(value))
    if isinstance(value, Decimal):
        value = value.normalize()
    elif isinstance(value, float) and value == 0.0:
        value = 0.0  # -0.0 equals it
    elif isinstance(value, datetime):
        value = value.astimezone(UTC)
    return _framed(type(value).__name__.encode(), str(value).encode())


# Their values are equal exactly if their `repr` is.
PLAIN_TYPES: Final = frozenset({type(None), bool, int, str})


def _framed(kind: bytes, data: bytes) -> bytes:
    return b"%b:%d:%b" % (kind, len(data), data)


def _name_bytes(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def header_value(value: object) -> object:
    """Return the form in which a header and a condition are compared: numbers and times by value,
    text by its bytes, others as `comparable`."""
    if isinstance(value, str):
        return ("text", value.encode("utf-8", "surrogateescape"))
    if isinstance(value, bytes | bytearray):
        return ("text", bytes(value))
    if isinstance(value, datetime):
        return ("number", int(value.timestamp()))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ("number", value)
    return comparable(value)


def _count_up(counts: dict[str, int], target: str) -> None:
    counts[target] = counts.get(target, 0) + 1


def _count_down(counts: dict[str, int], target: str) -> None:
    if counts[target] == 1:
        del counts[target]
    else:
        counts[target] -= 1
