-- READ COMMITTED, whatever the database's default is: each statement sees what those before it have waited for.
BEGIN ISOLATION LEVEL READ COMMITTED
