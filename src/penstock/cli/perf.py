"""`penstock perf`: publishes and consumes as fast as it can or at a rate, and prints what it saw.

    time 1.0 s, sent 18,204/s, received 18,101/s, latency 592/1,024/2,048 µs

Options are named as those of RabbitMQ's perf-test, `-h` included, which is the address there. Its
CPU is that of Python: on the broker's own machine it takes some of what it measures.
"""

from typing import TYPE_CHECKING, Final

import click

from penstock.cli import output
from penstock.cli.ask import NumberRange
from penstock.cli.output import FORMAT
from penstock.clock import SystemClock
from penstock.errors import OptionError

if TYPE_CHECKING:
    from penstock.client.load import LoadCounts

SHOWN = (50.0, 95.0, 99.0)
COUNT = click.IntRange(0, (1 << 31) - 1)
CLIENTS = click.IntRange(0, 10_000)
HEAD_BYTES: Final = 12  # of penstock.client.load:HEAD


@click.command("perf", context_settings={"help_option_names": ["--help"]})
@click.option("-h", "--uri", "--url", "url", metavar="URL", help="The broker [this host's].")
@click.option("-x", "--producers", type=CLIENTS, default=1, help="Publishers [1].")
@click.option("-y", "--consumers", type=CLIENTS, default=1, help="Consumers [1].")
@click.option("-u", "--queue", default="", help="The queue [one that is deleted afterwards].")
@click.option("-e", "--exchange", default="", help="The exchange [the default one].")
@click.option("-t", "--type", "kind", default="direct", help="The exchange's type [direct].")
@click.option("-k", "--routing-key", default="", help="The routing key [the queue's name].")
@click.option(
    "-s", "--size", type=click.IntRange(0, 128 << 20), default=HEAD_BYTES,
    help=f"Bytes of a message; latencies need {HEAD_BYTES} [{HEAD_BYTES}].",
)  # fmt: skip
@click.option(
    "-c", "--confirm", type=COUNT, default=0, help="Unconfirmed at most [0: no confirms]."
)
@click.option("-q", "--qos", type=click.IntRange(0, 65535), default=0, help="Prefetch [0: any].")
@click.option("-z", "--time", "seconds", type=COUNT, default=0, help="Seconds [until Ctrl-C].")
@click.option("-C", "--pmessages", type=COUNT, default=0, help="Messages of each publisher.")
@click.option("-D", "--cmessages", type=COUNT, default=0, help="Messages of each consumer.")
@click.option("-r", "--rate", type=COUNT, default=0, help="Per second and publisher [0: any].")
@click.option("-f", "--flag", "flags", type=click.Choice(["persistent"]), multiple=True,
              help="persistent: messages are, and the queue of -u is durable.")  # fmt: skip
@click.option("-a", "--autoack", is_flag=True, help="Consume without acknowledgements.")
@click.option(
    "-A",
    "--multi-ack-every",
    type=click.IntRange(1, 65535),
    default=1,
    help="Acknowledge each N [1].",
)
@click.option("-p", "--predeclared", is_flag=True, help="Declare nothing; -u is there.")
@click.option("-qq", "--quorum-queue", is_flag=True, help="A quorum queue, which -u names.")
@click.option("-i", "--interval", type=NumberRange(0.1), default=1.0, help="Seconds of a line [1].")
@FORMAT
def perf(
    url: str | None, producers: int, consumers: int, queue: str, exchange: str, kind: str,
    routing_key: str, size: int, confirm: int, qos: int, seconds: int, pmessages: int,
    cmessages: int, rate: int, flags: tuple[str, ...], autoack: bool, multi_ack_every: int,
    predeclared: bool, quorum_queue: bool, interval: float, form: str,
) -> None:  # fmt: skip
    """Publish and consume, and print rates and latencies.

    Each publisher and consumer has a connection. The latency is from publish to delivery, that of
    confirms from publish to confirm; lines show the median, 95 % and 99 %, in µs.
    """
    from penstock.client.load import LoadOptions, LoadRun  # a client: half of the start

    if (predeclared or quorum_queue) and not queue:
        raise OptionError("-u", None, "the queue's name, with --predeclared and --quorum-queue")
    is_persistent = "persistent" in flags or quorum_queue
    options = LoadOptions(
        url=url, producers=producers, consumers=consumers, queue=queue, exchange=exchange,
        exchange_type=kind, routing_key=routing_key, size_bytes=size, confirm=confirm,
        prefetch=qos, seconds=seconds, producer_messages=pmessages, consumer_messages=cmessages,
        rate=rate, is_persistent=is_persistent, is_auto_ack=autoack, ack_every=multi_ack_every,
        is_predeclared=predeclared,
        arguments={"x-queue-type": "quorum"} if quorum_queue else {},
    )  # fmt: skip
    load = LoadRun(options, SystemClock())
    taken_s = load.run(line if form == "text" else lambda *_: None, interval)
    total = load.total
    found: dict[str, object] = {
        "seconds": round(taken_s, 3), "sent": total.sent, "received": total.received,
        "refused": total.refused, "sent_per_s": round(total.sent / taken_s),
        "received_per_s": round(total.received / taken_s), "latency_us": total.delivery.facts(),
        "confirm_us": total.confirms.facts(),
    }  # fmt: skip
    output.pairs({name: value for name, value in found.items() if value != {}}, form)


def line(counts: "LoadCounts", seconds: float, since_s: float) -> None:
    """Print the line of an interval."""
    text = (
        f"time {since_s:.1f} s, sent {counts.sent / seconds:,.0f}/s, "
        f"received {counts.received / seconds:,.0f}/s"
    )
    for name, found in (("latency", counts.delivery), ("confirms", counts.confirms)):
        if found.count:
            shown = "/".join(f"{found.percentile(percent):,}" for percent in SHOWN)
            text += f", {name} {shown} µs"
    click.echo(text)
