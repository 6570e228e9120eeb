"""Schedules, which enqueue a job at each of their fire times: the times, the decisions and the events. All of it is pure."""
