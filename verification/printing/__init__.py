"""What prints parts of pages from the code, the schema and the model."""
