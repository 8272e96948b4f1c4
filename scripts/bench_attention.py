"""Time attention kernels side by side: the same as `moon-diffusers bench`, which see."""

from moon_diffusers.cli.bench import bench

if __name__ == "__main__":
    bench()
