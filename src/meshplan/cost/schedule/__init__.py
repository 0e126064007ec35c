"""Pipeline schedules: closed forms for the grid and exact simulation for the finalists."""
