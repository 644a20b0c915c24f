# The page's JSON: every workload, then one of them in full.
PAGE=${PAGE:-http://127.0.0.1:9464}
curl -fsS "$PAGE/api/fleet"
echo
curl -fsS "$PAGE/api/workloads/prod%2Fllm%2Fchat-70b"
