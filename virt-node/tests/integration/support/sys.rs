//! A pseudo terminal, from the C library.
#![expect(unsafe_code, reason = "the C library's functions")]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Our end of a new terminal, and the path of the other.
pub(crate) fn terminal() -> (OwnedFd, String) {
    // SAFETY: the descriptor is new, and ours from here on.
    let own = unsafe {
        let own = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
        assert!(own >= 0);
        OwnedFd::from_raw_fd(own)
    };
    let mut name = [0; 64];
    // SAFETY: the descriptor is a terminal's; the name fits, or is refused.
    unsafe {
        assert_eq!(libc::grantpt(own.as_raw_fd()), 0);
        assert_eq!(libc::unlockpt(own.as_raw_fd()), 0);
        assert_eq!(libc::ptsname_r(own.as_raw_fd(), name.as_mut_ptr(), name.len()), 0);
    }
    // SAFETY: the name ends with a zero.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    (own, name.to_str().unwrap().to_owned())
}
