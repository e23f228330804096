"""Checks of reports and result files that apply to every experiment."""

from tests.papers.planted import judge
from vaescope.runs.files import read_rows, write_rows
from vaescope_papers.results import from_rows, to_row


def report_parts(experiment, results, settings=None):
    """Claims, comparisons, tables, figures and animations."""
    settings = settings or experiment.quick
    parts = (experiment.comparisons, experiment.tables, experiment.figures, experiment.animations)
    return judge(experiment, results, settings), *(part(results, settings) for part in parts)


def check_incomplete_results(experiment, results, settings=None):
    """A report can be made from any single result, and from all results but one."""
    for index in range(len(results)):
        report_parts(experiment, results[index : index + 1], settings)
        report_parts(experiment, [*results[:index], *results[index + 1 :]], settings)


def stored_and_read(experiment, results, folder):
    """The results after a round trip through a Parquet file."""
    write_rows(folder / "results.parquet", [to_row(result) for result in results])
    return from_rows(read_rows(folder / "results.parquet"), experiment.cell_type, experiment.measured_type).finished
