"""Relations that follow a Delta or Iceberg table: each commit of the table becomes one version of R."""
