-- The tail's worker hears of the commits that a source announces.
LISTEN taskbridge
