"""The judges: what turns items into verdicts, offline or through a language model."""
