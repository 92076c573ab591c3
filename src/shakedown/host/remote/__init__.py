"""Another machine as a `Host`: an agent of ours at the far end of one connection, nothing installed there."""
