"""Lines of a TOML file, and mistakes that are found without Spark."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from semistream import Relation
from semistream.spark.pipeline import PipelinePlan, read_plan
from semistream.spark.pipeline.document import Document, PipelineError, lines_of

RIGHT = """\
checkpoint = "check"

[source]
format = "rate"

[sink]
format = "console"
"""


def read(text: str, **environment: str) -> tuple[PipelinePlan, dict[int, str]]:
    """Return what was read, and the problem of each line."""
    document = Document(Path("p.toml"), text, environment)
    plan = read_plan(document)
    lines = [problem.line for problem in document.problems]
    assert len(set(lines)) == len(lines), document.problems
    return plan, {problem.line: problem.message for problem in document.problems}


def test_right_file_has_no_problem() -> None:
    plan, problems = read(RIGHT)
    assert problems == {}
    assert (plan.name, plan.joins, plan.trigger) == ("p", (), None)


def test_what_leaves_must_not_come_in_again(tmp_path: Path) -> None:
    (tmp_path / "sales").mkdir()
    text = f"""
checkpoint = "{tmp_path}/out/checkpoint"
[source]
format = "parquet"
path = "{tmp_path}/sales/"
schema = "id bigint"
[sink]
format = "parquet"
path = "{tmp_path}/sales_out"
"""
    assert read(text)[1] == {}
    for line, other in ((9, text.replace("sales_out", "sales")), (9, text.replace("sales_out", "sales/facts")),
                        (2, text.replace("out/checkpoint", "sales/checkpoint"))):  # fmt: skip
        (told,) = read(other)[1].items()
        assert told[0] == line
        assert "is in the stream's own directory, and would be read as its rows; give another path" in told[1]


def test_texts_stand_in_quotes() -> None:
    for wrong in ("memory = 64MB", "name = sales", "checkpoint = out/check", "memory = 5%"):
        with pytest.raises(PipelineError, match=r'line 1: not TOML: .*; put texts in quotes, such as "64MB"'):
            read(f"{wrong}\n{RIGHT}")
    with pytest.raises(PipelineError, match="not TOML") as caught:
        read('name = "sales\n')
    assert "quotes, such" not in str(caught.value)


def test_every_mistake_is_told_at_its_line() -> None:
    _, problems = read(
        """\
checkpoint = 7
trigger = ["often"]
memory = "much"
colour = "red"

[source]
format = "parqet"

[deduplicate]
columns = [
    "a",
    "b",
]
within = "1 hour"

[[join]]
relation = "nowhere"
on = "id"
algoritm = "inlj"

[[join]]
on = ["id", 3]
relation = "nowhere/else"
how = "outer"
algorithm = "inlk"

[derive]
x = 1

[sink]
format = "postgresql"
url = "postgresql://etl:pw@host/db"
tabel = "facts"

[statistics]
port = 99999
missing_keys = "no"
"""
    )
    expected = {
        1: "checkpoint must be text, not a whole number",
        2: "trigger must be text or a number, not a list",
        3: "memory: ",
        4: "the file has no 'colour'",
        7: "format is 'parqet'; did you mean 'parquet'?",
        9: "[deduplicate] needs watermark",
        17: "nowhere",
        19: "[join] has no 'algoritm'; did you mean 'algorithm'?",
        22: "on must be a text or a list of texts",
        23: "nowhere/else",
        24: "how must be 'inner' or 'left', not 'outer'",
        25: "unknown algorithm 'inlk'",
        28: "x must be text, not a whole number",
        30: "[sink] needs table",
        32: "url contains a password",
        33: "[sink] has no 'tabel'; did you mean 'table'?",
        36: "port must be at most 65535, not 99999",
        37: "missing_keys must be true or false, not text",
    }
    assert problems.keys() == expected.keys()
    for line, message in expected.items():
        assert message in problems[line]
    assert "pw" not in str(problems)


def test_key_columns_that_are_nowhere_are_told_without_spark(tmp_path: Path) -> None:
    for name in ("products", "stores"):
        Relation.build(pa.table({"id": [1], "store": [1]}), tmp_path / name, "id").close()
    text = f"""\
checkpoint = "check"
[source]
format = "csv"
path = "sales"
schema = "sale long, `the product` decimal(10, 2), tags array<struct<a:int,b:int>>"
[source.derive]
product = "cast(`the product` as long)"
[[join]]
relation = "{tmp_path}/products"
on = "Product"
[[join]]
relation = "{tmp_path}/stores"
on = "store"
[sink]
format = "console"
"""
    assert read(text)[1] == {}, "whatever the case of letters; of a relation before; worked out"
    told = read(text.replace('"Product"', '"prodct"'))[1]
    there = "there is no column 'prodct' to join on; there are sale, the product, tags, product"
    assert told == {10: f"{there}; did you mean 'product'?"}
    assert list(read(text.replace('on = "store"', 'on = "shop"'))[1]) == [13]
    assert read(text.replace("sale long,", "sale,").replace('"Product"', '"prodct"'))[1] == {}, "Spark knows"


def test_keys_of_another_type_and_too_little_memory_are_told_without_spark(tmp_path: Path) -> None:
    for name, keys in (("products", ["a", "b"]), ("stores", [1, 2])):
        Relation.build(pa.table({"id": keys, "place": [1, 2]}), tmp_path / name, "id").close()
    text = f"""\
checkpoint = "check"
[source]
format = "parquet"
path = "sales"
schema = "product STRING NOT NULL, store decimal(9, 0)"
[[join]]
relation = "{tmp_path}/products"
on = "product"
memory = "200KB"
[[join]]
relation = "{tmp_path}/stores"
on = "place"
options.window = 1000
[sink]
format = "console"
"""
    assert read(text)[1] == {}, "the second key is a column of the first relation"
    told = read(text.replace("STRING NOT NULL", "bigint"))[1]
    remedy = 'product_as_string = "try_cast(product as string)" under [source.derive], and on = "product_as_string"'
    assert told[8].endswith(f"cast it before the join: {remedy}")
    assert "stream column 'product' is int64, but the relation's key 'id' is string" in told[8]
    assert "is decimal128(9, 0), but" in read(text.replace('"place"', '"store"'))[1][12]
    assert "memory of 1 KB is too small" in read(text.replace("200KB", "1KB"))[1][9]
    assert read(text.replace("200KB", "0.1%"))[1] == {}, "a share of a small relation holds it whole"
    shared = text.replace("checkpoint =", 'memory = "1MB"\ncheckpoint =').replace("200KB", "5%")
    assert read(shared)[1] == {}
    assert read(text.replace("store decimal(9, 0)", "store bigin"))[1] == {
        5: "there is no type 'bigin'; did you mean 'bigint'?"
    }
    told = read(text.replace("options.window", "options.windo"))[1]
    assert told == {13: "adaptivejoin has no option 'windo'; did you mean 'window'?"}


def test_missing_parts_are_told_too() -> None:
    document = Document(Path("p.toml"), "name = 'x'", {})
    read_plan(document)
    assert [problem.message for problem in document.problems] == [
        f"the file needs {part}" for part in ("checkpoint", "source", "sink")
    ]


def test_no_toml_is_told_with_its_line() -> None:
    with pytest.raises(PipelineError, match=r"(?s)one problem:\n  line 3: not TOML") as failure:
        read("a = 1\n\nb = = 2\n")
    assert failure.value.problems[0].line == 3


def test_numbers_and_lists_that_the_reader_does_not_take() -> None:
    for value in "1" * 5000, "[" * 5000:
        with pytest.raises(PipelineError, match="one problem:\n  line 3: not TOML"):
            read(f"a = 1\n\nb = {value}\n")


def test_variables_of_the_environment() -> None:
    text = RIGHT.replace('"check"', '"${PLACE}/check"')
    plan, problems = read(text, PLACE="/data")
    assert problems == {}
    assert plan.checkpoint == Path("/data/check")
    assert "PLACE" in read(text)[1][1]


def test_a_variable_that_is_not_set_is_told_and_nothing_else(tmp_path: Path) -> None:
    text = """\
checkpoint = "${PLACE}"
trigger = "${OFTEN}"
memory = "${MUCH} MB"

[source]
format = "${KIND}"
schema = "${COLUMNS}"

[[join]]
relation = "${DATA}/${NAME}"
on = ["id", "${KEY}"]

[sink]
format = "parquet"
path = "${FACTS}"
options = { compression = "${CODEC}" }
"""
    problems = read(text)[1]
    assert set(problems) == {1, 2, 3, 6, 7, 10, 11, 15, 16}
    assert problems[1] == "checkpoint uses ${PLACE}, which is not in the environment; set it"
    assert problems[10] == "relation uses ${DATA} and ${NAME}, which are not in the environment; set it"
    assert "compression uses ${CODEC}" in problems[16]
    assert "format is 'nothing'" in read(text, KIND="nothing")[1][6]
    assert read(RIGHT.replace("rate", "${EMPTY}"), EMPTY="")[1][4].startswith("format is ''")


def test_lines_end_where_those_of_toml_end() -> None:
    lines = ["a = 'x\u2028y\x85z'", "# \u2029", "b = '''", "\u2028", "'''", "[c]", "d = 1"]
    expected = {("a",): 1, ("b",): 3, ("c",): 6, ("c", "d"): 7}
    assert lines_of("\n".join(lines)) == expected
    assert lines_of("\r\n".join(lines)) == expected


def test_mistakes_in_the_text_are_told_before_spark_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import semistream.spark.pipeline.running as running

    monkeypatch.setattr(running, "session", lambda *_, **__: pytest.fail("Spark was started"))
    (tmp_path / "p.toml").write_text(RIGHT.replace("rate", "rat"))
    with pytest.raises(PipelineError, match="line 4: format is 'rat'; did you mean 'rate'"):
        running.load(tmp_path / "p.toml")


def test_malformed_rows() -> None:
    def told(more: str) -> tuple[str | None, dict[int, str]]:
        text = RIGHT.replace('format = "rate"', f'format = "csv"\npath = "x"\nschema = "a int"\n{more}')
        plan, problems = read(text)
        assert plan.source is not None
        return plan.source.on_malformed, problems

    assert told("") == ("fail", {})
    assert told('options = { MODE = "DropMalformed" }') == ("drop", {})
    assert "mean the same" in told('on_malformed = "null"\noptions = { mode = "FAILFAST" }')[1][8]
    assert "did you mean 'drop'" in told('on_malformed = "dropp"')[1][7]
    assert "a table [dead_letters]" in told('on_malformed = "dead_letter"')[1][3]


def test_password_comes_from_the_environment_and_is_not_shown() -> None:
    sink = 'format = "mariadb"\nurl = "mariadb://etl@db/x"\ntable = "facts"\npassword_env = "SECRET"\n'
    text = RIGHT.replace('format = "console"\n', sink)
    plan, problems = read(text, SECRET="hush-hush")
    assert problems == {}
    assert plan.sink is not None
    assert plan.sink.password == "hush-hush"
    assert "hush-hush" not in repr(plan)
    assert "SECRET, which is not in the environment" in read(text)[1][10]


def test_url_of_another_kind_than_the_format() -> None:
    sink = 'format = "mariadb"\nurl = "postgresql://etl@db/x"\ntable = "facts"\n'
    _, problems = read(RIGHT.replace('format = "console"\n', sink))
    assert problems == {8: "url is for postgresql, but format is mariadb; change one of them"}


NAMES = st.sampled_from(["a", "b", '"c d"', "e"])
VALUES = st.sampled_from(
    ["1", '"x"', "[\n 1,\n 2, # two\n]", '"""\n[not.a.table]\nk = 1\n"""', "{ x = 1, y = [1] }", "'''\n]]\n'''", "true"]
)


@given(
    st.lists(
        st.tuples(st.sampled_from(["[t%d]", "[[s]]", "# none", ""]), st.lists(st.tuples(NAMES, VALUES), max_size=4)),
        max_size=6,
    )
)
def test_lines_of_whatever_parses(parts: list[tuple[str, list[tuple[str, str]]]]) -> None:
    """Every key's line is that on which it was written, whatever values stand before it."""
    written: list[str] = []
    expected: list[tuple[str, int]] = []
    for number, (header, keys) in enumerate(parts):
        written.append(header % number if "%d" in header else header)
        for name, value in dict(keys).items():
            expected.append((name.strip('"'), len("\n".join(written).split("\n")) + 1))
            written.append(f"{name} = {value}")
    text = "\n".join(written)
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # a key twice in one table
    found = lines_of(text)
    for name, line in expected:
        assert any(place[-1] == name and at == line for place, at in found.items())


def test_rows_without_a_partner(tmp_path: Path) -> None:
    Relation.build(pa.table({"id": [1]}), tmp_path / "r", key="id").close()
    head = f'[[join]]\nrelation = "{tmp_path / "r"}"\non = "id"\n'

    def told(lines: str, top: str = "", end: str = "") -> dict[int, str]:
        return read(f"{top}\n{RIGHT}{head}{lines}\n{end}")[1]

    assert told('on_missing = "drop"') == {}
    assert "how='inner' does not keep" in told('how = "inner"\non_missing = "null"')[13]
    assert "needs park_for" in told('on_missing = "park"')[12]
    parking = 'on_missing = "park"\npark_for = "1 hour"'
    assert "give an interval" in told(parking)[12]
    assert told(parking, 'trigger = "10 seconds"') == {}
    assert told(parking, 'trigger = "available now"') == {}
    letters = '[dead_letters]\nformat = "parquet"\npath = "x"'
    assert "no join has dead letters" in told('how = "left"', end=letters)[13]
    found = told('on_missing = "dead_letter"', end=letters)
    assert set(found) == {8}
    assert "console" in found[8]
    assert "a table [dead_letters]" in told('on_missing = "dead_letter"')[9]
