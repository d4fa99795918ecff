#pragma once

namespace simaccel {
void install_hooks();
}
