"""Private Δ-FL: federated learning for the worst-served devices, by sums alone.

    deltafl.secagg      one session of secure aggregation; needs no other layer
    deltafl.protocol    a round of private Δ-FL over secure sums
    deltafl.fl          models, data, local training, strategies, metrics
    deltafl.sim         the command `deltafl`: simulator, records, audits, attacks, benchmarks

The layers import downwards only: sim, fl, protocol, secagg. The last two need what the distribution
itself requires; fl and sim need its extra `sim`.
"""

from typing import Final

__version__: Final = "0.2.0"
