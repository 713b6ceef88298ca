//! The ioctls that make a tap device, which rustix lacks.

#![expect(unsafe_code, reason = "an ioctl hands the address of its argument to the kernel")]

use std::fs::File;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl};

/// `_IOW('T', 202, int)` and its neighbours of `linux/if_tun.h`.
const TUNSETIFF: Opcode = 0x4004_54ca;
const TUNSETPERSIST: Opcode = 0x4004_54cb;
const TUNSETOWNER: Opcode = 0x4004_54cc;
const TUNSETGROUP: Opcode = 0x4004_54ce;

const IFF_TAP: u16 = 0x0002;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const IFF_TUN_EXCL: u16 = 0x8000;

/// `struct ifreq` with the flags of its union.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// Makes a tap device that stays, in the namespace in which `tun`, /dev/net/tun, was opened. `owner` and `group` may open it
/// in addition to root; with `many_queues` it takes as many queues as the guest opens.
///
/// # Errors
/// EBUSY when a link of that name exists; else the kernel's error.
pub fn create(
    tun: &File,
    name: &str,
    many_queues: bool,
    owner: Option<u32>,
    group: Option<u32>,
) -> Result<(), Errno> {
    let mut request =
        Request { name: [0; 16], flags: IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | IFF_TUN_EXCL, rest: [0; 22] };
    if many_queues {
        request.flags |= IFF_MULTI_QUEUE;
    }
    // The last byte stays zero: the end of the name.
    request
        .name
        .get_mut(..name.len())
        .filter(|room| room.len() < 16)
        .ok_or(Errno::NAMETOOLONG)?
        .copy_from_slice(name.as_bytes());
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, which `Request` is.
    unsafe { ioctl(tun.as_fd(), Updater::<TUNSETIFF, Request>::new(&mut request))? };
    if let Some(owner) = owner {
        set::<TUNSETOWNER>(tun, owner)?;
    }
    if let Some(group) = group {
        set::<TUNSETGROUP>(tun, group)?;
    }
    set::<TUNSETPERSIST>(tun, 1)
}

fn set<const OPCODE: Opcode>(tun: &File, value: u32) -> Result<(), Errno> {
    let value = usize::try_from(value).map_err(|_| Errno::OVERFLOW)?;
    // SAFETY: these three take a number instead of an address.
    unsafe { ioctl(tun.as_fd(), IntegerSetter::<OPCODE>::new_usize(value)) }
}
