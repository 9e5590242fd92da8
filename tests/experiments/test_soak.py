"""The soak sees what grows."""

from experiments import soak


def looks(rss=lambda i: 500.0, files=lambda i: 9, threads=lambda i: 20):
    return [
        {"seconds": 5.0 * i, "rss_mib": rss(i), "files": files(i), "threads": threads(i)}
        for i in range(1, 101)
    ]


def test_what_stays_or_falls_is_flat():
    assert soak.is_flat(soak.growth(looks()))
    assert soak.is_flat(soak.growth(looks(rss=lambda i: 500.0 + 3 * (i % 2))))
    assert soak.is_flat(soak.growth(looks(rss=lambda i: min(500.0, 100.0 * i))))  # at the start


def test_what_grows_is_not():
    found = soak.growth(looks(rss=lambda i: 500.0 + i))
    assert found["rss_growth"] > 0.05 and not soak.is_flat(found)
    assert not soak.is_flat(soak.growth(looks(files=lambda i: i)))
    assert not soak.is_flat(soak.growth(looks(threads=lambda i: 20 + i // 50)))


def test_a_process_is_looked_at():
    import os

    seen = soak.look(os.getpid())
    assert seen["rss_mib"] > 10 and seen["files"] >= 3 and seen["threads"] >= 1
