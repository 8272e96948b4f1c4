"""The HIP runtime by ctypes: library, devices, code objects, launches. Never imports torch."""
