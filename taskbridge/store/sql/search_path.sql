-- This role's unqualified names are those of `public`, from its next session on.
ALTER ROLE CURRENT_USER IN DATABASE {database} SET search_path = public
