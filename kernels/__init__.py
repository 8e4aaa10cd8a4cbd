"""Triton kernels, each beside its torch oracle. Imports nothing of ours."""
