"""The laboratory of semistream: the papers' experiments, benchmarks, conformance checks, and their workloads.

========================  ============================================================================
experiments               the evaluations of the five papers as data: measured, judged, reported
benchmarks                what the commands of ``semistream bench`` run, and the engines compared with
conformance               checks that every join must pass; authors of joins run them
workloads                 streams and master tables that only measurements need
cli                       ``semistream bench`` and ``semistream experiments``
========================  ============================================================================

The product never imports it.
"""

__version__ = "0.2.0"
