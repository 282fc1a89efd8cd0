"""Steering, rated by a judge: AxBench's three rubrics on the texts that the task `steering` writes."""
