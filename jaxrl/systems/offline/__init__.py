"""What learns from a data set, alone or before it goes on in a world."""
