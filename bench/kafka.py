"""A Kafka beside ours, for bench/spark_bench.py: server and Spark's connector, as Maven gives them.

Nothing of Kafka is in this repository or among its dependencies. `fetch` asks `mvn` for the server
and for `spark-sql-kafka`, which stay in Maven's own cache afterwards; without Maven, or without a
network the first time, there is no Kafka, and the tables do without its columns.
"""

import shutil
import subprocess
import uuid
from pathlib import Path

from brokers import Broker, free_port

SERVER, CONNECTOR = "4.1.0", "4.2.0"
FETCH_S_MAX = 300.0
HEAP_MIB = 512

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>penstock.bench</groupId><artifactId>{name}</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
DEPENDENCY = """<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId>\
<version>{2}</version></dependency>"""
ARTIFACTS = {
    "server": [
        ("org.apache.kafka", "kafka_2.13", SERVER),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
    ],
    "connector": [("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR)],
}
# Spark has the others of the connector's dependencies.
FOR_SPARK = ("spark-sql-kafka*", "spark-token-provider*", "kafka-clients*", "commons-pool2*")
LOGGING = """rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c %m%n
"""
SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={files}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
"""


class NoKafkaError(Exception):
    """Kafka cannot be had here; the text says why."""


def fetch(into: Path) -> tuple[Path, Path]:
    """Directories below `into` with the jars of the server and of the connector."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        raise NoKafkaError("there is no Maven (`mvn`) or no Java here")
    found = []
    for name, artifacts in ARTIFACTS.items():
        jars = into / name
        jars.mkdir(parents=True, exist_ok=True)
        dependencies = "".join(DEPENDENCY.format(*artifact) for artifact in artifacts)
        pom = into / f"{name}.xml"
        pom.write_text(POM.format(name=name, dependencies=dependencies), encoding="utf-8")
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
                   f"-DoutputDirectory={jars}"]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S_MAX)
        except subprocess.TimeoutExpired:
            raise NoKafkaError(f"Maven did not give it within {FETCH_S_MAX:.0f} s") from None
        if done.returncode:
            reason = next((line for line in done.stdout.splitlines() if "[ERROR]" in line), "")
            raise NoKafkaError(f"Maven does not give it: {reason.strip()[:200]}")
        found.append(jars)
    return found[0], found[1]


def for_spark(connector: Path) -> str:
    """The class path that Spark needs beside its own."""
    return ":".join(str(jar) for pattern in FOR_SPARK for jar in sorted(connector.glob(pattern)))


class KafkaNode(Broker):
    """A server of one node with a heap of HEAP_MIB, which is its own controller."""

    name = "Kafka"
    version = SERVER

    def __init__(self, data: Path, jars: Path) -> None:
        super().__init__(data)
        self._jars = jars

    @property
    def files(self) -> Path:
        return self.data / "data"

    def is_listening(self) -> bool:
        # A port that is open is not enough: the node must have a controller.
        return b"Kafka Server started" in self.log.read_bytes()

    def command(self) -> tuple[list[str], dict[str, str]]:
        self.port = free_port()
        settings, logging = self.data / "server.properties", self.data / "log4j2.properties"
        settings.write_text(
            SETTINGS.format(port=self.port, controller=free_port(), files=self.files),
            encoding="utf-8",
        )
        started = "logger.started.name = kafka.server\nlogger.started.level = info\n"
        logging.write_text(LOGGING + started, encoding="utf-8")
        java = ["java", f"-Xmx{HEAP_MIB}m", f"-Xms{HEAP_MIB}m", "-cp", f"{self._jars}/*",
                f"-Dlog4j2.configurationFile={logging}"]  # fmt: skip
        formatting = [*java, "kafka.tools.StorageTool", "format", "-t", uuid.uuid4().hex[:22],
                      "-c", str(settings)]  # fmt: skip
        subprocess.run(formatting, check=True, capture_output=True, timeout=60)
        return [*java, "kafka.Kafka", str(settings)], {}
