#pragma once
#include <pybind11/pybind11.h>

namespace simaccel {
void bind_collectives(pybind11::module_&);
void bind_dry(pybind11::module_&);
}  // namespace simaccel
