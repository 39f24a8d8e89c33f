"""`deltafl.secagg.prg.add_masks` in several threads, and on a GPU, with the same bits."""
