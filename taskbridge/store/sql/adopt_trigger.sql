-- A trigger of an adopted table.
CREATE OR REPLACE TRIGGER {trigger} {timing} ON {table}
    {each} EXECUTE FUNCTION {function}()
