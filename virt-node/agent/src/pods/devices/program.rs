//! Programs of control groups that decide about devices (BPF_PROG_TYPE_CGROUP_DEVICE), as instructions: one that allows
//! some block devices to be read and written in addition to what another program allows.
//!
//! ```text
//! head: type and access ── no block device, or more than reading and writing ──┐
//! device: major, minor ─── equal ─► allow                                      │
//! device: …                                                                    │
//! the other program, unchanged  ◄──────────────────────────────────────────────┘
//! ```
//!
//! Jumps are relative, so the other program works behind any head, and can be taken out again. Register 1, its argument,
//! stays as it is. Not here: where programs are attached.

/// Major and minor number of a block device.
pub(super) type Device = (u32, u32);

/// An instruction: `struct bpf_insn` of linux/bpf.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Instruction {
    code: u8,
    /// Destination in the lower half, source in the upper one.
    registers: u8,
    /// Of a jump, from the next instruction; of a load, into the structure.
    offset: i16,
    value: i32,
}

/// `r2 = *(u32 *)(r1 + offset)`.
const LOAD: u8 = 0x61;
/// `r2 = r3`.
const MOVE: u8 = 0xbf;
/// `r2 = value`.
const SET: u8 = 0xb7;
/// `r2 &= value`.
const AND: u8 = 0x57;
/// `r2 >>= value`.
const SHIFT: u8 = 0x77;
/// `if r2 != value goto offset`.
const UNLESS: u8 = 0x55;
/// `return r0`.
const EXIT: u8 = 0x95;

/// Type of a block device, in the lower half of the access (`BPF_DEVCG_DEV_BLOCK`).
const BLOCK: i32 = 1;
/// The lower half of the access.
const TYPE: i32 = 0xffff;
/// Everything but reading and writing in the upper half (`BPF_DEVCG_ACC_READ`, `BPF_DEVCG_ACC_WRITE`).
const BUT_READ_WRITE: i32 = 0xffff & !6;

/// Instructions of the head.
const HEAD: usize = 9;
/// Instructions of a device.
const DEVICE: usize = 4;
/// The head's first jump.
const JUMP: usize = 3;

/// The kernel's own register (`BPF_REG_AX`), which no program may use.
const KERNEL: u8 = 11;

/// Whether the kernel has hidden the constants of a program behind its own register (`net.core.bpf_jit_harden`).
pub(super) fn is_blinded(program: &[Instruction]) -> bool {
    program.iter().any(|one| one.registers & 15 == KERNEL || one.registers >> 4 == KERNEL)
}

const fn instruction(code: u8, registers: u8, offset: i16, value: i32) -> Instruction {
    Instruction { code, registers, offset, value }
}

/// The program that allows `devices` and all that `original` allows; `None`: the devices are too many, or have numbers that
/// no device has.
pub(super) fn extended(devices: &[Device], original: &[Instruction]) -> Option<Vec<Instruction>> {
    if devices.is_empty() {
        return Some(original.to_vec());
    }
    let end = HEAD + DEVICE * devices.len();
    let to_end = |place: usize| i16::try_from(end - place - 1).ok();
    let mut program = vec![
        instruction(LOAD, 0x12, 0, 0),
        instruction(MOVE, 0x23, 0, 0),
        instruction(AND, 0x02, 0, TYPE),
        instruction(UNLESS, 0x02, to_end(JUMP)?, BLOCK),
        instruction(SHIFT, 0x03, 0, 16),
        instruction(AND, 0x03, 0, BUT_READ_WRITE),
        instruction(UNLESS, 0x03, to_end(6)?, 0),
        instruction(LOAD, 0x14, 4, 0),
        instruction(LOAD, 0x15, 8, 0),
    ];
    for (major, minor) in devices {
        program.extend([
            instruction(UNLESS, 0x04, 3, i32::try_from(*major).ok()?),
            instruction(UNLESS, 0x05, 2, i32::try_from(*minor).ok()?),
            instruction(SET, 0x00, 0, 1),
            instruction(EXIT, 0, 0, 0),
        ]);
    }
    program.extend_from_slice(original);
    Some(program)
}

/// The devices and the original of an extended program; any other program is an original.
pub(super) fn parts(program: &[Instruction]) -> (Vec<Device>, &[Instruction]) {
    split(program).unwrap_or_else(|| (Vec::new(), program))
}

fn split(program: &[Instruction]) -> Option<(Vec<Device>, &[Instruction])> {
    let end = JUMP + 1 + usize::try_from(program.get(JUMP)?.offset).ok()?;
    let (ours, original) = program.split_at_checked(end)?;
    let device = |block: &[Instruction]| match block {
        [major, minor, ..] => Some((u32::try_from(major.value).ok()?, u32::try_from(minor.value).ok()?)),
        _ => None,
    };
    let devices: Vec<Device> = ours.get(HEAD..)?.chunks(DEVICE).map(device).collect::<Option<_>>()?;
    // Another program may have a jump there.
    (!devices.is_empty() && extended(&devices, original)? == program).then_some((devices, original))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Character device.
    const CHARACTER: u32 = 2;
    const MKNOD: u32 = 1;
    const READ: u32 = 2;
    const WRITE: u32 = 4;

    /// A program as runc makes it, in instructions of 32 bits: `c 1:3 rwm` and `b 253:7 r` are allowed.
    pub(in crate::pods::devices) fn of_runtime() -> Vec<Instruction> {
        vec![
            instruction(LOAD, 0x12, 0, 0),
            instruction(0x54, 0x02, 0, TYPE),
            instruction(LOAD, 0x13, 0, 0),
            instruction(0x74, 0x03, 0, 16),
            instruction(LOAD, 0x14, 4, 0),
            instruction(LOAD, 0x15, 8, 0),
            instruction(UNLESS, 0x02, 4, 2),
            instruction(UNLESS, 0x04, 3, 1),
            instruction(UNLESS, 0x05, 2, 3),
            instruction(0xb4, 0x00, 0, 1),
            instruction(EXIT, 0, 0, 0),
            instruction(UNLESS, 0x02, 7, 1),
            instruction(0xbc, 0x31, 0, 0),
            instruction(0x54, 0x01, 0, 2),
            instruction(0x5d, 0x31, 4, 0),
            instruction(UNLESS, 0x04, 3, 253),
            instruction(UNLESS, 0x05, 2, 7),
            instruction(0xb4, 0x00, 0, 1),
            instruction(EXIT, 0, 0, 0),
            instruction(0xb4, 0x00, 0, 0),
            instruction(EXIT, 0, 0, 0),
        ]
    }

    /// Runs a program as the kernel does: whether it allows the access.
    fn allows(program: &[Instruction], kind: u32, access: u32, (major, minor): Device) -> bool {
        let context = [(access << 16) | kind, major, minor];
        let mut registers: [Option<u64>; 11] = [None; 11];
        let mut next = 0;
        loop {
            let Instruction { code, registers: pair, offset, value } = program[next];
            let (to, from) = (usize::from(pair & 15), usize::from(pair >> 4));
            let value = u64::try_from(value).unwrap();
            next += 1;
            let mut jump = |taken: bool| {
                if taken {
                    next += usize::try_from(offset).unwrap();
                }
            };
            match code {
                LOAD => {
                    assert_eq!(
                        (from, registers[1]),
                        (1, None),
                        "a load by another register than the argument"
                    );
                    registers[to] = Some(u64::from(context[usize::try_from(offset).unwrap() / 4]));
                }
                MOVE | 0xbc => registers[to] = Some(registers[from].unwrap()),
                SET | 0xb4 => registers[to] = Some(value),
                AND | 0x54 => registers[to] = Some(registers[to].unwrap() & value),
                SHIFT | 0x74 => registers[to] = Some(registers[to].unwrap() >> value),
                UNLESS => jump(registers[to].unwrap() != value),
                0x5d => jump(registers[to].unwrap() != registers[from].unwrap()),
                EXIT => return registers[0].unwrap() != 0,
                other => panic!("instruction {other:#x}"),
            }
        }
    }

    #[test]
    fn plugged_devices_are_allowed_in_addition_to_those_of_the_runtime() {
        let original = of_runtime();
        let plugged = extended(&[(7, 3), (253, 7), (8, 16)], &original).unwrap();
        for (kind, access, device, before, after) in [
            (CHARACTER, READ | WRITE, (1, 3), true, true),
            (CHARACTER, MKNOD, (1, 3), true, true),
            (CHARACTER, READ, (7, 3), false, false),
            (1, READ, (7, 3), false, true),
            (1, READ | WRITE, (7, 3), false, true),
            (1, MKNOD, (7, 3), false, false),
            (1, READ | MKNOD, (7, 3), false, false),
            (1, WRITE, (7, 4), false, false),
            (1, WRITE, (8, 3), false, false),
            (1, WRITE, (8, 16), false, true),
            // One that the runtime allows to be read only.
            (1, READ, (253, 7), true, true),
            (1, WRITE, (253, 7), false, true),
            (1, READ, (253, 8), false, false),
        ] {
            let case = format!("type {kind}, access {access}, device {device:?}");
            assert_eq!(allows(&original, kind, access, device), before, "{case}, before");
            assert_eq!(allows(&plugged, kind, access, device), after, "{case}, after");
        }
    }

    #[test]
    fn the_original_is_taken_out_as_it_was() {
        let original = of_runtime();
        assert_eq!(parts(&original), (vec![], &original[..]));
        assert_eq!(extended(&[], &original).unwrap(), original);
        let devices: Vec<Device> = (0..300).map(|number| (259, number)).collect();
        for count in [1, 2, 300] {
            let program = extended(&devices[..count], &original).unwrap();
            assert_eq!(parts(&program), (devices[..count].to_vec(), &original[..]));
        }
        // A program that ends inside of its head, one with another head, and none.
        let program = extended(&devices[..2], &original).unwrap();
        assert_eq!(parts(&program[..HEAD]), (vec![], &program[..HEAD]));
        let mut other = program.clone();
        other[5].value = 0xffff;
        assert_eq!(parts(&other), (vec![], &other[..]));
        assert_eq!(parts(&[]), (vec![], &[][..]));
    }

    #[test]
    fn a_program_with_the_kernels_register_is_blinded() {
        assert!(!is_blinded(&of_runtime()) && !is_blinded(&[]));
        for registers in [0x0b, 0xb2] {
            let mut program = of_runtime();
            program.push(instruction(MOVE, registers, 0, 0));
            assert!(is_blinded(&program), "{registers:#x}");
        }
    }

    #[test]
    fn more_devices_than_a_jump_reaches_are_refused() {
        let devices = vec![(7, 1); 8200];
        assert!(extended(&devices, &of_runtime()).is_none());
        assert!(extended(&[(u32::MAX, 0)], &of_runtime()).is_none());
    }
}
