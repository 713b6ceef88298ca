//! A global allocator that counts what each thread holds, so that a test can bound what one image makes us allocate.

#![expect(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts per thread; put `#[global_allocator] static A: Counting = Counting;` into the test binary.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    static NOW: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
    static BASE: Cell<i64> = const { Cell::new(0) };
}

fn add(bytes: i64) {
    let now = NOW.get() + bytes;
    NOW.set(now);
    if now > PEAK.get() {
        PEAK.set(now);
    }
}

/// Measures from here on, in this thread.
pub fn reset_peak() {
    BASE.set(NOW.get());
    PEAK.set(NOW.get());
}

/// The most bytes this thread held at once since [`reset_peak`], beyond what it held then.
pub fn peak() -> u64 {
    u64::try_from(PEAK.get() - BASE.get()).unwrap_or(0)
}

// SAFETY: every call goes to the system's allocator unchanged; the counters are plain thread-local cells without
// destructors, so touching them allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as i64);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as i64);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        add(-(layout.size() as i64));
        // SAFETY: `ptr` came from `System` with this `layout`, as the caller promises.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        add(new_size as i64 - layout.size() as i64);
        // SAFETY: `ptr` came from `System` with this `layout`, as the caller promises.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}
