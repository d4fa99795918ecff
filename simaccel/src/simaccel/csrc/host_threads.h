// How knowledge of finished work travels between host threads, where the program orders them.
#pragma once

namespace simaccel {
void follow_python_threads();  // once, with the GIL
}
