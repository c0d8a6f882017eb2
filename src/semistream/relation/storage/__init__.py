"""Files on disk other than pages: how they are written and sealed, and the manifests that list them."""
