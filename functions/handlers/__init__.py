"""The deployed Lambda functions, one module each, and what they share (telemetry, tracing)."""
