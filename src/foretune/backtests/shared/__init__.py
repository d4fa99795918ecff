"""Measurements that people made with `foretune bench --share`, and the plan judged on them."""
