"""`semistream experiments`: run, resume, report, and what is wrong to ask for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from semistream_lab.cli.experiments import app
from semistream_lab.experiments.catalog import catalog
from semistream_lab.experiments.experiment import Claim
from semistream_lab.experiments.measure.store import Store

QUICK = "hybrid-8"
"""Eight points that need no join."""


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})


def options(results: Path) -> tuple[object, ...]:
    return ("--scale", "test", "--results", results)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of one experiment."""
    results = tmp_path_factory.mktemp("results")
    done = run("run", QUICK, *options(results), "--workers", "1")
    assert done.exit_code == 0, done.output
    assert "8 points" in done.output
    return results


def test_list_has_every_figure_of_the_papers() -> None:
    listed = json.loads(run("list", "--json").stdout)
    found = {one["id"] for one in listed}
    assert found == {
        *(f"cmesh-{figure}" for figure in ("2", "3a", "3b", "3c", "3d", "3e", "3f")),
        *(f"pcache-{figure}" for figure in ("3", "4a", "4b", "4c")),
        *(f"opcache-6{letter}" for letter in "abc"),
        *(f"ssij-{figure}" for figure in (*range(3, 17), "t3")),
        *(f"hybrid-{figure}" for figure in ("3", "6", "8", "9", "10a", "10b", "10c", "10d", "11")),
        *(f"xhybrid-{figure}" for figure in ("3a", "3b", "3c", "3d", "4", "6a", "6b", "7a", "7b", "8")),
        "beyond-1",
        "beyond-2",
        "beyond-3",
    }
    assert all(one["points"] > 0 and one["figure"] and one["title"] for one in listed)


@pytest.mark.parametrize("device", ["simulated", "real"])
@pytest.mark.parametrize("scale", ["full", "test"])
def test_every_experiment_is_described_whole_for_every_device(device: str, scale: str) -> None:
    for experiment in catalog(device, scale).values():  # type: ignore[arg-type]
        assert experiment.claims
        assert experiment.setup
        places = [(sample.facet, sample.series, sample.x, sample.point.workload.seed) for sample in experiment.samples]
        assert len(places) == len(set(places)), f"{experiment.id} measures one place twice with the same seed"


def test_an_unknown_experiment_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    results = tmp_path / "results"
    done = run("run", QUICK, "cmesh-99", *options(results))
    assert done.exit_code != 0
    assert "cmesh-99" in str(done.exception)
    assert not results.exists()


def test_a_second_run_measures_nothing_and_leaves_the_results_as_they_are(measured: Path) -> None:
    file = measured / "simulated-test.jsonl"
    before = file.read_bytes()
    done = run("run", QUICK, *options(measured), "--workers", "1")
    assert done.exit_code == 0
    assert "8 points were measured before" in done.output
    assert "0 points" in done.output
    assert file.read_bytes() == before


def test_a_run_goes_on_where_it_was_interrupted(measured: Path, tmp_path: Path) -> None:
    lines = (measured / "simulated-test.jsonl").read_text().splitlines(keepends=True)
    kept = "".join(lines[:4]) + lines[4][:50]  # the environment, three results, and one that was being written
    (tmp_path / "simulated-test.jsonl").write_text(kept)
    done = run("run", QUICK, *options(tmp_path), "--workers", "1")
    assert "3 points were measured before" in done.output
    assert "5 points" in done.output
    assert done.exit_code == 0
    verdicts = [json.loads(run("report", "--json", *options(place)).stdout) for place in (measured, tmp_path)]
    assert verdicts[0] == verdicts[1]


def test_report_json_has_a_verdict_for_every_experiment_and_writes_nothing(measured: Path) -> None:
    before = sorted(measured.rglob("*"))
    verdicts = json.loads(run("report", "--json", *options(measured)).stdout)
    assert set(verdicts) == {"claims", "headlines"}
    assert {row["reproduces"] for row in verdicts["headlines"].values()} == {None}
    assert set(verdicts["claims"]) == set(catalog())
    assert verdicts["claims"][QUICK] in ("holds", "fails")
    assert {verdict for name, verdict in verdicts["claims"].items() if name != QUICK} == {"not run"}
    assert sorted(measured.rglob("*")) == before


@pytest.mark.slow
def test_the_report_is_one_page_that_asks_nothing_of_a_network(measured: Path, tmp_path: Path) -> None:
    done = run("report", *options(measured), "--output", tmp_path)
    assert done.exit_code == 0, done.output
    page = (tmp_path / "report.html").read_text()
    outside_scripts = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href)=[\"'](?!#)", outside_scripts)
    assert "<script src" not in page
    assert f'id="chart-{QUICK}"' in page
    text = (tmp_path / "report.md").read_text()
    assert f"![{QUICK}]({QUICK}.png)" in text
    assert (tmp_path / f"{QUICK}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_report_begins_with_a_summary(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim that was measured holds by construction: here it is counted, so that there is something to sum up."""
    monkeypatch.setattr(Claim, "counted", True)
    assert run("report", *options(measured), "--output", tmp_path).exit_code == 0
    text = (tmp_path / "report.md").read_text()
    assert text.splitlines()[2].startswith("1. Of 1 claims ")
    assert re.findall(r"^\d+\. ", text, flags=re.MULTILINE) == [f"{number}. " for number in range(1, 7)]


@pytest.mark.slow
def test_a_report_leaves_out_what_was_not_run_and_counts_no_claim_by_construction(
    measured: Path, tmp_path: Path
) -> None:
    outcome = run("report", *options(measured), "--output", tmp_path)
    assert outcome.exit_code == 0
    assert "not run" not in outcome.stdout
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "report.md").read_text()
    assert "1 experiments of five papers, 0 claims: 0 hold, 0 fail. " in text
    assert not re.findall(r"^\d+\. ", text, flags=re.MULTILINE)
    assert "**by construction**" in text
    assert "small scale" in text
    assert "50 of 51 experiments lack points" in text
    for name, experiment in catalog("simulated", "test").items():
        assert (f'id="{name}"' in page) == (name == QUICK)
        assert all((claim.text in text) == (name == QUICK) for claim in experiment.claims)


def test_models_that_were_mended_are_reported_beside_what_was_measured_before(tmp_path: Path) -> None:
    """The rates stay, and the report says of which commit the models are."""
    store = Store(tmp_path, "simulated", "test")
    (sample, *_) = catalog("simulated", "test")["hybrid-11"].samples
    measured = {
        "rate": 5.0,
        "interval": 0.1,
        "model": 1.0,
        "budget": sample.point.memory,
        "options": {"partition_pages": 2},
    }
    store.append(sample.point, measured, 0.1)
    assert store.models_of() is None
    done = run("models", "--scale", "test", "--results", tmp_path)
    assert done.exit_code == 0, done.output
    assert "models of 1 points" in done.output
    (found,) = store.results().values()
    assert found["rate"] == 5.0
    assert found["model"] > 100.0
    assert store.models_of()
    assert run("report", *options(tmp_path)).exit_code == 0
    text = (tmp_path / "report-simulated-test" / "report.md").read_text()
    assert f"computed for these points afterwards, at commit {store.models_of()}" in text


def test_a_report_of_no_results_says_where_it_looked_and_writes_nothing(tmp_path: Path) -> None:
    results = tmp_path / "elsewhere"
    for more in ((), ("--json",)):
        done = run("report", *options(results), *more)
        assert done.exit_code != 0
        assert str(results / "simulated-test.jsonl") in str(done.exception)
        assert "semistream experiments run all" in str(done.exception)
        assert "docs/results/simulated" in str(done.exception)
    assert not any(tmp_path.iterdir())


def test_without_results_of_its_own_a_report_is_of_the_committed_ones(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("report", "--json")
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.stdout)["claims"]) == set(catalog())
    assert "docs/results/simulated/simulated-full.jsonl" in done.stderr.replace("\n", "")
    assert not any(tmp_path.iterdir())


@pytest.mark.long
@pytest.mark.slow
def test_a_real_run_is_compared_with_the_model_of_this_machine(tmp_path: Path) -> None:
    done = run("run", "ssij-14", *options(tmp_path), "--device", "real")
    assert done.exit_code == 0, done.output
    kept = json.loads((tmp_path / "data" / "constants.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "real-test.jsonl").read_text().splitlines()]
    assert lines[0]["environment"]["constants"]["seek_seconds"] == kept["seek_seconds"] != 0.0085
    assert all(line["result"]["rate"] > 0 and line["result"]["model"] > 0 for line in lines[1:])
    reported = run("report", *options(tmp_path), "--device", "real")
    assert reported.exit_code == 0, reported.output
    text = (tmp_path / "report-real-test" / "report.md").read_text()
    assert "prices in the models, measured on this machine before the first point" in text
    assert "a fixed piece of work took up to" in text
