"""The command line: one file per command. Heavy modules are imported only when a command runs."""

from vaescope.cli.main import dispatch as dispatch
from vaescope.cli.main import main as main
