from penstock.http.pages import ByteCache


def test_the_most_recently_used_stay() -> None:
    cache = ByteCache(10)
    for key in ("a", "b", "c"):
        cache.put(key, key.encode() * 3)
    assert cache.get("a") == b"aaa"
    cache.put("d", b"dddd")  # 13 bytes: b goes
    assert [cache.get(key) for key in "abcd"] == [b"aaa", None, b"ccc", b"dddd"]
    assert cache.held_bytes == 10


def test_what_is_put_twice_counts_once_and_what_is_too_large_not_at_all() -> None:
    cache = ByteCache(10)
    cache.put("a", b"12345")
    cache.put("a", b"123")
    assert (cache.get("a"), cache.held_bytes) == (b"123", 3)
    cache.put("b", b"x" * 11)
    assert (cache.get("b"), cache.held_bytes) == (None, 3)
