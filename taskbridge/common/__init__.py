"""What all rooms use: names, limits, run keys, texts, histograms, lost connections, lazy imports, tracing."""
