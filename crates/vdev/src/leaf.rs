//! One open device: its queue, counters and health.
