# Publish a sample, then read the commands there are. kcat is built on librdkafka: set the partitioner.
BROKERS=${HARMONY_BROKERS:-127.0.0.1:9092}
WORKLOAD=${1:-prod/llm/chat-70b}
printf '%s|{"v":1,"kind":"requests","workload":"%s","source":"shell","values":{"requests_started_total":1}}\n' \
    "$WORKLOAD" "$WORKLOAD" |
    kcat -b "$BROKERS" -P -K '|' -t harmony.telemetry.requests -X partitioner=murmur2_random
kcat -b "$BROKERS" -C -q -e -t harmony.commands -f '%k %s\n'
