"""`python -m moon_diffusers.cli`: the same command for a checkout that is not installed."""

from moon_diffusers.cli import main

main(prog_name="moon-diffusers")
