"""Random histories, streams and memories for joins as of a time, each drawn from a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import semistream
from joins.as_of_cases import answers, as_lists, facts, history
from semistream import Relation
from semistream.core.errors import SemistreamError
from semistream.joins import find

__all__ = ["one_case"]

KINDS = [
    pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.timestamp("s", "Asia/Kolkata"), pa.timestamp("ms"), pa.date32(),
    pa.int32(), pa.int64(), pa.uint32(),
]  # fmt: skip


def one_case(seed: int, folder: Path, tuples: int) -> int:
    """Compare the join of a random stream and a history that changes with DuckDB; return the number of tuples."""
    random = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    keys, versions = int(random.choice([3, 50, 1000])), int(random.choice([1, 4, 300]))
    ends, texts = bool(random.random() < 0.7), bool(random.random() < 0.5)

    def rows_of(keys: int) -> pa.Table:
        rows = history(random, keys, max(1, min(versions, 40_000 // keys)), kind, ends=ends, texts=texts)
        codes = pa.array([f"k{key}" for key in rows["id"].to_pylist()])
        return rows.append_column("code", codes) if composite else rows

    composite = bool(random.random() < 0.3)
    rows = rows_of(keys)
    key = ["id", "code"] if composite else "id"
    options: dict[str, Any] = {"valid_from": "since", "valid_to": "until" if ends else None}
    relation = Relation.build(
        rows, folder, key, page_size=int(random.choice([512, 4096])), shards=int(random.choice([1, 3])),
        memory=int(random.choice([20_000, 10**8])), **options,
    )  # fmt: skip
    most = 30 * min(versions, 40_000 // keys) * 3
    on = {"product": "id", "code_of": "code"} if composite else {"product": "id"}
    algorithm = "adaptivejoin" if random.random() < 0.8 else str(random.choice(["oracle", "inlj"]))
    done, how = 0, str(random.choice(["left", "inner"]))
    with relation:
        join = None
        while done < tuples:
            batch = facts(random, min(int(random.choice([1, 700, 20_000])), tuples - done), keys, most, kind)
            if random.random() < 0.4:  # few keys and times are frequent
                batch = batch.take(pa.array(np.minimum(random.zipf(1.3, batch.num_rows) - 1, batch.num_rows - 1)))
                batch = batch.set_column(0, "fact", pa.array(np.arange(batch.num_rows)))
            if composite:
                codes = [None if key is None else f"k{key}" for key in batch["product"].to_pylist()]
                batch = batch.append_column("code_of", pa.array(codes, pa.string()))
            if join is None:
                given: dict[str, Any] = {"on": list(on), "as_of": "at", "how": how}
                kept = find(algorithm).minimum_memory(relation, batch.schema, **given)
                memory = kept * int(random.choice([1, 2, 30])) + int(random.choice([0, 300, 100_000])) + 200_000
                join = semistream.create(algorithm, relation, schema=batch.schema, memory=memory, **given)
            found = pa.Table.from_batches(join.process([batch]), join.output_schema)
            join.check()
            expected = answers(rows, batch, on, how=how)
            assert as_lists(found) == as_lists(expected), f"seed {seed} after {done} tuples"
            if algorithm == "adaptivejoin":
                assert found["fact"].to_pylist() == sorted(found["fact"].to_pylist()), f"seed {seed}: order"
            done += batch.num_rows
            if random.random() < 0.3:
                changed = rows_of(int(random.choice([1, 5, 20])))
                try:
                    relation.upsert(changed)
                except SemistreamError:  # no memory for the update: nothing has changed
                    continue
                stays = pc.invert(pc.is_in(rows["id"], changed["id"]))
                rows = pa.concat_tables([rows.filter(stays), changed.select(rows.schema.names)])
    return done
