"""From measured numbers to verdicts: claims, their judges, and the reasons for what fails."""
