"""What Ferrule reports to other systems: traces for OpenTelemetry, metrics for Prometheus, lines for logs.

All of it watches: a subscriber of the engine's events. Without configuration nothing is imported and nothing runs.
"""
