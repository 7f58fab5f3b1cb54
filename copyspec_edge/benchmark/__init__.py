"""What the benchmarks measure with: traces to decode again, and the drafters to compare with."""
