"""A pool of workers on a durable queue: retries with back-off, dead letters, killed at any time.

    python examples/embedded_workers.py [DIRECTORY]

Puts sixty orders, of which some make their worker fail: one in ten once, one in twenty each time.
Four threads work them off. At the end every order was either done or is a dead letter, and the
program says how many of each. Run it again, kill it in between: what was not done is done then.
"""

import sys
import threading

import penstock

ORDERS = 60
WORKERS = 4


def work(body: bytes, attempts: int) -> None:
    """What an order needs; some orders fail."""
    number = int(body.split()[1])
    if number % 20 == 7 or (number % 10 == 3 and not attempts):
        raise RuntimeError(f"order {number} failed")


def worker(orders: penstock.Queue, done: list[bytes], is_over: threading.Event) -> None:
    while not is_over.is_set():
        try:
            with orders.get(timeout=0.1) as job:
                work(job.body, job.attempts)
            done.append(job.body)
        except penstock.QueueEmptyError:
            pass
        except RuntimeError as error:
            print(f"{error}, attempt {job.attempts + 1}")


def main(directory: str) -> None:
    with penstock.open(directory) as box:
        dead = box.queue("orders.dead")
        orders = box.queue(
            "orders", max_attempts=3, retry_delay=(0.05, 1), dead_letter_to="orders.dead"
        )
        if not len(orders):
            orders.put_many([b"order %d" % number for number in range(ORDERS)])
        done: list[bytes] = []
        is_over = threading.Event()
        given = orders, done, is_over
        threads = [threading.Thread(target=worker, args=given) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        orders.join()  # until each was acknowledged, or is a dead letter
        is_over.set()
        for thread in threads:
            thread.join()
        print(f"{len(done)} orders done, {len(dead)} dead letters")
        for message in dead:
            death = message.deaths[0]
            print(f"  {message.body.decode()}: {death.reason} after {death.attempts} attempts")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "workers.d")
