"""The store of a Kafka consumer group: records of topics become jobs, which exist in the memory of one supervisor."""
