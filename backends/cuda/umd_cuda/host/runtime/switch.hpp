// Leaving one stack for another: assembly on x86-64, the C library's contexts elsewhere.
#pragma once
#include "runtime.hpp"

#if defined(__x86_64__) && !defined(UMD_UCONTEXT)
__asm__(R"(
.text
.hidden umd_switch
.globl umd_switch
.type umd_switch,@function
umd_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  popq %rcx
  jmp *%rcx
.size umd_switch,.-umd_switch
)");
extern "C" void umd_switch(void** save, void* load);
static void* fresh_context(char* top, void (*function)()) {
  void** slot = reinterpret_cast<void**>(top);
  *--slot = nullptr;
  *--slot = reinterpret_cast<void*>(function);
  return slot - 6;
}
#else
#include <ucontext.h>
static void umd_switch(void** save, void* load) {
  ucontext_t self;
  *save = &self;
  swapcontext(&self, static_cast<ucontext_t*>(load));
}
static void* fresh_context(char* top, void (*function)()) {
  constexpr size_t room = (sizeof(ucontext_t) + 79) / 64 * 64;  // the first context lives at the top of its own stack
  char* base = top - umd::stack_size / 2;
  ucontext_t* context = reinterpret_cast<ucontext_t*>(top - room);
  getcontext(context);
  context->uc_stack.ss_sp = base;
  context->uc_stack.ss_size = size_t(top - room - base);
  context->uc_link = nullptr;
  makecontext(context, function, 0);
  return context;
}
#endif
