"""`python -m moon_diffusers`: the command line, for an environment whose scripts are not on the PATH."""

from moon_diffusers.cli import main

if __name__ == "__main__":
    main(prog_name="moon-diffusers")
