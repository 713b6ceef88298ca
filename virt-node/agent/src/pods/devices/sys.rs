//! The calls of bpf(2) about the programs of a control group that decide about devices.
//!
//! Not here: what a program allows.
#![expect(unsafe_code, reason = "neither rustix nor libc has a safe bpf(2)")]

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::{from_mut, null_mut};

use super::program::{self, Instruction};

/// Programs that a control group has at most (`BPF_CGROUP_MAX_PROGS` of the kernel).
const PROGRAMS_MAX: usize = 64;
/// Instructions that a program has at most (`BPF_COMPLEXITY_LIMIT_INSNS` of the kernel).
const INSTRUCTIONS_MAX: usize = 1_000_000;
/// These programs call no function of the kernel, which accepts any licence then.
const LICENCE: &CStr = c"Apache-2.0";

/// `BPF_PROG_TYPE_CGROUP_DEVICE`.
const PROGRAM_TYPE: u32 = 15;
/// `BPF_CGROUP_DEVICE`.
const ATTACH_TYPE: u32 = 6;
/// `BPF_F_ALLOW_MULTI`: the group has several programs, which all have to allow a device.
pub(super) const MULTI: u32 = 1 << 1;
/// `BPF_F_REPLACE`.
const REPLACE: u32 = 1 << 2;

/// `BPF_PROG_LOAD` and so on, of `enum bpf_cmd`.
const LOAD: libc::c_int = 5;
const ATTACH: libc::c_int = 8;
const OPEN: libc::c_int = 13;
const INFO: libc::c_int = 15;
const QUERY: libc::c_int = 16;

/// Name of a program.
pub(super) type Name = [u8; 16];

#[repr(C)]
struct Query {
    group: RawFd,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    ids: *mut u32,
    count: u32,
    unused: u32,
    /// Up to the group's revision, which kernels that have it write here.
    rest: [u64; 4],
}

#[repr(C)]
struct Open {
    id: u32,
    next: u32,
    flags: u32,
}

#[repr(C)]
struct Describe {
    program: RawFd,
    length: u32,
    info: *mut Info,
}

/// The beginning of `struct bpf_prog_info`.
#[repr(C)]
struct Info {
    program_type: u32,
    id: u32,
    tag: [u8; 8],
    machine_length: u32,
    /// Bytes of the instructions.
    length: u32,
    machine: *mut u8,
    instructions: *mut Instruction,
    load_time: u64,
    user: u32,
    maps_count: u32,
    maps: *mut u32,
    name: Name,
}

#[repr(C)]
struct Load {
    program_type: u32,
    count: u32,
    instructions: *const Instruction,
    licence: *const libc::c_char,
    log_level: u32,
    log_size: u32,
    log: *mut u8,
    version: u32,
    flags: u32,
    name: Name,
    interface: u32,
    attach_type: u32,
}

#[repr(C)]
struct Attach {
    group: RawFd,
    program: RawFd,
    attach_type: u32,
    flags: u32,
    replaced: RawFd,
    relative: u32,
}

/// Calls bpf(2).
///
/// # Safety
/// `attributes` is the structure of the command, and its pointers lead to as much memory as it names.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_long> {
    // SAFETY: the structure is valid and its size is given; the caller vouches for its content.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, command, from_mut(attributes), size_of::<T>()) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// The descriptor that a call answered with.
fn descriptor(answer: libc::c_long) -> io::Result<OwnedFd> {
    let number = RawFd::try_from(answer).map_err(io::Error::other)?;
    // SAFETY: the kernel made it for this call, so it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Ids of the programs that are attached to a group itself, and the flags with which they are.
///
/// # Errors
/// The kernel's error.
pub(super) fn programs(group: impl AsFd) -> io::Result<(u32, Vec<u32>)> {
    let mut ids = vec![0; PROGRAMS_MAX];
    let mut query = Query {
        group: group.as_fd().as_raw_fd(),
        attach_type: ATTACH_TYPE,
        query_flags: 0,
        attach_flags: 0,
        ids: ids.as_mut_ptr(),
        count: u32::try_from(PROGRAMS_MAX).map_err(io::Error::other)?,
        unused: 0,
        rest: [0; 4],
    };
    // SAFETY: the structure is BPF_PROG_QUERY's, and `ids` has room for `count`.
    unsafe { bpf(QUERY, &mut query) }?;
    ids.truncate(usize::try_from(query.count).map_err(io::Error::other)?);
    Ok((query.attach_flags, ids))
}

/// The program with this id.
///
/// # Errors
/// The kernel's error: ENOENT when there is none.
pub(super) fn open(id: u32) -> io::Result<OwnedFd> {
    // SAFETY: the structure is BPF_PROG_GET_FD_BY_ID's and has no pointers.
    let answer = unsafe { bpf(OPEN, &mut Open { id, next: 0, flags: 0 }) }?;
    descriptor(answer)
}

/// Name and instructions of a program; `None`: the kernel does not give them as they were loaded.
///
/// # Errors
/// The kernel's error.
pub(super) fn read(program: impl AsFd) -> io::Result<Option<(Name, Vec<Instruction>)>> {
    let program = program.as_fd().as_raw_fd();
    let bytes = describe(program, &mut [])?.length;
    let count = usize::try_from(bytes).map_err(io::Error::other)? / size_of::<Instruction>();
    if count > INSTRUCTIONS_MAX {
        return Err(io::Error::other("the program has more instructions than the kernel allows"));
    }
    let mut instructions = vec![Instruction::default(); count];
    let info = describe(program, &mut instructions)?;
    let given = count > 0
        && !info.instructions.is_null()
        && info.length == bytes
        && !program::is_blinded(&instructions);
    Ok(given.then_some((info.name, instructions)))
}

/// The kernel's description of a program. Its instructions are written to `instructions`, as many as there is room for.
fn describe(program: RawFd, instructions: &mut [Instruction]) -> io::Result<Info> {
    let mut info = Info {
        program_type: 0,
        id: 0,
        tag: [0; 8],
        machine_length: 0,
        length: u32::try_from(size_of_val(instructions)).map_err(io::Error::other)?,
        machine: null_mut(),
        instructions: instructions.as_mut_ptr(),
        load_time: 0,
        user: 0,
        maps_count: 0,
        maps: null_mut(),
        name: Name::default(),
    };
    let length = u32::try_from(size_of::<Info>()).map_err(io::Error::other)?;
    // SAFETY: the structures are BPF_OBJ_GET_INFO_BY_FD's; `instructions` has room for `length` bytes, and the other
    // arrays are given as empty.
    unsafe { bpf(INFO, &mut Describe { program, length, info: from_mut(&mut info) }) }?;
    Ok(info)
}

/// Has the kernel check a program. It lives as long as it is open or attached.
///
/// # Errors
/// The kernel's error.
pub(super) fn load(instructions: &[Instruction], name: Name) -> io::Result<OwnedFd> {
    let mut load = Load {
        program_type: PROGRAM_TYPE,
        count: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        instructions: instructions.as_ptr(),
        licence: LICENCE.as_ptr(),
        log_level: 0,
        log_size: 0,
        log: null_mut(),
        version: 0,
        flags: 0,
        name,
        interface: 0,
        attach_type: 0,
    };
    // SAFETY: the structure is BPF_PROG_LOAD's; `instructions` has `count`, and the licence its end.
    let answer = unsafe { bpf(LOAD, &mut load) }?;
    descriptor(answer)
}

/// Attaches a program to a group with `flags`. Where a group has several ([`MULTI`]), it takes the place of `replaced`.
///
/// # Errors
/// The kernel's error: ENOENT when `replaced` is not attached any more.
pub(super) fn attach(
    group: impl AsFd,
    program: impl AsFd,
    flags: u32,
    replaced: Option<&OwnedFd>,
) -> io::Result<()> {
    let replaced = replaced.filter(|_| flags & MULTI != 0);
    let mut attach = Attach {
        group: group.as_fd().as_raw_fd(),
        program: program.as_fd().as_raw_fd(),
        attach_type: ATTACH_TYPE,
        flags: if replaced.is_some() { flags | REPLACE } else { flags },
        replaced: replaced.map_or(0, AsRawFd::as_raw_fd),
        relative: 0,
    };
    // SAFETY: the structure is BPF_PROG_ATTACH's and has no pointers.
    unsafe { bpf(ATTACH, &mut attach) }.map(drop)
}
