"""Local programs as pods: started, watched and stopped; the reaper ends what outlives the activator."""
