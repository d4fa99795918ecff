// How knowledge of finished work travels between host threads, where the program orders them.
#pragma once

namespace simaccel {
void follow_python_threads();  // once, with the GIL
void note_thread_of_device(int device);     // each thread's first device
void let_autograd_threads_finish();      // with the GIL, before Python ends
}
