"""A paragraph for each paper: what reproduces, and what does not, in plain English."""

from __future__ import annotations

import string
from collections.abc import Sequence

from semistream_lab.experiments.headlines.headline import Row
from semistream_lab.experiments.papers.reasons.ssij_limit import table_two_limit

__all__ = ["paragraphs"]

# $setting_headline stands for a cell of the table of headlines
_TEXTS = {
    "CMESHJOIN": (
        "**CMESHJOIN** gains $first_cmesh_skew over MESHJOIN at skew 1, so its main result reproduces. The "
        "published 5× and 7× do not reproduce: the paper's own model gives 2.5× with 1 % memory and 3.8× with 10 %. "
        "With 1 % memory, no cost of the hash table gives 5×. On TPC-H and on weather reports a cache costs more than "
        "it saves ($first_cmesh_data): no customer is frequent, and frequent longitudes have proportionally more rows."
    ),
    "P- and OP-CACHEJOIN": (
        "**P-CACHEJOIN** gains $first_pcache over CACHEJOIN and **OP-CACHEJOIN** $first_opcache over P-CACHEJOIN on "
        "the authors' kind of machine: Java with MySQL, where computing takes as long as reading and two queries "
        "run at the same time. Both results depend on that. In compiled code on one disk, reads take nearly all of "
        "the time, and the gains are $equal_pcache and $equal_opcache."
    ),
    "SSIJ": (
        "**SSIJ** gains $first_ssij_mesh over MESHJOIN if both are measured as in the paper: arrivals are raised "
        "until memory overflows, and MESHJOIN has its authors' bytes per tuple. With the same bytes for both and an "
        "endless stream, MESHJOIN is faster (SSIJ reaches $equal_ssij_mesh), because with Table II join phases begin "
        "long before memory is full. With thresholds from our tuner, SSIJ reaches $tuned_ssij_mesh. The published 6× "
        "and 9× do not reproduce: with Table II on an endless stream, an ideal cache and reads without gaps would "
        "gain at most $limit_ssij. On TPC-H and on weather reports SSIJ reaches $first_ssij_data. In the paper, the "
        "gain grows with the tuples per key; here it shrinks. The published rates with little memory and with "
        "locality are reached. The published deadlines are missed: with seeks of 8.5 ms, even an ideal cache with the "
        "best read plans cannot serve 5500 tuples/s within a minute. The published delay of MESHJOIN implies a disk "
        "that is slower still."
    ),
    "HYBRIDJOIN": (
        "**HYBRIDJOIN** gains $first_hybrid_mesh over MESHJOIN and is far above an index nested loop join, as "
        "published. In the paper, the gain shrinks as R grows. Here it does not: a tuple leaves HYBRIDJOIN when it is "
        "matched, and leaves MESHJOIN after a whole pass, whatever the size of R."
    ),
    "X-HYBRIDJOIN": (
        "**X-HYBRIDJOIN** gains $first_xhybrid_hybrid over HYBRIDJOIN, as published. In compiled code the gain is "
        "larger, $equal_xhybrid_hybrid, because reads take most of the time and pinned pages save reads. Its cost "
        "model (Eq. 9) uses variances where it needs means, and is several times too low. In the paper, it is slower "
        "than MESHJOIN on uniform streams. This does not reproduce."
    ),
    "Beyond the papers": (
        "**CACHEJOIN** is $first_cachejoin_hybrid as fast as HYBRIDJOIN if both read 850 records at a time. "
        "**adaptivejoin** is slower than the papers' joins on a disk of 2010. It answers each batch at once, and reads "
        "for one batch only. Tuples of the other joins wait for a pass over R or for a full queue, and share reads. "
        "adaptivejoin is made for fast disks and micro-batches. Its rate is lowest where a key has hundreds of rows, "
        "because it reads all of them again for each batch."
    ),
}


def paragraphs(rows: Sequence[Row]) -> list[str]:
    """Return the paragraphs of the papers with measured headlines, in Markdown."""
    least = 0.01  # the memory, as a share of R, with which most is gained
    cells = {"limit_ssij": f"{table_two_limit(least):.1f}× ({least:.0%} memory)"}
    for row in rows:
        name = row.headline.id.replace("-", "_")
        for setting, text in (("first", row.as_published), ("equal", row.equal), ("tuned", row.tuned)):
            cells[f"{setting}_{name}"] = text or "(not run)"
    measured = {row.headline.paper for row in rows if row.as_published}
    return [string.Template(text).substitute(cells) for paper, text in _TEXTS.items() if paper in measured]
