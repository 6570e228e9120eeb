"""The clients of Kafka that the store, the sink and a redrive share, their errors, and the events of a consumer group."""
