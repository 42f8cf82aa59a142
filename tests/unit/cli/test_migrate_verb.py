"""What `penstock migrate` refuses before it connects anywhere."""

import pytest

from tests.helpers.fake_control import FakeControl


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["amqp://old"], "name the queues to move, or the management API with --http"),
        (["amqp://old", "q"], "takes no plain AMQP: name it with --to"),
        (["http://old", "q"], "amqp://user:password@host:port/vhost"),
        (["amqp://old", "--http", "amqp://u:geheim@old"], "http://user:password@host:port"),
    ],
)
def test_wrong_use(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    broker = FakeControl(status={"host": "127.0.0.1", "port": None})
    assert broker.run("migrate", *words) == 64
    err = capsys.readouterr().err
    assert said in err
    assert "geheim" not in err
