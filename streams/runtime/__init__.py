"""Kafka and Faust underneath the stages: transport, lanes, commits and restore. The only place that imports Faust."""
