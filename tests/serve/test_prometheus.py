"""The text that Prometheus reads."""

from covnmt.serve.prometheus import Counter, Histogram, Metrics


def test_counter() -> None:
    counter = Counter("n_total", "Things")
    counter.add(status="200", path="/a")
    counter.add(2, path="/a", status="200")
    counter.add(path='q"\\\n', status="404")
    assert list(counter.lines()) == [
        "# HELP n_total Things.",
        "# TYPE n_total counter",
        'n_total{path="/a",status="200"} 3',
        r'n_total{path="q\"\\\n",status="404"} 1',
    ]


def test_beyond_a_million_every_one_counts() -> None:
    counter, histogram = Counter("n_total", "Things"), Histogram("s", "Seconds", (1.0,))
    counter.add(1_234_567, path="/a")
    histogram.add(12_345_678.5)
    assert list(counter.lines())[-1] == 'n_total{path="/a"} 1234567'
    assert "s_sum 12345678.5" in list(histogram.lines())


def test_histogram_is_cumulative() -> None:
    histogram = Histogram("s", "Seconds", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.add(value)
    assert list(histogram.lines())[2:] == [
        's_bucket{le="0.1"} 2',
        's_bucket{le="1"} 3',
        's_bucket{le="+Inf"} 4',
        "s_sum 7.65",
        "s_count 4",
    ]


def test_all_of_it() -> None:
    metrics = Metrics()
    metrics.observe_batch("gru10", 3, 0.2)
    text = metrics.text({"gru10": 5})
    assert 'covnmt_waiting_sentences{model="gru10"} 5\n' in text
    assert 'covnmt_sentences_total{model="gru10"} 3\n' in text
    assert "covnmt_batch_seconds_sum 0.2\n" in text
    assert text.endswith("\n")
