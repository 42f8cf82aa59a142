"""The text of /metrics: both formats, escaping, histograms."""

from penstock.http.metrics_text import MetricsText, penstock_text, quoted
from penstock.metric_table import METRICS


def text_of(*, is_openmetrics: bool = False, node: object = None, vhosts: object = None) -> str:
    text = MetricsText(is_openmetrics=is_openmetrics)
    penstock_text(text, node or {}, vhosts or {})  # type: ignore[arg-type]
    return text.text().decode()


def test_a_counter() -> None:
    found = text_of(vhosts={"/": {"log_bytes_total": 7}, "b": {"log_bytes_total": 8}})
    assert found == (
        "# HELP penstock_log_bytes_total bytes appended to the log\n"
        "# TYPE penstock_log_bytes_total counter\n"
        'penstock_log_bytes_total{vhost="/"} 7\n'
        'penstock_log_bytes_total{vhost="b"} 8\n'
    )


def test_a_counter_in_openmetrics_has_its_family_without_total() -> None:
    found = text_of(is_openmetrics=True, vhosts={"/": {"log_bytes_total": 7}})
    assert "# TYPE penstock_log_bytes counter\n" in found
    assert 'penstock_log_bytes_total{vhost="/"} 7\n# EOF\n' in found


def test_a_histogram_adds_up() -> None:
    row = next(row for row in METRICS if row.name == "sync_seconds")
    value = [1.5, *([1] * (len(row.bounds) + 1))]
    lines = text_of(vhosts={"/": {"sync_seconds": value}}).splitlines()
    buckets = [int(line.split()[-1]) for line in lines if "_bucket" in line]
    assert buckets == list(range(1, len(row.bounds) + 2))
    assert lines[-3].startswith('penstock_sync_seconds_bucket{vhost="/",le="+Inf"} ')
    assert lines[-2:] == [
        'penstock_sync_seconds_sum{vhost="/"} 1.5',
        f'penstock_sync_seconds_count{{vhost="/"}} {len(row.bounds) + 1}',
    ]


def test_rows_with_labels_of_their_own() -> None:
    found = text_of(
        node={
            "process_up": [["", "supervisor", 1], ["/", "vhost", 0]],
            "handshakes_failed_total": {"password": 3},
        },
        vhosts={"/": {"messages": {"alpha": 2}}},
    )
    assert 'penstock_process_up{process="supervisor"} 1\n' in found
    assert 'penstock_process_up{vhost="/",process="vhost"} 0\n' in found
    assert 'penstock_handshakes_failed_total{reason="password"} 3\n' in found
    assert 'penstock_messages{vhost="/",state="alpha"} 2\n' in found


def test_names_are_escaped() -> None:
    assert quoted('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'
    assert quoted("Größe 🐘") == '"Größe 🐘"'
    assert quoted(b"\xff".decode("utf-8", "surrogateescape")) == '"\\\\xff"'
