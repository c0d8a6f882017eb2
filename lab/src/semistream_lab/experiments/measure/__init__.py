"""From points to numbers: runs on a simulated or a real device, and the file that keeps what they found."""
