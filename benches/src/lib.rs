//! Benchmarks of the promises in SPECIFICATION.md, each against a named peer in the same run.
