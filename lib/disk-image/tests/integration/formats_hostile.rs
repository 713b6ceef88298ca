//! VMDK, VHD, VHDX and VDI that ask for what is never done, or lie: every refusal by an image made for it (a module per
//! format), mutants by the thousand, what survives mutation read as qemu-img reads it, and disks as large as any.
//! qcow2 has `qcow2_hostile`; transfers of mutants are in `transfer::hostile`.

mod huge;
mod mutants;
mod refused;
mod vdi;
mod vhd;
mod vhdx;
mod vmdk;
