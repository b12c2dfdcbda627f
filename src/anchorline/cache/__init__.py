"""The cache: segment tree, restore chains, planner, pins, eviction, and the host store."""
