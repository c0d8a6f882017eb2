"""From verdicts to a page: charts, words, pictures."""
