"""After training: temperature and vector scaling, and conformal prediction sets."""

from mipl.calibration.conformal import Conformal, fit_conformal
from mipl.calibration.model import Calibration, calibrate
from mipl.calibration.scaling import Scaling, fit_scaling

__all__ = ["Calibration", "Conformal", "Scaling", "calibrate", "fit_conformal", "fit_scaling"]
