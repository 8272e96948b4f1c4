"""The `moon-diffusers` command.

One file a command, and a command's module is imported only when that command runs: `moon-diffusers --help` must not
wait for torch. A new command is a file in this folder and a row in `COMMANDS`.

Exit codes: 0 done (and the gate passed, where there is one), 1 the gate failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

import moon_diffusers

__all__ = ["COMMANDS", "main"]

# name: (module:attribute, the line shown by `moon-diffusers --help`)
COMMANDS: dict[str, tuple[str, str]] = {
    "generate": ("moon_diffusers.cli.generate:generate", "Generate a video without and with the kernel, and compare."),
    "compare": ("moon_diffusers.cli.compare:compare", "Compare two runs, two videos or two latent files."),
    "doctor": ("moon_diffusers.cli.doctor:doctor", "Say what this machine is and which kernels would run on it."),
    "plan": ("moon_diffusers.cli.plan:plan", "Say what would be launched for a shape, without launching it."),
    "capture": ("moon_diffusers.cli.capture:capture", "Keep q, k and v of a real run's attention modules."),
    "bench": ("moon_diffusers.cli.bench:bench", "Time attention kernels side by side on this machine's GPU."),
    "reproduce-wan21": (
        "moon_diffusers.cli.reproduce_wan21:reproduce_wan21",
        "Time Wan2.1 with and without the kernel on this machine's GPU.",
    ),
    "model-timing": (
        "moon_diffusers.cli.model_timing:model_timing",
        "Model our kernels beside AITER's on one compute unit.",
    ),
    "disassemble": ("moon_diffusers.cli.disassemble:disassemble", "Disassemble a code object or one of its kernels."),
    "profile": (
        "moon_diffusers.cli.profile:profile",
        "Count what a kernel executes in the emulator; find its hot loop.",
    ),
    "trace": (
        "moon_diffusers.cli.trace:trace",
        "Write what each wavefront of a workgroup executes, for a timing model.",
    ),
    "emulator-speed": ("moon_diffusers.cli.emulator_speed:emulator_speed", "Time the emulator itself."),
}


class LazyGroup(click.Group):
    """A click group that knows its commands' names and short helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command, or None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; this package's own errors, and the system's, become one line and exit code 2."""
        try:
            return super().invoke(ctx)
        except click.ClickException:
            raise
        except KeyboardInterrupt:
            click.echo("\ninterrupted", err=True)
            raise SystemExit(130) from None
        except BrokenPipeError:
            # A reader that has seen enough, as `head`: click ends quietly.
            raise
        except MemoryError as error:
            raise BadInput(f"out of memory: {error}") from error
        except Exception as error:
            from moon_diffusers.errors import MoonError

            if isinstance(error, OSError) and not isinstance(error, MoonError):
                reason = error.strerror or str(error)
                raise BadInput(reason if error.filename is None else f"{error.filename}: {reason}") from error
            if not isinstance(error, MoonError):
                raise
            raise BadInput(str(error)) from error


class BadInput(click.ClickException):
    """An error for people: one line, exit code 2."""

    exit_code = 2


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(moon_diffusers.__version__, prog_name="moon-diffusers")
def main() -> None:
    """Attention kernels for diffusers pipelines on AMD MI300X and MI355X, and an emulator that runs them anywhere."""
