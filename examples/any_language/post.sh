#!/bin/sh
# Two records in one transaction, with curl, which waits as long as Retry-After says and tries again.
# Set EVENTS_URL, such as http://localhost:8000/events, and EVENTS_TOKEN.
set -eu
curl --silent --show-error --fail-with-body --retry 5 --max-time 30 \
  --header "Authorization: Bearer $EVENTS_TOKEN" --json @- "$EVENTS_URL" <<'JSON'
[
  {"source": "invoices", "tenant": "acme", "key": "sh-1", "document": {"amount": "12.50"}},
  {"source": "invoices", "tenant": "acme", "key": "sh-2", "document": {"amount": "7.00"}}
]
JSON
