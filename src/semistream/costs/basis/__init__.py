"""Shared parts of cost models: setting, costs, popularity of keys, and steady states of queues and caches."""
