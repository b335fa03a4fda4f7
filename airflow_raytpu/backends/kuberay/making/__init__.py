"""The parts that a manifest is made of, and the rules that it must keep. All pure."""
