"""From the program that saves something to its record in the log and its event at the gate."""
