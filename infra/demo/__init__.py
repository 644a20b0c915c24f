"""`harmony run`: a broker, workers and a simulated or recorded fleet, watched live and summed up."""
