"""Dashboards, rules and configuration for Prometheus and Grafana; nothing here runs in a worker."""
