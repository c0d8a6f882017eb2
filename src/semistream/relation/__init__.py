"""R on disk: device → pages → index → relation."""
