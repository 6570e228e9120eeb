"""Text that crosses a boundary: strict JSON, durations and sizes, secrets kept out of what people read."""
