PROFILES = "profiles.json"
