"""What the emulator offers beyond HIP: its options, the report of a launch, traces, disassembly and the hot loop.

Nothing that serves attention imports this package; it is for tests, the timing model and the command line.
"""

from moon_diffusers.emulator.disassembly import Instruction, Listing, disassemble
from moon_diffusers.emulator.hot_loop import HotLoop, hot_loops
from moon_diffusers.emulator.options import DEFAULTS, emulator_library, emulator_options
from moon_diffusers.emulator.report import Counts, Finding, Report
from moon_diffusers.emulator.trace import Trace, TraceTable, read_table, read_trace

__all__ = [
    "DEFAULTS",
    "Counts",
    "Finding",
    "HotLoop",
    "Instruction",
    "Listing",
    "Report",
    "Trace",
    "TraceTable",
    "disassemble",
    "emulator_library",
    "emulator_options",
    "hot_loops",
    "read_table",
    "read_trace",
]
