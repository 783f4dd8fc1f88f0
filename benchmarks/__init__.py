"""Measurements that stand behind the README's numbers; each module runs as ``python -m benchmarks.<name>``."""
