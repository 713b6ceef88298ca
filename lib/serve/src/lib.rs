//! What every daemon has: HTTPS, probes, metrics, logs, shutdown.
