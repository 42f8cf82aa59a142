"""Any order of writes, counts, cuts, combinings, syncs and crashes, against a dict.

The model is a dict address -> (body, references) with a copy of it per checkpoint, and the
list of what happened since (the log). A crash goes back to the last manifest, replays the
list as far as it was synced, and must find the very same counts and bodies.
"""

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import CorruptionError
from penstock.storage.store.file_queue_backing import Spool
from penstock.storage.store.message_store import MessageStore
from penstock.storage.store.message_store_gc import Combine, choose
from tests.contracts.queue_backing import load
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import sync_now
from tests.helpers.stores import Saved, check, new_store

Address = tuple[int, int]

FILE_BYTES_MAX = 2048
OWN_FILE_FROM = 1500


class StoreMachine(RuleBasedStateMachine):
    """A store of small files and its model."""

    @initialize(seed=st.integers(0, 1 << 32))
    def start(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fs = FaultyFileSystem(seed=seed)
        self.store = self.open(self.fs)
        self.fs.sync_dir("/")
        self.next_id = 1
        self.epoch = 0
        self.refs: dict[Address, int] = {}  # of the present, 0 for what may be revived
        self.owned: dict[Address, int] = {}
        self.bodies: dict[int, bytes] = {}
        self.saved = Saved([], 1, 0)
        self.saved_refs: dict[Address, int] = {}
        self.log: list[tuple[Address, int]] = []  # reference changes since the saved cut
        self.cutting: tuple[Saved, dict[Address, int], int, list[str]] | None = None
        self.combining: Combine | None = None
        self.has_run = False
        self.spools: list[tuple[Spool, int, bytes]] = []

    def open(self, fs: FaultyFileSystem) -> MessageStore:
        return new_store(
            fs, file_bytes_max=FILE_BYTES_MAX, own_file_from=OWN_FILE_FROM, cache_bytes=4096
        )

    def change(self, address: Address, n: int) -> None:
        """A record names the body: its references change by ``n``."""
        self.refs[address] = self.refs.get(address, 0) + n
        self.log.append((address, n))

    def new_body(self, size: int) -> int:
        # Ids mostly ascend; some come late.
        id = self.next_id
        self.next_id += 1
        if self.rng.random() < 0.2:
            id += 1 << 40
        self.bodies[id] = self.rng.randbytes(size)
        return id

    def some(self, wanted: bool) -> Address | None:
        """An address that is alive, or any that is known."""
        known = sorted(a for a, n in self.refs.items() if n or not wanted)
        return self.rng.choice(known) if known else None

    # ---- bodies ----------------------------------------------------------------------------

    @rule(size=st.sampled_from([0, 1, 100, 400, 900, 1499, 1500, 3000]), refs=st.integers(1, 3))
    def write(self, size: int, refs: int) -> None:
        id = self.new_body(size)
        self.change((self.store.write(id, self.bodies[id], refs), id), refs)

    @rule(count=st.integers(10, 40))
    def write_many(self, count: int) -> None:
        for _ in range(count):
            id = self.new_body(self.rng.randrange(200))
            self.change((self.store.write(id, self.bodies[id], 1), id), 1)

    @rule()
    def write_owned(self) -> None:
        id = self.new_body(self.rng.choice([50, 2000]))
        file = self.store.write(id, self.bodies[id], 0)
        self.store.own(file, id)
        self.owned[file, id] = 1
        self.refs.setdefault((file, id), 0)

    @rule(commit=st.booleans())
    def end_owned(self, commit: bool) -> None:
        if self.owned:
            address = self.rng.choice(sorted(self.owned))
            del self.owned[address]
            if commit:
                self.store.ref(*address, 2)
                self.change(address, 2)
            self.store.disown(*address)

    @rule(size=st.integers(0, 5000))
    def begin_spool(self, size: int) -> None:
        id = self.new_body(size)
        spool = self.store.spool(id)
        spool.write(self.bodies[id][: size // 2])
        self.spools.append((spool, id, self.bodies[id][size // 2 :]))

    @rule(finish=st.booleans())
    def end_spool(self, finish: bool) -> None:
        if self.spools:
            spool, id, rest = self.spools.pop(0)
            spool.write(rest)
            if finish:
                file = spool.finish()
                self.store.ref(file, id)
                self.change((file, id), 1)
            else:
                spool.abort()

    @rule(n=st.integers(1, 300))
    def ref(self, n: int) -> None:
        address = self.some(True)
        if address is not None:
            self.store.ref(*address, n)
            self.change(address, n)

    @rule(count=st.integers(1, 40))
    def unref(self, count: int) -> None:
        for _ in range(count):
            address = self.some(True)
            if address is not None:
                n = self.rng.randint(1, self.refs[address])
                dead = self.store.unref(*address, n)
                self.change(address, -n)
                assert dead == (self.refs[address] == 0)

    @rule()
    def read(self) -> None:
        address = self.some(True)
        if address is not None:
            assert self.store.read(*address) == self.bodies[address[1]]

    @rule()
    def sync(self) -> None:
        sync_now(self.store)

    # ---- combining -------------------------------------------------------------------------

    @precondition(lambda self: self.combining is None)
    @rule()
    def begin_combining(self) -> None:
        chosen = choose(self.store)
        if not chosen:
            sealed = [f for f in self.store.files if f.is_sealed and not f.owned]
            chosen = [self.rng.choice(sealed).number] if sealed else []
        if chosen:
            self.combining, self.has_run = Combine(self.store, chosen), False

    @precondition(lambda self: self.combining is not None)
    @rule(run=st.booleans())
    def go_on_combining(self, run: bool) -> None:
        job = self.combining
        assert job is not None
        if not self.has_run and run:
            job.run()
            self.has_run = True
        elif self.has_run and run:
            job.finish()
            self.combining = None
        else:
            job.abandon()
            self.combining = None

    # ---- checkpoints and crashes -----------------------------------------------------------

    @precondition(lambda self: self.cutting is None)
    @rule()
    def cut(self) -> None:
        self.epoch += 1
        self.store.cut(self.epoch)
        dead = self.store.take_dead()
        kept = {a: n for a, n in self.refs.items() if n or a in self.owned}
        saved = Saved([], self.store.next_file, self.store.next_own_file)
        self.refs = dict(kept)
        self.cutting = (saved, kept, len(self.log), dead)

    @precondition(lambda self: self.cutting is not None)
    @rule()
    def complete_checkpoint(self) -> None:
        assert self.cutting is not None
        saved, refs, cut, dead = self.cutting
        saved.states = [state.encode() for state in self.store.capture()]
        sync_now(self.store)
        self.saved, self.saved_refs = saved, refs
        del self.log[:cut]
        self.cutting = None
        for path in dead:
            self.fs.unlink(path)

    @rule(mode=st.sampled_from(["lost", "kept", "subset", "zeros", "killed"]), sync=st.booleans())
    def crash(self, mode: str, sync: bool) -> None:
        if sync:
            sync_now(self.store)
        self.fs = self.fs.crash(mode, self.rng)
        self.store = store = self.open(self.fs)
        store.restore(self.saved.states, self.saved.next_file, self.saved.next_own_file)
        assert store.take_damage() == []
        self.refs = dict(self.saved_refs)
        for address, n in self.refs.items():
            assert store.refs(*address) == n
        self.replay(sync)
        self.combining, self.cutting, self.owned, self.spools = None, None, {}, []
        self.next_id += 1000
        # The checkpoint that ends recovery.
        orphans = store.forget_unknown()
        self.epoch = 0
        self.cut()
        self.complete_checkpoint()
        for path in orphans:
            self.fs.unlink(path)

    def replay(self, was_synced: bool) -> None:
        """The log ends at the first record whose body is not there, which a sync rules out."""
        for n, (address, change) in enumerate(self.log):
            if change > 0 and address not in self.refs and not self.store.has(*address):
                assert not was_synced
                del self.log[n:]
                return
            if change > 0:
                self.store.ref(*address, change)
            else:
                self.store.unref(*address, -change)
            self.refs[address] = self.refs.get(address, 0) + change

    # ---- always ----------------------------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "store"):
            return
        check(self.store)
        for address, n in self.refs.items():
            assert self.store.refs(*address) == n
        assert self.store.live_count == sum(1 for n in self.refs.values() if n)

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for address, n in self.refs.items():
            if n:
                assert load(self.store, address) == self.bodies[address[1]]
            else:
                try:
                    load(self.store, address)
                except CorruptionError:
                    continue
                raise AssertionError("a dead body was loaded")


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
