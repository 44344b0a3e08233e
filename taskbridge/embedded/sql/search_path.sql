-- Which schemas unqualified names are looked up in, from the next session on.
ALTER DATABASE {name} SET search_path = {schemas}
