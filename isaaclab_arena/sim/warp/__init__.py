"""Physics and cameras by MuJoCo-Warp; the only room that imports Warp."""
