"""A hypothesis state machine over the whole storage engine, against the plain model of the ledger.

The rules are the driver's operations, with crashes (of every kind, at any operation of the life so
far), orderly stops and reopenings among them; after each step what the engine says of its queues is
the model, and after each reopening the whole judge is content. What hypothesis adds to the random
lives is shrinking: a failure comes as the shortest run of rules that still fails.

Each step's own chance comes from a seed that hypothesis draws, so a failing run, which is printed
with its rules and seeds, can be run again.
"""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.crash.images import MODES, Counts, Explorer
from tests.crash.random_lives import WEIGHTS
from tests.helpers.faulty_filesystem import FaultyFileSystem
from tests.helpers.inside import live_seqs
from tests.helpers.ledger import Violation, keys_of, model_keys
from tests.helpers.tiny_engine import VARIANTS
from tests.helpers.vhost_driver import Driver

STEPS = 40
# In the words of hypothesis, what is drawn; the rules below choose from it.
OPERATIONS = sorted({*WEIGHTS, "see"} - {"begin", "commit", "rollback"})
SEEDS = st.integers(0, 2**32 - 1)


class EngineMachine(RuleBasedStateMachine):
    """One store through any number of lives."""

    @initialize(variant=st.integers(0, len(VARIANTS) - 1), seed=SEEDS, shuffled=st.booleans())
    def start(self, variant: int, seed: int, shuffled: bool) -> None:
        self.options = VARIANTS[variant]
        self.counts = Counts()
        self.explorer = Explorer(self.options, seed, self.counts, follow=0.2)
        self.shuffled = shuffled
        self.driver = Driver(FaultyFileSystem(seed=seed), seed, options=self.options)
        self._begin_life()
        self.driver.declare(b"a")
        self.driver.declare(b"b")

    def _begin_life(self) -> None:
        fs = self.driver.fs
        if self.shuffled:
            fs.completion_rng = random.Random(fs.seed)
        self.journal = fs.start_journal()
        self.driver.watch()
        self.driver.look()

    @rule(name=st.sampled_from(OPERATIONS), seed=SEEDS)
    def operate(self, name: str, seed: int) -> None:
        self.driver.rng.seed(seed)
        self.driver.step(name)

    @rule(seed=SEEDS)
    def publish(self, seed: int) -> None:
        self.operate("publish", seed)

    @rule(seed=SEEDS)
    def begin_transaction(self, seed: int) -> None:
        self.operate("begin", seed)

    @rule(seed=SEEDS)
    def see(self, seed: int) -> None:
        self.operate("see", seed)

    @rule(seed=SEEDS, commits=st.booleans())
    def end_transaction(self, seed: int, commits: bool) -> None:
        if self.driver.transactions:
            self.operate("commit" if commits else "rollback", seed)

    @rule(mode=st.sampled_from(MODES), back=st.integers(0, 60), goes_on=st.booleans(), seed=SEEDS)
    def crash(self, mode: str, back: int, goes_on: bool, seed: int) -> None:
        """Crash some operations ago. Goes on: with what was recovered; else it was only a look."""
        self.driver.fs.before_operation = None
        self.driver.look()
        at = max(self.journal.first, self.journal.last - back)
        self.explorer.rng.seed(seed)
        ledger = self.driver.ledger
        image = self.explorer.crash(self.journal.image(at), mode, ledger, ledger.known(at))
        if not goes_on:
            self.explorer.explore(image)
            self.driver.watch()
            return
        uid = self.driver.uid
        self.driver = self.explorer.recover(image)
        self.driver.uid = max(uid, self.driver.uid)
        self._begin_life()

    @rule(loses=st.booleans())
    def stop_and_start(self, loses: bool) -> None:
        """An orderly stop; power may fail just behind it."""
        self.driver.fs.before_operation = None
        self.driver.close()
        self.driver.look()
        disk, _, last = self.driver.ledger.last_known()
        fs, uid = self.driver.fs.crash("lost" if loses else "killed"), self.driver.uid
        image = self.explorer.crash(fs, "lost", self.driver.ledger, (disk, disk, last))
        self.driver = self.explorer.recover(image)
        self.driver.uid = max(uid, self.driver.uid)
        if not self.driver.engine.recovered.is_clean:
            raise Violation("an orderly stop was not found clean")
        self._begin_life()

    @invariant()
    def the_engine_is_the_model(self) -> None:
        driver = getattr(self, "driver", None)
        if driver is None:
            return
        model = driver.ledger.base.copy()
        for _, change in driver.ledger.changes:
            model.apply(change)
        state = driver.engine.state
        assert {n: q.number for n, q in state.routing.queues.items()} == model.names
        for number, want in model.queues.items():
            queue = state.queues[number]
            assert live_seqs(queue) == sorted(want), f"queue {number}"
            assert queue.count == len(want)
            assert queue.bytes == sum(size for _, size, _ in want.values())
            assert queue.attempts == model.attempts[number]
        assert keys_of(driver.engine) == model_keys(model)

    def teardown(self) -> None:
        """Every run ends in a power cut that is judged."""
        if hasattr(self, "driver"):
            self.crash("lost", 0, True, 0)


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(settings.default, stateful_step_count=STEPS, database=None)
