"""What every join must do, as checks that run over the whole registry; whoever adds a join runs them too."""
