"""Triton kernels, each next to its torch oracle. Imports nothing of ours."""
