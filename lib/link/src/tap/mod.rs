//! Tap devices, which the kernel makes by ioctl on /dev/net/tun and not by netlink.

mod sys;

pub use sys::create;
