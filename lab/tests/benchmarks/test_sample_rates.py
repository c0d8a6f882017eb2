"""`semistream bench joins` on a relation and a sample of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from typer.testing import CliRunner

from semistream.relation.relation import Relation
from semistream_lab.cli.bench import app


def test_own_relation_and_sample(tmp_path: Path) -> None:
    path, file = tmp_path / "r", tmp_path / "stream.parquet"
    Relation.build(pa.table({"id": np.arange(3000), "name": np.arange(3000)}), path, key="id").close()
    pyarrow.parquet.write_table(pa.table({"product": np.arange(4000) % 3100, "n": np.arange(4000)}), file)
    asked = ["joins", "--relation", path, "--sample", file, "--on", "product", "--memory", "200KB", "--batch", 1000]
    only = ["--only", "inlj", "--only", "adaptivejoin", "--json", "--batches", 3, "--warm-up", 2, "--dir", tmp_path]
    outcome = CliRunner().invoke(app, [str(word) for word in [*asked, *only]])
    assert outcome.exit_code == 0, outcome.output
    found = json.loads(outcome.stdout)
    assert set(found["rates"]) == {"inlj", "adaptivejoin"}
    assert min(found["rates"].values()) > 0
    assert found["tuples"] == 3000
    alone = CliRunner().invoke(app, ["joins", "--relation", str(path)])
    assert "--sample" in str(alone.exception)
