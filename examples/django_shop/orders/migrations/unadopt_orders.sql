SET LOCAL lock_timeout = '100ms';

DROP TRIGGER IF EXISTS "taskbridge_orders_delete" ON public.orders_order;

DROP TRIGGER IF EXISTS "taskbridge_orders_insert" ON public.orders_order;

DROP TRIGGER IF EXISTS "taskbridge_orders_truncate" ON public.orders_order;

DROP TRIGGER IF EXISTS "taskbridge_orders_update" ON public.orders_order;

DROP FUNCTION IF EXISTS "taskbridge"."adopted_orders"();

UPDATE "taskbridge".adopted SET ended_at = now() WHERE source = 'orders';

