"""What managed platforms give: no /dev/shm, code that cannot be written, no root, no home, no kept machine code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

import pyspark

import semistream

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("connect")]  # a Spark of its own

KNOWN = 2500
_NOBODY = 65534
_LOCKED = """
set -e
code=$1; shift
mount -t tmpfs -o ro tmpfs /dev/shm
IFS=:
for place in $code; do mount --bind "$place" "$place"; mount -o remount,bind,ro "$place"; done
exec "$@"
"""
_PROGRAM = """
import os, sys
from pathlib import Path

import semistream
import semistream.spark

folder = Path(sys.argv[1])
for place in [Path("/dev/shm"), Path(semistream.__file__).parent, Path(os.__file__).parent, Path.home()]:
    try:
        (place / "written").touch()
    except OSError:
        continue
    raise SystemExit(f"{place} can be written")
spark = semistream.spark.session("managed", master="local[2]", settings={
    "spark.sql.shuffle.partitions": "2", "spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder),
})
sales = spark.readStream.schema("sale long, product long, store long").option("maxFilesPerTrigger", 1)
sales = sales.parquet(str(folder / "sales"))
joined = semistream.join(sales, folder / "stores", on="store", hold=True, memory="1MB")
joined = semistream.join(joined, folder / "products", on="product", hold=False, memory="50%", algorithm="cachejoin")
query = semistream.spark.write_stream(joined, semistream.spark.ParquetSink(folder / "facts"))
query.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start().awaitTermination()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that any user may enter, other than pytest's own."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.mark.long
def test_a_query_where_little_is_allowed(folder: Path) -> None:
    places = [
        Path(sys.base_prefix),
        Path(sys.prefix),
        Path(pyspark.__file__).parent,
        Path(semistream.__file__).parents[1],
    ]
    before = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _LOCKED, "sh", ":".join(map(str, places))]
    if all(_is_open(place) for place in [*places, folder]):
        before += ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    else:  # others may not read this checkout: root, but without any of its rights
        before += ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    allowed = shutil.which("unshare") and shutil.which("setpriv")
    if not allowed or subprocess.run([*before, "true"], capture_output=True).returncode:
        pytest.skip("mount namespaces are not allowed here")
    _make_data(folder)
    os.chown(folder, _NOBODY if f"--reuid={_NOBODY}" in before else os.getuid(), -1)
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME", "JDK_JAVA_OPTIONS", "LANG") if name in os.environ}
    variables = {**kept, "HOME": "/proc/no-home", "TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*before, sys.executable, "-c", _PROGRAM, str(folder)]
    done = subprocess.run(command, cwd="/", env=variables, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    facts = ds.dataset(folder / "facts", format="parquet", exclude_invalid_files=True).to_table()
    found = sorted(facts.select(["sale", "city", "name"]).to_pylist(), key=lambda row: row["sale"])
    assert found == [
        {"sale": sale, "city": f"city {sale % 7}", "name": f"product {product}" if product < KNOWN else None}
        for sale, product in enumerate(map(_product, range(8000)))
    ]


def _product(sale: int) -> int:
    return sale * 31 % (KNOWN + 500)


def _make_data(folder: Path) -> None:
    products = pa.table({"product": range(KNOWN), "name": [f"product {number}" for number in range(KNOWN)]})
    semistream.Relation.build(products, folder / "products", key="product", shards=2).close()
    stores = pa.table({"store": range(7), "city": [f"city {number}" for number in range(7)]})
    semistream.Relation.build(stores, folder / "stores", key="store").close()
    (folder / "sales").mkdir()
    for batch in range(2):
        sales = range(4000 * batch, 4000 * batch + 4000)
        rows = {"sale": sales, "product": [_product(sale) for sale in sales], "store": [sale % 7 for sale in sales]}
        pq.write_table(pa.table(rows), folder / "sales" / f"{batch}.parquet")
    for path in [folder, *folder.rglob("*")]:  # a relation is written where its pins are, so by this user too
        path.chmod(0o777 if path.is_dir() else 0o666)


def _is_open(place: Path) -> bool:
    """Return whether any user may enter a directory."""
    return all(path.stat().st_mode & 0o001 for path in [place.resolve(), *place.resolve().parents])
