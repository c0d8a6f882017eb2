"""The experiments of the paper on SSIJ."""
