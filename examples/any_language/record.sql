-- Two records in your own transaction. No event is needed: workers find them about 0.2 s after the commit.
BEGIN;
SELECT taskbridge.record('invoices', 'acme', 'sql-1', '{"amount": "12.50"}');
SELECT taskbridge.record('invoices', 'acme', 'sql-2', jsonb_build_object('amount', '7.00'));
COMMIT;
