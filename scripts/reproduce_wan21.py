"""Time Wan2.1 with and without the kernel on this machine's GPU: the same as `moon-diffusers reproduce-wan21`, which see."""

from moon_diffusers.cli.reproduce_wan21 import reproduce_wan21

if __name__ == "__main__":
    reproduce_wan21()
