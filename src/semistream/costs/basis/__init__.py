"""What cost models share: the setting, the prices, the popularity of keys, and steady states of queues and caches."""
