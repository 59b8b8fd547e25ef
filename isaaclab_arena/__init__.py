"""Isaac Lab Arena on MuJoCo: evaluate robot policies from one job file, on every rank."""
