"""What all rooms use: names and their limits, texts, histograms."""
