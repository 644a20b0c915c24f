"""The Kafka that everything else talks to: an embedded broker, topics and rights, readers, operators' words."""
