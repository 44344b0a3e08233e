-- Write or update one invoice. No row: it is there with this very document, and stays untouched.
INSERT INTO invoices (tenant, number, document)
VALUES (%(tenant)s, %(number)s, %(document)s::jsonb)
ON CONFLICT (tenant, number) DO UPDATE
SET document = excluded.document
WHERE invoices.document IS DISTINCT FROM excluded.document
RETURNING revision
