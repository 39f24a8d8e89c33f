"""All injected leaks: importing a module of them puts them on the list."""

import leaks_behind_covers  # noqa: F401
import leaks_by_devices  # noqa: F401
import leaks_by_servers  # noqa: F401
import leaks_in_boxes  # noqa: F401
import leaks_in_fields  # noqa: F401
import leaks_in_files  # noqa: F401
import leaks_in_masks  # noqa: F401
import leaks_in_membership  # noqa: F401
import leaks_in_noise  # noqa: F401
import leaks_in_parameters  # noqa: F401
import leaks_in_reasons  # noqa: F401
import leaks_in_searches  # noqa: F401
import leaks_in_secrets  # noqa: F401
import leaks_in_signatures  # noqa: F401
import leaks_out_of_turn  # noqa: F401
import leaks_over_rounds  # noqa: F401
from leaks import LEAKS

__all__ = ["LEAKS"]
