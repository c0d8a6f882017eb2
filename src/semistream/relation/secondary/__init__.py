"""Secondary indexes of R: covering copies in the order of other columns, which every version keeps in step."""
