"""What lies on disk beside pages: files, their seals, and the manifests that name them."""
